"""Rate limits, time-outs and 5xx: the read goes on, or says once that it cannot, and the next one goes on from it."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from maitre.errors import InputError, SystemFailure
from maitre.workload.langfuse.connection import Connection, Overloaded
from maitre.workload.langfuse.journal import Journal
from maitre.workload.langfuse.selection import Window

USAGE = {"input": 10, "output": 5}
TOO_MUCH = {
    "ClickHouse": (422, {"message": "Query exceeded memory", "error": "Request timed out"}),
    "self-hosted": (500, {"message": "Timeout error"}),
    "Cloud's edge": (524, {}),
    "gateway": (504, {}),
}


def windows_s(langfuse):
    times = [[dict(query)[name] for name in ("fromStartTime", "toStartTime")] for _, query in langfuse.asked]
    return [(datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds() for a, b in times]


@pytest.mark.parametrize("overload", TOO_MUCH.values(), ids=TOO_MUCH)
def test_an_overloaded_server_is_asked_for_smaller_windows(langfuse, read, make_call, overload):
    langfuse.overload, langfuse.max_window_s = overload, 5 * 3600
    langfuse.rows = [make_call(3600 * hour, USAGE) for hour in range(7 * 24)]
    workload = read()
    assert workload.num_requests == 7 * 24
    assert workload.num_dropped == {}
    assert f"it answers {overload[0]}" in read.notes[0]
    assert read.waits_s[:3] == [1, 2, 4]


def test_windows_grow_again_when_they_were_easy(langfuse, read, make_call):
    langfuse.rows = [make_call(1, USAGE)]
    read()
    assert windows_s(langfuse) == [0.001, 86400, 2 * 86400, 4 * 86400]


def test_windows_of_many_pages_are_halved(langfuse, read, make_call):
    langfuse.versions = ("v1",)
    langfuse.rows = [make_call(n, USAGE) for n in range(2101)]
    read()
    sizes = sorted(set(windows_s(langfuse)), reverse=True)
    assert 43200 in sizes


def test_a_failure_between_pages_neither_loses_nor_doubles_anything(langfuse, read, make_call):
    langfuse.rows = [make_call(n, {"input": n + 1, "output": 1}) for n in range(2500)]
    answers = iter(range(100))
    answer = langfuse._answer

    def fail_third(version, request):
        if next(answers) == 2:
            langfuse.moods.append((503, {}, b""))
        return answer(version, request)

    langfuse._answer = fail_third
    assert read().prompt_tokens.tolist() == list(range(1, 2501))
    assert langfuse.moods == []


def test_a_rate_limit_is_waited_for_as_long_as_it_says(langfuse, read, make_call):
    langfuse.rows = [make_call(1, USAGE)]
    langfuse.moods = [
        (429, {"Retry-After": "17", "X-RateLimit-Limit": "30"}, b'{"message": "Rate limit exceeded"}'),
        (429, {"Retry-After": "Sun, 08 Nov 2026 00:15:42 GMT"}, b""),
        (429, {}, b""),
        (429, {"Retry-After": "nan"}, b""),
        (429, {"Retry-After": "Sun, 08 Nov 2026 00:15:99999999999999999999 GMT"}, b""),
    ]
    assert read().num_requests == 1
    assert read.waits_s == [17, 42, 10, 10, 10]
    assert read.notes[0] == "rate limit, waiting 17 s"


def test_a_rate_limit_of_hours_is_an_error_at_once(langfuse, read):
    langfuse.moods = [(429, {"Retry-After": "7200"}, b"")]
    with pytest.raises(SystemFailure, match="rate limit"):
        read()
    assert read.waits_s == []


def test_a_server_that_stays_down_is_an_error_after_some_tries(langfuse, read):
    langfuse.moods = [(503, {}, b"<html>Bad Gateway</html>")] * 50
    with pytest.raises(SystemFailure, match="answers 503, 9 times in a row"):
        read()
    assert read.waits_s == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_server_that_is_replaced_meanwhile_is_asked_again(langfuse, read, make_call):
    langfuse.rows = [make_call(1, USAGE)]
    langfuse.moods = [(200, {}, b'{"data": [], "meta": {}}'), (404, {}, b'{"message": "Not Found"}')]
    assert read().num_requests == 1
    assert read.notes == ["its observations are gone: Not Found; asking for less"]


def test_answers_that_are_cut_off_are_asked_for_again(langfuse, read, make_call):
    langfuse.rows = [make_call(1, USAGE)]
    langfuse.moods = [(200, {"Content-Type": "application/json"}, b'{"data": [{"id": "a", "ty')]
    assert read().num_requests == 1
    assert read.notes == ["the answer is cut off; asking for less"]


def test_a_cursor_that_leads_nowhere_does_not_loop(langfuse, read):
    page = json.dumps({"data": [], "meta": {"cursor": "x"}})
    langfuse.moods = [(200, {}, page)] * 50
    with pytest.raises(SystemFailure, match="the same page again and again"):
        read()


def test_the_same_question_goes_on_where_it_stopped(langfuse, read, make_call):
    langfuse.rows = [make_call(86400 * day + 60, {"input": day + 1, "output": 1}) for day in range(7)]
    answer = langfuse._answer

    def break_down(version, request):
        if len(langfuse.asked) > 2:
            langfuse.moods = [(503, {}, b"")] * 50
        return answer(version, request)

    langfuse._answer = break_down
    with pytest.raises(SystemFailure, match="503") as caught:
        read()
    assert "goes on where it stopped" in caught.value.hint
    langfuse._answer = answer
    langfuse.moods.clear()
    langfuse.asked.clear()
    assert read().prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert min(windows_s(langfuse)[1:]) > 0
    going_on = next(note for note in read.notes if note.startswith("going on from"))
    first = dict(langfuse.asked[1][1])["fromStartTime"]
    assert first > "2026-11-01T00:00:00.000Z"  # what is done is not asked for again
    assert first in going_on
    langfuse.asked.clear()
    read()
    assert dict(langfuse.asked[1][1])["fromStartTime"] == "2026-11-01T00:00:00.000Z"  # done, so this one is new


def journal_of(read, langfuse):
    """The journal that a read leaves which breaks down after its first window."""
    langfuse.moods = [(200, {}, b'{"data": [], "meta": {}}')] * 2 + [(503, {}, b"")] * 9
    with pytest.raises(SystemFailure):
        read()
    (path,) = Path(read.environ["XDG_CACHE_HOME"]).rglob("*.jsonl")
    return path


def test_an_interrupted_read_keeps_what_it_has(langfuse, read, make_call):
    langfuse.rows = [make_call(86400 * day + 60, USAGE) for day in range(7)]
    listen = read._listen

    def interrupt(progress):
        listen(progress)
        if progress.num_read == 3:
            raise KeyboardInterrupt

    read._listen = interrupt
    with pytest.raises(KeyboardInterrupt):
        read()
    read._listen = listen
    assert read().num_requests == 7
    assert any(note.startswith("going on from") for note in read.notes)


def test_a_read_that_got_nothing_leaves_nothing_to_go_on_with(langfuse, read, tmp_path):
    langfuse.moods = [(401, {}, b"")]
    with pytest.raises(InputError):
        read()
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_journal_holds_no_keys(langfuse, read):
    path = journal_of(read, langfuse)
    assert "lf-1" not in path.read_text() + path.name


@pytest.mark.parametrize("cut", [0, 1, 60, -1, -5])
def test_a_torn_journal_counts_as_far_as_it_can_be_read(langfuse, read, make_call, cut):
    path = journal_of(read, langfuse)
    path.write_text(path.read_text()[:cut])
    langfuse.rows = [make_call(86400 * day + 60, USAGE) for day in range(1, 7)]
    assert read().num_requests == 6


SOUND = ["a", "m", 1_793_500_000_000_000, None, None, 9, 0, 5, ""]
"""What a journal keeps of a call, in the order of `Observation`."""


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, []), (1, None), (2, float("nan")), (2, 10**19), (3, "1"), (4, True), (5, -1), (5, 0), (6, 0.5), (8, 0)],
)
def test_a_journal_that_somebody_else_wrote_counts_as_far_as_it_is_sound(langfuse, read, make_call, position, value):
    path = journal_of(read, langfuse)
    call = [*SOUND]
    call[position] = value
    langfuse.rows = [make_call(86400 * day + 60, USAGE) for day in range(1, 7)]
    head, part, *_ = path.read_text().splitlines()
    until_ms = json.loads(part)["until_ms"]
    foreign = {"until_ms": until_ms + 86_400_000, "observations": [call]}
    path.write_text("\n".join([head, part, json.dumps(foreign)]))
    assert read().num_requests == 6


def test_half_a_character_in_a_journal_is_replaced(tmp_path):
    path = tmp_path / "journal.jsonl"
    head = {"schema_version": "maitre-langfuse-journal-1", "window": [0, 1000], "begun_ms": 5}
    part = {"until_ms": 250, "observations": [["a", "\ud800", 0, 10, 0.1, 3, 0, 4, ""]]}
    path.write_text(f"{json.dumps(head)}\n{json.dumps(part)}\n")
    (call,) = Journal(path, Window(0, 1000), 6).observations
    assert call.model == "\ufffd"


@pytest.mark.parametrize(
    "change", [{"begun_ms": float("inf")}, {"window": [5, 1]}, {"window": [0, 10**18]}, {"window": [None, 1]}]
)
def test_a_journal_with_a_head_that_makes_no_sense_is_begun_again(langfuse, read, make_call, change):
    path = journal_of(read, langfuse)
    head, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps(json.loads(head) | change) + "\n" + rest)
    langfuse.rows = [make_call(60, USAGE)]
    assert read().num_requests == 1


@pytest.mark.parametrize("until_ms", [float("inf"), 10**18, 0])
def test_a_part_that_ends_outside_the_window_does_not_count(langfuse, read, make_call, until_ms):
    path = journal_of(read, langfuse)
    head, _, _ = path.read_text().partition("\n")
    path.write_text(head + "\n" + json.dumps({"until_ms": until_ms, "observations": [SOUND]}))
    langfuse.rows = [make_call(60, USAGE)]
    assert read().num_requests == 1


def test_another_question_does_not_go_on_with_this_ones_journal(langfuse, read, make_call):
    journal_of(read, langfuse)
    langfuse.rows = [make_call(60, USAGE), make_call(86400 + 60, USAGE)]
    assert read("model=qwen").num_requests == 2


def test_a_journal_of_yesterday_is_begun_again(langfuse, read, make_call):
    path = journal_of(read, langfuse)
    head, _, rest = path.read_text().partition("\n")
    old = json.loads(head)
    path.write_text(json.dumps(old | {"begun_ms": old["begun_ms"] - 86_400_001}) + "\n" + rest)
    langfuse.rows = [make_call(60, USAGE)]
    assert read().num_requests == 1


def test_a_finished_read_leaves_nothing_behind(langfuse, read, make_call, tmp_path):
    langfuse.rows = [make_call(1, USAGE)]
    read()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_progress_goes_from_nothing_to_all(langfuse, read, make_call):
    langfuse.rows = [make_call(n * 3600, USAGE) for n in range(160)]
    read()
    shares = [progress.share for progress in read.progress]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0, 1)
    assert read.progress[-1].num_read == 160


class Silent:
    """A session whose server never answers."""

    def get(self, *_, **__):
        raise TimeoutError


def test_a_time_out_counts_as_overload():
    connection = Connection(
        Silent(), "http://host", now=lambda: datetime(2026, 11, 8, tzinfo=UTC), pause=None, on_note=None
    )
    with pytest.raises(Overloaded, match="no answer in 60 s"):
        asyncio.run(connection.get("/"))
