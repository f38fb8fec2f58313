"""Trials: one cell run over one workload, simulated, recorded or measured, always told in the same figures."""

from maitre.trial.engine import Engine, TrialFailure
from maitre.trial.metrics import Run, replay_run, summarize
from maitre.trial.recorded import RecordedEngine
from maitre.trial.simulated import SimulatedEngine

__all__ = ["Engine", "RecordedEngine", "Run", "SimulatedEngine", "TrialFailure", "replay_run", "summarize"]
