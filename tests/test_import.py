"""``import credax`` takes no time, and gives everything as if it did."""

import subprocess
import sys

import pytest


def run(code, *options):
    command = [sys.executable, "-W", "error", *options, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_heavy():
    heavy = "{'jax', 'numpy', 'scipy', 'pandas', 'rich'}"
    assert run(f"import credax, sys; print({heavy} & set(sys.modules))") == "set()\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["fit", "--help"]])
def test_help_loads_nothing_heavy(arguments):
    heavy = "{'jax', 'numpy', 'scipy', 'pandas', 'rich'}"
    code = (
        "import sys\nfrom credax.cli import main\n"
        f"try:\n    main({arguments})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print('heavy:', {heavy} & set(sys.modules))"
    )
    assert run(code).endswith("heavy: set()\n")


def test_the_function_fit_is_not_hidden_by_the_folder_of_that_name():
    assert "function fit" in run("import credax.fit.progress, credax as cx; print(cx.fit)")


def test_public_modules_can_be_imported_by_their_public_names():
    code = """
from credax.priors import Normal
import credax.networks
import credax as cx
assert Normal is cx.priors.Normal
assert credax.networks is cx.networks
for name in ("approximations", "likelihoods", "loggers", "networks", "priors", "random"):
    __import__(f"credax.{name}")
    assert getattr(cx, name).__name__ != f"credax.{name}"
"""
    run(code)


def test_a_star_imports_every_method():
    run("from credax import *; assert MAP and HMC and fit and priors and BayesianRegressor")


def test_a_posterior_is_diagnosed_even_if_only_parts_were_imported():
    code = """
import numpy as np
from credax.fit import fit
from credax.inference.point import MAP
from credax.model import Model
from credax.model.networks import mlp
x = np.linspace(-1, 1, 20)[:, None]
posterior = fit(Model(mlp([3])), (x, x[:, 0]), MAP(num_steps=5), progress=False)
assert posterior.diagnose() is not None
"""
    run(code)


def test_an_unknown_name_is_an_attribute_error():
    run(
        "import credax as cx\ntry:\n    cx.unknown\nexcept AttributeError as error:\n"
        "    assert \"'unknown'\" in str(error)\nelse:\n    raise SystemExit(1)"
    )
