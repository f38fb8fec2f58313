"""Whoever carried a log, and in whatever state: containers, loggers, encodings, hostile bytes, bounded memory."""

import json
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError
from maitre.vllm.startup_log import MAX_STARTS, read_startups
from maitre.vllm.startup_log_lines import MAX_LINE_CHARACTERS, text_lines

MESSAGE = "INFO 06-01 00:00:00 [kv_cache_utils.py:1710] GPU KV cache size: 122,880 tokens"


CARRIERS = {
    "nothing": "{}",
    "docker logs -t": "2025-06-01T00:00:00.123456789Z {}",
    "a time zone": "2025-06-01T00:00:00+02:00 {}",
    "CRI": "2025-06-01T00:00:00.123456789Z stdout F {}",
    "compose": "vllm-1  | {}",
    "kubectl --prefix": "[pod/vllm-0/vllm] {}",
    "stern": "vllm-7d9f8b-x2k vllm {}",
    "journald": "Nov 29 10:00:00 node1 vllm[4711]: {}",
    "own prefix": "my server: {}",
    "colours": "\x1b[1;36m(EngineCore_0 pid=860)\x1b[0;0m \x1b[32m{}\x1b[0m",
    "lost colours": "[1;36m(EngineCore_0 pid=860)[0;0m {}",
    "worker": "(VllmWorker rank=0 pid=7) {}",
    "two processes": "(APIServer pid=1) (EngineCore_DP0 pid=7) {}",
    "Ray": "\x1b[36m(RayWorkerWrapper pid=903, ip=203.0.113.17)\x1b[0m {} [repeated 6x across cluster]",
    "a tab": "\t{}",
    "CRLF": "{}\r",
    "NULs": "\0\0\0{}",
}


@pytest.mark.parametrize("carrier", CARRIERS.values(), ids=CARRIERS)
def test_whoever_carries_a_line(carrier, one_start):
    startup = one_start(carrier.format(MESSAGE) + "\n")
    assert (startup.kv_cache_tokens, startup.engines, startup.failure) == (122_880, 1, None)


JSON_LOGS = {
    "bare": {"message": "GPU KV cache size: 122,880 tokens"},
    "0.32": {
        "asctime": "x", "levelname": "INFO", "processName": "EngineCore_DP0", "process": 7,
        "message": "GPU KV cache size: 122,880 tokens",
    },
    "docker's json-file": {"log": MESSAGE + "\n", "stream": "stdout", "time": "2025-06-01T00:00:00Z"},
    "docker around JSON": {"log": json.dumps({"message": "GPU KV cache size: 122,880 tokens"}) + "\n"},
    "fluent-bit": {"kubernetes": {"pod_name": "vllm-0"}, "log": "(EngineCore pid=7) " + MESSAGE},
    "Google Cloud": {"severity": "INFO", "textPayload": MESSAGE},
    "journald": {"MESSAGE": MESSAGE, "_PID": "1"},
}  # fmt: skip


@pytest.mark.parametrize("record", JSON_LOGS.values(), ids=JSON_LOGS)
def test_json_logs(record, one_start):
    assert one_start(json.dumps(record)).kv_cache_tokens == 122_880


def test_json_logs_name_the_engine_in_a_field(one_start):
    lines = [
        {"processName": f"EngineCore_DP{i}", "process": i, "message": "GPU KV cache size: 100 tokens"} for i in (0, 1)
    ]
    startup = one_start("\n".join(map(json.dumps, lines)))
    assert (startup.kv_cache_tokens, startup.combine_rule) == (200, "sum over DP engines")


def test_a_log_in_utf_16_as_powershell_writes_it(pool_lines):
    for encoding in ("utf-16", "utf-8-sig"):
        (startup,) = read_startups([pool_lines("", 5000).encode(encoding)], "x")
        assert startup.kv_cache_tokens == 5000


def test_bytes_of_another_encoding_are_passed_over(one_start, pool_lines):
    assert one_start(b"caf\xe9 \xff\xfe\n" + pool_lines("", 5000).encode() + b"\xc3\x28").kv_cache_tokens == 5000


NOT_LOGS = {
    "nothing": b"",
    "blank": b"\n \r\n\t",
    "NULs": b"\0" * 4096,
    "binary": bytes(range(256)) * 40,
    "prose": b"Dear all,\nthe server is slow.\n",
    "JSON": b'{"prompt_tokens": 5}\n',
    "other JSON": b'[[[{"a": 1}]]]',
    "deep JSON": b'{"message": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("content", NOT_LOGS.values(), ids=NOT_LOGS)
def test_what_is_no_log_is_said_to_be_none(content, read_log):
    with pytest.raises(InputError, match="a vLLM start-up") as refused:
        read_log(content, "nonsense.log")
    assert "nonsense.log" in str(refused.value)
    assert refused.value.hint


def test_a_file_of_too_many_starts_is_refused(args_line, pool_lines, read_log):
    with pytest.raises(InputError, match="starts"):
        read_log((args_line(max_num_seqs=7) + pool_lines("", 16)) * (MAX_STARTS + 1))


def test_a_line_of_50_mb_and_a_long_log_need_little_memory(pool_lines):
    def chunks():
        yield pool_lines("", 5000).encode()
        for _ in range(50):
            yield b"x" * 2**20
        yield b"\n" + pool_lines("", 5000).encode() * 2
        for i in range(20):
            yield f'INFO:     10.0.0.{i}:80 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'.encode() * 5000

    tracemalloc.start()
    (startup,) = read_startups(chunks(), "x")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert startup.kv_cache_tokens == 5000
    assert peak < 60 * 2**20


def test_a_line_keeps_its_beginning():
    (line,) = text_lines([b"GPU KV cache size: 7 tokens" + b"." * 3 * MAX_LINE_CHARACTERS])
    assert (len(line), line[:27]) == (MAX_LINE_CHARACTERS, "GPU KV cache size: 7 tokens")


HOSTILE = [
    "(pid=" * 50_000, "(a pid=1" * 30_000, "[" * 200_000, "\x1b[" * 100_000, "INFO " * 50_000, "max_num_seqs=" * 20_000,
    "vllm serve " + "-" * 200_000, "vllm serve " + "--a=' " * 30_000, "args: Namespace(" + "model='" * 30_000,
    "KV cache size: " + "9," * 100_000, "# a blocks: " + "9" * 200_000, "Error" * 40_000, "a.Error" * 30_000,
    "docker run vllm " * 10_000, "A_B=" * 60_000, "2025-06-01T00:00:00" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("text", HOSTILE, ids=[text[:12] for text in HOSTILE])
def test_no_line_takes_a_pattern_hostage(text, one_start, pool_lines):
    assert one_start(text + "\n" + pool_lines("", 5000)).kv_cache_tokens == 5000


@given(cuts=st.lists(st.integers(1, 400), max_size=12))
def test_where_the_bytes_are_cut_does_not_matter(cuts, pool_lines):
    content = (
        "é" + pool_lines("(EngineCore_DP0 pid=2) ", 5000) + "\r\n" + pool_lines("(EngineCore_DP1 pid=3) ", 3000)
    ).encode()
    edges = [0, *sorted({min(cut, len(content)) for cut in cuts}), len(content)]
    pieces = [content[a:b] for a, b in pairwise(edges) if a < b]
    assert read_startups(pieces, "x") == read_startups([content], "x")


@given(st.binary(max_size=300))
def test_any_bytes_end_in_an_answer_or_a_message(content):
    try:
        startups = read_startups([content], "x")
    except InputError:
        return
    assert startups
