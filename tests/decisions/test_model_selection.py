"""Evidence and leave-one-out compared with the closed forms of conjugate linear regression."""

import functools
import itertools

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from sklearn.linear_model import Lasso, Ridge

import credax as cx
from credax.decisions.model_selection import log_evidence, loo, select, waic
from credax.inference.laplace import Laplace
from credax.posterior.approximations import Draws

N, SD, PRIOR = 30, 0.5, 1.5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 2))
Y = X @ [1.0, -0.5] + 0.3 + SD * RNG.normal(size=N)
DESIGN = np.column_stack([X, np.ones(N)])
"""The design matrix; the last column belongs to the bias."""


def linear(prior=PRIOR, sd=SD):
    return cx.Model(cx.networks.linear(), cx.priors.Normal(prior), cx.likelihoods.Gaussian(sd))


def exact_log_evidence(design=DESIGN, y=Y, prior=PRIOR, sd=SD):
    covariance = sd**2 * np.eye(len(y)) + prior**2 * design @ design.T
    return stats.multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)


def exact_posterior():
    precision = np.eye(3) / PRIOR**2 + DESIGN.T @ DESIGN / SD**2
    covariance = np.linalg.inv(precision)
    return covariance @ DESIGN.T @ Y / SD**2, covariance


def exact_loo():
    """log p(y_i | all other rows), from the joint covariance of all rows."""
    covariance = SD**2 * np.eye(N) + PRIOR**2 * DESIGN @ DESIGN.T
    precision = np.linalg.inv(covariance)
    variance = 1 / np.diag(precision)
    mean = Y - (precision @ Y) * variance
    return stats.norm(mean, np.sqrt(variance)).logpdf(Y)


@functools.cache
def exact_draws(count=4000, weighted=False):
    """Draws of the exact posterior, or weighted draws of a wider distribution with importance weights."""
    mean, covariance = exact_posterior()
    rng = np.random.default_rng(1)
    stretch = 1.5 if weighted else 1.0
    draws = rng.multivariate_normal(mean, stretch * covariance, count)
    weights = None
    if weighted:
        target, proposal = (
            stats.multivariate_normal(mean, c) for c in (covariance, 1.5 * covariance)
        )
        weights = (target.logpdf(draws) - proposal.logpdf(draws))[None]
    params = {
        "layer_0": {
            "kernel": draws[None, :, :2, None].astype(np.float32),
            "bias": draws[None, :, 2:].astype(np.float32),
        }
    }
    return cx.Posterior(linear().bind((X, Y)), Draws(params, (), weights))


# -- the evidence ----------------------------------------------------------------------------------


def test_laplace_is_exact_where_the_posterior_is_normal():
    method = Laplace(structure="full", num_steps=1500, learning_rate=0.05)
    found = log_evidence(cx.fit(linear(), (X, Y), method, progress=False))
    assert found.value == pytest.approx(exact_log_evidence(), abs=0.01)
    assert found.errs == "to either side: the posterior is taken to be normal"


@pytest.mark.parametrize(
    "method",
    [
        pytest.param(cx.ImportanceSampling(num_draws=4000), id="is"),
        pytest.param(cx.SMC(particles=200), id="smc", marks=pytest.mark.slow),
    ],
)
def test_unbiased_estimates_are_within_their_errors(method):
    posterior = cx.fit(linear(), (X, Y), method, progress=False)
    found = log_evidence(posterior)
    assert abs(found.value - exact_log_evidence()) < 4 * found.standard_error + 1e-3
    assert found.standard_error < 0.3
    assert "low" in found.errs


def test_the_elbo_is_a_lower_bound_and_tight_for_the_right_family():
    full = cx.BayesByBackprop(family="full_rank", num_steps=4000, learning_rate=0.02, samples=4)
    found = log_evidence(cx.fit(linear(), (X, Y), full, progress=False))
    assert found.errs.startswith("too low: a lower bound")
    assert found.value == pytest.approx(exact_log_evidence(), abs=4 * found.standard_error + 0.05)
    assert found.value < exact_log_evidence() + 4 * found.standard_error


