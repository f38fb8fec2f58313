"""A verification on the terminal: the verdict, the three confirmations, and why."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from maitre.verify.figures import Figures
    from maitre.verify.foresight.settled import CellFigures
    from maitre.verify.foresight.turn import SimulatedTurn
    from maitre.verify.verdict import Finding
    from maitre.verify.verification import Verification

_STYLES = {"yes": "green", "no": "red", "cannot-tell": "yellow"}


def print_verification(answer: Verification) -> None:
    """Print the whole answer to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    for part in rendered(answer):
        console.print(part)


def rendered(answer: Verification) -> list[RenderableType]:
    """The parts of the answer, in order."""
    from rich.text import Text

    from maitre.verify.verdict import answer_of

    told = answer_of(answer.verdict)
    parts: list[RenderableType] = [
        Text.assemble((answer.verdict, f"bold {_STYLES[told]}"), ": ", answer.summary),
        Text(_looked_at(answer), style="dim"),
        "",
        _confirmations(answer),
        Text(_figures(answer.figures), style="dim"),
        "",
        _why(answer.findings[0]),
        *_findings(answer.findings[1:]),
    ]
    if answer.turn is not None:
        parts += ["", *turn_lines(answer.turn)]
    return [*parts, *(Text(f"note: {note}", style="dim") for note in answer.notes)]


def _looked_at(answer: Verification) -> str:
    """Source, window and setting in one line."""
    words = [answer.source]
    if answer.start_s is not None and answer.end_s is not None:
        from maitre.verify.words import span

        start, end = (datetime.fromtimestamp(moment, UTC) for moment in (answer.start_s, answer.end_s))
        words.append(f"{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC ({span(answer.end_s - answer.start_s)})")
    known = answer.deployment
    if known.seqs_limit is not None or known.tokens_limit is not None:
        tokens = f"{known.tokens_limit:,}" if known.tokens_limit is not None else "?"
        words.append(f"{known.seqs_limit or '?'} seqs x {tokens} tokens")
    if known.kv_tokens is not None:
        words.append(f"{known.kv_tokens:,} KV tokens")
    if answer.observed.engines:
        words.append(f"{answer.observed.engines} engine{'' if answer.observed.engines == 1 else 's'}")
    return ", ".join(words)


def _figures(figures: Figures) -> str:
    """What else is known of the window, in one line."""
    from maitre.verify.words import milliseconds, percent

    told = (
        (figures.rate_rps, "requests/s {:.3g}".format),
        (figures.running, "running {:.3g}".format),
        (figures.output_tokens_per_s, "output tokens/s {:,.0f}".format),
        (figures.kv_usage, lambda usage: f"KV usage {percent(usage)}"),
        (figures.kv_usage_p95, lambda usage: f"p95 {percent(usage)}"),
        (figures.prefix_hit_rate, lambda rate: f"prefix cache hits {percent(rate)}"),
        (figures.ttft_mean_s, lambda seconds: f"TTFT {milliseconds(seconds)}"),
        (figures.queue_time_mean_s, lambda seconds: f"queue time {milliseconds(seconds)}"),
        (figures.num_rejected or None, "refused {:,.0f}".format),
    )
    return ", ".join(show(value) for value, show in told if value is not None)


def _confirmations(answer: Verification) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    asked = {
        "waiting": "nobody waits",
        "preemptions": "preemptions < 1 a minute",
        "inter-token-latency": "inter-token latency steady, of one mode",
    }
    table = Table.grid(padding=(0, 2))
    for one in answer.confirmations:
        shown = one.answer.replace("-", " ")
        table.add_row(Text(asked[one.name]), Text(shown, style=_STYLES[one.answer]), Text(one.message))
    return table


def _findings(findings: tuple[Finding, ...]) -> list[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    parts: list[RenderableType] = []
    for finding in findings:
        parts += [Text(f"also: {finding.message}"), Padding(_why(finding), (0, 0, 0, 2))]
    return parts


def _why(finding: Finding) -> RenderableType:
    """What speaks for it and against it, and what to do."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column()
    rows = [("for", text) for text in finding.evidence] + [("against", text) for text in finding.against]
    for name, text in [*rows, *([("do", finding.remedy)] if finding.remedy else [])]:
        table.add_row(name, Text(text))
    return table


def turn_lines(turn: SimulatedTurn) -> list[RenderableType]:
    """What the simulator expects of other cells, beside the present one."""
    from rich.table import Table
    from rich.text import Text

    expected = turn.expectations
    if expected is None or not expected.candidates or expected.figures is None:
        doubt = turn.doubt or (expected.credibility.doubt if expected else "") or "no other cell fits"
        return [Text(f"what the turn would change is not foretold: {doubt}")]
    told = "none of these steps helps without harm; look at the figures"
    if turn.recommended is not None:
        told = f"the smallest step that helps: {turn.recommended.cell}"
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
    table.add_column("the simulator expects")
    for cell in (expected.present, *(one.cell for one in expected.candidates)):
        table.add_column(str(cell), justify="right")
    columns = [expected.figures, *(one.figures for one in expected.candidates)]
    for name, show in _ROWS:
        table.add_row(name, *(_shown(figures, *show) for figures in columns))
    return [table, Text(told), *(Text(f"assumed: {text}", style="dim") for text in expected.assumptions)]


_UNBOUNDED = {"waiting", "ttft_p95_s"}
"""What has no value while the queue grows."""
_ROWS = (
    ("output tokens/s", ("output_tokens_per_s", "{:,.0f}")),
    ("requests/s at most", ("capacity_rps", "{:.2f}")),
    ("waiting", ("waiting", "{:.1f}")),
    ("TTFT p95, s", ("ttft_p95_s", "{:.2f}")),
    ("ITL mean, s", ("itl_mean_s", "{:.3f}")),
    ("ITL p99, s", ("itl_p99_s", "{:.3f}")),
    ("preemptions a minute", ("preemptions_per_min", "{:.1f}")),
    ("KV usage", ("kv_usage", "{:.0%}")),
)


def _shown(figures: CellFigures, name: str, form: str) -> str:
    value = getattr(figures, name)
    if value is not None:
        return form.format(value)
    return "grows" if name in _UNBOUNDED and not figures.keeps_up else "-"
