"""Predictions at positions are those of the positions as rows, and masks leave positions out of scores."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.posterior.approximations import Draws

ROWS, HEIGHT, WIDTH = 5, 2, 3
GENERATOR = np.random.default_rng(0)
X = np.arange(ROWS * HEIGHT * WIDTH).reshape(ROWS, HEIGHT, WIDTH)
DRAWS = (1, 4)


def table(params, x):
    """A network whose parameters are its table of outputs, one line for each position of each row."""
    return params["table"][x]


def posteriors(likelihood, outputs, y):
    """The posterior of images, and that of their pixels as rows, with the same draws."""
    network = cx.networks.from_function(lambda key: {"table": jnp.zeros((X.size, outputs))}, table)
    params = {"table": GENERATOR.normal(size=(*DRAWS, X.size, outputs)).astype(np.float32)}
    log_weights = np.log(np.full(DRAWS, 0.25)).astype(np.float32)
    if likelihood.learned:
        params = {"network": params, "likelihood": {"log_scale": np.zeros((*DRAWS, 1), np.float32)}}
    model = cx.Model(network, likelihood=likelihood)
    bound = [model.bind(data) for data in [(X, y), (X.reshape(-1), y.reshape(-1, *y.shape[3:]))]]
    return [cx.Posterior(each, Draws(params, (), log_weights)) for each in bound]


LABELS = GENERATOR.integers(0, 4, X.shape)
NUMBERS = GENERATOR.normal(size=X.shape)
CASES = {
    "categorical": (cx.likelihoods.Categorical(4), 4, LABELS),
    "bernoulli": (cx.likelihoods.Bernoulli(), 1, LABELS % 2),
    "gaussian": (cx.likelihoods.Gaussian(None), 1, NUMBERS),
    "two targets": (cx.likelihoods.Gaussian(0.5), 2, np.stack([NUMBERS, NUMBERS + 1], -1)),
    "poisson": (cx.likelihoods.Poisson(), 1, LABELS),
}
OF_CLASSES = ["mean", "std", "probs", "label", "entropy", "mutual_information", "expected_entropy"]
OF_NUMBERS = ["mean", "std", "variance", "epistemic", "aleatoric", "means"]


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_fields_have_the_axes_of_positions(name):
    likelihood, outputs, y = CASES[name]
    whole, rows = posteriors(likelihood, outputs, y)
    got, want = whole.predict(X), rows.predict(X.reshape(-1))
    classes = likelihood.task == "classification"

    def same(a, b, axis=0):
        assert a.shape == (*b.shape[:axis], *X.shape, *b.shape[axis + 1 :])
        np.testing.assert_allclose(a.reshape(b.shape), b, rtol=1e-5, atol=1e-6)

    for field in OF_CLASSES if classes else OF_NUMBERS:
        same(getattr(got, field), getattr(want, field), axis=int(field == "means"))
    flat = y.reshape(-1, *y.shape[3:])
    same(got.log_prob(y), want.log_prob(flat))
    same(got.log_probs(y), want.log_probs(flat), axis=1)
    same(got.outputs, want.outputs, axis=1)
    assert got.sample(0, 7).shape == (7, *y.shape)
    if not classes:
        same(got.quantile([0.1, 0.8]), want.quantile([0.1, 0.8]), axis=1)
        same(got.interval(0.5)[0], want.interval(0.5)[0])
        same(got.cdf(y), want.cdf(flat))
        same(got.crps(y), want.crps(flat))
    assert f"{ROWS} rows" in repr(got)
    assert len(got.head(2).mean) == 2


def test_the_joint_density_of_a_row_is_the_mean_over_draws_of_the_product():
    whole, _ = posteriors(*CASES["categorical"])
    predictive = whole.predict(X)
    each = predictive.log_probs(LABELS).reshape(4, ROWS, -1).sum(2)
    want = np.log(np.mean(np.exp(each.astype(np.float64)), axis=0))
    np.testing.assert_allclose(predictive.log_prob(LABELS, joint=True), want, rtol=1e-5)

    weights = (GENERATOR.random(X.shape) > 0.5).astype(float)
    hidden = np.where(weights > 0, LABELS, -1)
    weights[0, 0, 0], hidden[0, 0, 0] = 1, LABELS[0, 0, 0]
    each = (weights * predictive.log_probs(LABELS)).reshape(4, ROWS, -1).sum(2)
    want = np.log(np.mean(np.exp(each.astype(np.float64)), axis=0))
    got = predictive.log_prob(hidden, weights=weights, joint=True)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    alone = predictive.log_prob(hidden, weights=weights)
    np.testing.assert_array_equal(alone[weights == 0], 0)
    np.testing.assert_array_equal(alone[weights > 0], predictive.log_prob(LABELS)[weights > 0])


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["categorical", "gaussian", "two targets", "poisson"])
def test_scores_are_means_over_the_positions_that_count(name):
    likelihood, outputs, y = CASES[name]
    whole, rows = posteriors(likelihood, outputs, y)
    mask = GENERATOR.random(X.shape) > 0.4
    hidden = y.astype(float)
    hidden[~mask] = -1

    got = whole.evaluate(X, hidden, weights=mask)

    want = rows.evaluate(X[mask], y[mask])
    assert got.rows == want.rows == mask.sum()
    for (field, value), (other, expected) in zip(got, want, strict=True):
        assert field == other
        assert value == pytest.approx(float(expected), rel=1e-4, abs=1e-6), field
    if got.pit is not None:
        np.testing.assert_allclose(np.sort(got.pit.ravel()), np.sort(want.pit.ravel()), rtol=1e-4)


def test_weights_count_in_scores_of_rows():
    _, rows = posteriors(*CASES["categorical"])
    x, y = X.reshape(-1), LABELS.reshape(-1)
    counts = GENERATOR.integers(0, 3, len(x))
    got = rows.evaluate(x, y, weights=counts)
    want = rows.evaluate(np.repeat(x, counts), np.repeat(y, counts))
    for field in ("log_likelihood", "accuracy", "brier", "ece", "sharpness"):
        assert getattr(got, field) == pytest.approx(float(getattr(want, field)), rel=1e-5)


def test_positions_of_a_row_are_resampled_together():
    """If all positions of a row are alike, there are as many observations as rows, not as positions."""
    y = np.broadcast_to(GENERATOR.integers(0, 4, (ROWS, 1, 1)), X.shape)
    whole, _ = posteriors(cx.likelihoods.Categorical(4), 4, y)
    table = whole.draws["table"].reshape(*DRAWS, ROWS, -1, 4)
    table[:] = table[:, :, :, :1]
    errors = [
        whole.evaluate(X[:, :n], y[:, :n], weights=None).log_likelihood.standard_error
        for n in (HEIGHT,)
    ]
    rows = whole.predict(X).log_prob(y)[:, 0, 0]
    assert errors[0] == pytest.approx(rows.std() / np.sqrt(ROWS), rel=0.15)


def test_what_has_no_meaning_at_positions_is_refused():
    whole, _ = posteriors(*CASES["categorical"])
    for call in (
        lambda: whole.predict(X).plot(),
        lambda: whole.export("nowhere.npz"),
        lambda: cx.decisions.model_selection.loo(whole, X, LABELS),
        lambda: cx.decisions.active_learning.acquire(whole, X, count=1),
    ):
        with pytest.raises(TypeError, match="targets of their own"):
            call()
    with pytest.raises(ValueError, match=r"\(rows, 2, 3\), as in the fit; got \(rows, 2, 2\)"):
        whole.predict(X).log_prob(LABELS[..., 1:])
    with pytest.raises(ValueError, match="at least one position"):
        whole.evaluate(X, LABELS, weights=np.zeros(X.shape))


def test_nothing_is_compiled_twice(compilations):
    whole, _ = posteriors(*CASES["categorical"])
    whole.predict(X).probs  # noqa: B018
    with compilations() as count:
        np.asarray(whole.predict(X).entropy)
    assert count() == 0


def test_convergence_of_predictions_at_positions():
    network = cx.networks.from_function(lambda key: {"table": jnp.zeros((X.size, 4))}, table)
    params = {"table": GENERATOR.normal(size=(2, 50, X.size, 4)).astype(np.float32)}
    model = cx.Model(network, likelihood=cx.likelihoods.Categorical(4)).bind((X, LABELS))
    method = cx.HMC(chains=2, num_draws=50)
    posterior = cx.Posterior(model, Draws(params, ()), method, {"kept": np.arange(50)})
    assert "R-hat" in str(posterior.convergence(X))
    jax.block_until_ready(jnp.zeros(()))
