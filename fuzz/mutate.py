"""Mutations that keep a format's outer shape, so that the fuzzer comes past the first check of a reader."""

from __future__ import annotations

import copy
import json
import re
from random import Random
from typing import Any

NUMBERS = (
    *("0", "-0", "1", "-1", "2", "0.5", "1e308", "-1e308", "1e999", "1e-320", "NaN", "nan", "inf", "-Infinity"),
    *("255", "65536", "2147483647", "2147483648", "4294967296", "9007199254740993", "9223372036854775807"),
    *("9223372036854775808", "-9223372036854775808", "18446744073709551616", "1" + "0" * 400, "1" * 5000),
    *("1,234", "1_000", "٣", "²", "+1", "1.", ".5", "1e5", "0x10", " 1 ", "1k", "8K", "100%", "1700000000", "1.7e18"),
)
TEXTS = (
    *("", " ", "null", "None", "true", "-", "\x00", "\ud800", "é", "\u2028", "\x1b[31m", "a" * 3000, "{", "[", '"'),
    *("2026-05-01T12:00:00Z", "2026-05-01 12:00:00", "2026-13-45T99:99:99Z", "0000-00-00", "0001-01-01T00:00:00+14:00"),
    *("9999-12-31T23:59:59.999999999-14:00", "2026-05-01T12:00:00+99:99", "[1,2]", '{"a":1}', "[" * 3000, "%s{0}"),
)
_NUMBER = re.compile(rb"-?\d[\d.,]*")
_WORD = re.compile(rb"[A-Za-z_][\w.:/-]{2,}")
_MAX_SLOTS = 2000


def splice_lines(data: bytes, other: bytes, words: list[bytes], random: Random) -> bytes:
    """Lines left out, doubled, swapped or taken from another input; numbers and words replaced within one."""
    lines, others = data.split(b"\n"), other.split(b"\n")
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(lines))
        match random.randrange(7):
            case 0 if len(lines) > 1:
                del lines[at]
            case 1:
                lines.insert(at, random.choice(lines))
            case 2:
                lines.insert(at, random.choice(others))
            case 3:
                start, end = sorted(random.choices(range(len(lines[at]) + 1), k=2))
                lines[at] = lines[at][:start] + lines[at][end:]
            case 4:
                lines[at] = _replace_one(_WORD, lines[at], random.choice(words or [b""]), random)
            case 5:
                lines[at] = _replace_one(_NUMBER, lines[at], random.choice(TEXTS).encode("utf-8", "replace"), random)
            case _:
                lines[at] = _replace_one(_NUMBER, lines[at], random.choice(NUMBERS).encode(), random)
    return b"\n".join(lines)


def _replace_one(pattern: re.Pattern[bytes], line: bytes, new: bytes, random: Random) -> bytes:
    found = list(pattern.finditer(line))
    if not found:
        return line + new
    match = random.choice(found)
    return line[: match.start()] + new + line[match.end() :]


def mutate_json(data: bytes, other: bytes, words: list[bytes], random: Random) -> bytes:
    """One value of a JSON text changed, or of one line of JSON lines; other text as `splice_lines`."""
    if (value := _parse(data)) is not None:
        return _dump(_changed(value, _parse(other), words, random), random)
    lines = data.split(b"\n")
    at = random.randrange(len(lines))
    if (value := _parse(lines[at])) is None:
        return splice_lines(data, other, words, random)
    lines[at] = _dump(_changed(value, value, words, random), random)
    return b"\n".join(lines)


def _parse(data: bytes) -> Any:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) and value else None


def _dump(value: Any, random: Random) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=random.random() < 0.7, indent=random.choice((None, None, 1))).encode()
    except (ValueError, RecursionError):  # a surrogate that JSON can only escape
        return json.dumps(value).encode()


def _changed(value: Any, other: Any, words: list[bytes], random: Random) -> Any:
    for _ in range(random.choice((1, 1, 2, 3))):
        slots = _slots(value)
        if not slots:
            return value
        place, key = random.choice(slots)
        match random.randrange(8):
            case 0:
                del place[key]
            case 1 if isinstance(place, list):
                place.insert(random.randrange(len(place) + 1), copy.deepcopy(place[key]))
            case 1:
                place[random.choice(words or [b""]).decode(errors="replace")] = copy.deepcopy(place[key])
            case 2:
                from_place, from_key = random.choice(slots if other is None else _slots(other) or slots)
                place[key] = copy.deepcopy(from_place[from_key])
            case 3:
                place[key] = random.choice(([place[key]], {"": place[key]}, [], {}, [[]], [None], [{}]))
            case 4 if isinstance(place[key], str):
                text = place[key].encode("utf-8", "replace")
                place[key] = splice_lines(text, text, words, random).decode("utf-8", "replace")
            case _:
                place[key] = _scalar(words, random)
    return value


def _scalar(words: list[bytes], random: Random) -> Any:
    number = random.choice(NUMBERS)
    kinds = (None, True, False, number, random.choice(TEXTS), random.choice(words or [b""]).decode(errors="replace"))
    if random.random() < 0.5:
        return random.choice(kinds)
    try:
        return int(number)
    except ValueError:
        return random.choice((0.5, -1.5, 1e308, float("nan"), float("inf")))


def _slots(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value that holds another one."""
    slots: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(slots) < _MAX_SLOTS:
        place = waiting.pop()
        if isinstance(place, dict | list):
            keys = list(place) if isinstance(place, dict) else range(len(place))
            slots += [(place, key) for key in keys]
            waiting += [place[key] for key in keys]
    return slots


def mutate_protobuf(data: bytes, _other: bytes, words: list[bytes], random: Random) -> bytes:
    """One field of a protobuf message left out, doubled or changed; lengths around it are made to fit again."""
    fields = _fields(data)
    if not fields:
        return data
    at = random.randrange(len(fields))
    number, kind, value = fields[at]
    match random.randrange(6):
        case 0:
            del fields[at]
        case 1:
            fields.insert(at, fields[at])
        case 2 if kind == 0:
            fields[at] = (number, 0, _varint(random.choice((0, 1, 2, 2**31, 2**63 - 1, 2**63, 2**64 - 1))))
        case 3 if kind == 2 and not _fields(value):
            fields[at] = (number, 2, random.choice(words or [b""]))
        case 4:
            fields[at] = (random.randrange(1, 20), kind, value)
        case _ if kind == 2:
            fields[at] = (number, 2, mutate_protobuf(value, b"", words, random))
    return b"".join(
        _varint(number << 3 | kind) + (_varint(len(value)) if kind == 2 else b"") + value
        for number, kind, value in fields
    )


def _fields(data: bytes) -> list[tuple[int, int, bytes]]:
    """Number, wire type and raw value of each field; empty where the bytes are no message."""
    fields: list[tuple[int, int, bytes]] = []
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        number, kind, start = tag >> 3, tag & 7, at
        if kind == 2:
            length, start = _read_varint(data, at)
            at = start + length
        elif kind == 0:
            _, at = _read_varint(data, at)
        else:
            at += {1: 8, 5: 4}.get(kind, 1 << 30)
        if number == 0 or at > len(data):
            return []
        fields.append((number, kind, data[start:at]))
    return fields


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    return 0, 1 << 30


def _varint(value: int) -> bytes:
    groups = [value & 127]
    while value := value >> 7:
        groups.append(value & 127)
    return bytes([group | 128 for group in groups[:-1]] + [groups[-1]])
