import csv
import gzip
import io
import json
from datetime import UTC, datetime

import polars as pl
import pytest

from maitre.errors import InputError, UnsupportedError, UsageError
from maitre.workload import Columns, Selection, load_workload

CALLS = [("a", 1, 10, 30, 7), ("b", 3, 20, 0, 8), ("c", 2, 5, 0, 9)]
"""Id, second, input, cached input, output."""


def ui_row(call_id, second, fresh, cached, output):
    usage = {"input": fresh, "input_cached_tokens": cached, "output": output, "total": fresh + cached + output}
    time = f"2026-11-01T00:00:0{second}.000Z"
    return {
        "id": call_id, "traceId": "t", "type": "GENERATION", "name": "chat", "environment": "default",
        "startTime": time, "endTime": time[:-2] + "9Z", "model": "qwen", "usageDetails": usage,
        "input": 'say "hi",\nplease', "output": "hi", "latency": 9, "traceTags": ["x"],
    }  # fmt: skip


def blob_row(call_id, second, fresh, cached, output):
    row = ui_row(call_id, second, fresh, cached, output)
    time = f"2026-11-01 00:00:0{second}.000000"
    return {
        "id": call_id, "trace_id": "t", "type": "GENERATION", "start_time": time, "end_time": time,
        "provided_model_name": "qwen", "usage_details": row["usageDetails"], "latency": 0.0, "input": "x",
    }  # fmt: skip


UI_ROWS = [ui_row(*call) for call in CALLS]
SPAN = UI_ROWS[0] | {"id": "s", "type": "SPAN", "usageDetails": {}}


def as_csv(rows):
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0], quoting=csv.QUOTE_ALL)
    writer.writeheader()
    writer.writerows(
        {name: json.dumps(value) if isinstance(value, dict | list) else value for name, value in row.items()}
        for row in rows
    )
    return text.getvalue()


def as_lines(rows):
    return "\n".join(map(json.dumps, rows))


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ui.csv", as_csv([SPAN, *UI_ROWS])),
        ("ui.json", json.dumps([SPAN, *UI_ROWS], indent=1)),
        ("ui.jsonl", as_lines([SPAN, *UI_ROWS])),
        ("bom.csv", "\ufeff" + as_csv(UI_ROWS)),
        ("answer.json", json.dumps({"data": UI_ROWS, "meta": {}})),
        ("blob.jsonl.gz", gzip.compress(as_lines([blob_row(*call) for call in CALLS]).encode())),
        ("blob.csv.gz", gzip.compress(as_csv([blob_row(*call) for call in CALLS]).encode())),
    ],
)
def test_every_form_of_export_gives_the_same_requests(tmp_path, name, content):
    for source in (write(tmp_path / name, content), f"langfuse:{tmp_path / name}"):
        workload = load_workload(source)
        assert workload.prompt_tokens.tolist() == [40, 5, 20]
        assert workload.output_tokens.tolist() == [7, 9, 8]
        assert workload.arrival_s.tolist() == [0, 1, 2]
        assert workload.num_dropped == {}
        assert "Langfuse export" in workload.source


def test_parquet_with_a_map_of_usage(tmp_path):
    usage = [[{"key": key, "value": value} for key, value in row["usageDetails"].items()] for row in UI_ROWS]
    times = [datetime(2026, 11, 1, 0, 0, second, tzinfo=UTC) for _, second, *_ in CALLS]
    pl.DataFrame(
        {"id": ["a", "b", "c"], "trace_id": ["t"] * 3, "type": ["GENERATION"] * 3, "start_time": times,
         "end_time": times, "usage_details": usage, "input": ["long"] * 3}
    ).write_parquet(tmp_path / "x.parquet")  # fmt: skip
    assert load_workload(str(tmp_path / "x.parquet")).prompt_tokens.tolist() == [40, 5, 20]


def parquet_with(tmp_path, **columns):
    rows = pl.DataFrame([blob_row(*call) | {"usage_details": json.dumps({"input": 9, "output": 1})} for call in CALLS])
    buffer = io.BytesIO()
    rows.with_columns(**columns).write_parquet(buffer)
    return write(tmp_path / "calls.parquet", buffer.getvalue())


def test_durations_of_a_parquet_file_are_not_looked_at(tmp_path):
    path = parquet_with(tmp_path, latency=pl.lit(-(2**63), pl.Int64).cast(pl.Duration("ms")))
    assert load_workload(path).num_requests == 3


def test_a_time_that_no_calendar_has_is_refused(tmp_path):
    path = parquet_with(tmp_path, start_time=pl.lit(2**62, pl.Int64).cast(pl.Datetime("us")))
    with pytest.raises(InputError, match="beyond what a calendar holds"):
        load_workload(path)


def test_a_key_of_usage_that_only_late_rows_have_is_not_lost(tmp_path):
    early = [ui_row(f"e{n}", 1, 10, 0, 1) | {"usageDetails": {"input": 10, "output": 1}} for n in range(1500)]
    late = ui_row("late", 9, 10, 90, 1)
    assert load_workload(write(tmp_path / "x.jsonl", as_lines([*early, late]))).prompt_tokens.max() == 100


