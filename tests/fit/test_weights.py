"""Weights of rows: a weight of 2 is the row given twice, a weight of 0 the row left out, for every method."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.scaling import Scaling
from credax.inference import METHODS
from credax.model.data import ArrayData

# So few steps make bad posteriors, and some methods say so.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

ROWS = 12
TIMES = np.array([2, 1, 0, 1, 3, 1, 0, 2, 1, 1, 0, 4])
TINY = {
    "num_steps": 6,
    "num_warmup": 3,
    "num_draws": 4,
    "members": 2,
    "chains": 2,
    "particles": 4,
}
HIDDEN = cx.networks.mlp([3], activation="tanh")


def table(seed=0, rows=ROWS):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, 2))
    return x, np.sin(x[:, 0]) + 0.3 * generator.normal(size=rows)


def repeated(x, y, times=TIMES):
    return np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)


def tiny(name, **settings):
    cls = METHODS[name]
    names = [field.name for field in dataclasses.fields(cls) if field.init]
    return cls(**{k: v for k, v in {**TINY, **settings}.items() if k in names})


def model_for(method, data):
    """The first of some models that the method takes."""
    priors = (cx.priors.Normal(1.0), cx.priors.Discrete([-1.0, 1.0]))
    likelihoods = (cx.likelihoods.Gaussian(None), cx.likelihoods.Gaussian(0.5))
    networks = (HIDDEN, cx.networks.linear())
    for prior, likelihood, network in itertools.product(priors, likelihoods, networks):
        model = cx.Model(network, prior, likelihood)
        try:
            method.check(*model.prepare(data))
        except (TypeError, ValueError):
            continue
        return model
    return pytest.fail("no model")


def found(posterior):
    """All numbers of a posterior."""
    numbers = [jax.tree.leaves(list(vars(posterior.approximation).values()))]
    numbers += [
        [estimate.value for estimate in (posterior.log_evidence, posterior.elbo) if estimate]
    ]
    return [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(numbers) if np.size(leaf)]


def own_batches(method):
    """Whether the rows of a step depend on how many rows there are, whatever they weigh."""
    return any(hasattr(method, name) for name in ("num_folds", "rows_of"))


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_weights_are_repeated_rows(name, x64):
    # No unit is dropped, and all rows share one draw of the weights, since each row could have its own. SMC
    # makes one move per temperature, since its usual number of moves magnifies rounding errors by a thousand.
    own = {"particles": 64, "num_steps": 20, "num_moves": 1} if name == "smc" else {"rate": 1e-9}
    method = tiny(name, batch_size=None, folds=None, estimator="weight", **own)
    if own_batches(method):
        pytest.skip("other rows are drawn from more rows")
    x, y = table()
    model = model_for(method, (x, y))
    fits = [
        cx.fit(model, data, method, weights=weights, progress=False)
        for data, weights in (((x, y), TIMES), (repeated(x, y), None))
    ]
    for ours, theirs in zip(*map(found, fits), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


LAPLACES = [
    *({"structure": name} for name in ("diagonal", "full", "last_layer")),
    {"structure": "low_rank", "rank": 13},
    {"structure": "full", "curvature": "hessian", "num_steps": 2_000},
    {"structure": "diagonal", "curvature": "fisher"},
]


@pytest.mark.matrix
@pytest.mark.parametrize("settings", LAPLACES, ids=lambda each: "-".join(map(str, each.values())))
def test_weights_are_repeated_rows_for_every_curvature(settings, x64):
    method = tiny("laplace", batch_size=None, **settings)
    x, y = table()
    model = cx.Model(HIDDEN, likelihood=cx.likelihoods.Gaussian(0.5))
    fits = [
        cx.fit(model, data, method, weights=weights, progress=False)
        for data, weights in (((x, y), TIMES), (repeated(x, y), None))
    ]
    rows = np.random.default_rng(1).normal(size=(5, 2))
    ours, theirs = (posterior.predict(rows).variance for posterior in fits)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hmc", "nuts"])
def test_weights_are_repeated_rows_where_the_last_layer_is_integrated_out(name, x64):
    method = tiny(name, collapse=True)
    x, y = table()
    fits = [
        cx.fit(cx.Model(HIDDEN), data, method, weights=weights, progress=False)
        for data, weights in (((x, y), TIMES), (repeated(x, y), None))
    ]
    for ours, theirs in zip(*map(found, fits), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.matrix
@pytest.mark.parametrize("name", METHODS)
def test_rows_of_weight_zero_say_nothing(name):
    """With minibatches and folds too: other targets there change no number of the posterior."""
    method = tiny(name, batch_size=5)
    x, y = table()
    model = model_for(method, (x, y))
    fits = [
        cx.fit(model, (x, targets), method, weights=TIMES, progress=False)
        for targets in (y, np.where(TIMES > 0, y, 3 - y))
    ]
    for ours, theirs in zip(*map(found, fits), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    plain = cx.fit(model, (x, y), method, progress=False)
    assert any(np.any(a != b) for a, b in zip(found(fits[0]), found(plain), strict=True))


# -- the densities -----------------------------------------------------------------------------------


def test_the_log_joint_of_weighted_rows_is_that_of_repeated_rows(x64):
    model = cx.Model(HIDDEN)
    x, y = table()
    bound, weighted = model.prepare((x, y), TIMES)
    _, twice = model.prepare(repeated(x, y))
    params = bound.init(jax.random.key(0))
    ours, theirs = (bound.log_joint(params, rows.everything()) for rows in (weighted, twice))
    assert float(ours) == pytest.approx(float(theirs), rel=1e-12)
    assert float(weighted.total) == twice.rows == float(weighted.everything().total)


def test_minibatches_of_weighted_rows_are_unbiased(x64):
    """The mean over the batches of an epoch is the sum over all rows: every row is in exactly one batch."""
    model = cx.Model(HIDDEN)
    bound, data = model.prepare(table(), TIMES)
    params = bound.init(jax.random.key(0))
    batches = [data.batch(jax.random.key(1), jnp.asarray(i), 4) for i in range(3)]
    values = [float(bound.log_likelihood(params, batch)) for batch in batches]
    assert np.mean(values) == pytest.approx(
        float(bound.full_log_likelihood(params, data)), rel=1e-12
    )
    assert np.std(values) > 0
    assert [float(batch.total) for batch in batches] == [TIMES.sum()] * 3


def test_sums_over_many_rows_are_weighted(monkeypatch, x64):
    monkeypatch.setattr("credax.model.model.BLOCK", 5)
    bound, data = cx.Model(HIDDEN).prepare(table(), TIMES)
    params = bound.init(jax.random.key(0))
    whole = bound.log_likelihood(params, data.everything())
    assert float(bound.full_log_likelihood(params, data)) == pytest.approx(float(whole), rel=1e-12)


def test_no_weights_trace_to_the_same_program():
    data = ArrayData(jnp.ones((4, 2)), jnp.ones(4))
    assert len(jax.tree.leaves(data)) == 2
    assert len(jax.tree.leaves(data.everything())) == 4


# -- posteriors in closed form ------------------------------------------------------------------------


def closed_form(x, y, weights, noise):
    """Mean, covariance and log evidence of a linear regression under standard normal priors."""
    design = np.column_stack([x, np.ones(len(x))])
    precision = np.eye(3) + design.T @ (design * weights[:, None]) / noise**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ design.T @ (weights * y) / noise**2
    residual = y - design @ mean
    log_joint = -0.5 * np.sum(weights * (residual**2 / noise**2 + np.log(2 * np.pi * noise**2)))
    log_joint -= 0.5 * (mean @ mean + 3 * np.log(2 * np.pi))
    return mean, covariance, log_joint + 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1]


FRACTIONS = np.array([0.5, 1.0, 0.0, 2.5, 0.1, 1.0, 0.7, 0.0, 3.0, 1.0, 0.2, 0.4])


@pytest.mark.matrix
@pytest.mark.parametrize("structure", ["full", "kronecker"])
def test_laplace_on_a_linear_model_is_the_closed_form(structure, x64):
    x, y = table()
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.4))
    method = cx.Laplace(structure=structure, num_steps=3_000, batch_size=None, learning_rate=0.01)
    posterior = cx.fit(model, (x, y), method, weights=FRACTIONS, progress=False)
    mean, covariance, log_evidence = closed_form(x, y, FRACTIONS, 0.4)
    draws = posterior.sample(0, 40_000)
    flat = np.concatenate([np.reshape(leaf, (40_000, -1)) for leaf in jax.tree.leaves(draws)], 1)
    order = [1, 2, 0] if jax.tree.leaves(draws)[0].size == 40_000 else [0, 1, 2]
    error = np.sqrt(np.diag(covariance) / 40_000)
    if structure == "full":
        assert np.all(np.abs(flat[:, order].mean(0) - mean) < 5 * error)
        scatter = np.sqrt((covariance**2 + np.outer(*[np.diag(covariance)] * 2)) / 40_000)
        assert np.all(np.abs(np.cov(flat[:, order].T) - covariance) < 5 * scatter)
        assert posterior.log_evidence.value == pytest.approx(log_evidence, abs=1e-4)
    assert posterior.info["newton_decrement"] < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bayes-by-backprop", "ivon", "sgld", "hmc", "deep-ensemble"])
def test_minibatches_reach_the_closed_form(name):
    """The posterior mean of the predictions, within the closed form's standard deviations."""
    x, y = table(seed=14)  # where the weights matter most
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.4))
    settings = {"num_steps": 4_000, "num_warmup": 1_000, "num_draws": 2_000, "batch_size": 4}
    method = tiny(name, **settings, learning_rate=0.03)
    posterior = cx.fit(model, (x, y), method, weights=FRACTIONS, progress=False)
    mean, covariance, _ = closed_form(x, y, FRACTIONS, 0.4)
    design = np.column_stack([x, np.ones(ROWS)])
    sd = np.sqrt(np.einsum("ij,jk,ik->i", design, covariance, design))
    ours = posterior.predict(x, num_samples=500).mean
    away = np.abs(ours - design @ mean) / sd
    plain, _, _ = closed_form(x, y, np.ones(ROWS), 0.4)
    assert away.max() < 0.5 < (np.abs(design @ (plain - mean)) / sd).max()


