"""Diagnostics: whether a posterior and its predictions can be trusted."""

from credax.diagnostics.calibration import Detection, Score, Scores, detect
from credax.diagnostics.convergence import Convergence, Figures, figures_of
from credax.diagnostics.doctor import Diagnosis, Finding
from credax.diagnostics.fidelity import Fidelity, compare_posteriors
from credax.diagnostics.ranks import Deviation, Ranks
from credax.diagnostics.recalibration import (
    Calibrated,
    CalibratedHeads,
    CalibratedPredictive,
)
from credax.diagnostics.simulation_based import simulation_based_calibration

__all__ = [
    "Calibrated",
    "CalibratedHeads",
    "CalibratedPredictive",
    "Convergence",
    "Detection",
    "Deviation",
    "Diagnosis",
    "Fidelity",
    "Figures",
    "Finding",
    "Ranks",
    "Score",
    "Scores",
    "compare_posteriors",
    "detect",
    "figures_of",
    "simulation_based_calibration",
]
