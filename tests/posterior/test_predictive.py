"""Predictions agree with the mixture computed directly with NumPy and SciPy."""

import dataclasses
import functools
import tracemalloc
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, special, stats

import credax as cx
from credax.model import likelihoods
from credax.posterior import mixture, predictive
from credax.posterior.approximations import Draws

ROWS, SHAPE = 5, (2, 3)
"""The number of rows of the table that stands for a network, and (replicas, draws)."""
X = np.arange(ROWS)[:, None]


@functools.cache
def table(outputs, rows=ROWS):
    """A network whose parameters are its table of outputs: row i of the parameters is the output for row i."""
    return cx.networks.from_function(
        lambda key: {"table": jnp.zeros((rows, outputs))},
        lambda params, x: params["table"][x[:, 0]],
    )


def posterior(likelihood, y, outputs, learned=None, log_weights=None):
    """A posterior whose draws have the given outputs, (replica, draw, row, output)."""
    outputs = np.asarray(outputs)
    model = cx.Model(table(outputs.shape[-1], outputs.shape[-2]), likelihood=likelihood)
    rows = np.resize(np.arange(outputs.shape[-2]), len(y))[:, None]
    dtype = jnp.result_type(float)
    params = {"table": outputs.astype(dtype)}
    if learned is not None:
        learned = {name: np.asarray(value).astype(dtype) for name, value in learned.items()}
        params = {"network": params, "likelihood": learned}
    return cx.Posterior(model.bind((rows, y)), Draws(params, (), log_weights))


# -- the answers -----------------------------------------------------------------------------------
# Each reference gets the outputs (rows, outputs) and the learned parameters of one draw, in float64.


def independent(distribution):
    """A reference for targets that are independent given the outputs."""
    return Reference(
        mean=lambda o, p: distribution(o, p).mean(),
        variance=lambda o, p: distribution(o, p).var(),
        log_prob=lambda o, y, p: (
            distribution(o, p).logpdf
            if hasattr(distribution(o, p).dist, "pdf")
            else distribution(o, p).logpmf
        )(y.reshape(len(y), -1)).sum(-1),
        cdf=lambda o, t, p: distribution(o, p).cdf(t),
    )


@dataclass
class Reference:
    mean: Any
    variance: Any
    log_prob: Any
    cdf: Any = None
    entropy: Any = None


def heteroscedastic(o, p):
    location, raw = np.split(o, 2, axis=-1)
    return stats.norm(location, 0.01 + np.logaddexp(0, raw))


COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])


def factor(p):
    if p is None:
        return np.linalg.cholesky(COVARIANCE)
    return np.array(
        [[np.exp(p["log_diagonal"][0]), 0], [p["lower"][0], np.exp(p["log_diagonal"][1])]]
    )


def covariance(p):
    return factor(p) @ factor(p).T


JOINT = Reference(
    mean=lambda o, p: o,
    variance=lambda o, p: np.broadcast_to(np.diag(covariance(p)), o.shape),
    log_prob=lambda o, y, p: np.array(
        [stats.multivariate_normal(m, covariance(p)).logpdf(t) for m, t in zip(o, y, strict=True)]
    ),
    cdf=lambda o, t, p: stats.norm(o, np.sqrt(np.diag(covariance(p)))).cdf(t),
)


def softmax_variance(o, p):
    probs = special.softmax(o, -1)
    return probs * (1 - probs)


CATEGORICAL = Reference(
    mean=lambda o, p: special.softmax(o, -1),
    variance=softmax_variance,
    log_prob=lambda o, y, p: special.log_softmax(o, -1)[np.arange(len(y)), y],
    entropy=lambda o, p: special.entr(special.softmax(o, -1)).sum(-1),
)
BERNOULLI = Reference(
    mean=lambda o, p: special.expit(o),
    variance=lambda o, p: special.expit(o) * special.expit(-o),
    log_prob=lambda o, y, p: special.log_expit((2 * y.reshape(o.shape) - 1) * o).sum(-1),
    entropy=lambda o, p: (special.entr(special.expit(o)) + special.entr(special.expit(-o))).sum(-1),
)

G = np.random.default_rng(0)
ONE, TWO = G.normal(size=ROWS), G.normal(size=(ROWS, 2))


def spread(outputs, scale=1.0):
    return scale * np.random.default_rng(outputs).normal(size=(*SHAPE, ROWS, outputs))


@dataclass
class Case:
    likelihood: Any
    y: np.ndarray
    outputs: np.ndarray
    reference: Reference
    learned: dict | None = None


def scale_of(p):
    return np.exp(p["log_scale"])


