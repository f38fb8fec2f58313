"""What a server has printed, from a file, stdin or an address: in pieces, so that its size does not matter."""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from maitre.errors import InputError, SystemFailure, UsageError

CHUNK_BYTES = 2**20
MAX_SCRAPE_BYTES = 2**26
"""A scrape of vLLM has a few hundred kilobytes."""

_GZIP = b"\x1f\x8b"
_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"\x04\x22M\x18": "lz4",
}


def source_name(path: str) -> str:
    """What to call it in a message."""
    return "stdin" if path == "-" else path


def chunks_of(path: str) -> Iterator[bytes]:
    """The bytes of a file, or of stdin for `-`, in pieces of at most `CHUNK_BYTES`; gzip is unpacked.

    Raises:
        InputError: the file is missing, no file, empty, or packed in another way, or its gzip data is broken.
        SystemFailure: the disk or the permissions refuse.
    """
    name = source_name(path)
    with _opened(path) as stream:
        first = _read(stream, name)
        if not first:
            raise InputError(f"{name}: the file is empty", "write it again, or name another file")
        if packed := next((kind for magic, kind in _PACKED.items() if first.startswith(magic)), None):
            raise InputError(f"{name}: is packed with {packed}", "unpack it, and give the text")
        yield from _unpacked(stream, first, name) if first.startswith(_GZIP) else _plain(stream, first, name)


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == "-":
        yield sys.stdin.buffer
        return
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - a path that no file can have raises here, too
        if stat.S_ISDIR(mode):
            raise InputError(f"{path}: is a directory, a file was expected", "name the file inside it")
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            raise InputError(f"{path}: is a device, a file was expected", "give a file, or - for stdin")
        stream = open(path, "rb")  # noqa: SIM115, PTH123 - closed below
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise InputError(f"{path}: no such file", "check the path") from None
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be read ({error.strerror})", "check permissions and the disk") from error
    with stream:
        yield stream


def _read(stream: BinaryIO, name: str) -> bytes:
    try:
        return stream.read(CHUNK_BYTES)
    except OSError as error:
        raise SystemFailure(f"{name}: cannot be read ({error.strerror})", "check the disk") from error


def _plain(stream: BinaryIO, first: bytes, name: str) -> Iterator[bytes]:
    chunk = first
    while chunk:
        yield chunk
        chunk = _read(stream, name)


def _unpacked(stream: BinaryIO, first: bytes, name: str) -> Iterator[bytes]:
    """gzip, of one member or several, without ever holding more than a piece of it."""
    decoder, packed = zlib.decompressobj(wbits=31), first
    try:
        while packed:
            if text := decoder.decompress(packed, CHUNK_BYTES):
                yield text
            packed = decoder.unconsumed_tail
            if decoder.eof:
                packed = decoder.unused_data.lstrip(b"\0") or _read(stream, name)
                decoder = zlib.decompressobj(wbits=31) if packed else decoder
            elif not packed:
                packed = _read(stream, name)
    except zlib.error:
        decoder = zlib.decompressobj()
    if not decoder.eof:
        raise InputError(f"{name}: the gzip data is corrupt or truncated", "write the file again")


def scraped_text(place: str, api_key: str | None) -> str:
    """The metrics of a server that is up, for http(s)://, or of a file or stdin.

    Raises:
        InputError: as `chunks_of`, or more than `MAX_SCRAPE_BYTES`.
        UsageError: a wrong address, or the server asks for a key.
        SystemFailure: no answer, or the disk refuses.
    """
    if place.startswith(("http://", "https://")):
        return _scrape(place, api_key)
    content = bytearray()
    for chunk in chunks_of(place):
        content += chunk
        if len(content) > MAX_SCRAPE_BYTES:
            raise InputError(f"{source_name(place)}: larger than 64 MiB, no scrape of /metrics", "give one scrape")
    return content.replace(b"\0", b"").decode("utf-8-sig", errors="replace")


def _scrape(url: str, api_key: str | None) -> str:
    from maitre.trial.probe import get, normal_base_url

    key = api_key or os.environ.get("VLLM_API_KEY") or os.environ.get("OPENAI_API_KEY")
    address = url if "?" in url else normal_base_url(url)
    if "?" not in url and not address.endswith("/metrics"):
        address += "/metrics"
    answer = get(address, key)
    if answer.status in {401, 403}:
        raise UsageError(f"{address} asks for an API key", "give it with --api-key, or set VLLM_API_KEY")
    if answer.status != 200:
        raise SystemFailure(f"{address} answers with HTTP {answer.status}", "name the vLLM server: http://host:port")
    return answer.body.decode("utf-8", errors="replace")
