"""A run, looked at while it goes on: its steps for whoever may end it early, and a server that stands still."""

from __future__ import annotations

import time
from collections.abc import Callable

from maitre.recording import StepRecord
from maitre.trial.engine import Watch
from maitre.trial.load import LoadProgress
from maitre.trial.run_files import StepReader

LOOK_S = 1.0
"""Between two looks at what the server has recorded."""


class RunWatch:
    """Is told of a load's progress, and says when to end it; afterwards says why."""

    def __init__(
        self, reader: StepReader, watch: Watch | None, stall_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Prepare; time begins here.

        Args:
            reader: of the run's steps.
            watch: is shown the steps whenever there are new ones; True ends the run.
            stall_timeout_s: how long no step and no answer may come while requests are under way.
            clock: in seconds.
        """
        self.steps: StepRecord | None = None
        """Those of the last look."""
        self.is_enough = False
        """The watcher had seen enough."""
        self.is_stalled = False
        """The server stood still."""
        self._reader = reader
        self._watch = watch
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._num_done = 0
        self._look_s = self._alive_s = clock()

    def __call__(self, progress: LoadProgress) -> bool:
        """Whether the run should end now."""
        now_s = self._clock()
        if not (self.is_enough or self.is_stalled) and now_s - self._look_s >= LOOK_S:
            self._look_s = now_s
            self._look(progress, now_s)
        return self.is_enough or self.is_stalled

    def _look(self, progress: LoadProgress, now_s: float) -> None:
        steps = self._reader.read()
        has_new = steps is not None and (self.steps is None or steps.num_steps > self.steps.num_steps)
        self.steps = steps
        if has_new or progress.num_done > self._num_done or progress.num_sent == progress.num_done:
            self._alive_s = now_s
        self._num_done = progress.num_done
        self.is_stalled = now_s - self._alive_s >= self._stall_timeout_s
        if has_new and steps is not None and self._watch is not None and progress.num_done < progress.num_requests:
            self.is_enough = self._watch(steps)