CASES = {
    "gaussian": Case(
        likelihoods.Gaussian(0.3), ONE, spread(1), independent(lambda o, p: stats.norm(o, 0.3))
    ),
    "gaussian narrow": Case(
        likelihoods.Gaussian(0.05),
        ONE[:, None],
        10 + spread(1),
        independent(lambda o, p: stats.norm(o, 0.05)),
    ),
    "gaussian learned": Case(
        likelihoods.Gaussian(None),
        TWO,
        spread(2),
        independent(lambda o, p: stats.norm(o, scale_of(p))),
        {"log_scale": G.normal(size=(*SHAPE, 2))},
    ),
    "student": Case(
        likelihoods.StudentT(3.0, 0.5),
        ONE,
        spread(1),
        independent(lambda o, p: stats.t(3.0, o, 0.5)),
    ),
    "student learned": Case(
        likelihoods.StudentT(6.0, None),
        TWO,
        spread(2),
        independent(lambda o, p: stats.t(6.0, o, scale_of(p))),
        {"log_scale": G.normal(size=(*SHAPE, 2))},
    ),
    "heteroscedastic": Case(
        likelihoods.Heteroscedastic(0.01), TWO, spread(4), independent(heteroscedastic)
    ),
    "multivariate": Case(likelihoods.MultivariateGaussian(COVARIANCE), TWO, spread(2), JOINT),
    "multivariate learned": Case(
        likelihoods.MultivariateGaussian(None),
        TWO,
        spread(2),
        JOINT,
        {"log_diagonal": G.normal(size=(*SHAPE, 2)), "lower": G.normal(size=(*SHAPE, 1))},
    ),
    "poisson": Case(
        likelihoods.Poisson(),
        np.array([0, 3, 1, 12, 7]),
        1 + spread(1),
        independent(lambda o, p: stats.poisson(np.exp(o))),
    ),
    "poisson two": Case(
        likelihoods.Poisson(),
        np.array([[0, 3], [1, 12], [7, 0], [0, 0], [40, 2]]),
        1 + spread(2),
        independent(lambda o, p: stats.poisson(np.exp(o))),
    ),
    "categorical": Case(
        likelihoods.Categorical(), np.array([0, 1, 2, 3, 0]), spread(4, 3), CATEGORICAL
    ),
    "categorical extreme": Case(
        likelihoods.Categorical(3), np.array([0, 1, 2, 2, 0]), spread(3, 3000), CATEGORICAL
    ),
    "bernoulli": Case(likelihoods.Bernoulli(), np.array([0, 1, 0, 1, 1]), spread(1, 2), BERNOULLI),
    "bernoulli extreme": Case(
        likelihoods.Bernoulli(), np.array([0, 1, 0, 1, 1]), spread(1, 3000), BERNOULLI
    ),
    "bernoulli two": Case(
        likelihoods.Bernoulli(),
        np.array([[0, 1], [0, 0], [1, 0], [1, 1], [0, 1]]),
        spread(2),
        BERNOULLI,
    ),
}
WEIGHTS = {
    "none": None,
    "some": G.normal(size=SHAPE) + 50,
    "zero": np.array([[-np.inf, 0.0, -1.0], [-np.inf, -2000.0, 0.5]]),
    "one": np.array([[-np.inf, -np.inf, -np.inf], [-np.inf, 3.0, -np.inf]]),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
NUMBERS = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.reference.cdf],
    ids=[n for n, c in CASES.items() if c.reference.cdf],
)
CLASSES = pytest.mark.parametrize(
    "case",
    [case for case in CASES.values() if case.reference.entropy],
    ids=[n for n, c in CASES.items() if c.reference.entropy],
)


@pytest.fixture(params=["single", pytest.param("double", marks=pytest.mark.slow)])
def tolerance(request):
    """The tolerances of a result for each precision."""
    if request.param == "double":
        request.getfixturevalue("x64")
        return {"rtol": 1e-8, "atol": 1e-10}
    return {"rtol": 1e-4, "atol": 1e-5}


def normalised(log_weights):
    return special.log_softmax(
        np.zeros(SHAPE).ravel() if log_weights is None else log_weights.ravel()
    )


def components(case):
    """The outputs and the learned parameters of each draw."""
    dtype = jnp.result_type(float)
    outputs = case.outputs.astype(dtype).astype(np.float64).reshape(-1, *case.outputs.shape[2:])
    for i, output in enumerate(outputs):
        learned = case.learned and {
            name: value.astype(dtype).astype(np.float64).reshape(-1, *value.shape[2:])[i]
            for name, value in case.learned.items()
        }
        yield output, learned


def average(log_weights, values):
    return sum(np.exp(w) * v for w, v in zip(log_weights, values, strict=True))


