"""Step times: fitted to recorded steps, shipped with the package, or scaled from what was measured."""

from maitre.calibration.calibration import Calibration
from maitre.calibration.fit import fit_step_time
from maitre.calibration.flags import step_time_factors
from maitre.calibration.prior import roofline_prior
from maitre.calibration.served import served_model, served_prior
from maitre.calibration.shipped import calibration_for, shipped_calibrations

__all__ = [
    "Calibration",
    "calibration_for",
    "fit_step_time",
    "roofline_prior",
    "served_model",
    "served_prior",
    "shipped_calibrations",
    "step_time_factors",
]
