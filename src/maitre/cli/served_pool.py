"""What other flags do to a server that is up: to its KV pool, and to its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitre.records import Cell, FailedTrial, Flags, ServerConfig, Trial
    from maitre.simulator.surface import Factors
    from maitre.trial.facts import ServerFacts


class ServedPool:
    """The KV pool at each cell: as the server said at its start, or until that is known scaled by the estimates."""

    def __init__(self, facts: ServerFacts, server: ServerConfig, held_to: int | None) -> None:
        """Prepare.

        Args:
            facts: what the server says of itself, with the flags that it has.
            server: its settings.
            held_to: the size that the user holds every pool to, in blocks.
        """
        self._facts, self._server, self._held_to = facts, server, held_to
        self._known: dict[Flags, int] = {(): facts.start.num_gpu_blocks}

    def learn(self, trial: Trial | FailedTrial) -> None:
        """A trial says how large the pool is with its flags."""
        from maitre.records import Trial

        if isinstance(trial, Trial) and trial.num_gpu_blocks and trial.flags:
            self._known[trial.flags] = trial.num_gpu_blocks

    def num_gpu_blocks(self, cell: Cell) -> int:
        """Of the pool at a cell, the null block included."""
        from maitre.calibration import served_model
        from maitre.setup import Setup

        if self._held_to is not None:
            return self._held_to
        if cell.flags in self._known:
            return self._known[cell.flags]
        known = served_model(self._facts.model_facts, self._facts.gpu, self._server)
        ratio = Setup(self._server, *known).pool_ratio(cell) if known else 1.0
        return max(2, round(self._known[()] * ratio))


def flag_factors(facts: ServerFacts, server: ServerConfig, cells: Sequence[Cell]) -> Factors:
    """By what the coefficients of the step time are multiplied at cells with other flags.

    Raises:
        UsageError: such flags are among the cells, and the model or the GPU is not known.
    """
    from maitre.calibration import served_model, step_time_factors
    from maitre.calibration.flags import CHANGE_STEPS
    from maitre.errors import UsageError
    from maitre.simulator.surface import no_factors

    known = served_model(facts.model_facts, facts.gpu, server)
    if known is not None:
        return step_time_factors(*known, server)
    changing = sorted({name for cell in cells for name, _ in cell.flags if name in CHANGE_STEPS})
    if changing:
        raise UsageError(
            f"what {', '.join(changing)} does to the step time is foretold only for a known model and GPU",
            "vary it with --search grid, which foretells nothing",
        )
    return no_factors
