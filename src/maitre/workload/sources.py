"""Which kind of source a file is, told by its content; whatever is nothing special is a request table."""

from __future__ import annotations

from maitre.errors import InputError
from maitre.workload.json_rows import looks_like_json
from maitre.workload.otlp_json import looks_like_otlp_json, open_otlp_json
from maitre.workload.otlp_protobuf import looks_like_otlp_protobuf, open_otlp_protobuf
from maitre.workload.sharegpt import looks_like_sharegpt, open_sharegpt
from maitre.workload.tables import PARQUET, Table, check_text, open_table
from maitre.workload.vllm_log import looks_like_vllm_log, open_vllm_log

_ZSTD = b"\x28\xb5\x2f\xfd"


def open_source(content: bytes, source: str) -> Table:
    """Open a file's content as rows of requests.

    Args:
        content: the file's bytes, no longer gzipped.
        source: the file's name in error messages.

    Raises:
        InputError: the content is binary, mis-encoded, truncated, or no source of requests.
        NoRequestsError: a log that does not tell the requests' lengths.
        UnsupportedError: the format needs an optional dependency.
    """
    if content.startswith(_ZSTD):
        raise InputError(f"{source}: compressed with zstd", "unpack it with zstd -d")
    if content.startswith(PARQUET):
        return open_table(content, source)
    if looks_like_otlp_protobuf(content):
        return open_otlp_protobuf(content, source)
    check_text(content, source)
    if not looks_like_json(content):
        return open_vllm_log(content, source) if looks_like_vllm_log(content) else open_table(content, source)
    if looks_like_otlp_json(content):
        return open_otlp_json(content, source)
    if looks_like_sharegpt(content, source):
        return open_sharegpt(content, source)
    return open_table(content, source)
