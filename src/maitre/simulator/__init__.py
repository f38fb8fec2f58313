"""vLLM V1's scheduler, replayed exactly, and how long its steps take."""

from maitre.simulator.replay import Replay, replay_arrivals, replay_at_once
from maitre.simulator.rules import SchedulerRules
from maitre.simulator.step_time import StepTime

__all__ = ["Replay", "SchedulerRules", "StepTime", "replay_arrivals", "replay_at_once"]