def test_the_noise_of_weighted_rows_is_that_of_repeated_rows(x64):
    """sigma^2 = RSS / (W - gamma), with the sum W of the weights."""
    x, y = table(3)
    # A prior of log sigma so wide that it does not matter.
    likelihood = cx.likelihoods.Gaussian(None, scale_prior=cx.priors.Normal(1e3))
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(10.0), likelihood)
    method = cx.Laplace(structure="full", num_steps=4_000, batch_size=None, learning_rate=0.02)
    posterior = cx.fit(model, (x, y), method, weights=FRACTIONS, progress=False)
    params = jax.tree.map(np.asarray, posterior.approximation.mean)
    sigma = float(np.exp(params["likelihood"]["log_scale"][0]))
    design = np.column_stack([x, np.ones(ROWS)])
    gram = design.T @ (design * FRACTIONS[:, None]) / sigma**2
    precision = gram + np.eye(3) / 100
    mean = np.linalg.solve(precision, design.T @ (FRACTIONS * y) / sigma**2)
    residuals = np.sum(FRACTIONS * (y - design @ mean) ** 2)
    gamma = np.trace(np.linalg.solve(precision, gram))
    assert sigma**2 == pytest.approx(residuals / (FRACTIONS.sum() - gamma), rel=1e-3)


