"""Why a Prometheus API gives no answer, and what to do about it: the network's reasons, and the server's own."""

from __future__ import annotations

import ssl

import aiohttp

from maitre.errors import InputError, MaitreError, SystemFailure

_LIMIT_WORDS = ("point", "sample", "limit", "too many", "too long", "maximum", "exceed")
"""In which servers refuse a question that is too large."""
_CUT_OFF_HINT = "try again; see the log of the server or of the gateway before it"

_NETWORK: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (
        aiohttp.ClientConnectorCertificateError,
        "its certificate is not trusted",
        "name the authority with --ca-file, or trust any certificate with --insecure",
    ),
    (
        (aiohttp.ClientSSLError, ssl.SSLError),
        "no TLS connection",
        "check http or https, and the client certificate",
    ),
    (aiohttp.ClientConnectorDNSError, "the host is unknown", "check the name"),
    (aiohttp.ClientPayloadError, "the answer is cut off", _CUT_OFF_HINT),
    (
        (aiohttp.ServerDisconnectedError, ConnectionResetError),
        "it hangs up",
        "check http or https; does it ask for a client certificate?",
    ),
    (aiohttp.ClientResponseError, "what listens there does not speak HTTP", "check the port, and http or https"),
)
"""The first that fits: kinds of error, what it means, what to do."""


def no_answer(root: str, timeout_s: float, error: Exception) -> SystemFailure:
    """What the network says.

    Args:
        root: the address, fit to be shown.
        timeout_s: how long was waited at most.
        error: of aiohttp or the operating system.
    """
    if isinstance(error, TimeoutError):
        hint = "take a shorter window or a longer --timeout; is the server overloaded?"
        return SystemFailure(f"{root} does not answer within {timeout_s:g} s", hint)
    if isinstance(getattr(error, "os_error", error), ConnectionRefusedError):
        return SystemFailure(f"nothing listens at {root}", "is it the right host and port, and is the server up?")
    for kinds, meaning, hint in _NETWORK:
        if isinstance(error, kinds):
            reason = _tls_reason(error)
            return SystemFailure(f"{root}: {meaning}" + (f" ({reason})" if reason else ""), hint)
    reason = getattr(error, "strerror", None) or type(error).__name__
    return SystemFailure(f"{root} cannot be asked ({reason})", "check the address and the network")


def too_large(root: str, max_bytes: int) -> SystemFailure:
    """More came than is read."""
    return SystemFailure(
        f"{root} answers with more than {max_bytes // 2**20} MiB",
        "name one model or one server with a label matcher, or take a shorter window",
    )


def refusal(root: str, status: int, message: str, *, server: str = "", location: str = "") -> MaitreError:
    """What the server says instead of a success.

    Args:
        root: the address, fit to be shown.
        status: of the answer.
        message: the server's own words; empty if it has none.
        server: the Server header.
        location: where a redirect points to.
    """
    said = f"{status}: {message}" if message else f"{status}"
    if 300 <= status < 400:
        return InputError(f"{root} redirects to {location or 'nowhere'}", "name the address that answers itself")
    if status in {401, 403, 407}:
        return InputError(f"{root} refuses who asks ({said})", _login_hint(message))
    if status in {404, 405, 410, 501}:
        return InputError(f"{root} has no Prometheus API ({status} at /api/v1)", _path_hint(server))
    return _failed_query(root, status, said)


def unreadable(root: str, content: bytes) -> MaitreError:
    """A success that is not what Prometheus answers."""
    text = content.strip()
    if text[:1] == b"<":
        hint = "name Prometheus itself, not Grafana or a login page before it"
        return InputError(f"{root} answers with a web page, not with data", hint)
    if text[:1] == b"{" and text[-1:] != b"}":
        return SystemFailure(f"{root}: the answer is cut off", _CUT_OFF_HINT)
    return not_prometheus(root)


def not_prometheus(root: str, said: str = "") -> InputError:
    """The server answers, but not as Prometheus does; `said` is its answer in words."""
    reason = f" ({said})" if said else ""
    hint = "check host and port, and the path before /api/v1"
    return InputError(f"{root} does not answer as Prometheus' API does{reason}", hint)


def _failed_query(root: str, status: int, said: str) -> MaitreError:
    if status == 429:
        return SystemFailure(f"{root} lets no more questions through ({said})", "run the same command later")
    if any(word in said.lower() for word in _LIMIT_WORDS):
        hint = "take a shorter window, or name one model or one server with a label matcher"
        return SystemFailure(f"{root} refuses so large a question ({said})", hint)
    if status < 500:
        return InputError(f"{root} cannot work out the query ({said})", "check the label matchers")
    hint = "is it overloaded, or still starting? See its log" if status == 503 else "see the server's log"
    return SystemFailure(f"{root} fails ({said})", hint)


def _login_hint(message: str) -> str:
    if "org id" in message.lower():  # Mimir, Cortex and Loki say "no org id"
        return "this server keeps tenants apart: name one with --tenant (header X-Scope-OrgID)"
    return "give a user and a password in the address, --bearer-token-file, or --header"


def _path_hint(server: str) -> str:
    if "uvicorn" in server.lower():
        return "this looks like vLLM itself: read its /metrics with --metrics"
    return "a path may be missing: Mimir has /prometheus before /api/v1, VictoriaMetrics' cluster /select/0/prometheus"


def _tls_reason(error: Exception) -> str:
    inner = getattr(error, "certificate_error", None) or getattr(error, "os_error", error)
    return str(getattr(inner, "verify_message", None) or getattr(inner, "reason", None) or "")
