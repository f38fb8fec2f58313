"""`maitre verify`: is the setting right in production?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from maitre.cli.numbers import Whole
from maitre.cli.prometheus_options import ANYBODY, PrometheusOptions
from maitre.cli.server_options import NO_SERVER, ServerOptions
from maitre.cli.verify_options import NO_LIMITS, NO_SOURCE, LimitOptions, SourceOptions

if TYPE_CHECKING:
    from maitre.cli.verify_sources import ReadSources
    from maitre.verify.evidence import Evidence
    from maitre.verify.verification import Verification


def verify(
    sources: SourceOptions = NO_SOURCE,
    access: PrometheusOptions = ANYBODY,
    limits: LimitOptions = NO_LIMITS,
    server: ServerOptions = NO_SERVER,
    *,
    before: str | None = None,
    after: str | None = None,
    slo: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    study: Path | None = None,
    watch: Annotated[bool, Parameter(negative="")] = False,
    junit: Path | None = None,
    github: Annotated[bool, Parameter(negative="")] = False,
    seed: Whole = 0,
    json: Annotated[bool, Parameter(negative="")] = False,
    serve_command: str | None = None,
) -> int:
    """Say from a server's own metrics whether its setting is right, and which dial to turn if it is not.

    Parameters
    ----------
    before
        A window before a change, SINCE..UNTIL (2026-05-01T09:00..2026-05-01T10:00, or 26h..25h ago).
    after
        The window after it; the two are compared like with like. Without --prometheus both are files of scrapes.
    slo
        Of --before and --after: where a latency is too long, such as ttft_p95=500ms; may be given several times.
    study
        A study's directory: hold production against what it expected, and say whether tuning again is worth it.
    watch
        Look again and again, on the terminal.
    junit
        Write the answer as a JUnit report, for a CI system.
    github
        Print the answer as GitHub annotations, too.
    seed
        Of simulations and of the test for more than one mode.
    json
        Print the answer as JSON.
    serve_command
        The command that started the server; words after -- are taken for it.
    """
    from maitre.cli.verify_sources import read_sources
    from maitre.errors import UsageError

    sources.check(watch=watch, compares=before is not None)
    if (before is None) != (after is None):
        raise UsageError("--before and --after belong together", "give both windows, each as SINCE..UNTIL")
    if before is not None and after is not None:
        from maitre.cli.verify_compare import compare

        return compare(sources, access, before, after, slo, as_json=json)
    if watch:
        from maitre.cli.verify_watch import watch_server

        return watch_server(sources, access, limits, server, serve_command, seed=seed)
    if study is not None:
        from maitre.cli.verify_study import verify_study

        return verify_study(sources, access, limits, study, serve_command, seed=seed, as_json=json)
    answer, _ = judged(read_sources(sources, access), limits, server, serve_command, seed)
    return show(answer, as_json=json, junit=junit, github=github)


def judged(
    read: ReadSources, limits: LimitOptions, server: ServerOptions, serve_command: str | None, seed: int
) -> tuple[Verification, Evidence]:
    """The verdict on what was read, with the turn that it proposes simulated."""
    from maitre.cli.verify_turn import expect_turn
    from maitre.verify.verification import verify as judge_window

    deployment = limits.deployment(server, serve_command, read.deployment)
    answer, evidence = judge_window(
        read.series,
        deployment,
        read.source,
        failures=read.failures,
        is_contradictory=read.is_contradictory,
        step_modes=read.step_modes,
        notes=read.notes,
        seed=seed,
    )
    return answer.model_copy(update={"turn": expect_turn(answer, evidence, server, seed)}), evidence


def show(answer: Verification, *, as_json: bool, junit: Path | None, github: bool) -> int:
    """Print the answer; exit code 0 when the setting may stay."""
    from maitre.cli.verify_print import print_verification
    from maitre.verify.verdict import STAYS

    if as_json:
        print(answer.model_dump_json(indent=1))
    else:
        print_verification(answer)
    if junit is not None:
        from maitre.cli.verify_gate import write_junit

        write_junit(answer, junit)
    if github:
        from maitre.cli.verify_gate import print_annotations

        print_annotations(answer)
    return 0 if answer.verdict in STAYS else 1
