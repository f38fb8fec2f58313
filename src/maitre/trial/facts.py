"""What a server said of itself at its first start, kept with the study: to resume one needs no server.

Schema history
    maitre-facts-1      first version
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import ValidationError

from maitre.errors import InputError, SystemFailure
from maitre.files import read_json
from maitre.records import Cell, Record, ServerConfig
from maitre.trial.dials import DialState, ServerStart


class ServerFacts(Record):
    """A vLLM server: its version, what it runs on, what it serves, and how it was started."""

    schema_version: Literal["maitre-facts-1"] = "maitre-facts-1"
    vllm_version: str
    gpu: str
    """As the driver names it; "cpu" without one."""
    model_facts: dict[str, Any]
    """The model's config.json; empty if the server cannot tell it."""
    start: ServerStart
    """With the cell that it was started at, and the KV pool that this left."""

    @classmethod
    def of(cls, state: DialState) -> Self:
        """From what its scheduler says."""
        return cls(vllm_version=state.vllm_version, gpu=state.gpu, model_facts=state.model_facts, start=state.start)

    @property
    def vocab_size(self) -> int | None:
        """Tokens of the model's vocabulary; None if the server cannot tell."""
        for content in (self.model_facts, self.model_facts.get("text_config")):
            size = content.get("vocab_size") if isinstance(content, dict) else None
            if isinstance(size, int) and size > 0:
                return size
        return None

    def config(self, model: str, cell: Cell) -> ServerConfig:
        """The server's settings, with the dials at a cell.

        Args:
            model: as the user's command names it.
            cell: the dials.
        """
        flags = self.start.model_dump(exclude={"num_gpu_blocks", "async_scheduling"})
        return ServerConfig(model=model, vllm_version=self.vllm_version, **flags).at(cell)


def read_facts(path: Path) -> ServerFacts | None:
    """The facts of an earlier start; None if there was none.

    Raises:
        InputError: the file is broken.
    """
    if not path.exists():
        return None
    content = read_json(path)
    try:
        return ServerFacts.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        what = f"{path}: {field}: {first['msg']}"
        raise InputError(what, "remove the file: the next start writes it again") from None


def write_facts(path: Path, facts: ServerFacts) -> None:
    """Keep the facts, in one piece or not at all.

    Raises:
        SystemFailure: the disk refuses.
    """
    draft = path.with_suffix(".json.part")
    try:
        draft.write_text(facts.model_dump_json(indent=1), "utf-8")
        draft.replace(path)
    except OSError as error:
        what = f"{path}: cannot be written ({error.strerror})"
        raise SystemFailure(what, "check permissions and the disk") from error
