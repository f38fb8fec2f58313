"""Plain tables: the spellings of columns, units, and formats."""

import gzip
import io

import polars as pl
import pytest

from maitre.bench_results import compare

MARKDOWN = """Some words first.

| model | MNS | MNBT | c | req/s | out tok/s | mean TTFT (ms) | E2E p95 s | perf-mode |
|---|---|---:|---|---|---|---|---|---|
| a-7b | 64 | 8k | 16 | **12.48** | 1,188.19 | 187.15 | 1.42 | - |
| | default | 8K | 16 | 12.54 | 1,190.25 | 176.55 | 1.40 | throughput |
| b-7b | 64 | 2048 | 16 | 6.5 | 800.5 | 90 | 1.1 | - |
| | 128 | 2048 | 16 | 6.6 | 810.5 | 91 | 1.1 | - |

And some after.
"""


def test_a_markdown_table_as_people_publish_it(load):
    first, second, third, fourth = load(MARKDOWN, "notes.md")
    assert (first.max_num_seqs, first.max_num_batched_tokens, first.concurrency) == (64, 8000, 16)
    assert (second.max_num_seqs, second.max_num_batched_tokens) == (None, 8192)
    assert (first.requests_per_s, first.output_tokens_per_s) == (12.48, 1188.19)
    assert first.latencies == {"mean_ttft_ms": 187.15, "p95_e2el_ms": 1420.0}
    assert [run.settings.get("model") for run in (first, second, third, fourth)] == ["a-7b", "a-7b", "b-7b", "b-7b"]
    assert second.settings["performance_mode"] == "throughput"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_csv_with_its_separators(load, separator):
    lines = [
        "max-num-seqs,max-num-batched-tokens,throughput (req/s),Total tok/s,p99_itl_ms",
        "64,8192,10.5,5000.5,33.5",
    ]
    (run,) = load("\n".join(lines).replace(",", separator))
    assert (run.max_num_seqs, run.requests_per_s, run.total_tokens_per_s) == (64, 10.5, 5000.5)
    assert run.latencies == {"p99_itl_ms": 33.5}


def test_json_lines_an_array_and_an_object_around_it(load):
    rows = '{"max_num_seqs": 64, "rps": 1.5}\n{"max_num_seqs": 128, "rps": 2.5}\n'
    array = "[" + ",".join(rows.split("\n")[:2]) + "]"
    for text in (rows, array, f'{{"date": "x", "rows": {array}}}'):
        assert [(run.max_num_seqs, run.requests_per_s) for run in load(text)] == [(64, 1.5), (128, 2.5)]


def test_parquet_and_gzip(load):
    buffer = io.BytesIO()
    pl.DataFrame({"max_num_seqs": [64], "requests_per_s": [1.5]}).write_parquet(buffer)
    assert load(buffer.getvalue())[0].requests_per_s == 1.5
    assert load(gzip.compress(b"max_num_seqs,rps\n64,1.5\n"))[0].max_num_seqs == 64


def test_times_that_no_calendar_has_do_not_matter(load):
    buffer = io.BytesIO()
    times = {"took": pl.lit(-(2**63), pl.Int64).cast(pl.Duration("ms")), "at": pl.lit(2**62).cast(pl.Datetime("us"))}
    pl.DataFrame({"max_num_seqs": [64], "requests_per_s": [1.5]}).with_columns(**times).write_parquet(buffer)
    assert load(buffer.getvalue())[0].requests_per_s == 1.5


def test_a_latency_without_a_unit_is_not_used_and_named(load, codes):
    surface = compare(load("max_num_seqs,rps,p95 latency\n64,1.5,2000\n128,1.6,2100\n"))
    assert surface.rows[0].latencies == {}
    assert "no-unit" in codes(surface)


def test_words_in_a_column_of_the_users_own_keep_rows_apart(load):
    text = "engine,max_num_seqs,rps\nold,64,10.25\nold,128,11.25\nnew,64,20.5\nnew,128,20.75\n"
    surface = compare(load(text))
    assert set(surface.groups) == {"engine=old", "engine=new"}
    assert surface.groups["engine=new"].verdict == "flat"


def test_counts_and_notes_of_the_users_own_are_left_alone(load):
    (run, _) = load("max_num_seqs,rps,preemptions,note\n64,10.25,7,first\n128,11.25,9,second\n")
    assert run.settings == {}


def test_values_that_say_nothing_are_unknown(load):
    (run,) = load("max_num_seqs,max_num_batched_tokens,rps,failed\ndefault,-,10.25,\n")
    assert (run.max_num_seqs, run.max_num_batched_tokens, run.failed) == (None, None, None)
