"""`maitre replay`: the simulator against a recording of a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from maitre.trial.replay_check import ReplayReport


def replay(
    recording: Path, *, calibrate_on: str | None = None, json: Annotated[bool, Parameter(negative="")] = False
) -> int:
    """Check the simulator against a recording of a real server.

    Exit code 0 when every step and preemption is reproduced, 1 when not. Where requests arrived over time the schedule
    depends on the step times and is not expected to be the same; then the exit code is 0.

    Parameters
    ----------
    recording
        The .json file of a recording; its .npz lies beside it.
    calibrate_on
        Cells to fit the step time to, as SEQSxTOKENS,SEQSxTOKENS; without it the roofline prior predicts.
    json
        Print the report as JSON.
    """
    from maitre.cli.grid_options import parse_cell
    from maitre.trial.replay_check import replay_recording

    cells = [parse_cell(text) for text in calibrate_on.split(",")] if calibrate_on is not None else []
    report = replay_recording(recording, cells)
    if json:
        print(report.model_dump_json(indent=1))
    else:
        _print(report)
    is_exact = all(cell.num_columns_off == 0 for cell in report.cells)
    return 0 if is_exact or report.open_loop else 1


def _print(report: ReplayReport) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for header in ("seqs × tokens", "steps", "recorded", "preempted", "recorded", "predicted s", "recorded s", "error"):
        table.add_column(header, justify="right", no_wrap=True)
    for cell in report.cells:
        error = "fitted" if cell.calibrated_on else f"{100 * (cell.predicted_s / cell.recorded_s - 1):+.2f} %"
        table.add_row(
            f"{cell.max_num_seqs} × {cell.max_num_batched_tokens:,}",
            f"{cell.num_steps:,}", f"{cell.recorded_num_steps:,}",
            f"{cell.num_preemptions:,}", f"{cell.recorded_num_preemptions:,}",
            f"{cell.predicted_s:.3f}", f"{cell.recorded_s:.3f}", error,
            style="red" if cell.num_columns_off and not report.open_loop else "",
        )  # fmt: skip
    console = Console()
    console.print(f"{report.model} on {report.gpu}; step time {report.calibration}", soft_wrap=True, highlight=False)
    console.print(table)
    off = sum(cell.num_columns_off > 0 for cell in report.cells)
    schedule = "every step of every cell is reproduced" if not off else f"{off} cells are not reproduced exactly"
    if report.open_loop:
        schedule = "requests arrived over time, so the schedule depends on the step times"
    mean, worst = 100 * report.mean_abs_error, 100 * report.max_abs_error
    line = f"{schedule}; time off by {mean:.2f} % on average, {worst:.2f} % at worst"
    console.print(line, soft_wrap=True, highlight=False)
