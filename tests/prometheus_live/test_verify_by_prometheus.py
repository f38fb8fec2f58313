"""`maitre verify --prometheus` as a user calls it, on a real Prometheus and a real VictoriaMetrics."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from maitre.cli import main

pytestmark = pytest.mark.prometheus
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FAMILIES = ("seq-capped", "kv-storm", "under-used")


@pytest.fixture(scope="module")
def drawn():
    """Simulated servers by their condition, and the history of all of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        from conditions.catalogue import draw_condition  # noqa: PLC0415
        from conditions.exposition import history_lines  # noqa: PLC0415

        conditions = {family: draw_condition(family, 1, seed=4) for family in FAMILIES}
        return conditions, "\n".join(line for one in conditions.values() for line in history_lines(one.series))


@pytest.fixture(scope="module", params=["prometheus", "victoria-metrics"])
def url(request, start_server, drawn):
    return start_server(request.param, history=drawn[1]).url


def run(capsys, *words):
    with pytest.raises(SystemExit) as exit_:
        main(["verify", *map(str, words), "--json"])
    return exit_.value.code, json.loads(capsys.readouterr().out)


def moment(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def instance(condition):
    return condition.series[0].labels["instance"]


@pytest.mark.parametrize("family", FAMILIES)
def test_each_server_among_others_is_named(url, drawn, capsys, family):
    one = drawn[0][family]
    limits = ["--max-num-seqs", one.cell.max_num_seqs, "--max-num-batched-tokens", one.cell.max_num_batched_tokens]
    window = ["--since", moment(one.start_s), "--until", moment(one.end_s), "--where", f"instance={instance(one)}"]
    code, answer = run(capsys, "--prometheus", url, *window, *limits, "--all-models")
    assert one.is_right(answer["verdict"])
    assert code == (0 if answer["verdict"] == "defaults-suffice" else 1)
    assert answer["figures"]["num_requests"] > 0


def test_two_halves_of_an_hour_are_compared(url, drawn, capsys):
    one = drawn[0]["under-used"]
    middle = (one.start_s + one.end_s) / 2
    windows = [f"{moment(start)}..{moment(end)}" for start, end in ((one.start_s, middle), (middle, one.end_s))]
    words = ["--where", f"instance={instance(one)}", "--all-models", "--before", windows[0], "--after", windows[1]]
    _, answer = run(capsys, "--prometheus", url, *words)
    assert answer["verdict"] in {"unchanged", "not-comparable"}


def test_a_time_without_samples_is_told(url, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["verify", "--prometheus", url, "--since", "2001-01-01", "--until", "2001-01-02"])
    assert exit_.value.code == 2
    assert "hint: " in capsys.readouterr().err
