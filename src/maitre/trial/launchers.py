"""What may stand before vLLM's own arguments: `docker run` and its options, `srun` and its options."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import PurePath

from maitre.errors import UsageError

CONTAINER_TOOLS = frozenset({"docker", "podman", "nerdctl"})

_CONTAINER_LETTERS = "ditPq"
_CONTAINER_SWITCHES = frozenset({
    "--detach", "--init", "--interactive", "--tty", "--rm", "--rmi", "--privileged", "--publish-all", "--read-only",
    "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--quiet", "--disable-content-trust", "--replace",
    "--env-host", "--http-proxy", "--no-hosts", "--no-hostname", "--read-only-tmpfs", "--tls-verify", "--unsetenv-all",
    "--use-api-socket", "--help",
})  # fmt: skip
"""Options of `docker run` and `podman run` that take no value; every other one does."""

_LEAVES_THE_GROUP = "takes the server out of maitre's process group"
_OUT_OF_REACH = {
    "sudo": ("runs the server as another user, whom maitre cannot signal", "run maitre itself with that user's rights"),
    "ssh": ("runs the server on another machine, where maitre cannot stop it", "run maitre there"),
    "setsid": (_LEAVES_THE_GROUP, "leave setsid away"),
    "tmux": (_LEAVES_THE_GROUP, "leave tmux away"),
    "screen": (_LEAVES_THE_GROUP, "leave screen away"),
    "systemd-run": (_LEAVES_THE_GROUP, "leave systemd-run away"),
    "sbatch": ("returns before the server runs", "use srun"),
    "kubectl": ("runs the server in a cluster", "start it there, and let maitre attach to its address"),
}


def refusal(words: Sequence[str], what: str, remedy: str) -> UsageError:
    """An error that shows the command."""
    return UsageError(f"`{shlex.join(words)}` {what}", remedy)


def refuse_out_of_reach(words: Sequence[str], end: int) -> None:
    """Refuse launchers whose server maitre could not stop; they stand in `words[:end]`.

    Raises:
        UsageError: there is one.
    """
    for word in words[:end]:
        if reason := _OUT_OF_REACH.get(PurePath(word).name):
            raise refusal(words, *reason)


def container_options(words: Sequence[str], at: int) -> tuple[tuple[tuple[str, str], ...], int]:
    """The options of `docker run` that begin at `words[at]`, as (name, value), and where the image stands."""
    options: list[tuple[str, str]] = []
    while at < len(words) and words[at].startswith("-"):
        switches, name, value = _split_option(words[at])
        options += [(switch, "") for switch in switches]
        at += 1
        if name is None:
            continue
        if value is None and name not in _CONTAINER_SWITCHES:
            value, at = "".join(words[at : at + 1]), at + 1
        options.append((name, value or ""))
    return tuple(options), at


def published_address(options: Sequence[tuple[str, str]], port: str) -> tuple[str, str] | None:
    """Host and port (`-p [HOST:]PORT:CONTAINER_PORT`) under which a container's port is reached; None for neither."""
    for name, value in options:
        address, _, inside = value.split("/", maxsplit=1)[0].rpartition(":")
        if name in {"-p", "--publish"} and inside == port and address:
            host, _, outside = address.rpartition(":")
            return host, outside
    return None


def srun_options(words: Sequence[str]) -> dict[str, str]:
    """Options of `srun` by name; a switch gets the next word, which nobody asks for."""
    options = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            options[name] = value if equals else following
    return options


def _split_option(word: str) -> tuple[list[str], str | None, str | None]:
    """One word of options as (switches, option that takes a value, value in the same word): `-itp8000:8000`."""
    if word.startswith("--"):
        name, equals, value = word.partition("=")
        return [], name, value if equals else None
    letters = word[1:]
    first = next((i for i, letter in enumerate(letters) if letter not in _CONTAINER_LETTERS), len(letters))
    switches = [f"-{letter}" for letter in letters[:first]]
    if first == len(letters):
        return switches, None, None
    return switches, f"-{letters[first]}", letters[first + 1 :].removeprefix("=") or None
