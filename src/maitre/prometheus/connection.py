"""One question at a time to a Prometheus API: what it answers, byte for byte, or why there is no answer."""

from __future__ import annotations

import asyncio
import ipaddress
import urllib.request
from typing import NamedTuple

import aiohttp

from maitre.errors import UsageError
from maitre.prometheus.access import Access, Address, request_headers, tls_context
from maitre.prometheus.failures import no_answer, too_large

MAX_BYTES = 256 * 2**20
"""Of one answer, unpacked; more would take gigabytes once it is read."""
MAX_GET = 2000
"""Characters of a query string; a longer one is posted, since gateways cut addresses off at 4 to 8 KiB."""
_CHUNK = 2**18

Params = list[tuple[str, str]]


class HttpAnswer(NamedTuple):
    """What came back, whatever its status."""

    status: int
    content: bytes
    server: str
    """The Server header."""
    location: str
    """Where a redirect points to, without login and query."""


def ask(address: Address, access: Access, path: str, params: Params) -> HttpAnswer:
    """GET, or POST what is too long for an address; redirects are not followed, for the login's sake.

    Args:
        address: whom to ask.
        access: as whom.
        path: below the root, such as `/api/v1/query`.
        params: beside those of the address.

    Raises:
        UsageError: the address or a header cannot be used.
        InputError: a file that `access` names cannot be used.
        SystemFailure: no answer, or none to the end.
    """
    question = _Question(address, access, path, [*address.params, *params], request_headers(access, address))
    is_long = sum(len(name) + len(value) + 2 for name, value in question.params) > MAX_GET
    try:
        answer = asyncio.run(_send(question, "POST" if is_long else "GET"))
        if is_long and answer.status == 405:
            answer = asyncio.run(_send(question, "GET"))
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise UsageError(f"{address.root} is no address of a server", "write https://HOST:PORT") from None
    except (aiohttp.ClientError, OSError) as error:
        raise no_answer(address.root, access.timeout_s, error) from None
    return answer


class _Question(NamedTuple):
    address: Address
    access: Access
    path: str
    params: Params
    headers: Params


async def _send(question: _Question, method: str) -> HttpAnswer:
    address, access = question.address, question.access
    connector = aiohttp.TCPConnector(ssl=tls_context(access) if address.root.startswith("https:") else True)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=access.timeout_s)) as session,
        session.request(
            method,
            address.root + question.path,
            params=question.params if method == "GET" else None,
            data=aiohttp.FormData(question.params) if method == "POST" else None,
            headers=question.headers,
            allow_redirects=False,
            proxy=_proxy(address),
        ) as response,
    ):
        content = await _read(response, address.root)
        location = response.headers.get("Location", "").partition("?")[0].rpartition("@")[2]
        return HttpAnswer(response.status, content, response.headers.get("Server", ""), location)


async def _read(response: aiohttp.ClientResponse, root: str) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK):
        content += chunk
        if len(content) > MAX_BYTES:
            raise too_large(root, MAX_BYTES)
    return bytes(content)


def _proxy(address: Address) -> str | None:
    """From the environment, but never for this machine."""
    if _is_this_machine(address.host) or urllib.request.proxy_bypass(address.host):
        return None
    return urllib.request.getproxies().get(address.root.partition(":")[0])


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
