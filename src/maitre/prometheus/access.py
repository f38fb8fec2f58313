"""How a Prometheus API is reached: its address, who asks, and how far the other side is trusted."""

from __future__ import annotations

import base64
import ssl
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from maitre.errors import InputError, UsageError

TIMEOUT_S = 60.0
"""For one answer; Prometheus gives a query up after 120 s (`--query.timeout`), most gateways after 30 s or 60 s."""
TENANT_HEADER = "X-Scope-OrgID"
"""Of Mimir, Cortex and Loki; Prometheus itself ignores it."""
_WRITE_URL = "write https://HOST:PORT, with the path before /api/v1 if there is one"


@dataclass(frozen=True, slots=True)
class Access:
    """Who asks, and how; secrets are kept out of its representation."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Sent with every request, after the others."""
    user: str | None = None
    """For basic authentication; counts before one in the address."""
    password: str | None = field(default=None, repr=False)
    bearer_token: str | None = field(default=None, repr=False)
    bearer_token_file: Path | None = None
    """Read before every request, since such tokens are renewed in place."""
    tenant: str | None = None
    ca_file: Path | None = None
    """The only authorities that are trusted, PEM; None: those of the system."""
    client_cert: Path | None = None
    """PEM; may hold the key too."""
    client_key: Path | None = None
    insecure: bool = False
    """Whether any certificate will do."""
    timeout_s: float = TIMEOUT_S
    """For one answer."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a Prometheus API, taken apart."""

    root: str
    """What stands before `/api/v1`: no login, no query, no slash at the end. Fit to be shown."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    params: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The query of the address, such as Thanos' `dedup=true`: sent with every request."""

    @property
    def host(self) -> str:
        """The host alone."""
        return urllib.parse.urlsplit(self.root).hostname or ""


def read_address(base_url: str) -> Address:
    """Take an address apart.

    Raises:
        UsageError: no http(s) URL with a host.
    """
    text = base_url.strip()
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, for one
        usable = False
    if not usable or any(character <= " " for character in text):
        raise UsageError("this is not the address of a Prometheus API", _WRITE_URL)
    parts = urllib.parse.urlsplit(text)
    path = parts.path.rstrip("/").removesuffix("/api/v1").rstrip("/")
    place = parts.netloc.rpartition("@")[2]
    return Address(
        root=f"{parts.scheme}://{place}{path}",
        user=None if parts.username is None else urllib.parse.unquote(parts.username),
        password=None if parts.password is None else urllib.parse.unquote(parts.password),
        params=tuple(urllib.parse.parse_qsl(parts.query, keep_blank_values=True)),
    )


def request_headers(access: Access, address: Address) -> list[tuple[str, str]]:
    """The headers of one request; one that is given by hand replaces one of the same name.

    Raises:
        UsageError: a header that HTTP does not allow.
        InputError: the token's file cannot be read.
    """
    given = [*access.headers]
    names = {name.lower() for name, _ in given}
    made = [(name, value) for name, value in _made_headers(access, address) if name.lower() not in names]
    for name, value in made + given:
        if not name.strip() or any(c in name for c in " :\r\n") or any(c in value for c in "\r\n\0"):
            raise UsageError(f"the header '{name.strip()[:40]}' cannot be sent", "write a header as 'NAME: VALUE'")
    return made + given


def tls_context(access: Access) -> ssl.SSLContext:
    """Whom to trust, and who we are.

    Raises:
        InputError: a certificate's file cannot be used.
    """
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"{access.ca_file}: {_why(error)}", "the CA file holds certificates in PEM") from None
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if access.client_cert is not None:
        try:
            context.load_cert_chain(access.client_cert, access.client_key, password="")
        except (OSError, ssl.SSLError) as error:
            hint = "the client certificate and its key are PEM files without a password"
            raise InputError(f"{access.client_cert}: {_why(error)}", hint) from None
    return context


def _made_headers(access: Access, address: Address) -> Iterator[tuple[str, str]]:
    user, password = (address.user, address.password) if access.user is None else (access.user, access.password)
    token = _bearer_token(access)
    if token is not None:
        yield "Authorization", f"Bearer {token}"
    elif user is not None:
        login = base64.b64encode(f"{user}:{password or ''}".encode()).decode()
        yield "Authorization", f"Basic {login}"
    if access.tenant is not None:
        yield TENANT_HEADER, access.tenant


def _bearer_token(access: Access) -> str | None:
    if access.bearer_token_file is None:
        return access.bearer_token
    try:
        return access.bearer_token_file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{access.bearer_token_file}: {_why(error)}", "the file holds the token alone") from None


def _why(error: Exception) -> str:
    text = getattr(error, "strerror", None) or getattr(error, "reason", None) or str(error)
    return f"cannot be used ({text})"
