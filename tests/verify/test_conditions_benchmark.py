"""The benchmark of verdicts counts right."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/verify_conditions.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        import verify_conditions  # noqa: PLC0415

        return verify_conditions


@pytest.fixture(scope="module")
def conditions(benchmark):
    """A calm server, one with too few slots, and two looks at one."""
    return list(benchmark.draw_conditions(3, 2, ("under-used", "seq-capped", "two-scrapes")))


def judged(benchmark, conditions, verdicts):
    told = iter(verdicts)
    return list(benchmark.answers_in_memory(conditions, lambda *_: next(told), knows_limits=True))


def test_a_perfect_judge(benchmark, conditions):
    answers = judged(benchmark, conditions, [one.verdict for one in conditions])
    summary = benchmark.summarize(answers)
    assert (summary["right"], summary["named"], summary["false_alarms"]) == (1, 1, 0)


def test_a_judge_that_always_abstains_names_nothing_and_alarms_nobody(benchmark, conditions):
    summary = benchmark.summarize(judged(benchmark, conditions, 3 * ["cannot-tell"]))
    assert (summary["abstentions"], summary["named"], summary["false_alarms"]) == (1, 0, 0)
    assert summary["right"] == pytest.approx(1 / 3)


def test_a_calm_server_that_is_called_sick_is_a_false_alarm(benchmark, conditions):
    answers = judged(benchmark, conditions, ["kv-bound", "seq-capped", "cannot-tell"])
    assert benchmark.summarize(answers)["false_alarms"] == 1
    assert benchmark.confusion(answers)["under-used"] == {"kv-bound": 1}


def test_a_judge_may_not_know_the_limits(benchmark, conditions):
    seen = []
    list(benchmark.answers_in_memory(conditions, lambda _, cell: str(seen.append(cell)), knows_limits=False))
    assert seen == [None, None, None]


def test_maitre_judges_the_clear_ones_right(benchmark, conditions):
    answers = benchmark.answers_in_memory(conditions, benchmark.judge_with_maitre, knows_limits=True)
    assert [answer.is_right for answer in answers] == [True, True, True]