def predictions(case):
    """A prediction for each choice of weights, and the logarithms of the weights."""
    for log_weights in WEIGHTS.values():
        made = posterior(case.likelihood, case.y, case.outputs, case.learned, log_weights)
        yield made.predict(X), normalised(log_weights)


def shaped(case, values):
    """The values in the shape (rows,) if y is one-dimensional and there is one target."""
    return values[..., 0] if case.y.ndim == 1 and values.shape[-1] == 1 else values


@EVERY
def test_moments(case, tolerance):
    for prediction, weights in predictions(case):
        means = [case.reference.mean(o, p) for o, p in components(case)]
        variances = [case.reference.variance(o, p) for o, p in components(case)]
        mean = average(weights, means)
        epistemic = average(weights, [(m - mean) ** 2 for m in means])
        aleatoric = average(weights, variances)
        np.testing.assert_allclose(prediction.mean, shaped(case, mean), **tolerance)
        np.testing.assert_allclose(prediction.epistemic, shaped(case, epistemic), **tolerance)
        np.testing.assert_allclose(prediction.aleatoric, shaped(case, aleatoric), **tolerance)
        total = shaped(case, epistemic + aleatoric)
        np.testing.assert_allclose(prediction.variance, total, **tolerance)
        np.testing.assert_allclose(prediction.std, np.sqrt(total), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(
            prediction.variance, prediction.epistemic + prediction.aleatoric
        )
        assert np.all(prediction.epistemic >= 0)
        assert prediction.mean.dtype == jnp.result_type(float)


@pytest.mark.matrix
@EVERY
def test_log_prob_is_the_log_of_the_mean_density(case, tolerance):
    for prediction, weights in predictions(case):
        log_probs = np.array([case.reference.log_prob(o, case.y, p) for o, p in components(case)])
        expected = special.logsumexp(log_probs + weights[:, None], axis=0)
        found = prediction.log_prob(case.y)
        assert found.shape == (ROWS,)
        np.testing.assert_allclose(found, expected, **tolerance)


LEVELS = np.array([0.01, 0.1, 0.37, 0.52, 0.95])


def mixture_cdf(case, weights, t):
    """P(y <= t) of each target, with t in the shape of the quantiles."""
    t = t.reshape(-1, ROWS, t.size // len(t) // ROWS)
    return average(weights, [case.reference.cdf(o, t, p) for o, p in components(case)])


@pytest.mark.matrix
@NUMBERS
def test_quantiles_are_where_the_mixture_reaches_their_level(case, tolerance):
    for prediction, weights in predictions(case):
        found = prediction.quantile(LEVELS).astype(np.float64)
        assert found.shape == (len(LEVELS), *prediction.mean.shape)
        level = LEVELS[:, None, None]
        if case.likelihood.task == "count":
            np.testing.assert_array_equal(found, np.round(found))
            below, above = found - 1, found
        else:
            error = tolerance["rtol"] * np.abs(found) + 2 * tolerance["atol"]
            below, above = found - error, found + error
        assert np.all(mixture_cdf(case, weights, below) < level)
        assert np.all(mixture_cdf(case, weights, above) >= level)


@pytest.mark.slow
def test_quantiles_agree_with_a_root_finder(x64):
    case = CASES["student"]
    weights = normalised(WEIGHTS["some"])
    made = posterior(case.likelihood, case.y, case.outputs, None, WEIGHTS["some"])
    found = made.predict(X).quantile(LEVELS)
    for place, quantile in np.ndenumerate(found):
        level, row = LEVELS[place[0]], place[1]
        excess = lambda t: mixture_cdf(case, weights, np.full((1, ROWS), t))[0, row, 0] - level  # noqa: E731, B023
        assert quantile == pytest.approx(optimize.brentq(excess, -1e3, 1e3, xtol=1e-12), rel=1e-9)


@pytest.mark.matrix
@NUMBERS
def test_intervals_hold_so_much_of_the_mixture(case):
    prediction, weights = next(predictions(case))
    lower, upper = prediction.interval(0.8)
    assert lower.shape == upper.shape == prediction.mean.shape
    cdf = [mixture_cdf(case, weights, end[None]) for end in (lower, upper)]
    if case.likelihood.task == "count":
        assert np.all(cdf[0] >= 0.1 - 1e-5)
        assert np.all(cdf[1] >= 0.9 - 1e-5)
    else:
        np.testing.assert_allclose(cdf[0], 0.1, atol=1e-4)
        np.testing.assert_allclose(cdf[1], 0.9, atol=1e-4)
    np.testing.assert_array_equal(prediction.interval(), prediction.quantile([0.05, 0.95]))


@CLASSES
def test_entropies(case, tolerance):
    for prediction, weights in predictions(case):
        mean = average(weights, [case.reference.mean(o, p) for o, p in components(case)])
        expected = average(weights, [case.reference.entropy(o, p) for o, p in components(case)])
        entropy = special.entr(mean).sum(-1)
        if isinstance(case.likelihood, likelihoods.Bernoulli):
            entropy = entropy + special.entr(1 - mean).sum(-1)
        np.testing.assert_allclose(prediction.entropy, entropy, **tolerance)
        np.testing.assert_allclose(prediction.expected_entropy, expected, **tolerance)
        np.testing.assert_allclose(
            prediction.mutual_information, entropy - expected, rtol=1e-3, atol=2e-5
        )
        assert np.all(prediction.mutual_information >= 0)
        assert prediction.entropy.shape == (ROWS,)


@CLASSES
def test_probabilities_and_labels(case):
    prediction, weights = next(predictions(case))
    mean = average(weights, [case.reference.mean(o, p) for o, p in components(case)])
    if case.y.ndim == 2:
        with pytest.raises(AttributeError, match="one label per row"):
            _ = prediction.probs
        return
    if isinstance(case.likelihood, likelihoods.Bernoulli):
        mean = np.concatenate([1 - mean, mean], axis=1)
    np.testing.assert_allclose(prediction.probs, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(prediction.probs.sum(1), 1, rtol=1e-5)
    assert np.issubdtype(prediction.label.dtype, np.integer)
    best = mean[np.arange(ROWS), prediction.label]
    np.testing.assert_allclose(best, mean.max(1), rtol=1e-6)


# -- edges -----------------------------------------------------------------------------------------


def test_draws_of_no_weight_may_be_anything():
    """An importance sampler gives weight zero to draws whose outputs overflow."""
    wild = np.zeros((1, 4, ROWS, 1))
    wild[0, :3] = np.array([np.inf, -np.inf, np.nan]).reshape(3, 1, 1)
    for at in (0, 2):
        outputs, log_weights = np.roll(wild, at, axis=1), np.full((1, 4), -np.inf)
        log_weights[0, (3 + at) % 4] = 0.0
        for likelihood in (likelihoods.Gaussian(1.0), likelihoods.Poisson()):
            y = np.ones(ROWS)
            found = posterior(likelihood, y, outputs, None, log_weights).predict(X)
            alone = posterior(likelihood, y, np.zeros((1, 1, ROWS, 1))).predict(X)
            for name in ("mean", "epistemic", "aleatoric"):
                np.testing.assert_array_equal(getattr(found, name), getattr(alone, name))
            np.testing.assert_array_equal(found.log_prob(y), alone.log_prob(y))
            np.testing.assert_allclose(found.quantile([0.3]), alone.quantile([0.3]), rtol=1e-6)


def test_a_small_spread_around_a_large_mean_keeps_its_digits():
    outputs = 1000 + 0.125 * np.arange(6.0).reshape(*SHAPE, 1, 1) * np.ones((1, 1, ROWS, 1))
    found = posterior(likelihoods.Gaussian(1.0), ONE, outputs).predict(X).epistemic
    np.testing.assert_allclose(found, np.var(0.125 * np.arange(6)), rtol=1e-3)


def test_a_density_beyond_the_range_of_floats_has_a_logarithm():
    outputs = np.full((1, 2, ROWS, 1), 0.0)
    found = (
        posterior(likelihoods.Gaussian(0.001), ONE, outputs).predict(X).log_prob(np.full(ROWS, 5.0))
    )
    expected = stats.norm(0, 0.001).logpdf(5.0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_quantiles_of_a_wide_mixture():
    """Two narrow components far apart: quantiles of E[y | w] or of a normal distribution would be far off."""
    outputs = np.array([-1000.0, 1000.0]).reshape(1, 2, 1, 1) * np.ones((1, 1, ROWS, 1))
    found = (
        posterior(likelihoods.Gaussian(0.1), ONE, outputs).predict(X).quantile([0.25, 0.75, 0.49])
    )
    np.testing.assert_allclose(found[0], -1000, atol=1e-3)
    np.testing.assert_allclose(found[1], 1000, atol=1e-3)
    np.testing.assert_allclose(found[2], -1000 + 0.1 * stats.norm.ppf(0.98), atol=1e-3)


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1.0, 5.5, 300.0, 1e5])
def test_quantiles_of_one_poisson_are_exact(rate):
    outputs = np.full((1, 1, ROWS, 1), np.log(rate))
    levels = np.array([0.003, 0.11, 0.4999, 0.77, 0.993])
    found = posterior(likelihoods.Poisson(), np.ones(ROWS), outputs).predict(X).quantile(levels)
    rate = np.exp(np.float64(np.float32(np.log(rate))))
    expected = stats.poisson(rate).ppf(levels)
    # At a rate of 1e5 the distribution function changes by 1e-3 per count; float32 resolves 1e-6.
    np.testing.assert_array_equal(found, np.repeat(expected[:, None], ROWS, 1))


def test_quantile_takes_a_number_or_any_array():
    prediction = posterior(likelihoods.Gaussian(1.0), TWO, spread(2)).predict(X)
    assert prediction.quantile(0.5).shape == (ROWS, 2)
    assert prediction.quantile([0.5]).shape == (1, ROWS, 2)
    grid = prediction.quantile([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    assert grid.shape == (2, 3, ROWS, 2)
    assert np.all(np.diff(grid.reshape(6, ROWS, 2), axis=0) > 0)
    np.testing.assert_array_equal(grid[1, 1], prediction.quantile(0.5))


@pytest.mark.parametrize("level", [0, 1, -0.1, 1.5, np.nan, [], [0.5, 1.0], 1 - 1e-12, 1e-60])
def test_levels_that_have_no_quantile_are_refused(level):
    """The last two levels are 1 and 0 in float32."""
    prediction = posterior(likelihoods.Gaussian(1.0), ONE, spread(1)).predict(X)
    with pytest.raises(ValueError, match=r"quantile\(q=...\) must be between 0 and 1"):
        prediction.quantile(level)


def test_levels_close_to_the_ends_are_finite(x64):
    prediction = posterior(likelihoods.Gaussian(1.0), ONE, np.zeros((1, 1, ROWS, 1))).predict(X)
    levels = np.array([1e-12, 1 - 1e-12])
    found = prediction.quantile(levels)
    np.testing.assert_allclose(found[:, 0], stats.norm.ppf(levels), rtol=1e-4)


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_levels_that_have_no_interval_are_refused(level):
    prediction = posterior(likelihoods.Gaussian(1.0), ONE, spread(1)).predict(X)
    with pytest.raises(ValueError, match=r"interval\(level=...\) must be between 0 and 1"):
        prediction.interval(level)


# -- which fields there are ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["probs", "label", "entropy", "expected_entropy", "mutual_information"]
)
@pytest.mark.parametrize("likelihood", [likelihoods.Gaussian(1.0), likelihoods.Poisson()])
def test_numbers_have_no_class_fields(name, likelihood):
    prediction = posterior(likelihood, np.ones(ROWS), spread(1)).predict(X)
    message = rf"for predictions of classes; the likelihood is {type(likelihood).__name__}"
    with pytest.raises(AttributeError, match=message):
        getattr(prediction, name)


@pytest.mark.parametrize("call", [lambda p: p.quantile(0.5), lambda p: p.interval()])
@pytest.mark.parametrize("case", ["categorical", "bernoulli"])
def test_classes_have_no_quantiles(call, case):
    case = CASES[case]
    prediction = posterior(case.likelihood, case.y, case.outputs).predict(X)
    message = f"for predictions of numbers; the likelihood is {type(case.likelihood).__name__}"
    with pytest.raises(AttributeError, match=message):
        call(prediction)


@pytest.mark.matrix
@EVERY
def test_shapes_follow_y(case):
    prediction = posterior(case.likelihood, case.y, case.outputs, case.learned).predict(X)
    classes = (
        case.outputs.shape[-1] if isinstance(case.likelihood, likelihoods.Categorical) else None
    )
    shape = (ROWS, classes) if classes else case.y.shape
    for name in ("mean", "std", "variance", "epistemic", "aleatoric"):
        assert getattr(prediction, name).shape == shape
    assert prediction.outputs.shape == (np.prod(SHAPE), ROWS, case.outputs.shape[-1])
    assert prediction.sample(0, 4).shape == (4, *case.y.shape)


def test_outputs_are_those_of_every_draw():
    outputs = spread(2)
    found = posterior(likelihoods.Gaussian(1.0), TWO, outputs).predict(X).outputs
    np.testing.assert_array_equal(found, outputs.reshape(6, ROWS, 2).astype(np.float32))


# -- blocks and pieces -----------------------------------------------------------------------------


def everything(prediction, y):
    """All fields of a prediction."""
    found = {
        name: getattr(prediction, name) for name in ("mean", "epistemic", "aleatoric", "outputs")
    }
    found["log_prob"] = prediction.log_prob(y)
    if prediction._model.likelihood.task == "classification":
        names = ("entropy", "mutual_information", "expected_entropy")
        return found | {name: getattr(prediction, name) for name in names}
    return found | {"quantile": prediction.quantile([0.2, 0.9])}


@pytest.mark.matrix
@pytest.mark.parametrize("case", ["gaussian learned", "poisson", "categorical"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"ROWS": 1},
        {"ROWS": 4},
        {"SAMPLE_BYTES": 1},
        {"SAMPLE_BYTES": 200},
        {"COMPONENTS": 1},
        {"ROWS": 4, "SAMPLE_BYTES": 200, "COMPONENTS": 60},
    ],
    ids=str,
)
def test_any_cut_into_blocks_and_pieces_gives_the_same(monkeypatch, case, sizes):
    case = CASES[case]
    rows = np.array([4, 0, 2, 1, 3, 3, 0, 1, 2])
    for log_weights in (None, WEIGHTS["zero"]):
        made = posterior(case.likelihood, case.y, case.outputs, case.learned, log_weights)
        whole = everything(made.predict(rows[:, None]), case.y[rows])
        with monkeypatch.context() as patch:
            for name, size in sizes.items():
                patch.setattr(predictive, name, size)
            cut = everything(made.predict(rows[:, None]), case.y[rows])
        for name, value in whole.items():
            assert cut[name].shape == value.shape
            np.testing.assert_allclose(cut[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("log_weights", [None, np.array([[0.0, 1, -1, -np.inf, 2]])])
def test_what_fills_the_last_piece_weighs_nothing(monkeypatch, log_weights):
    outputs = np.random.default_rng(3).normal(size=(1, 5, ROWS, 1))
    made = posterior(likelihoods.Gaussian(0.5), ONE, outputs, None, log_weights)
    whole = everything(made.predict(X), ONE)
    for draws in (2, 3, 4):  # of five draws, so that the last piece is never full
        monkeypatch.setattr(predictive, "SAMPLE_BYTES", draws * 4 * ROWS)
        cut = everything(made.predict(X), ONE)
        for name, value in whole.items():
            assert cut[name].shape == value.shape
            np.testing.assert_allclose(cut[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_pieces_are_as_small_as_asked(monkeypatch):
    taken = []
    prediction = posterior(likelihoods.Gaussian(1.0), ONE, spread(1)).predict(X)
    samples = prediction._samples

    def watched(begin, end):
        taken.append((begin, end))
        return samples.take(begin, end)

    prediction._samples = dataclasses.replace(samples, take=watched)
    monkeypatch.setattr(
        predictive, "SAMPLE_BYTES", 2 * 4 * ROWS
    )  # two draws of five float32 numbers
    assert prediction.mean.shape == (ROWS,)
    assert max(end - begin for begin, end in taken) == 2


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
def test_rows_of_padding_never_show(count):
    """The prediction of a row does not depend on the other rows."""
    made = posterior(likelihoods.Gaussian(0.5), ONE, spread(1))
    rows = np.resize([3, 1, 4, 0, 2], count)
    found = everything(made.predict(rows[:, None]), ONE[rows])
    for i, row in enumerate(rows):
        alone = everything(made.predict([[row]]), ONE[[row]])
        for name, value in found.items():
            here = value[:, i] if name in ("outputs", "quantile") else value[i]
            there = alone[name][:, 0] if name in ("outputs", "quantile") else alone[name][0]
            np.testing.assert_allclose(here, there, rtol=1e-5, atol=1e-6, err_msg=name)


def test_more_rows_than_a_block():
    made = posterior(likelihoods.Gaussian(0.5), ONE, spread(1))
    rows = np.resize(np.arange(ROWS), 2 * predictive.ROWS + 5)
    prediction = made.predict(rows[:, None])
    few = made.predict(X)
    np.testing.assert_allclose(prediction.mean, few.mean[rows], rtol=1e-6)
    np.testing.assert_allclose(prediction.log_prob(ONE[rows]), few.log_prob(ONE)[rows], rtol=1e-5)
    np.testing.assert_allclose(prediction.quantile(0.3), few.quantile(0.3)[rows], rtol=1e-5)
    assert prediction.sample(0, 2).shape == (2, len(rows))


# -- compiling and memory --------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["gaussian", "categorical"])
def test_other_row_counts_compile_nothing(compilations, case):
    case = CASES[case]
    rows = lambda count: np.resize(np.arange(ROWS), count)  # noqa: E731
    made = posterior(case.likelihood, case.y, case.outputs)
    everything(made.predict(rows(8)[:, None]), case.y[rows(8)])
    with compilations() as count:
        for number in (5, 6, 7, 8):
            everything(made.predict(rows(number)[:, None], key=number), case.y[rows(number)])
    assert count() == 0
    with compilations() as count:
        everything(made.predict(rows(70)[:, None]), case.y[rows(70)])
    assert count() > 0


def test_device_memory_does_not_grow_with_the_samples():
    sizes = []
    for count in (4, 400):
        made = posterior(likelihoods.Gaussian(1.0), ONE, np.zeros((1, count, ROWS, 1)))
        model = made.model
        draws = Draws.samples(made.approximation, cx.random.key(0), None).take(0, count)
        zeros = np.zeros((1024, 1), np.float32)
        carry = mixture.Moments(np.float32(0), zeros, zeros, zeros, zeros[:, 0])
        x, log_weights = np.zeros((1024, 1), np.int32), np.zeros(count, np.float32)
        inputs = carry, draws, log_weights, None, x
        fold = mixture.fold.lower(model, mixture.add_moments, *inputs)
        sizes.append(fold.compile().memory_analysis().temp_size_in_bytes)
    assert sizes[1] <= sizes[0] + 1024


def test_host_memory_does_not_grow_with_the_samples():
    peaks = []
    for count in (2, 2000):
        made = posterior(likelihoods.Gaussian(1.0), ONE, np.zeros((1, count, ROWS, 1)))
        x = np.zeros((2048, 1), np.int32)
        for _ in range(2):  # the first time compiles
            tracemalloc.start()
            prediction = made.predict(x)
            _ = prediction.mean, prediction.log_prob(np.zeros(2048))
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        peaks.append(peak)
    # All the outputs would be 16 MB; the weights and draws themselves are 60 kB.
    assert peaks[1] < peaks[0] + 1_000_000


# -- choosing samples ------------------------------------------------------------------------------


def test_a_number_of_samples_chooses_different_draws():
    outputs = np.arange(6.0).reshape(*SHAPE, 1, 1) * np.ones((1, 1, ROWS, 1))
    made = posterior(likelihoods.Gaussian(1.0), ONE, outputs)
    seen = set()
    for key in range(30):
        prediction = made.predict(X, num_samples=4, key=key)
        chosen = prediction.outputs[:, 0, 0]
        assert len(set(chosen)) == len(chosen) == 4
        np.testing.assert_allclose(prediction.mean, chosen.mean(), rtol=1e-6)
        seen |= set(chosen)
    assert seen == set(range(6))
    for number in (6, 7, None):
        np.testing.assert_array_equal(
            made.predict(X, num_samples=number).outputs[:, 0, 0], np.arange(6)
        )


@pytest.mark.parametrize("weights", ["none", "some", "zero"])
def test_a_number_of_samples_is_unbiased(weights):
    log_weights, outputs = WEIGHTS[weights], spread(1)
    made = posterior(likelihoods.Gaussian(1.0), ONE, outputs, None, log_weights)
    means = np.array([made.predict(X, num_samples=3, key=key).mean for key in range(300)])
    expected = made.predict(X).mean
    error = means.std(0) / np.sqrt(len(means))
    assert np.all(np.abs(means.mean(0) - expected) < 4 * error)


@pytest.mark.parametrize("number", [0, -1, 2.5, True])
def test_a_number_of_samples_is_a_number(number):
    made = posterior(likelihoods.Gaussian(1.0), ONE, spread(1))
    with pytest.raises(
        (TypeError, ValueError), match=r"predict\(num_samples=...\) must be a whole"
    ):
        made.predict(X, num_samples=number)


# -- draws of y ------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "case",
    [
        "gaussian",
        "student learned",
        "heteroscedastic",
        "multivariate",
        "poisson two",
        "bernoulli two",
    ],
)
@pytest.mark.parametrize("weights", [pytest.param("none", marks=pytest.mark.slow), "zero"])
def test_draws_have_the_moments_of_the_mixture(case, weights):
    case, n = CASES[case], 20_000
    made = posterior(case.likelihood, case.y, case.outputs, case.learned, WEIGHTS[weights])
    prediction = made.predict(X)
    drawn = np.asarray(prediction.sample(1, n), np.float64)
    assert drawn.shape == (n, *case.y.shape)
    error = drawn.std(0) / np.sqrt(n)
    assert np.all(np.abs(drawn.mean(0) - prediction.mean) < 4 * error)
    squares = (drawn - prediction.mean) ** 2
    error = squares.std(0) / np.sqrt(n)
    assert np.all(np.abs(squares.mean(0) - prediction.variance) < 4 * error)


def test_draws_of_classes_have_their_probabilities():
    case, n = CASES["categorical"], 20_000
    prediction = posterior(case.likelihood, case.y, case.outputs, None, WEIGHTS["some"]).predict(X)
    drawn = prediction.sample(1, n)
    assert drawn.dtype.kind == "i"
    shares = np.stack([(drawn == k).mean(0) for k in range(4)], axis=1)
    probs = prediction.probs
    assert np.all(np.abs(shares - probs) < 4 * np.sqrt(probs * (1 - probs) / n))


def test_a_draw_uses_the_same_weights_for_all_rows(monkeypatch):
    """Samples of rows are correlated through the weights, also across blocks of rows."""
    outputs, n = spread(1), 20_000
    made = posterior(likelihoods.Gaussian(0.5), ONE, outputs)
    flat = outputs.reshape(6, ROWS)
    expected = np.cov(flat.T, bias=True) + 0.25 * np.eye(ROWS)
    for rows in (predictive.ROWS, 2):
        monkeypatch.setattr(predictive, "ROWS", rows)
        drawn = made.predict(X).sample(3, n).astype(np.float64)
        centred = drawn - drawn.mean(0)
        products = centred[:, :, None] * centred[:, None, :]
        error = products.std(0) / np.sqrt(n)
        assert np.all(np.abs(products.mean(0) - expected) < 4 * error)


def test_draws_of_correlated_targets_are_correlated():
    n = 20_000
    made = posterior(likelihoods.MultivariateGaussian(COVARIANCE), TWO, np.zeros((1, 1, ROWS, 2)))
    drawn = made.predict(X).sample(3, n).astype(np.float64)
    products = drawn[:, 0, 0] * drawn[:, 0, 1]
    assert abs(products.mean() - 0.6) < 4 * products.std() / np.sqrt(n)


def test_draws_depend_on_the_key_alone():
    prediction = posterior(likelihoods.Gaussian(0.5), ONE, spread(1)).predict(X)
    np.testing.assert_array_equal(prediction.sample(0, 5), prediction.sample(0, 5))
    assert not np.any(prediction.sample(0, 5) == prediction.sample(1, 5))
    assert len(np.unique(prediction.sample(0, 50))) == 50 * ROWS


# -- arguments -------------------------------------------------------------------------------------


def test_wrong_rows_and_targets_are_refused():
    made = posterior(likelihoods.Gaussian(0.5), ONE, spread(1))
    with pytest.raises(ValueError, match=r"x must have shape \(rows, 1\), as in the fit"):
        made.predict(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="at least 1 row"):
        made.predict(np.zeros((0, 1)))
    prediction = made.predict(X)
    with pytest.raises(ValueError, match="as many rows as x, 5; got 4"):
        prediction.log_prob(ONE[:4])
    with pytest.raises(ValueError, match=r"y must have shape \(rows,\), as in the fit"):
        prediction.log_prob(ONE[:, None])
    with pytest.raises(ValueError, match="finite"):
        prediction.log_prob(np.full(ROWS, np.nan))


def test_a_density_does_not_predict():
    density = cx.LogDensity(lambda key: jnp.zeros(()), lambda params: -(params**2))
    made = cx.Posterior(density, Draws(np.zeros((1, 1))))
    with pytest.raises(TypeError, match="predict needs a Model with a network"):
        made.predict(X)


def test_nothing_is_computed_twice(monkeypatch):
    calls, fold = [], mixture.fold
    monkeypatch.setattr(mixture, "fold", lambda *args: (calls.append(1), fold(*args))[1])
    prediction = posterior(likelihoods.Gaussian(0.5), ONE, spread(1)).predict(X)
    assert calls == []
    _ = prediction.mean, prediction.std, prediction.epistemic, prediction.aleatoric
    assert len(calls) == 1
    assert isinstance(prediction.mean, np.ndarray)
    assert not isinstance(prediction.mean, jax.Array)


# -- counts of any size ----------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.02, 0.7, 6.0, 23.0, 60.0, 3e3])
def test_quantiles_of_counts_are_the_smallest_counts_of_enough_probability(rate):
    log_rates = np.log(rate) + 0.3 * np.random.default_rng(0).normal(size=(2, 30, 4, 1))
    found = posterior(likelihoods.Poisson(), np.arange(4), log_rates).predict(np.arange(4)[:, None])
    levels = np.array([0.001, 0.05, 0.5, 0.95, 0.999])
    quantiles = found.quantile(levels)
    rates = np.exp(log_rates.astype(np.float32).astype(np.float64)).reshape(60, 4)
    at = lambda count: stats.poisson.cdf(count[..., None, :], rates).mean(-2)  # noqa: E731
    # Where the probability of a count is the level up to rounding, either neighbour is right.
    assert np.all(at(quantiles) >= levels[:, None] - 1e-5)
    assert np.all(at(quantiles - 1) < levels[:, None] + 1e-5)


def test_counts_far_from_the_data_have_finite_moments():
    log_rates = np.array([[[[5.0], [90.0]], [[300.0], [-300.0]]]])
    found = posterior(likelihoods.Poisson(), np.arange(2), log_rates).predict(np.arange(2)[:, None])
    for values in (found.mean, found.std, found.quantile([0.1, 0.9]), found.sample(0, 3)):
        assert np.isfinite(values).all()
    assert found.mean.min() > 1e17
