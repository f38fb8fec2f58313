"""Whole logs for `maitre verify`: load, setting and failures in one reading."""

import json
from pathlib import Path

import pytest

from maitre.errors import InputError
from maitre.verify.deployment import from_startup
from maitre.verify.sources.from_log import read_log

NOW_S = 1_796_000_000.0
REAL = Path(__file__).parents[2] / "vllm" / "data" / "vllm-0.32.0-iterations.log"


def read(content, name="server.log"):
    return read_log([content if isinstance(content, bytes) else content.encode()], name, NOW_S)


def test_a_real_log_tells_load_setting_and_steps():
    log = read(REAL.read_bytes())
    deployment = from_startup(log.startups[-1])
    assert (deployment.max_num_seqs, deployment.max_num_batched_tokens, deployment.version) == (8, 512, "0.32.0")
    assert deployment.kv_tokens == 3200
    assert {one.name for one in log.series} >= {"vllm:num_requests_running", "vllm:kv_cache_usage_perc"}
    assert len(log.samples) == 29
    assert len(log.iterations) > 300
    assert log.failures == ()
    assert log.notes == ()


def test_it_may_come_in_pieces_of_any_size():
    content = REAL.read_bytes()
    whole = read(content)
    pieces = read_log((content[i : i + 777] for i in range(0, len(content), 777)), "server.log", NOW_S)
    assert pieces.samples == whole.samples
    assert pieces.startups == whole.startups


def test_every_public_log_is_read(shared_path):
    num_read = 0
    for case in json.loads((shared_path / "cases" / "cases.json").read_text("utf-8")):
        for name in case["files"]:
            if name.endswith((".log", ".jsonl")):
                log = read((shared_path / "cases" / name).read_bytes())
                assert log.series or log.startups, name
                assert log.failures == (), name
                num_read += 1
    assert num_read > 25


def test_a_server_that_started_and_died_under_load(shared_path):
    log = read((shared_path / "cases" / "dx-starts-but-dies-under-load.txt").read_bytes())
    (failure,) = log.failures
    assert failure.code == "out-of-memory"
    assert "CUDA out of memory" in failure.message


def test_a_log_without_its_start_says_that_limits_are_not_known(shared_path):
    log = read((shared_path / "cases" / "dx-kv-creep-waiting-zero.log").read_bytes())
    assert len(log.samples) == 5
    assert log.startups == ()
    assert "limits and pool are not known" in log.notes[0]


@pytest.mark.parametrize(
    "content", ["hello\nworld\n", "<html><body>Sign in</body></html>", b"\x00\xff" * 1000, "{" * 50]
)
def test_what_is_no_log_is_one_clear_error(content):
    with pytest.raises(InputError, match="no vLLM log") as caught:
        read(content)
    assert "Avg prompt throughput" in caught.value.hint


def test_users_words_are_no_failure():
    ready = "INFO:     Application startup complete.\n"
    quoting = "INFO 07-28 06:40:00 [logger.py:43] Received request a: prompt: 'CUDA out of memory', params: P\n"
    answer = "INFO 07-28 06:40:00 [logger.py:72] Generated response a: output: 'EngineDeadError', finish_reason: stop\n"
    stats = (
        "INFO 07-28 06:40:59 [l.py:1] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 239.2 tokens/s, "
        "Running: 8 reqs, Waiting: 0 reqs, GPU KV cache usage: 91.2%\n"
    )
    assert read(ready + quoting + answer + stats).failures == ()
