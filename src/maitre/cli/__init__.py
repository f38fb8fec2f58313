"""The verbs: parse, call one function, print, exit.

Data goes to stdout; progress, findings and errors to stderr. Exit 0 yes, 1 ran and the answer is no, 2 usage or input,
3 server, network or disk failed, 130 interrupted. Each verb is imported when it is called, so `--help` stays fast.
"""

from __future__ import annotations

import os
import shlex
import sys

from cyclopts import App, CycloptsError

from maitre import __version__
from maitre.cli.flag_options import unfold_lists
from maitre.errors import MaitreError

app = App(
    name="maitre",
    help="Find the right --max-num-seqs and --max-num-batched-tokens for a vLLM server, and say why.",
    version=__version__,
)
for verb, summary in {
    "profile": "Measure the traffic: requests from a file become a workload.",
    "reference": "List the reference workloads.",
    "budget": "Know the KV cache: what fills the GPU's memory, and how many sequences really fit.",
    "simulate": "Predict the surface: throughput, latency and the binding limit of every cell, with no GPU.",
    "tune": "Find the two flags, and save the study.",
    "replay": "Check the simulator against a recording of a real server.",
    "verify": "Confirm it in production: is the setting right, and which dial to turn if not.",
}.items():
    app.command(f"maitre.cli.{verb}:{verb}", name=verb, help=summary)
app.command(
    "maitre.cli.export:export",
    name="export",
    help="Deploy beside the server: alert rules and a dashboard for the metrics that it has.",
)
app.command(
    "maitre.cli.import_:import_results",
    name="import",
    help="Read what was measured already, and say which figures may be compared.",
)


def main(arguments: list[str] | None = None) -> None:
    """Run one command line and exit with its code."""
    words = _fold_command(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in {"simulate", "tune"}:
        words = unfold_lists(words)
    try:
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        code = _complain(f"{error}", f"maitre {' '.join(error.command_chain or ())} --help".replace("  ", " "))
    except MaitreError as error:
        code = _complain(str(error.args[0]), error.hint, error.exit_code)
    except KeyboardInterrupt:
        code = _complain("interrupted", "what tune has finished is in its study", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


def _fold_command(arguments: list[str]) -> list[str]:
    """The words after `--` are the user's own command: one option, so that nothing in them is read as ours."""
    if "--" not in arguments:
        return arguments
    at = arguments.index("--")
    return [*arguments[:at], "--serve-command", shlex.join(arguments[at + 1 :])]


def _complain(message: str, hint: str, exit_code: int = 2) -> int:
    print(f"maitre: {message}", file=sys.stderr)
    if hint:
        print(f"  hint: {hint}", file=sys.stderr)
    return exit_code
