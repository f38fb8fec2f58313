"""From the user's own command to vLLM's throughput benchmark.

`vllm serve MODEL …` becomes `vllm bench throughput --model MODEL …` (vLLM 0.8.5 and later), whatever stands before it.
Before that version the benchmark was a script of vLLM's repository, which no command of a server names: the user
writes `python benchmarks/benchmark_throughput.py --model MODEL …` himself.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from maitre.errors import UsageError
from maitre.trial.command import ServeCommand
from maitre.trial.launchers import CONTAINER_TOOLS

BENCH = ("bench", "throughput")
SCRIPT = "benchmark_throughput.py"
_CLI_MODULE = "vllm.entrypoints.cli.main"
"""What `vllm` runs, since 0.8.0."""

SERVER_FLAGS = frozenset({
    "--allow-credentials", "--allowed-headers", "--allowed-methods", "--allowed-origins", "--api-key",
    "--anthropic-disabled-thinking-effort", "--api-server-count", "-asc", "--chat-template",
    "--chat-template-content-format", "--cohere-format", "--cohere-is-reasoning-model",
    "--data-parallel-supervisor-port", "--default-chat-template-kwargs", "--disable-access-log-for-endpoints",
    "--disable-fastapi-docs", "--disable-frontend-multiprocessing", "--disable-uvicorn-access-log",
    "--dp-supervisor-probe-failure-threshold", "--dp-supervisor-probe-interval-s",
    "--dp-supervisor-probe-timeout-s", "--enable-auto-tool-choice", "--enable-flash-late-interaction",
    "--enable-force-include-usage", "--enable-log-deltas", "--enable-log-outputs", "--enable-offline-docs",
    "--enable-per-request-metrics", "--enable-prompt-tokens-details", "--enable-request-id-headers",
    "--enable-scale-out", "--enable-server-load-tracking", "--enable-ssl-refresh",
    "--enable-tokenizer-info-endpoint", "--exclude-tools-when-tool-choice-none",
    "--expand-tools-even-if-tool-choice-none", "--fingerprint-mode", "--fingerprint-value", "--grpc", "--grpc-port",
    "--h11-max-header-count", "--h11-max-incomplete-event-size", "--headless", "--host", "--log-config-file",
    "--log-error-stack", "--lora-modules", "--max-log-len", "--middleware", "--port", "--prompt-adapters",
    "--response-role", "--return-tokens-as-token-ids", "--root-path", "--sse-keep-alive-interval", "--ssl-ca-certs",
    "--ssl-cert-reqs", "--ssl-certfile", "--ssl-ciphers", "--ssl-keyfile", "--tokens-only", "--tool-call-parser",
    "--tool-parser-plugin", "--tool-server", "--tool-strict-level", "--trust-request-chat-template",
    "--trust-request-mm-kwargs", "--uds", "--use-rust-frontend", "--uvicorn-log-level",
})  # fmt: skip
"""What `vllm serve` takes and `vllm bench throughput` does not: the difference of both parsers of 0.32.0, and flags of
earlier versions (`entrypoints/openai/cli_args.py`)."""

TOKENIZER_FLAGS = frozenset({"--skip-tokenizer-init", "--tokenizer", "--tokenizer-mode", "--tokenizer-revision"})
"""What the workload's own tokenizer replaces."""


