"""Every method of ``cx.inference.METHODS`` against answers that no code of credax computed.

The problems and their answers are in ``answers/problems.py``, the checks in ``answers/gate.py``. No test
branches on the name of a method: its ``kind`` says what is asked of it, its settings and figures say which
checks concern it, and a problem that it refuses is left to the others. It must take at least one.

A method is quick on one problem and slow on all others, since compiling is what costs time: approximations
and points on the linear regression, where their answers are known and minibatches must be right too; exact
methods on the others in turn.
"""

import pytest
from gate import BANDS, VISIBLE, check, check_exact, check_posterior, fit, refused, unseen
from problems import PROBLEMS, linear, network
from runs import instance, quick_problem, settings_of

from credax.inference import METHODS
from credax.posterior.approximations import APPROXIMATIONS

# Some methods say of themselves that such short runs may be bad.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")


@pytest.mark.parametrize("name", METHODS)
def test_the_answer(name):
    """Of a short run. What takes minibatches gets them: ``batch_size`` is a quarter of the rows."""
    check(instance(METHODS[name]), quick_problem(name))


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", METHODS)
def test_every_answer(name, problem):
    """Of longer runs on all rows. Where even those have too few draws, the posterior must say so itself."""
    problem = PROBLEMS[problem]()
    method = instance(METHODS[name], more=True, batch_size=None)
    reason = refused(method, problem)
    if reason is not None:
        pytest.skip(reason)
    if method.kind == "point" and problem.mode is None:
        pytest.skip("the problem has many modes")
    posterior = fit(method, problem)
    if method.kind == "exact" and unseen(posterior, problem) > VISIBLE:
        assert list(posterior.diagnose()), "too few effective draws, and no word about it"
        return
    check_posterior(posterior, problem)


VARIANTS = {
    "temperature": (linear, {"temperature": 0.5}),
    "full rank": (linear, {"family": "full_rank", "rao_blackwell": False}),
    "low rank": (linear, {"family": "low_rank", "rao_blackwell": False}),
    "local reparameterisation": (linear, {"estimator": "local"}),
    "flipout": (linear, {"estimator": "flipout"}),
    "antithetic": (linear, {"antithetic": True}),
    "no control variate": (linear, {"control_variate": None, "samples": 2_048}),
    "optimal control variate": (linear, {"control_variate": "optimal", "samples": 64}),
    "weights of the KL": (linear, {"kl_weights": "blundell"}),
    "full curvature": (linear, {"structure": "full"}),
    "low-rank curvature": (linear, {"structure": "low_rank"}),
    "diagonal curvature": (linear, {"structure": "diagonal"}),
    "curvature of the last layer": (linear, {"structure": "last_layer"}),
    "exact curvature": (linear, {"curvature": "hessian", "structure": "full"}),
    "dense mass": (linear, {"mass": "dense"}),
    "dense proposals": (linear, {"covariance": "dense"}),
    "adjusted": (linear, {"adjusted": True}),
    "starts from the prior": (linear, {"initial": "prior"}),
    "no preconditioner": (linear, {"preconditioner": None, "step_size": 0.02}),
    "steps that shrink": (linear, {"decay": 1 / 3}),
    # With the smaller steps of the default, cycles of this length end before the draws have spread.
    "cycles": (linear, {"cycles": 4, "step_size": 0.1}),
    "last layer integrated out": (network, {"collapse": True}),
    "several populations": (linear, {"repeats": 4}),
    "proposals from the prior": (linear, {"proposal": "prior", "num_draws": 20_000}),
    "members that are draws": (
        linear,
        {"random_prior": True, "noisy_targets": True, "members": 400},
    ),
}
"""Other settings, each for the methods that have the first of them and take its value."""
EXACT = {"adjusted", "members that are draws"}
"""Variants that make an approximation exact in the limit of many draws."""


def varied(name, variant):
    """The method with the settings of a variant, or ``None`` where it has no such settings."""
    problem, settings = VARIANTS[variant][0](), VARIANTS[variant][1]
    if next(iter(settings)) not in settings_of(METHODS[name]):
        return None
    try:
        method = instance(METHODS[name], **settings)
    except ValueError:  # a setting of the same name with other values
        return None
    return None if refused(method, problem) else method


def check_variant(name, variant):
    problem, method = VARIANTS[variant][0](), varied(name, variant)
    if method is None:
        pytest.skip("not a setting of this method")
    posterior = check(method, problem)
    if variant in EXACT:
        check_exact(posterior, problem)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", METHODS)
def test_the_answer_with_other_settings(name, variant):
    check_variant(name, variant)


def test_the_answer_at_another_temperature():
    """For the first method that has one; for the others it is slow."""
    first = next(name for name, cls in METHODS.items() if "temperature" in settings_of(cls))
    check_variant(first, "temperature")


def test_every_variant_concerns_a_method():
    for variant in VARIANTS:
        assert any(varied(name, variant) for name in METHODS), variant


def test_every_approximation_has_a_band():
    """``Draws`` are chains, points or particles; no problem has a network with dropout, as ``Seeds`` need."""
    others = {"chain", "points", "particles", "last layer"}
    assert set(APPROXIMATIONS) - {"Draws", "Seeds"} == set(BANDS) - others
