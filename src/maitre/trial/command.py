"""The user's own command that starts a vLLM server, and the changes that maitre makes to it.

The words are understood as far as needed (where vLLM's arguments begin, which port) and otherwise left as they are:
`vllm serve …`, `python -m vllm.entrypoints.openai.api_server …`, `docker run … IMAGE …`, `srun … vllm serve …`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Literal

from pydantic import Field

from maitre.errors import UsageError
from maitre.records import Record
from maitre.trial.launchers import (
    CONTAINER_TOOLS,
    container_options,
    published_address,
    refusal,
    refuse_out_of_reach,
    srun_options,
)

DEFAULT_PORT = 8000
"""vLLM's own (`entrypoints/openai/cli_args.py`)."""

Launcher = Literal["direct", "container", "srun"]

_SHORT_FLAGS = {
    "--tensor-parallel-size": "-tp",
    "--pipeline-parallel-size": "-pp",
    "--data-parallel-size": "-dp",
    "--quantization": "-q",
}
"""vLLM's short spellings (`engine/arg_utils.py`)."""

_SHELL_WORDS = frozenset({"|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1", "2>", "&>"})


class ServeCommand(Record):
    """A command that serves a model with vLLM."""

    words: tuple[str, ...]
    launcher: Launcher
    arguments_at: int
    """`words[arguments_at:]` are vLLM's own arguments."""
    container_options_at: int | None = None
    """Where the options of `docker run` begin."""
    image_at: int | None = None
    """Where the image's name stands."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables for the process itself, beside those that it inherits."""

    @classmethod
    def parse(cls, words: Sequence[str]) -> ServeCommand:
        """Understand the words after `--`; leading `NAME=value` words become the environment.

        Raises:
            UsageError: nothing in the words says where vLLM's arguments begin, or the server could not be stopped.
        """
        environment: dict[str, str] = {}
        rest = list(words)
        while rest and (match := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", rest[0], re.DOTALL)):
            environment[match[1]] = match[2]
            rest.pop(0)
        if not rest:
            raise UsageError("no command that starts a server", "write it last: maitre tune … -- vllm serve MODEL")
        names = [PurePath(word).name for word in rest]
        tool = next((i for i, name in enumerate(names) if name in CONTAINER_TOOLS), len(rest))
        serve = _arguments_position(rest, 0)
        is_container = tool < (len(rest) if serve is None else serve)
        refuse_out_of_reach(rest, tool if is_container else serve or 0)
        if is_container:
            return _parse_container(rest, tool, environment)
        if serve is None:
            raise refusal(rest, "has no `serve` and no api_server module", "write the command without a shell around")
        launcher: Launcher = "srun" if names[0] == "srun" else "direct"
        return _checked(cls(words=tuple(rest), launcher=launcher, arguments_at=serve, environment=environment))

    def __str__(self) -> str:
        return shlex.join([*(f"{name}={value}" for name, value in self.environment.items()), *self.words])

    @property
    def ports(self) -> tuple[str, ...]:
        """The port of vLLM itself as it is written, and the one that a container publishes it on."""
        return (self._own_port, self._published[1]) if self._published else (self._own_port,)

    @property
    def port(self) -> int:
        """The port to ask: vLLM's own, or the one that a container publishes it on."""
        return int(self.ports[-1])

    @property
    def host(self) -> str:
        """The host to ask."""
        host = self._published[0] if self._published else (self.flag("--host") or "")
        if self.launcher == "srun" and (node := self._srun_node):
            return node
        return host.strip("[]") if host not in {"", "0.0.0.0", "::", "[::]"} else "127.0.0.1"  # noqa: S104

    @property
    def base_url(self) -> str:
        """Where the server will answer, without `/v1`."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def model(self) -> str | None:
        """The model as the command names it, where it stands first or behind `--model`."""
        first = self.words[self.arguments_at : self.arguments_at + 1]
        return first[0] if first and not _is_flag(first[0]) else self.flag("--model")

    @property
    def served_model_name(self) -> str | None:
        """The name that requests use; None when only the server knows it."""
        return self.flag("--served-model-name") or self.model

    @property
    def api_key(self) -> str | None:
        """The key that the server will ask for, where the command or its environment shows it."""
        inside = [value for name, value in self.container_options if name in {"-e", "--env"}]
        variables = self.environment | dict(item.split("=", 1) for item in inside if "=" in item)
        return self.flag("--api-key") or variables.get("VLLM_API_KEY")

    @property
    def container_options(self) -> tuple[tuple[str, str], ...]:
        """The options of `docker run` as (name, value); empty for other launchers."""
        start = self.container_options_at
        return () if start is None else container_options(self.words, start)[0]

    @property
    def container_tool(self) -> tuple[str, ...]:
        """`docker` with its own options, before `run`; empty for other launchers."""
        return self.words[: self.container_options_at - 1] if self.container_options_at else ()

    @property
    def container_id_file(self) -> str | None:
        """The file into which the container's id is written, where the command names one."""
        return dict(self.container_options).get("--cidfile")

    def flag(self, name: str) -> str | None:
        """The value of one of vLLM's flags, in any spelling; the last one counts, as in vLLM."""
        values = [value for _, _, value in self._occurrences(name) if value is not None]
        return values[-1] if values else None

    def with_flags(self, flags: Mapping[str, str | float | None]) -> ServeCommand:
        """Set flags of vLLM: in place where the command has them, else behind its arguments.

        Args:
            flags: by long name (`--max-num-seqs`); None for a switch (`--no-enable-prefix-caching`), which replaces
                its opposite.
        """
        command = self
        for name, value in flags.items():
            command = command._with_switch(name) if value is None else command._with_flag(name, str(value))
        return command

    def with_environment(self, variables: Mapping[str, str], mounts: Mapping[str, str] | None = None) -> ServeCommand:
        """Set variables for the server.

        Args:
            variables: by name; paths as the server sees them, inside the container for one.
            mounts: host folder → folder in the container, `:ro` behind it to read only; not for other launchers.

        Raises:
            UsageError: `srun --export=` keeps variables from the server.
        """
        if self.image_at is None:
            export = srun_options(self.words[1 : self.arguments_at]).get("--export", "ALL")
            if self.launcher == "srun" and variables and not export.upper().startswith("ALL"):
                raise refusal(self.words, "keeps variables from the server", "write --export=ALL,…")
            return self.model_copy(update={"environment": self.environment | dict(variables)})
        added = [word for name, value in variables.items() for word in ("-e", f"{name}={value}")]
        added += [word for pair in (mounts or {}).items() for word in ("-v", ":".join(pair))]
        return self._with_words(self.image_at, self.image_at, added)

    def with_container_id_file(self, path: str) -> ServeCommand:
        """Have the container's id written to a file that must not exist yet; other launchers stay as they are."""
        if self.image_at is None or self.container_id_file:
            return self
        return self._with_words(self.image_at, self.image_at, ["--cidfile", path])

    def _with_flag(self, name: str, value: str) -> ServeCommand:
        found = self._occurrences(name)
        if not found:
            return self._with_words(self._arguments_end, self._arguments_end, [name, value])
        command = self
        for at, width, _ in reversed(found):
            spelled, equals, _ = self.words[at].partition("=")
            command = command._with_words(at, at + width, [f"{spelled}={value}"] if equals else [spelled, value])
        return command

    def _with_switch(self, name: str) -> ServeCommand:
        opposite = f"--{name[5:]}" if name.startswith("--no-") else f"--no-{name[2:]}"
        names = {name, opposite}
        arguments = self.words[self.arguments_at : self._arguments_end]
        kept = [word for word in arguments if _spelled(word) not in names]
        return self._with_words(self.arguments_at, self._arguments_end, [*kept, name])

    def _with_words(self, start: int, end: int, new: Sequence[str]) -> ServeCommand:
        changed = ServeCommand.parse([*self.words[:start], *new, *self.words[end:]])
        return changed.model_copy(update={"environment": self.environment})

    def _occurrences(self, flag: str) -> list[tuple[int, int, str | None]]:
        """Where a flag stands: (index, words that it takes, value)."""
        found: list[tuple[int, int, str | None]] = []
        names = {flag, _SHORT_FLAGS.get(flag, flag)}
        for at in range(self.arguments_at, self._arguments_end):
            name, equals, value = self.words[at].partition("=")
            if _spelled(name) not in names:
                continue
            following = self.words[at + 1 : at + 2]
            if equals:
                found.append((at, 1, value))
            else:
                has_value = bool(following) and not _is_flag(following[0])
                found.append((at, 2, following[0]) if has_value else (at, 1, None))
        return found

    @property
    def _arguments_end(self) -> int:
        arguments = self.words[self.arguments_at :]
        return self.arguments_at + (arguments.index("--") if "--" in arguments else len(arguments))

    @property
    def _own_port(self) -> str:
        return self.flag("--port") or str(DEFAULT_PORT)

    @property
    def _published(self) -> tuple[str, str] | None:
        """Host and port that a container's port is published on; None where the network is the host's."""
        options = self.container_options
        if self.image_at is None or {("--network", "host"), ("--net", "host")} & set(options):
            return None
        address = published_address(options, self._own_port)
        if address is None:
            remedy = f"add -p {self._own_port}:{self._own_port} before the image"
            raise refusal(self.words, f"does not publish port {self._own_port}", remedy)
        return address

    @property
    def _srun_node(self) -> str | None:
        options = srun_options(self.words[1 : self.arguments_at])
        node = options.get("--nodelist") or options.get("-w")
        return node if node and re.fullmatch(r"[\w.-]+", node) else None


def _parse_container(words: list[str], tool: int, environment: dict[str, str]) -> ServeCommand:
    if "run" not in words[tool + 1 :] or {"exec", "compose"} & set(words[tool + 1 : words.index("run", tool + 1)]):
        raise refusal(words, "is no `run`", "start the container with docker run, so that maitre can stop it")
    start = words.index("run", tool + 1) + 1
    options, image = container_options(words, start)
    names = {name for name, _ in options}
    if {"-d", "--detach"} & names:
        raise refusal(words, "leaves its container behind", "leave -d away: maitre stops what runs in the foreground")
    if {"-i", "--interactive"} & names and {"-t", "--tty"} & names:
        raise refusal(words, "wants a terminal", "leave -it away: the server runs without one")
    serve = _arguments_position(words, image + 1)
    if serve is None and "vllm" in "".join(words[image : image + 1]) and "--entrypoint" not in names:
        serve = image + 1  # vLLM's own images: the entry point is `vllm serve` or the api_server module
    if serve is None:
        raise refusal(words, "does not say where vLLM's arguments begin", "name the program: … IMAGE vllm serve MODEL")
    places = {"arguments_at": serve, "container_options_at": start, "image_at": image}
    return _checked(ServeCommand(words=tuple(words), launcher="container", environment=environment, **places))


def _checked(command: ServeCommand) -> ServeCommand:
    """Refuse a server that could not be asked afterwards."""
    arguments = command.words[command.arguments_at :]
    if shell := _SHELL_WORDS & set(arguments):
        raise refusal(command.words, f"has shell syntax ({min(shell)})", "give the plain command only")
    for word in map(_spelled, arguments):
        if word in {"--uds", "--ssl-keyfile", "--ssl-certfile"}:
            raise refusal(command.words, f"serves no plain HTTP port ({word})", f"leave {word} away while measuring")
    for port in command.ports:
        if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise refusal(command.words, f"has no port between 1 and 65535: {port}", "name it with --port")
    return command


def _arguments_position(words: Sequence[str], start: int) -> int | None:
    """Behind the word `serve` or the api_server module, whichever comes first."""
    for at in range(start, len(words)):
        is_module = words[at].startswith("vllm.entrypoints.openai.api_server") or words[at].endswith("/api_server.py")
        if is_module or (words[at] == "serve" and at > 0 and not words[at - 1].startswith("--")):
            return at + 1
    return None


def _spelled(word: str) -> str:
    """A flag as vLLM's parser reads it: without its value, with dashes."""
    name = word.partition("=")[0]
    return name.replace("_", "-") if name.startswith("--") else name


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word)