def test_a_first_row_of_megabytes_is_recognised(tmp_path):
    rows = [UI_ROWS[0] | {"input": "x" * 3_000_000}, *UI_ROWS[1:]]
    assert load_workload(write(tmp_path / "x.json", json.dumps(rows))).num_requests == 3


def test_a_blob_storage_folder_is_read_once_per_observation(tmp_path):
    one, two, three = (blob_row(*call) for call in CALLS)
    folder = tmp_path / "prefix" / "project"
    write(folder / "observations" / "2026-11-01.jsonl.gz", gzip.compress(as_lines([one, two]).encode()))
    write(folder / "observations" / "2026-11-02.jsonl.gz", gzip.compress(as_lines([two, three]).encode()))
    write(folder / "observations" / "2026-11-03.jsonl.gz", gzip.compress(b""))
    write(folder / "scores" / "2026-11-01.jsonl.gz", gzip.compress(b'{"id": "score"}'))
    write(folder / "manifests" / "2026-11-01.json", '{"version": 1}')
    workload = load_workload(f"langfuse:{tmp_path}")
    assert workload.prompt_tokens.tolist() == [40, 5, 20]
    assert "Langfuse export of 2 files" in workload.source


def test_time_window_and_filters_hold_for_files_too(tmp_path):
    path = write(tmp_path / "x.jsonl", as_lines(UI_ROWS))

    def prompts(**selection):
        return load_workload(path, selection=Selection(**selection)).prompt_tokens.tolist()

    assert prompts(since="2026-11-01T00:00:02Z") == [5, 20]
    assert prompts(until="2026-11-01T00:00:02Z") == [40]
    assert prompts(where=("model=qwen", "tag=x", "environment=default")) == [40, 5, 20]
    with pytest.raises(InputError, match="no generation"):
        prompts(where=("model=llama",))


@pytest.mark.parametrize("nothing", [None, "", []])
def test_a_call_without_tags_is_just_not_chosen(tmp_path, nothing):
    rows = [UI_ROWS[0] | {"traceTags": nothing}, *UI_ROWS[1:]]
    for content in (as_lines(rows), as_csv(rows)):
        path = write(tmp_path / "x", content)
        assert load_workload(path, selection=Selection(where=("tag=x",))).prompt_tokens.tolist() == [5, 20]


def test_tags_that_a_file_does_not_carry_cannot_be_asked_for(tmp_path):
    path = write(tmp_path / "x.jsonl", as_lines([blob_row(*call) for call in CALLS]))
    with pytest.raises(UnsupportedError, match="carry no tags"):
        load_workload(path, selection=Selection(where=("tag=x",)))


def test_named_columns_make_an_export_a_plain_table(tmp_path):
    path = write(tmp_path / "x.jsonl", as_lines(UI_ROWS))
    columns = Columns(prompt="usageDetails.input", output="usageDetails.output")
    assert load_workload(path, columns=columns).prompt_tokens.tolist() == [10, 5, 20]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.jsonl", as_lines(UI_ROWS)[:-5], "line 3: not valid JSON"),
        ("cut.json", json.dumps(UI_ROWS)[:-5], "truncated"),
        ("list.json", json.dumps([UI_ROWS[0], 7]), "entry 2: not a JSON object"),
    ],
)
def test_a_broken_export_is_refused_with_its_place(tmp_path, name, content, message):
    with pytest.raises(InputError, match=message):
        load_workload(write(tmp_path / name, content))


def test_what_langfuse_did_not_write_is_refused_behind_the_prefix(tmp_path):
    path = write(tmp_path / "x.csv", "prompt_tokens,output_tokens\n1,2\n")
    with pytest.raises(InputError, match="no observations of Langfuse"):
        load_workload(f"langfuse:{path}")
    with pytest.raises(InputError, match="no observations of Langfuse"):
        load_workload(f"langfuse:{tmp_path}")
    with pytest.raises(InputError, match="no such file"):
        load_workload("langfuse:missing.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no CSV"):
        load_workload(f"langfuse:{tmp_path / 'empty'}")


@pytest.mark.parametrize("text", ["fixed:1:2", "x.csv"])
def test_other_sources_cannot_be_selected_from(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "x.csv", "prompt_tokens,output_tokens\n1,2\n")
    with pytest.raises(UsageError, match="no source from Langfuse"):
        load_workload(text, selection=Selection(since="7d"))


@pytest.mark.parametrize(
    ("case", "prompts"),
    [("langfuse-cached-counted-twice", [17903, 100]), ("langfuse-usage-as-objects", [412] * 4)],
)
def test_public_cases(shared_path, case, prompts):
    workload = load_workload(str(shared_path / "cases" / f"{case}.json"))
    assert workload.prompt_tokens.tolist() == prompts
    assert workload.num_dropped == {}
    assert "1 without a counted output taken as one token" in workload.source or case.endswith("objects")
