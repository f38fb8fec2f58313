"""Trials: one cell run over one workload, simulated, recorded or measured, always told in the same figures."""

from maitre.trial.attainment import attains
from maitre.trial.engine import Engine, Measurement, TrialFailure, Watch
from maitre.trial.metrics import summarize
from maitre.trial.recorded import RecordedEngine
from maitre.trial.run import Run, replay_run
from maitre.trial.simulated import SimulatedEngine

__all__ = [
    "Engine",
    "Measurement",
    "RecordedEngine",
    "Run",
    "SimulatedEngine",
    "TrialFailure",
    "Watch",
    "attains",
    "replay_run",
    "summarize",
]
