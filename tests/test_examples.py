"""Every example runs with tiny settings and draws its picture."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = {
    "active_learning": ["--rounds", "1", "--count", "5", "--steps", "5", "--keys", "1"],
    "bandits": ["--steps", "20", "--updates", "1", "--hidden", "4", "--keys", "1"],
    "fidelity": ["--steps", "30", "--draws", "20"],
    "gradient_variance": ["--draws", "50", "--steps", "20"],
    "language_model": ["--sentences", "8", "--steps", "3", "--members", "2"],
    "pruning": ["--steps", "20"],
    "model_selection": ["--units", "1", "3", "--restarts", "1", "--steps", "300"],
    "recalibration": ["--steps", "30", "--rows", "100"],
    "scores": ["--steps", "30", "--rows", "50"],
    "streaming": ["--batches", "3", "--rows", "30", "--steps", "10"],
    "weight_uncertainty": ["--steps", "20"],
}

SLOW = (
    "bandits",
    "fidelity",
    "gradient_variance",
    "language_model",
    "pruning",
    "recalibration",
    "scores",
    "streaming",
    "weight_uncertainty",
)
"""The examples that take long to compile."""


def run(name, out):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module.main([*TINY[name], "--out", str(out)])


def test_every_example_is_listed():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(TINY)


# Runs this short do not converge, but their data must suit their models.
@pytest.mark.filterwarnings("ignore::credax.PosteriorWarning", "error::credax.DataWarning")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in TINY]
)
def test_example_runs_and_draws(name, tmp_path):
    assert run(name, tmp_path) is not None
    pictures = list(tmp_path.glob("*.png"))
    assert pictures
    assert pictures[0].stat().st_size > 5_000


@pytest.mark.slow
def test_backprop_gradients_vary_less_than_black_box_ones(tmp_path):
    variances = run("gradient_variance", tmp_path)
    assert all(np.isfinite(value) for value in variances.values())
    assert variances["Bayes by Backprop"] < variances["black box"]
    assert variances["local reparameterisation"] < variances["Bayes by Backprop"]
