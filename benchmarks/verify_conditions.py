"""Is the verdict right? Simulated servers whose truth is known are judged by what their metrics say.

    python benchmarks/verify_conditions.py [--num 240] [--seed 0] [--families a,b] [--limits known|unknown]
        [--prometheus FOLDER] [--json FILE] [--judge MODULE:FUNCTION]

Conditions: the families of `benchmarks/conditions`, taking turns; traffic, load, server and limits are drawn, and a
draw counts only if the simulator's own steps show what its label says. Judged are the series in memory, or with
--prometheus what a real Prometheus answers that took them in (the folder of its programs). --limits unknown hides
max_num_seqs and max_num_batched_tokens, as Prometheus does.

Printed: for each family how often each verdict was given, and the shares of
    false alarms    servers that need no other setting, told to change something
    named           clear conditions with the right verdict
    right           all conditions with a right verdict; `cannot-tell` counts where that is right
    abstentions     verdicts `cannot-tell`
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from conditions.catalogue import FAMILIES, draw_conditions
from conditions.exposition import history_lines
from conditions.story import Condition

from maitre.metric_series import MetricSeries
from maitre.prometheus.client import PrometheusClient
from maitre.records import Cell
from maitre.verify.deployment import Deployment
from maitre.verify.sources.from_prometheus import read_window
from maitre.verify.verdict import STAYS
from maitre.verify.verification import verify

Judge = Callable[[Sequence[MetricSeries], Cell | None], str]
"""The verdict on series; the limits where they are known."""
SERVERS = Path(__file__).parents[1] / "tests" / "prometheus_live" / "servers.py"


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said of one condition."""

    name: str
    family: str
    right: str
    also_right: tuple[str, ...]
    is_clear: bool
    verdict: str
    is_right: bool
    seconds: float
    """To read and to judge."""
    num_requests: int
    """Asked of Prometheus."""


def judge_with_maitre(series: Sequence[MetricSeries], cell: Cell | None) -> str:
    """The verdict of `maitre verify`."""
    known = Deployment()
    if cell is not None:
        limits = {"max_num_seqs": cell.max_num_seqs, "max_num_batched_tokens": cell.max_num_batched_tokens}
        known = Deployment(**limits)
    return verify(series, known, "conditions")[0].verdict


def answers_in_memory(conditions: Iterable[Condition], judge: Judge, *, knows_limits: bool) -> Iterator[Answer]:
    """Judge the series as they are."""
    for condition in conditions:
        start = time.perf_counter()
        verdict = judge(condition.series, condition.cell if knows_limits else None)
        yield _answer(condition, verdict, time.perf_counter() - start, 0)


def answers_of_prometheus(
    conditions: Sequence[Condition], judge: Judge, programs: Path, *, knows_limits: bool
) -> Iterator[Answer]:
    """Judge what a Prometheus answers that took all conditions in."""
    with filled_prometheus(conditions, programs) as url:
        for condition in conditions:
            client = PrometheusClient(url)
            start = time.perf_counter()
            series = read_window(
                client, condition.start_s, condition.end_s, matchers=[f'instance=~"{condition.name}(-[0-9]+)?"']
            )
            verdict = judge(series, condition.cell if knows_limits else None)
            yield _answer(condition, verdict, time.perf_counter() - start, client.num_requests)


@contextmanager
def filled_prometheus(conditions: Iterable[Condition], programs: Path) -> Iterator[str]:
    """A Prometheus with the past of these conditions, told apart by `instance`; gives its address."""
    servers = _load(SERVERS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        history = folder / "history.txt"
        with history.open("w") as file:
            for condition in conditions:
                file.writelines(f"{line}\n" for line in history_lines(condition.series))
        servers.create_blocks(programs, history.read_text(), folder)
        server = servers.start_prometheus(programs, folder)
        try:
            yield server.url
        finally:
            server.stop()


def summarize(answers: Sequence[Answer]) -> dict[str, Any]:
    """The shares; None where nothing counts for one."""
    calm = [a for a in answers if a.right in STAYS]
    clear = [a for a in answers if a.is_clear]
    return {
        "num_conditions": len(answers),
        "false_alarms": _share([a.verdict not in STAYS | {"cannot-tell"} and not a.is_right for a in calm]),
        "named": _share([a.is_right for a in clear]),
        "named_exactly": _share([a.verdict == a.right for a in clear]),
        "right": _share([a.is_right for a in answers]),
        "abstentions": _share([a.verdict == "cannot-tell" for a in answers]),
        "abstentions_where_clear": _share([a.verdict == "cannot-tell" for a in clear]),
        "seconds_per_verdict": sum(a.seconds for a in answers) / len(answers),
        "requests_per_verdict": sum(a.num_requests for a in answers) / len(answers),
        "most_requests": max(a.num_requests for a in answers),
    }


def confusion(answers: Sequence[Answer]) -> dict[str, dict[str, int]]:
    """How often each family got each verdict."""
    return {
        family: dict(Counter(a.verdict for a in answers if a.family == family).most_common())
        for family in dict.fromkeys(a.family for a in answers)
    }


def print_report(answers: Sequence[Answer]) -> None:
    """Both, and every wrong answer."""
    for family, verdicts in confusion(answers).items():
        members = [a for a in answers if a.family == family]
        told = ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items())
        print(f"{family:18} {sum(a.is_right for a in members):3} of {len(members):3} right   {told}")
    for a in answers:
        if not a.is_right:
            print(f"wrong: {a.name}: {a.verdict}, right is {' or '.join([a.right, *a.also_right])}")
    for key, value in summarize(answers).items():
        print(f"{key:24} {'-' if value is None else f'{value:.4g}'}")


def _answer(condition: Condition, verdict: str, seconds: float, num_requests: int) -> Answer:
    return Answer(
        name=condition.name,
        family=condition.family,
        right=condition.verdict,
        also_right=tuple(sorted(condition.also_right - {condition.verdict})),
        is_clear=condition.is_clear,
        verdict=verdict,
        is_right=condition.is_right(verdict),
        seconds=seconds,
        num_requests=num_requests,
    )


def _share(hits: Sequence[bool]) -> float | None:
    return sum(hits) / len(hits) if hits else None


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Is the verdict right?")
    parser.add_argument("--num", type=int, default=240)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--limits", choices=("known", "unknown"), default="known")
    parser.add_argument("--prometheus", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--judge", default="")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Draw, judge, print."""
    given = _parse(arguments)
    judge: Judge = judge_with_maitre
    if given.judge:
        module, _, function = given.judge.partition(":")
        judge = getattr(importlib.import_module(module), function)
    knows_limits = given.limits == "known"
    start = time.perf_counter()
    conditions = draw_conditions(given.num, given.seed, given.families.split(","))
    if given.prometheus:
        drawn = list(conditions)
        print(f"{len(drawn)} conditions drawn in {time.perf_counter() - start:.0f} s", file=sys.stderr)
        told = answers_of_prometheus(drawn, judge, given.prometheus, knows_limits=knows_limits)
    else:
        told = answers_in_memory(conditions, judge, knows_limits=knows_limits)
    answers = []
    for answer in told:
        answers.append(answer)
        print(f"{len(answers)} {answer.name}: {answer.verdict}{'' if answer.is_right else ', wrong'}", file=sys.stderr)
    print(f"{time.perf_counter() - start:.0f} s in all", file=sys.stderr)
    print_report(answers)
    if given.json:
        report = {
            "summary": summarize(answers),
            "confusion": confusion(answers),
            "answers": [asdict(a) for a in answers],
        }
        given.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