# -- scales, early stopping, checkpoints, the doctor ----------------------------------------------------


def test_scales_are_those_of_repeated_rows():
    x, _ = table()
    ours, theirs = Scaling.learn(x, TIMES.astype(float)), Scaling.learn(repeated(x, x)[0])
    np.testing.assert_allclose(ours.centre, theirs.centre, rtol=1e-12)
    np.testing.assert_allclose(ours.scale, theirs.scale, rtol=1e-12)


@pytest.mark.slow
def test_a_standardised_model_has_the_evidence_of_repeated_rows(x64):
    x, y = table()
    model = cx.Model(
        cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.3), standardise=True
    )
    method = cx.Laplace(structure="full", num_steps=200, batch_size=None)
    fits = [
        cx.fit(model, data, method, weights=weights, progress=False)
        for data, weights in (((x, 50 * y), TIMES), (repeated(x, 50 * y), None))
    ]
    ours, theirs = (posterior.log_evidence.value for posterior in fits)
    assert ours == pytest.approx(theirs, rel=1e-8)


def test_held_out_rows_keep_their_weights():
    """Rows of weight zero are held out too, and say nothing there either."""
    x, y = table(rows=40)
    weights = np.where(np.arange(40) % 3 == 0, 0.0, 2.0)
    stopping = cx.EarlyStopping(fraction=0.4, every=5)
    fits = [
        cx.fit(
            *(cx.Model(HIDDEN), (x, targets), cx.MAP(num_steps=10)),
            weights=weights,
            early_stopping=stopping,
            progress=False,
        )
        for targets in (y, np.where(weights > 0, y, -y))
    ]
    first, second = (each.info["held_out_log_likelihood"] for each in fits)
    np.testing.assert_array_equal(first, second)
    assert np.isfinite(first).all()


