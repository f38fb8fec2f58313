"""Read a file, or say in one sentence what is wrong with it."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

from maitre.errors import InputError, SystemFailure

_GZIP = b"\x1f\x8b"
_ESCAPED = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_bytes(path: Path, max_bytes: int | None = None) -> bytes:
    """The bytes of a file that exists and is not empty.

    Args:
        path: the file.
        max_bytes: refuse a longer one without reading all of it.

    Raises:
        InputError: the file is missing, a directory, empty or too long.
        SystemFailure: the disk or the permissions refuse.
    """
    try:
        with path.open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, str(path), max_bytes)
            content = file.read(-1 if max_bytes is None else max_bytes + 1)
    except (FileNotFoundError, ValueError):  # a name with a null byte
        raise InputError(f"{path}: no such file", "check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, a file was expected", "name the file inside it") from None
    except OSError as error:
        raise SystemFailure(f"{path}: cannot be read ({error.strerror})", "check permissions and the disk") from error
    _check_size(len(content), str(path), max_bytes)
    if not content[:4096].strip() and not content.strip():
        raise InputError(f"{path}: the file is empty", "write it again, or name another file")
    return content


def read_content(path: str, source: str, max_bytes: int | None = None) -> bytes:
    """The bytes of a file, or of stdin for `-`; gzip is unpacked.

    Args:
        path: as the user wrote it.
        source: what to call it in a message.
        max_bytes: refuse more, before or after unpacking, without holding it in memory.

    Raises:
        InputError: as `read_bytes`, the gzip data is broken, or there is too much.
    """
    if path == "-":
        content = sys.stdin.buffer.read(-1 if max_bytes is None else max_bytes + 1)
    else:
        content = read_bytes(Path(path), max_bytes)
    if content.startswith(_GZIP):
        content = _unpack(content, source, max_bytes)
    _check_size(len(content), source, max_bytes)
    if not content[:4096].strip() and not content.strip():
        raise InputError(f"{source}: the file is empty", "write it again, or name another file")
    return content


def _unpack(content: bytes, source: str, max_bytes: int | None) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as unpacked:
            return unpacked.read(-1 if max_bytes is None else max_bytes + 1)
    except (OSError, EOFError, zlib.error):
        raise InputError(f"{source}: the gzip data is corrupt or truncated", "write the file again") from None


def _check_size(num_bytes: int, source: str, max_bytes: int | None) -> None:
    if max_bytes is not None and num_bytes > max_bytes:
        raise InputError(f"{source}: more than {max_bytes / 2**30:.3g} GiB", "take a part of it, such as a busy hour")


def read_text(path: Path) -> str:
    """The text of a UTF-8 file (with or without a byte-order mark).

    Raises:
        InputError: as `read_bytes`, or the file is binary or in another encoding.
    """
    return decode_text(read_bytes(path), str(path))


def decode_text(content: bytes, name: str) -> str:
    """Decode UTF-8 bytes (with or without a byte-order mark); `name` stands for the file in error messages.

    Raises:
        InputError: the bytes are binary or in another encoding.
    """
    if b"\0" in content[:4096]:
        raise InputError(f"{name}: binary data, text was expected", "export it as UTF-8 text (CSV, JSON or JSONL)")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(
            f"{name}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8", "save the file as UTF-8"
        ) from None


def read_json(path: Path) -> Any:
    """The value in a JSON file.

    Raises:
        InputError: as `read_text`, or the JSON is broken or truncated; names line and column.
    """
    return parse_json(read_text(path), str(path))


def parse_json(text: str, name: str) -> Any:
    """Parse one JSON value; `name` stands for the file in error messages.

    Raises:
        InputError: the JSON is broken or truncated; names line and column.
    """
    try:
        return load_json(text)
    except json.JSONDecodeError as error:
        at_end = error.pos >= len(text.rstrip()) - 1 or error.msg.startswith("Unterminated string")
        what = "the JSON ends too early; the file looks truncated" if at_end else f"not valid JSON ({error.msg})"
        raise InputError(f"{name}, line {error.lineno}, column {error.colno}: {what}", "write the file again") from None
    except (ValueError, RecursionError):
        raise InputError(f"{name}: JSON with a number too long, or nested too deeply", "write the file again") from None


def load_json(text: str | bytes) -> Any:
    """As `json.loads`, but half a character, which JSON can escape and UTF-8 cannot hold, is read as U+FFFD.

    Raises:
        ValueError: broken JSON (`json.JSONDecodeError`), bytes in another encoding, or a number of too many digits.
        RecursionError: nested too deeply.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text))
    if "\\ud" in text or "\\uD" in text:
        text = _ESCAPED.sub(lambda escaped: r"\ufffd" if escaped["half"] else escaped[0], text)
    return json.loads(text)
