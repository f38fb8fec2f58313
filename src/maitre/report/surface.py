"""The surface on a terminal: a coloured matrix, the cells that matter, and the answer."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from maitre.records import BoundBy, Cell, Flags, Percentiles, Study, Trial
from maitre.report.decisions import confirmation_words, decisions_table
from maitre.report.drift import drift_table
from maitre.report.merit import (
    best_name,
    confirmed_rate,
    ends_rate,
    figure,
    gain_words,
    heading,
    highest_rate,
    letters,
    load_words,
    tightest,
)
from maitre.units import format_seconds
from maitre.vllm.command import flag_words, serve_command

LEGEND = "★ recommended   ● present   ≈ within {epsilon:.0%} of the best   ! preempts"

_COLD, _WARM = (60, 20, 30), (20, 110, 50)
"""Backgrounds of the slowest and the fastest cell, red, green, blue."""


def print_study(study: Study, console: Console) -> None:
    """Print the whole report of a study.

    Args:
        study: with at least one cell.
        console: where to.
    """
    for part in _parts(study):
        console.print(part, highlight=False)
    if study.engine == "simulated":  # a recording does not know the model's name
        console.print(shlex.join(serve_command(study.server, study.recommended)), soft_wrap=True, highlight=False)


def _parts(study: Study) -> Iterator[RenderableType]:
    yield Text(f"{study.server.model} on {study.gpu}, vLLM {study.server.vllm_version}", style="bold")
    yield Text(f"{study.num_requests:,} requests ({study.total_tokens:,} tokens): {study.workload_source}")
    yield Text(load_words(study), style="dim")
    yield Text(f"step time {study.calibration}" if study.engine == "simulated" else study.calibration, style="dim")
    what = heading(study.objective)
    yield Padding(Text(f"{what}: max_num_seqs across, max_num_batched_tokens down"), (1, 0, 0, 0))
    for flags in sorted({trial.flags for trial in study.cells}):
        if flags:
            yield Padding(Text("with " + " ".join(flag_words(flags)), style="bold"), (1, 0, 0, 0))
        yield _matrix(study, flags)
    yield Text(LEGEND.format(epsilon=study.recommendation.epsilon), style="dim")
    yield Text(letters(study.objective), style="dim")
    if study.decisions:
        yield Text("(in brackets: not measured, predicted from the others)", style="dim")
    yield from (Text(f"{cell} cannot serve: {reason}", style="yellow") for cell, reason in study.infeasible.items())
    yield Padding(_details(study), (1, 0))
    if study.decisions:
        yield Padding(decisions_table(study.decisions), (0, 0, 1, 0))
    if study.drift:
        yield Padding(drift_table(study.drift), (0, 0, 1, 0))
    yield from _cliff(study)
    yield from _limits(study)
    yield from (Text(f"note: {f.message}; {f.remedy}", style="yellow") for f in study.findings)
    yield from _answer(study)


def _matrix(study: Study, flags: Flags) -> Table:
    """What the objective counts at these flags: a row a token budget, a column a number of slots."""
    trials = {trial.cell: trial for trial in study.cells if trial.flags == flags}
    merits = [study.objective.merit(trial) for trial in study.cells]
    seqs = sorted({cell.max_num_seqs for cell in trials})
    tokens = sorted({cell.max_num_batched_tokens for cell in trials}, reverse=True)
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("", justify="right", style="bold")
    for value in seqs:
        table.add_column(f"{value}", justify="right", header_style="bold")
    for budget in tokens:
        row = [trials.get(Cell(max_num_seqs=value, max_num_batched_tokens=budget, flags=flags)) for value in seqs]
        table.add_row(f"{budget:,}", *(_matrix_cell(study, trial, min(merits), max(merits)) for trial in row))
    return table


def _matrix_cell(study: Study, trial: Trial | None, slowest: float, fastest: float) -> Text:
    if trial is None:
        return Text("·", style="dim")
    answer = study.recommendation
    marks = [
        "★" if trial.cell == answer.recommended else "",
        "●" if trial.cell == answer.baseline else "",
        "≈" if trial.cell in answer.plateau else "",
        "!" if trial.num_preemptions else "",
    ]
    number = figure(study.objective, trial)
    is_predicted = study.decisions and trial.engine == "simulated"
    text = f"{''.join(marks)} {f'({number})' if is_predicted else number}"
    share = 1.0 if fastest == slowest else (study.objective.merit(trial) - slowest) / (fastest - slowest)
    red, green, blue = (round(c + share * (w - c)) for c, w in zip(_COLD, _WARM, strict=True))
    weight = trial.cell in (answer.recommended, answer.baseline)
    return Text(text, style=Style(color="white", bgcolor=f"rgb({red},{green},{blue})", bold=weight))


def _details(study: Study) -> Table:
    """Figures of the cells that matter, a column each."""
    answer = study.recommendation
    trials = {trial.cell: trial for trial in study.cells}
    best = max(study.cells, key=study.objective.merit).cell
    named: dict[Cell, list[str]] = {}
    names = ("recommended", "present", best_name(study.objective))
    for name, cell in zip(names, (answer.recommended, answer.baseline, best), strict=True):
        named.setdefault(cell, []).append(name)
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("seqs × tokens", no_wrap=True)
    for cell, roles in named.items():
        dials = f"{cell.max_num_seqs} × {cell.max_num_batched_tokens:,}"
        name = " ".join([dials, *(value for _, value in cell.flags)])
        table.add_column(f"{name}\n{', '.join(roles)}", justify="right")
    for label, write in _FIGURES.items():
        figures = [write(trials[cell]) for cell in named]
        if any(figures):
            table.add_row(label, *(figure or "none" for figure in figures))
    return table


def _latency(latency: Percentiles | None) -> str:
    if latency is None:
        return "none"
    scale, unit = (1e3, "ms") if latency.p99 < 1 else (1.0, "s")
    values = [scale * seconds for seconds in (latency.p50, latency.p95, latency.p99)]
    figures = (f"{value:,.3g}" if value < 1000 else f"{value:,.0f}" for value in values)
    return f"{' / '.join(figures)} {unit}"


def _kv_usage(trial: Trial) -> str:
    if trial.kv_usage is None or trial.kv_usage_max is None:
        return "unknown"
    return f"{trial.kv_usage:.0%} / {trial.kv_usage_max:.0%}"


def _bound_share(trial: Trial, bound: BoundBy) -> str:
    return f"{trial.bound_share[bound]:.0%}" if trial.bound_share else "unknown"


def _steady(trial: Trial) -> str:
    window = trial.steady
    if window is None:
        return ""
    speed, low, high = window.total_tokens_per_s, window.total_tokens_per_s_low, window.total_tokens_per_s_high
    if low is None or high is None:
        return f"{speed:,.0f}"
    return f"{speed:,.0f} ±{(high - low) / 2 / speed:.1%}"


def _within_targets(trial: Trial) -> str:
    return f"{trial.attainment.share:.1%}" if trial.attainment else ""


def _goodput(trial: Trial) -> str:
    return f"{trial.attainment.goodput_rps:,.2f}" if trial.attainment else ""


_FIGURES: dict[str, Callable[[Trial], str]] = {
    "highest rate": highest_rate,
    "  met by a run at": confirmed_rate,
    "  which ends by": ends_rate,
    "useful tokens/s": lambda trial: f"{trial.total_tokens_per_s:,.0f}",
    "  while steady": _steady,
    "output tokens/s": lambda trial: f"{trial.output_tokens_per_s:,.0f}",
    "requests/s": lambda trial: f"{trial.requests_per_s:,.2f}",
    "TTFT p50/p95/p99": lambda trial: _latency(trial.ttft_s),
    "ITL p50/p95/p99": lambda trial: _latency(trial.itl_s),
    "TPOT p50/p95/p99": lambda trial: _latency(trial.tpot_s) if trial.tpot_s else "",
    "  TTFT at the client": lambda trial: _latency(trial.client_ttft_s) if trial.client_ttft_s else "",
    "  ITL at the client": lambda trial: _latency(trial.client_itl_s) if trial.client_itl_s else "",
    "longest ITL": lambda trial: format_seconds(trial.itl_s.max) if trial.itl_s else "none",
    "of the targets": tightest,
    "within targets": _within_targets,
    "goodput requests/s": _goodput,
    "preemptions": lambda trial: "unknown" if trial.num_preemptions is None else f"{trial.num_preemptions:,}",
    "KV usage mean/max": _kv_usage,
    "bound by slots": lambda trial: _bound_share(trial, "seqs"),
    "  token budget": lambda trial: _bound_share(trial, "token-budget"),
    "  KV blocks": lambda trial: _bound_share(trial, "kv-blocks"),
    "  requests": lambda trial: _bound_share(trial, "requests"),
}


def _cliff(study: Study) -> Iterator[Text]:
    """Where more slots cost throughput because the KV pool runs out."""
    if study.objective.kind != "throughput":
        return
    rows: dict[tuple[int, Flags], list[Trial]] = {}
    for trial in study.cells:
        rows.setdefault((trial.max_num_batched_tokens, trial.flags), []).append(trial)
    cliffs = []
    for (budget, _), row in sorted(rows.items()):
        row.sort(key=lambda trial: trial.max_num_seqs)
        best = max(row, key=lambda trial: trial.total_tokens_per_s)
        for trial in row[row.index(best) + 1 :]:
            loss = 1 - trial.total_tokens_per_s / best.total_tokens_per_s
            costs_time = trial.bound_share.get("kv-blocks", 0.0) > study.recommendation.epsilon
            preempts_more = (trial.num_preemptions or 0) > (best.num_preemptions or 0)
            if costs_time and preempts_more and loss > study.recommendation.epsilon:
                cliffs.append((loss, budget, trial))
                break
    if cliffs:
        loss, budget, trial = max(cliffs, key=lambda cliff: cliff[0])
        yield Text(
            f"preemption cliff: at {budget:,} tokens, {trial.max_num_seqs} slots preempt {trial.num_preemptions:,} "
            f"times and lose {loss:.0%}",
            style="yellow",
        )


def _limits(study: Study) -> Iterator[Text]:
    limits = study.limits
    if limits is None:
        return
    chosen = next(trial for trial in study.cells if trial.cell == study.recommended)
    speed = chosen.total_tokens_per_s
    yield Text(
        f"distance to the limit: {speed / limits.compute_tokens_per_s:.0%} of what the arithmetic allows "
        f"({limits.compute_tokens_per_s:,.0f} tokens/s), {speed / limits.sequential_tokens_per_s:.0%} of what "
        f"arithmetic and memory allow one after another ({limits.sequential_tokens_per_s:,.0f})",
        style="dim",
    )


def _answer(study: Study) -> Iterator[RenderableType]:
    answer = study.recommendation
    cell = answer.recommended
    dials = f"--max-num-seqs {cell.max_num_seqs} --max-num-batched-tokens {cell.max_num_batched_tokens}"
    flags = " ".join([dials, *flag_words(cell.flags)])
    yield Padding(Text(answer.reason), (1, 0, 0, 0))
    if study.confirmation:
        yield Text(confirmation_words(study.confirmation))
    elif answer.worth_changing:
        yield Text(gain_words(study))
    yield Text(flags, style="bold green" if answer.worth_changing else "bold")