def test_enumeration_is_exact(tmp_path):
    model = cx.Model(
        cx.networks.linear(),
        cx.priors.Discrete([-1.0, 1.0]),
        cx.likelihoods.Gaussian(SD),
    )
    posterior = cx.fit(model, (X, Y), cx.Enumeration(), progress=False)
    states = [
        stats.norm(DESIGN @ weights, SD).logpdf(Y).sum()
        for weights in itertools.product((-1, 1), repeat=3)
    ]
    found = log_evidence(posterior)
    assert found.value == pytest.approx(logsumexp(states) - np.log(8), rel=1e-5)
    assert found.errs == "not at all: exact"
    posterior.save(tmp_path / "posterior")
    loaded = log_evidence(cx.load(tmp_path / "posterior"))
    assert loaded == found
    assert loaded.errs == found.errs


def test_a_method_without_evidence_says_who_has_it():
    posterior = cx.fit(linear(), (X, Y), cx.MAP(num_steps=10), progress=False)
    with pytest.raises(ValueError, match=r"MAP estimates no evidence. Laplace, SMC"):
        log_evidence(posterior)
    with pytest.raises(ValueError, match="loo and waic need several draws of the weights; MAP"):
        loo(posterior, X, Y)


@pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")
def test_too_few_draws_for_loo_are_refused_in_words():
    ensemble = cx.DeepEnsemble(members=5, num_steps=3)
    posterior = cx.fit(linear(), (X, Y), ensemble, progress=False)
    with pytest.raises(
        ValueError, match=r"loo needs at least 25 draws .*; DeepEnsemble gave 5\. Use waic"
    ):
        loo(posterior, X, Y)
    assert np.isfinite(waic(posterior, X, Y).value)


# -- left out --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_loo_is_that_of_closed_form(weighted):
    found = loo(exact_draws(weighted=weighted), X, Y)
    exact = exact_loo()
    np.testing.assert_allclose(found.each, exact, atol=0.05)
    assert found.value == pytest.approx(exact.sum(), abs=0.1)
    assert found.standard_error == pytest.approx(np.sqrt(N) * exact.std(ddof=1), rel=0.03)
    assert np.all(found.pareto_k < 0.7)
    assert 2 < found.effective_parameters < 4  # the model has three weights
    assert repr(found).startswith("Pointwise(")
    assert "over 30 rows" in repr(found)


def test_waic_is_its_formula():
    posterior = exact_draws()
    leaves = posterior.draws["layer_0"]
    kernel = np.asarray(leaves["kernel"], float)[0, :, :, 0]
    means = kernel @ X.T + np.asarray(leaves["bias"], float)[0]
    each = stats.norm(means, SD).logpdf(Y)
    values = logsumexp(each, axis=0) - np.log(len(each)) - each.var(0, ddof=1)
    found = waic(posterior, X, Y)
    np.testing.assert_allclose(found.each, values, atol=1e-4)
    assert found.value == pytest.approx(values.sum(), abs=1e-3)
    assert found.effective_parameters == pytest.approx(each.var(0, ddof=1).sum(), rel=1e-3)
    assert found.value == pytest.approx(exact_loo().sum(), abs=0.3)


def test_waic_of_weighted_draws():
    assert waic(exact_draws(weighted=True), X, Y).value == pytest.approx(
        waic(exact_draws(), X, Y).value, abs=0.1
    )


# -- ranking ---------------------------------------------------------------------------------------


@functools.cache
def curve():
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, 60)
    y = 1 - x + 0.8 * x**2 + 0.3 * rng.normal(size=60)
    return np.column_stack([x**k for k in range(1, 6)]), y


def columns(count):
    """A polynomial of degree ``count``: a linear model of the first ``count`` columns."""
    return cx.Model(
        cx.networks.from_function(
            lambda key: {"w": np.zeros(count + 1, np.float32)},
            lambda params, x: x[:, :count] @ params["w"][:-1, None] + params["w"][-1],
        ),
        cx.priors.Normal(1.0),
        cx.likelihoods.Gaussian(0.3),
    )


@functools.cache
def selection(criterion):
    models = {f"degree {k}": columns(k) for k in (1, 2, 5)}
    method = Laplace(structure="full", num_steps=1500, learning_rate=0.05)
    return select(models, curve(), method, criterion=criterion)