@dataclass(frozen=True, slots=True)
class BenchCommand:
    """A command that runs vLLM's throughput benchmark on the user's model."""

    arguments: tuple[str, ...]
    """vLLM's engine flags, `--model` among them."""
    environment: Mapping[str, str]
    """Variables for the process itself, beside those that it inherits."""
    before: tuple[str, ...] = ()
    """The program, where the user named the benchmark himself."""
    serve: ServeCommand | None = None
    """The user's server command, where the benchmark is derived from it."""

    @classmethod
    def parse(cls, words: Sequence[str]) -> BenchCommand:
        """Understand the words after `--`: a server's command, or that of the benchmark itself.

        Raises:
            UsageError: neither of them, or no model is named.
        """
        rest, environment = list(words), dict[str, str]()
        while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
            environment[match[1]] = match[2]
            rest.pop(0)
        end = _end_of_bench(rest)
        if end is None:
            serve = ServeCommand.parse(words)
            return _checked(cls(_engine_flags(serve), serve.environment, serve=serve), words)
        if CONTAINER_TOOLS & {PurePath(word).name for word in rest[:end]}:
            raise UsageError(
                f"`{shlex.join(words)}` runs the benchmark in a container",
                "give the container's server command (docker run … IMAGE --model MODEL …); maitre makes the "
                "benchmark's of it",
            )
        return _checked(cls(tuple(rest[end:]), environment, before=tuple(rest[:end])), words)

    @property
    def is_script(self) -> bool:
        """Whether it is the script of vLLM's repository, of vLLM 0.10.1 and before."""
        return bool(self.before) and self.before[-1].endswith(SCRIPT)

    @property
    def model(self) -> str:
        """The model as the user names it."""
        return self.flag("--model") or ""

    def flag(self, name: str) -> str | None:
        """The value of one of vLLM's flags; the last one counts, as in vLLM."""
        value = None
        for at, word in enumerate(self.arguments):
            if _spelled(word) == name:
                _, equals, inside = word.partition("=")
                value = inside if equals else "".join(self.arguments[at + 1 : at + 2])
        return value

    def with_flags(self, flags: Mapping[str, str | None]) -> BenchCommand:
        """Set flags by long name, None for a switch; earlier ones of the same names are taken out."""
        kept = without_flags(self.arguments, flags)
        added = [word for name, value in flags.items() for word in ([name] if value is None else [name, value])]
        return replace(self, arguments=(*kept, *added))

    def words(self, *, mounts: Mapping[str, str], container_id_file: str) -> tuple[str, ...]:
        """The command line.

        Args:
            mounts: host folder → folder in the container, with `:ro` where it only reads; nothing without a container.
            container_id_file: where a container's id is to be written.
        """
        if self.serve is None:
            return (*self.before, *self.arguments)
        serve = self.serve.with_environment({}, mounts) if self.serve.launcher == "container" else self.serve
        return (*_program(serve.with_container_id_file(container_id_file)), *self.arguments)

    def __str__(self) -> str:
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        program = _program(self.serve) if self.serve else self.before
        return shlex.join([*variables, *program, *self.arguments])


def without_flags(arguments: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """Arguments without some flags and their values, in any spelling; `--no-NAME` goes with `--NAME`."""
    kept: list[str] = []
    is_dropping = False
    for word in arguments:
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name = _spelled(word)
            is_dropping = name in names or f"--{name.removeprefix('--no-')}" in names
        if not is_dropping:
            kept.append(word)
    return tuple(kept)


def _checked(command: BenchCommand, words: Sequence[str]) -> BenchCommand:
    if not command.model:
        raise UsageError(f"`{shlex.join(words)}` names no model", "vllm serve MODEL …, or --model MODEL")
    return command


def _engine_flags(serve: ServeCommand) -> tuple[str, ...]:
    """The server's arguments without those that only a server has; the model behind `--model`."""
    arguments = list(serve.words[serve.arguments_at :])
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    if arguments and not arguments[0].startswith("-"):
        arguments.insert(0, "--model")
    return without_flags(arguments, SERVER_FLAGS | TOKENIZER_FLAGS)


def _program(serve: ServeCommand) -> tuple[str, ...]:
    """What stands before the benchmark's arguments."""
    *before, last = serve.words[: serve.arguments_at]
    if last == "serve":
        return (*before, *BENCH)
    if last.startswith("vllm.entrypoints.openai.api_server"):
        return (*before, _CLI_MODULE, *BENCH)
    if last.endswith("/api_server.py"):
        return (*before, "-m", _CLI_MODULE, *BENCH)
    return (*before, "--entrypoint", "vllm", last, *BENCH)  # an image that starts the server by itself


def _end_of_bench(words: Sequence[str]) -> int | None:
    """Behind `bench throughput` or the script; None if neither is there."""
    for at, word in enumerate(words):
        if word.endswith(SCRIPT) or (word == BENCH[1] and words[at - 1 : at] == [BENCH[0]]):
            return at + 1
    return None


def _spelled(word: str) -> str:
    """A flag as vLLM's parser reads it: without its value, with dashes."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name
