"""How simulate and tune are told which cells to look at."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from cyclopts import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.records import Cell, Workload


@Parameter(name="*")
@dataclass(frozen=True)
class GridOptions:
    """The cells to look at, and the present one to compare with."""

    _: KW_ONLY
    max_num_seqs: str | None = None
    """Values to try, such as 64,128,256; the classical 32,64,128,256,512 when not given."""
    max_num_batched_tokens: str | None = None
    """Values to try, such as 2048,8K; the classical 4096,8192,16384,32768,65536 when not given."""
    grid: Literal["classical", "auto"] = "classical"
    """auto: a ladder around what the KV pool and the workload can use."""
    vary: tuple[str, ...] = ()
    """Other values of another flag, each with the whole grid: kv-cache-dtype=fp8, gpu-memory-utilization=0.95,
    long-prefill-token-threshold=2048 or tensor-parallel-size=2. A list after the flag itself, such as --kv-cache-dtype
    auto,fp8, says the same; its first value is the present one."""
    present: str | None = None
    """Your present setting, as SEQSxTOKENS (256x8192); vLLM's default when not given."""

    def present_cell(self) -> Cell | None:
        """--present, if given.

        Raises:
            UsageError: not a cell, or one that vLLM refuses.
        """
        return parse_cell(self.present) if self.present is not None else None

    def largest_seqs(self) -> int:
        """The most slots that the grid is sure to have."""
        from maitre.search.grid import CLASSICAL_SEQS

        if self.grid == "auto":
            return 1
        return max(parse_counts(self.max_num_seqs) if self.max_num_seqs is not None else CLASSICAL_SEQS)

    def cells(self, workload: Workload, kv_tokens: int, present: Cell) -> list[Cell]:
        """The grid.

        Args:
            workload: shapes the automatic grid.
            kv_tokens: usable tokens of the KV pool at the present cell.
            present: the present setting.

        Raises:
            UsageError: a value that is no number, or one that vLLM refuses.
        """
        from maitre.errors import UsageError
        from maitre.search import auto_grid

        if self.grid != "auto":
            return self.listed_cells()
        if self.max_num_seqs is not None or self.max_num_batched_tokens is not None:
            raise UsageError("--grid auto chooses the values itself", "leave the lists or --grid auto out")
        return self._with_flags(auto_grid(workload, kv_tokens, present))

    def listed_cells(self) -> list[Cell]:
        """The grid of the two lists, the classical values where one is not given.

        Raises:
            UsageError: a value that is no number, or one that vLLM refuses.
        """
        from maitre.search import product_grid
        from maitre.search.grid import CLASSICAL_SEQS, CLASSICAL_TOKENS

        seqs, tokens = self.max_num_seqs, self.max_num_batched_tokens
        grid = product_grid(
            CLASSICAL_SEQS if seqs is None else parse_counts(seqs),
            CLASSICAL_TOKENS if tokens is None else parse_counts(tokens),
        )
        return self._with_flags(grid)

    def _with_flags(self, cells: Sequence[Cell]) -> list[Cell]:
        from maitre.cli.flag_options import parse_flags

        return [cell.model_copy(update={"flags": flags}) for flags in parse_flags(self.vary) for cell in cells]


CLASSICAL = GridOptions()
"""The classical grid: the default of a verb's parameter."""


def parse_counts(text: str) -> list[int]:
    """Read `64,128` or `2048,8K`."""
    from maitre.units import parse_token_count

    return [parse_token_count(part) for part in text.split(",")]


def parse_cell(text: str) -> Cell:
    """Read `256x8192`.

    Raises:
        UsageError: not a cell, or a token budget below the number of sequences.
    """
    from maitre.errors import UsageError
    from maitre.search import product_grid

    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 2:
        raise UsageError(f"'{text}' is not a cell", "write SEQSxTOKENS, such as 256x8192")
    return product_grid(parse_counts(parts[0]), parse_counts(parts[1]))[0]