def test_another_weight_is_another_run(tmp_path):
    x, y = table()
    arguments = (cx.Model(HIDDEN), (x, y), cx.MAP(num_steps=4))
    settings = {"progress": False, "checkpoint": tmp_path / "run"}
    cx.fit(*arguments, weights=TIMES, **settings)
    cx.fit(*arguments, weights=TIMES, **settings)
    for other in (TIMES[::-1], None):
        with pytest.raises(cx.StorageError, match="data"):
            cx.fit(*arguments, weights=other, **settings)


@pytest.mark.slow
def test_the_diagnosis_knows_the_weights():
    """Targets of weight zero that are far away change nothing in it."""
    x, y = table(rows=60)
    weights = np.where(np.arange(60) % 4 == 0, 0.0, 1.0)
    found = []
    for targets in (y, np.where(weights > 0, y, y + 9)):
        model = cx.Model(HIDDEN, likelihood=cx.likelihoods.Gaussian(0.3))
        method = cx.BayesByBackprop(num_steps=30)
        posterior = cx.fit(model, (x, targets), method, weights=weights, progress=False)
        found.append([(str(each), each.value) for each in posterior.diagnose()])
    assert found[0] == found[1]


# -- bad weights -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights, message",
    [
        (np.ones(5), r"weights must have shape \(12,\), one for each row; got \(5,\)"),
        (np.ones((12, 1)), r"weights must have shape \(12,\)"),
        (-np.ones(12), r"weights must not be negative; got -1.0 at row 0"),
        (np.zeros(12), "weights must be positive for at least one row"),
        (np.full(12, np.nan), "weights must hold finite numbers"),
        (["a"] * 12, "weights must hold real numbers"),
    ],
)
def test_bad_weights_are_refused(weights, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cx.fit(cx.Model(HIDDEN), table(), cx.MAP(num_steps=2), weights=weights, progress=False)


def test_a_log_density_has_no_rows_to_weigh():
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="weights must be None for a LogDensity"):
        cx.fit(density, None, cx.MAP(num_steps=2), weights=[1.0], progress=False)