@pytest.mark.slow
@pytest.mark.parametrize(
    "criterion", ["log_evidence", "loo", pytest.param("held_out", marks=pytest.mark.slow)]
)
def test_the_true_model_wins(criterion):
    found = selection(criterion)
    assert found.criterion == criterion
    assert found.best.name == "degree 2"
    assert found.best.behind == 0
    assert found.candidates[-1].name == "degree 1"
    assert found.candidates[-1].behind > 10
    lines = str(found).splitlines()
    assert lines[0].split() == [*criterion.split("_"), "behind", "the", "best"]
    assert lines[1].startswith("degree 2")
    assert str(found.best).startswith("Candidate('degree 2', ")
    assert found._repr_html_().count("<tr>") == 4
    if criterion == "log_evidence":
        assert lines[-1].startswith(
            "degree 2, degree 5, degree 1: the estimate errs to either side"
        )


def test_occams_razor_is_that_of_the_exact_evidence():
    x, y = curve()
    for candidate in selection("log_evidence").candidates:
        degree = int(candidate.name[-1])
        design = np.column_stack([x[:, :degree], np.ones(len(y))])
        exact = exact_log_evidence(design, y, prior=1.0, sd=0.3)
        assert candidate.value == pytest.approx(exact, abs=0.02)


@pytest.mark.slow
def test_differences_are_judged_row_by_row():
    best, *_, worst = selection("loo").candidates
    a, b = (loo(candidate.posterior, *curve()).each for candidate in (best, worst))
    assert worst.behind == pytest.approx((a - b).sum())
    assert worst.behind_error == pytest.approx(np.sqrt(len(a) * (a - b).var(ddof=1)))


def test_models_may_come_in_a_list():
    method = Laplace(structure="full", num_steps=1500, learning_rate=0.05)
    found = select([linear(), linear(prior=0.01)], (X, Y), method)
    assert {candidate.name for candidate in found.candidates} == {"0", "1"}


def test_arguments_are_checked():
    with pytest.raises(ValueError, match=r"criterion=.*one of 'log_evidence', 'loo'"):
        select([linear()], (X, Y), criterion="aic")
    with pytest.raises(ValueError, match=r"models=.*at least one model"):
        select({}, (X, Y))
    with pytest.raises(ValueError, match=r"held_out=.*between 0 and 1"):
        select([linear()], (X, Y), criterion="held_out", held_out=1.5)


# -- regularisation is a prior ---------------------------------------------------------------------

FLAT = cx.priors.Normal(1000.0)
"""A wide prior for the bias, which scikit-learn does not penalise."""


def test_ridge_is_map_with_a_normal_prior():
    r""":math:`\|y - Xw\|^2 + \alpha \|w\|^2` with alpha = noise variance / prior variance."""
    prior = cx.priors.PerLayer({"*/bias": FLAT, "*": cx.priors.Normal(0.4)})
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(SD))
    fitted = cx.fit(model, (X, Y), cx.MAP(num_steps=3000, learning_rate=0.05), progress=False)
    ridge = Ridge(alpha=SD**2 / 0.4**2).fit(X, Y)
    weights = fitted.draws["layer_0"]
    np.testing.assert_allclose(np.ravel(weights["kernel"]), ridge.coef_, atol=1e-4)
    np.testing.assert_allclose(np.ravel(weights["bias"]), ridge.intercept_, atol=1e-4)


def test_lasso_is_map_with_a_laplace_prior():
    r""":math:`\frac{1}{2n}\|y - Xw\|^2 + \alpha |w|_1` with alpha = noise variance / (n b)."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(80, 4))
    y = x @ [1.0, 0.0, -0.7, 0.05] + SD * rng.normal(size=80)
    b = 0.02
    prior = cx.priors.PerLayer({"*/bias": FLAT, "*": cx.priors.Laplace(b)})
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(SD))
    fitted = cx.fit(model, (x, y), cx.MAP(num_steps=5000, learning_rate=0.02), progress=False)
    lasso = Lasso(alpha=SD**2 / (80 * b), tol=1e-10).fit(x, y)
    assert np.any(lasso.coef_ == 0)
    weights = fitted.draws["layer_0"]
    np.testing.assert_allclose(np.ravel(weights["kernel"]), lasso.coef_, atol=2e-3)
