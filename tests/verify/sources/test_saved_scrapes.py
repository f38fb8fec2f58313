"""Saved scrapes: one or several, with times or without, as text or as a Prometheus API answered."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitre.errors import InputError
from maitre.metric_series import increase
from maitre.verify.sources import saved_scrapes
from maitre.verify.sources.saved_scrapes import read_dumps
from maitre.verify.sources.scrape_times import time_in_line, time_in_name

NOON_S = 1_777_636_800.0
"""2026-05-01T12:00:00Z."""


def scrape(tokens, running=8, stamp=""):
    return (
        "# HELP vllm:num_requests_running Running since 2024-01-01T00:00:00\n# TYPE vllm:num_requests_running gauge\n"
        f'vllm:num_requests_running{{engine="0",model_name="a }} b"}} {running}{stamp}\n'
        f'vllm:generation_tokens_total{{engine="0"}} {tokens}{stamp}\n'
        "process_virtual_memory_bytes 1970049024\n"
    )


def read(*sources, **options):
    return read_dumps([(name, [text.encode() if isinstance(text, str) else text]) for name, text in sources], **options)


def tokens(found):
    (one,) = [series for series in found.series if series.name == "vllm:generation_tokens_total"]
    return one


SEVERAL = {
    "lines that say when": "# scraped 2026-05-01T12:00:00Z\n{}# scraped 2026-05-01T12:00:15Z\n{}",
    "seconds": "# 1777636800\n{}# 1777636815.0\n{}",
    "what date prints": "Fri May  1 12:00:00 UTC 2026\n{}\nFri May  1 12:00:15 UTC 2026\n{}",
    "a ruler": "=== 2026-05-01 12:00:00 ===\n{}=== 2026-05-01 12:00:15 ===\n{}",
    "another zone": "# 2026-05-01T14:00:00+02:00\n{}# 2026-05-01T14:00:15+02:00\n{}",
}


@pytest.mark.parametrize("text", SEVERAL.values(), ids=SEVERAL)
def test_several_scrapes_in_one_file_with_their_times(text):
    found = read(("a.prom", text.format(scrape(0), scrape(300))))
    assert found.num_scrapes == 2
    assert tokens(found).time_s.tolist() == [NOON_S, NOON_S + 15]
    assert increase(tokens(found)) == 300
    assert found.notes == ()


@pytest.mark.parametrize("between", ["", "# EOF\n", "\n\n"])
def test_several_scrapes_without_times_keep_their_order(between):
    found = read(("a.prom", between.join([scrape(0), scrape(300), scrape(500)])))
    assert found.num_scrapes == 3
    assert np.isnan(tokens(found).time_s).all()
    assert increase(tokens(found)) == 500
    assert "no times" in found.notes[0]


def test_files_are_put_in_the_order_of_the_times_in_their_names():
    names = ("dump-2026-05-01T12-00-15Z.prom", "dump-2026-05-01T12-00-00Z.prom")
    found = read((names[0], scrape(300)), (names[1], scrape(0)))
    assert tokens(found).time_s.tolist() == [NOON_S, NOON_S + 15]
    assert tokens(found).values.tolist() == [0, 300]


def test_one_file_of_unknown_time_leaves_all_undated():
    found = read(("1777636800.prom", scrape(0)), ("later.prom", scrape(300)))
    assert np.isnan(tokens(found).time_s).all()
    assert tokens(found).values.tolist() == [0, 300]


def test_one_file_alone_needs_no_time():
    assert read(("a.prom", scrape(5))).notes == ()


def test_times_that_were_exposed_with_the_samples_count():
    text = scrape(0, stamp=" 1777636800000") + scrape(300, stamp=" 1777636815000")
    found = read(("2020-01-01T00-00-00.prom", text))
    assert tokens(found).time_s.tolist() == [NOON_S, NOON_S + 15]


def test_the_same_moment_twice_counts_once():
    found = read(("1777636800.prom", scrape(5)), ("copy-1777636800.prom", scrape(5)))
    assert tokens(found).values.tolist() == [5]
    assert "time of another one" in found.notes[0]


NAMES = {
    "metrics-2026-05-01T12:00:00Z.prom": NOON_S,
    "/var/dumps/2026-05-01_12-00-00.txt": NOON_S,
    "m_20260501T120000Z.prom.gz": NOON_S,
    "m-20260501-120000.txt": NOON_S,
    "m_20260501_1200.txt": NOON_S,
    "2026-05-01 12.00.00.txt": NOON_S,
    "2026-05-01T14-00-00+0200.txt": NOON_S,
    "1777636800": NOON_S,
    "scrape.1777636800.prom": NOON_S,
    "scrape-1777636800250.prom": NOON_S + 0.25,
    "metrics.prom": None,
    "metrics-2026-05-01.prom": None,
    "node-20261399-250000.prom": None,
    "2026-05-01T12-00-00/metrics.prom": None,
    "-": None,
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_times_in_names(name, expected):
    assert time_in_name(name) == expected


@given(st.text(max_size=80))
def test_any_name_and_any_line_may_be_asked(text):
    for found in (time_in_name(text), time_in_line(text)):
        assert found is None or np.isfinite(found)


def answer(result_type, *rows):
    return json.dumps({"status": "success", "data": {"resultType": result_type, "result": list(rows)}})


METRIC = {"__name__": "vllm_generation_tokens", "engine": "0"}


def test_an_answer_of_a_prometheus_api_is_read_with_its_times():
    rows = {"metric": METRIC, "values": [[NOON_S, "0"], [NOON_S + 15, "300"]]}
    found = read(("a.json", answer("matrix", rows, {"metric": {"__name__": "up"}, "values": [[NOON_S, "1"]]})))
    assert [series.name for series in found.series] == ["vllm:generation_tokens_total"]
    assert (tokens(found).time_s - NOON_S).tolist() == [0, 15]
    assert tokens(found).values.tolist() == [0, 300]


def test_answers_may_follow_each_other():
    first, second = (answer("vector", {"metric": METRIC, "value": [NOON_S + at, "1"]}) for at in (0, 15))
    assert (tokens(read(("a.json", f"{first}\n{second}\n"))).time_s - NOON_S).tolist() == [0, 15]


def test_names_in_braces_are_no_json():
    found = read(("a.prom", '{"vllm:generation_tokens_total",engine="0"} 5\n'))
    assert tokens(found).values.tolist() == [5]


HOSTILE = {
    "a login page": ("\n<!DOCTYPE html><html>vllm:x 5</html>", "a web page"),
    "another server's metrics": ("node_load1 0.5\n", "no vLLM metrics"),
    "nothing": ("\n", "no vLLM metrics"),
    "zeros": (b"\x00" * 10_000, "no vLLM metrics"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10, "no vLLM metrics"),
    "truncated JSON": ('{"status":"success","data":{"resultType":"matrix","result":[{', "broken JSON"),
    "a JSON bomb": ('{"data":' + "[" * 100_000, "broken JSON"),
    "an error": ('{"status":"error","errorType":"bad_data","error":"parse error"}', "parse error"),
    "an answer without vLLM": (answer("vector", {"metric": {"__name__": "up"}, "value": [1, "1"]}), "without vLLM"),
    "a log": ("INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0\n", "no vLLM metrics"),
}


@pytest.mark.parametrize(("content", "words"), HOSTILE.values(), ids=HOSTILE)
def test_what_is_no_scrape_is_one_clear_error(content, words):
    with pytest.raises(InputError, match=words) as caught:
        read(("given.txt", content))
    assert "given.txt" in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig"])
def test_what_powershell_saved_is_read(encoding):
    assert tokens(read(("a.prom", scrape(5).encode(encoding)))).values.tolist() == [5]


def endless(piece):
    while True:
        yield piece


@pytest.mark.parametrize(
    "piece", [b"x" * 2**16, b"node_load1 0.5\n" * 4096, scrape(1).encode() * 16, b"\0" * 2**16], ids=range(4)
)
def test_endless_input_ends_in_an_error(piece, monkeypatch):
    monkeypatch.setattr(saved_scrapes, "MAX_BYTES", 2**20)
    with pytest.raises(InputError, match="larger than"):
        read_dumps([("pipe", endless(piece))])


def test_a_long_file_of_something_else_is_given_up_early(monkeypatch):
    monkeypatch.setattr(saved_scrapes, "MAX_SCRAPE_BYTES", 2**16)
    with pytest.raises(InputError, match="nothing of vLLM's in"):
        read(("a.prom", "node_load1 0.5\n" * 10_000))


def test_one_endless_scrape_ends_in_an_error(monkeypatch):
    monkeypatch.setattr(saved_scrapes, "MAX_SCRAPE_BYTES", 2**16)
    text = "".join(f'vllm:x{{a="{i}"}} 1\n' for i in range(10_000))
    with pytest.raises(InputError, match="one scrape is larger"):
        read(("a.prom", text))
    with pytest.raises(InputError, match="larger than"):
        read(("a.json", answer("vector", *[{"metric": METRIC, "value": [i, "1"]} for i in range(10_000)])))


@given(st.binary(max_size=200), st.integers(1, 40))
def test_bytes_of_any_kind_do_no_harm(noise, size):
    content = noise + b"\n" + scrape(7).encode()
    try:
        found = read_dumps([("a", [content[i : i + size] for i in range(0, len(content), size)])])
    except InputError:
        return
    assert found.num_scrapes >= 1


@pytest.mark.parametrize("line", ["# scraped 0001-01-01T00:00:00+14:00", "Mon Jan  1 12:00:00 UTC 0001"])
def test_a_time_before_1970_is_none(line):
    assert time_in_line(line) is None
