"""Who answers at an address: a vLLM server, its version and models, or a reason why it cannot be used."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, NamedTuple

from maitre.errors import MaitreError, SystemFailure, UsageError
from maitre.files import load_json
from maitre.records import Record

TIMEOUT_S = 5.0
"""For one answer. A server under load answers these paths from its front end, beside the engine."""

_MAX_BYTES = 16 * 2**20


class Probe(Record):
    """A vLLM server that is up."""

    base_url: str
    """Without `/v1` and without a slash at the end."""
    version: str | None
    """None where a gateway hides `/version`."""
    model_names: tuple[str, ...]
    max_model_len: int | None
    """Of the first model, in tokens."""
    has_metrics: bool
    """Whether `/metrics` shows vLLM's families (not with --disable-log-stats)."""


class Answer(NamedTuple):
    """One HTTP answer."""

    status: int
    body: bytes
    server: str
    """The Server header."""


def probe(base_url: str, api_key: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Probe:
    """Ask a server who it is.

    Args:
        base_url: `http://host:port`, with or without `/v1`.
        api_key: sent as a bearer token.
        timeout_s: for each of the three answers.

    Raises:
        UsageError: no usable URL, a key is missing or wrong, or the server is not vLLM.
        SystemFailure: nothing listens there, the host is unknown, or it does not answer.
    """
    url = normal_base_url(base_url)
    models = get(f"{url}/v1/models", api_key, timeout_s=timeout_s)
    if models.status in {401, 403}:
        raise _login_error(url, api_key)
    if models.status >= 500:
        raise SystemFailure(f"{url} answers with HTTP {models.status}", "is it still loading its model? See its log")
    entries = _model_entries(models.body)
    metrics = get(f"{url}/metrics", api_key, timeout_s=timeout_s)
    has_metrics = metrics.status == 200 and b"vllm:" in metrics.body
    if not has_metrics and not any(entry.get("owned_by") == "vllm" for entry in entries):
        raise UsageError(
            f"{url} is not vLLM: {_who(models)} answers there", "name the vLLM server, not a gateway before it"
        )
    return Probe(
        base_url=url,
        version=_version(get(f"{url}/version", api_key, timeout_s=timeout_s)),
        model_names=tuple(str(entry["id"]) for entry in entries if "id" in entry),
        max_model_len=next((n for e in entries if isinstance(n := e.get("max_model_len"), int)), None),
        has_metrics=has_metrics,
    )


def describe_listener(host: str, port: int) -> str | None:
    """Who listens on a port, in words; None when nobody does."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            pass
    except OSError:
        return None
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    try:
        found = probe(address, timeout_s=2.0)
    except MaitreError:
        pass
    else:
        return f"vLLM {found.version or ''}".rstrip() + (f" with {found.model_names[0]}" if found.model_names else "")
    try:
        return f"another HTTP server ({_who(get(f'{address}/health', timeout_s=2.0))})"
    except MaitreError:
        return "something that does not speak HTTP"


def normal_base_url(base_url: str) -> str:
    """The URL without `/v1` and slashes at its end.

    Raises:
        UsageError: no http(s) URL with a host.
    """
    text = base_url.strip().rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        usable = usable and not parts.query and not parts.fragment
    except ValueError:  # a port that is no number, for one
        usable = False
    if not usable or any(character <= " " for character in text):
        raise UsageError(f"'{base_url}' is not the address of a server", "write http://host:port")
    return text


def get(url: str, api_key: str | None = None, *, timeout_s: float = TIMEOUT_S) -> Answer:
    """One GET, whatever its status; a proxy from the environment is not used for this machine.

    Raises:
        SystemFailure: no answer.
    """
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 - http or https, see normal_base_url
    proxies = urllib.request.ProxyHandler({} if _is_this_machine(url) else None)
    try:
        with urllib.request.build_opener(proxies).open(request, timeout=timeout_s) as answer:
            body = answer.read(_MAX_BYTES)
            if answer.length and len(body) < _MAX_BYTES:
                raise http.client.IncompleteRead(body, answer.length)
            return Answer(answer.status, body, answer.headers.get("Server", ""))
    except urllib.error.HTTPError as error:
        with error:
            return Answer(error.code, b"", error.headers.get("Server", ""))
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _no_answer(url, error, timeout_s) from error


def _no_answer(url: str, error: Exception, timeout_s: float) -> SystemFailure:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    parts = urllib.parse.urlsplit(url)
    place = f"{parts.scheme}://{parts.netloc}"
    if isinstance(cause, ConnectionRefusedError):
        return SystemFailure(f"nothing listens at {place}", "is it the right host and port, and is the server up?")
    if isinstance(cause, socket.gaierror):
        return SystemFailure(f"the host of {place} is unknown", "check the name")
    if isinstance(cause, TimeoutError):
        remedy = "is the port right, and is the server not stuck? See its log"
        return SystemFailure(f"{place} does not answer within {timeout_s:g} s", remedy)
    if isinstance(cause, http.client.BadStatusLine):
        return SystemFailure(f"what listens at {place} does not speak HTTP", "check the port, and http or https")
    return SystemFailure(f"{place} cannot be asked ({cause})", "check the address and the network")


def _login_error(url: str, api_key: str | None) -> UsageError:
    if api_key:
        return UsageError(f"{url} refuses the API key", "give the key that the server was started with (--api-key)")
    return UsageError(f"{url} asks for an API key", "give it with --api-key, or set VLLM_API_KEY")


def _model_entries(body: bytes) -> list[dict[str, Any]]:
    content = _json(body)
    data = content.get("data") if isinstance(content, dict) else None
    return [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []


def _version(answer: Answer) -> str | None:
    content = _json(answer.body) if answer.status == 200 else None
    version = content.get("version") if isinstance(content, dict) else None
    return version if isinstance(version, str) else None


def _json(body: bytes) -> Any:
    try:
        return load_json(body)
    except (ValueError, RecursionError):
        return None


def _who(answer: Answer) -> str:
    return answer.server or f"a server with HTTP status {answer.status}"


def _is_this_machine(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
