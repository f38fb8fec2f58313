"""`maitre verify --study DIR`: production against what a study expected, and whether tuning again is worth it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maitre.cli.prometheus_options import PrometheusOptions
    from maitre.cli.verify_options import LimitOptions, SourceOptions
    from maitre.records import Cell
    from maitre.verify.deployment import Deployment
    from maitre.verify.foresight.drift import Drift


def verify_study(
    sources: SourceOptions,
    access: PrometheusOptions,
    limits: LimitOptions,
    path: Path,
    serve_command: str | None,
    *,
    seed: int,
    as_json: bool,
) -> int:
    """Judge the window, and hold it against the study; exit code 0 when the setting may stay."""
    import json

    from maitre.cli.server_options import NO_SERVER
    from maitre.cli.verify import judged
    from maitre.cli.verify_print import print_verification
    from maitre.cli.verify_sources import read_sources
    from maitre.verify.foresight.credibility import ObservedFigures
    from maitre.verify.foresight.drift import find_drift
    from maitre.verify.foresight.observed_traffic import observed_traffic
    from maitre.verify.foresight.studied_server import read_study
    from maitre.verify.load import total_in_flight
    from maitre.verify.verdict import STAYS

    answer, evidence = judged(read_sources(sources, access), limits, NO_SERVER, serve_command, seed)
    blocks = answer.deployment.num_gpu_blocks
    per_engine = None if blocks is None else blocks // evidence.num_engines
    studied = read_study(path, _deployed(answer.deployment), per_engine)
    traffic = observed_traffic(evidence.whole, total_in_flight(evidence), num_engines=evidence.num_engines)
    drift = find_drift(studied, traffic, ObservedFigures.of(evidence.whole, evidence.num_engines), seed=seed)
    if as_json:
        print(json.dumps(answer.model_dump(mode="json") | {"drift": drift.model_dump(mode="json")}, indent=1))
    else:
        print_verification(answer)
        _print_drift(drift)
    return 0 if answer.verdict in STAYS and drift.verdict != "tune-again" else 1


def _deployed(deployment: Deployment) -> Cell | None:
    """The dials in force as far as they are known; else the study's recommendation is taken."""
    from maitre.records import Cell

    seqs, tokens = deployment.seqs_limit, deployment.tokens_limit
    return None if seqs is None or tokens is None else Cell(max_num_seqs=seqs, max_num_batched_tokens=tokens)


def _print_drift(drift: Drift) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    style = {"keep": "bold green", "tune-again": "bold red"}.get(drift.verdict, "bold yellow")
    console.print()
    console.print(Text.assemble((drift.verdict, style), f": {drift.reason}"))
