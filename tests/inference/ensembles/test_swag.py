"""SWAG against its formulas on recorded iterates, and against the exact moments of SGD on a quadratic loss."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import solve_discrete_lyapunov

import credax as cx
from credax.core import random
from credax.fit.many import fit_each
from credax.inference.ensembles.swag import SWAG, sgd_rate
from credax.inference.method import Trace
from credax.posterior.approximations import Draws
from credax.posterior.approximations.mixtures import GaussianMixture

# With so few steps the posteriors are poor, and the doctor warns about them.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")


def fit(model, data, method, **arguments):
    return cx.fit(model, data, method, progress=False, **arguments)


def start(key):
    return jnp.zeros(3)


def location(params, x):
    return jnp.broadcast_to(params, (x.shape[0], 3))


ROWS = 12
SCALES = (2.0, 0.8, 0.35)
LOCATION = cx.Model(
    cx.networks.from_function(start, location),
    cx.priors.Normal(1.0),
    cx.likelihoods.Gaussian(SCALES),
)


def rows(count=ROWS, seed=0):
    y = np.random.default_rng(seed).normal(size=(count, 3)) * SCALES + [0.3, -0.5, 1.0]
    return np.arange(count)[:, None] / count, y


def regression(count=40):
    generator = np.random.default_rng(3)
    x = generator.normal(size=(count, 2))
    return x, np.sin(2 * x[:, 0]) + 0.5 * x[:, 1] + 0.3 * generator.normal(size=count)


HIDDEN = cx.Model(cx.networks.mlp([4], activation="tanh"), likelihood=cx.likelihoods.Gaussian(0.3))


# -- the formulas, on recorded iterates -----------------------------------------------------------------


def recorded(method, data):
    """All iterates and rates of a run, step by step, and the posterior from its last state."""
    model, arrays = HIDDEN.prepare(data)
    key = random.key(4)
    state = method.init(key, model, arrays)
    step = jax.jit(
        lambda state, i: method.step(
            jax.random.fold_in(key, i), state, model, method.batch(key, model, arrays, i), i
        )
    )
    iterates, rates = [], []
    for i in range(method.num_steps):
        state, info = step(state, jnp.int32(i))
        iterates.append(flat(state.params))
        rates.append(float(info.step_size))
    states = jax.tree.map(lambda leaf: leaf[None], state)
    posterior = method.posterior(model, Trace(states, None, {}, arrays, key, method.num_steps))
    return np.array(iterates), np.array(rates), posterior


def flat(tree, axes=0):
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:axes], -1) for leaf in leaves], -1)


@pytest.mark.parametrize("rank", [4, 30])
def test_the_gaussian_is_the_formula_of_the_paper(rank, x64):
    method = SWAG(rank=rank, num_warmup=20, num_steps=50, thin=3, sgd_learning_rate=0.02)
    iterates, rates, posterior = recorded(method, regression())
    np.testing.assert_array_equal(rates, [0.0] * 20 + [0.02] * 30)
    collected = iterates[22::3]
    assert len(collected) == 10
    q = posterior.approximation
    np.testing.assert_allclose(flat(q.mean)[None], [collected.mean(0)], rtol=1e-9)
    np.testing.assert_allclose(flat(q.scale) ** 2, collected.var(0) / 2, rtol=1e-9)
    running = np.cumsum(collected, 0) / np.arange(1, 11)[:, None]
    last = (collected - running)[-rank:]
    factors = flat(q.factors, 2)[0]
    assert factors.shape[0] == rank
    low_rank = last.T @ last / (2 * (min(rank, 10) - 1))
    np.testing.assert_allclose(factors.T @ factors, low_rank, rtol=1e-8, atol=1e-14)


def test_the_other_covariances(x64):
    settings = {"num_warmup": 20, "num_steps": 50, "thin": 3, "sgd_learning_rate": 0.02}
    iterates, _, diagonal = recorded(SWAG(covariance="diagonal", **settings), regression())
    collected = iterates[22::3]
    q = diagonal.approximation
    np.testing.assert_allclose(flat(q.scale) ** 2, collected.var(0), rtol=1e-9)
    assert all(leaf.shape[1] == 0 for leaf in jax.tree.leaves(q.factors))
    _, _, point = recorded(SWAG(covariance="none", **settings), regression())
    assert isinstance(point.approximation, Draws)
    np.testing.assert_allclose(flat(point.draws), collected.mean(0), rtol=1e-9)


def test_the_moments_keep_their_digits_in_float32():
    """For iterates far from zero and close together, a difference of mean squares is only rounding error."""
    method = SWAG(rank=3, num_warmup=0, num_steps=200, thin=1, sgd_learning_rate=1e-3)
    bound, data = LOCATION.prepare(rows())
    state = method.init(random.key(0), bound, data)
    generator = np.random.default_rng(0)
    iterates = np.float32(1000 + 0.01 * generator.normal(size=(200, 3)))
    collect = jax.jit(method._collect)
    for i, w in enumerate(iterates):
        state = collect(state._replace(params=jnp.asarray(w)), jnp.int32(i))
    exact = np.float64(iterates).var(0)
    np.testing.assert_allclose(state.square / 200, exact, rtol=0.02)
    naive = np.mean(iterates**2, 0) - np.mean(iterates, 0) ** 2
    assert np.abs(naive / exact - 1).max() > 1, "the naive formula fails here"


@pytest.mark.slow
def test_a_run_that_ends_before_the_first_iterate_is_a_point():
    method = SWAG(members=2, num_steps=60, num_warmup=50, thin=5)
    posterior = fit(HIDDEN, regression(), method, callbacks=[lambda event: True], chunk_steps=7)
    assert posterior.info["ended"] == "callback"
    q = posterior.approximation
    assert not flat(q.scale).any()
    assert not flat(q.factors).any()
    assert flat(q.mean).any()


# -- SGD on a quadratic loss, whose moments are known ------------------------------------------------


def z_scores(values, truth):
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.ravel((values.mean(0) - truth) / error)


@pytest.mark.slow
def test_moments_of_sgd_on_a_quadratic_loss():
    r"""For :math:`w' = a w + b + \text{noise}`, the expected mean, variance and D D' are known."""
    x, y = rows()
    rate, batch, thin, count, rank, members = 0.05, 5, 4, 60, 10, 1024
    precision = ROWS / np.square(SCALES) + 1
    mode = y.sum(0) / np.square(SCALES) / precision
    noise = ROWS**2 * (1 / batch - 1 / ROWS) * np.cov((y / np.square(SCALES)).T)
    a = 1 - rate / ROWS * precision
    added = (rate / ROWS) ** 2 * noise
    assert a.min() < 0.6, "the fastest direction must decorrelate in a few steps"

    # The exact moments, starting at zero.
    times = thin * np.arange(1, count + 1)
    centre = mode - a ** times[:, None] * mode
    both = np.outer(a, a)
    at = (1 - both ** times[:, None, None]) / (1 - both) * added
    gap = np.abs(times[:, None] - times[None])
    earlier = np.minimum(times[:, None], times[None]) // thin - 1
    # Cov(w_s, w_t) for iterates s and t: the later one depends on the earlier one by a^(t - s).
    forward = (times[:, None] < times[None])[..., None, None]
    power = a ** gap[..., None]
    covariance = at[earlier] * np.where(forward, power[..., None, :], power[..., :, None])
    second = covariance + centre[:, None, :, None] * centre[None, :, None, :]
    stationary = solve_discrete_lyapunov(np.diag(a), added)
    np.testing.assert_allclose(at[-1], stationary, rtol=0.05)

    def expected(weights):
        """The expectation of (weights W)' (weights W), a matrix over the coordinates."""
        return np.einsum("kt,ks,tsij->ij", weights, weights, second)

    middle = np.eye(count) - 1 / count
    running = np.tril(np.ones((count, count))) / np.arange(1, count + 1)[:, None]
    variance = np.diag(expected(middle)) / count
    low_rank = expected((np.eye(count) - running)[-rank:]) / (2 * (rank - 1))

    method = SWAG(members, "low_rank", rank, 0, thin * count, thin, batch, sgd_learning_rate=rate)
    q = fit(LOCATION, (x, y), method).approximation
    mean, scale, factors = (np.asarray(leaf, np.float64) for leaf in (q.mean, q.scale, q.factors))
    assert factors.shape == (members, rank, 3)
    outer = np.einsum("mki,mkj->mij", factors, factors)
    z = [
        z_scores(mean, centre.mean(0)),
        z_scores(2 * scale**2, variance),
        z_scores(outer, low_rank),
    ]
    assert np.abs(np.concatenate(z)).max() < 4, z
    error = (2 * scale**2).std(0) / np.sqrt(members) / variance
    assert error.max() < 0.02, "more members are needed to detect an error of a few per cent"
    # Both halves together are the stationary variance of SGD, except for effects of the short run.
    total = np.diag(low_rank) + variance / 2
    np.testing.assert_allclose(total[2], stationary[2, 2], rtol=0.15)


def test_the_rate_is_that_of_mandt_or_the_stable_one():
    x, y = rows()
    bound, data = LOCATION.prepare((x, 10 * y))
    batch = data.batch(random.key(0), jnp.int32(0), 4)
    at = SimpleNamespace(params=jnp.zeros(3), network=())
    rate = jax.jit(lambda batch: sgd_rate(random.key(1), bound, at, batch, data))
    trace = np.asarray(batch.y / np.square(SCALES)).var(0, ddof=1).sum()
    nearest = 2 * 4 * 3 / (ROWS * trace) * (ROWS - 1) / (ROWS - 4)
    stable = ROWS / (ROWS / SCALES[2] ** 2 + 1)
    assert nearest < 0.9 * stable
    assert float(rate(batch)) == pytest.approx(nearest, rel=1e-3)
    # Identical rows have no gradient noise, so only stability limits the rate.
    same = cx.Batch(batch.x, jnp.ones((4, 3)), batch.scale, batch.index, batch.count)
    assert float(rate(same)) == pytest.approx(stable, rel=1e-3)


def test_the_rate_is_stable_on_the_steepest_of_the_batches():
    # One weight, the logarithm of a rate whose exposure is exp(x): a row has the curvature exp(x) at zero.
    network = cx.networks.from_function(lambda key: jnp.zeros(1), lambda w, x: w + x)
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Poisson())
    x = np.zeros((6, 1))
    x[0] = 3.0
    bound, data = model.prepare((x, np.exp(x[:, 0]).round()))
    at = SimpleNamespace(params=jnp.zeros(1), network=())
    for seed in range(4):
        # Whichever rows the step has, some of the batches have the steep row.
        batch = data.batch(random.key(seed), jnp.int32(0), 2)
        rate = jax.jit(lambda batch: sgd_rate(random.key(1), bound, at, batch, data))(batch)
        steepest = (3 * (np.exp(3.0) + 1) + 1) / 6
        assert 1 / float(rate) >= steepest * (1 - 1e-3)


@pytest.mark.slow
def test_counts_in_small_tables_are_fitted():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(30, 2))
    mean = np.exp(1 + np.sin(2 * x[:, 0]) + 0.5 * x[:, 1])
    counts = generator.poisson(mean, (20, 30))
    model = cx.Model(cx.networks.mlp([10], activation="tanh"), likelihood=cx.likelihoods.Poisson())
    method = SWAG(num_warmup=1_000, num_steps=2_000)
    fits = fit_each(model, (x, counts), method, key=1, progress=False)
    for posterior, y in zip(fits, counts, strict=True):
        log_probs = np.asarray(posterior.predict(x).log_probs(y))
        assert np.isfinite(log_probs).all()
        assert np.abs(posterior.predict(x).mean - y.mean()).max() < 20 * y.std()


# -- the mixture --------------------------------------------------------------------------------------


def mixture():
    generator = np.random.default_rng(0)
    mean = {"a": generator.normal(size=(2, 2)), "b": generator.normal(size=2)}
    scale = {"a": generator.uniform(0.2, 1, (2, 2)), "b": generator.uniform(0.2, 1, 2)}
    factors = {"a": generator.normal(size=(2, 4, 2)), "b": generator.normal(size=(2, 4))}
    float32 = lambda tree: jax.tree.map(np.float32, tree)  # noqa: E731
    return GaussianMixture(*map(float32, (mean, scale, factors)), np.float32([[10.0], [20.0]]))


@pytest.mark.matrix
@pytest.mark.parametrize("stratified", [False, True])
def test_draws_have_the_moments_of_the_mixture(stratified):
    q, count = mixture(), 20_000
    draw = (
        q.samples(random.key(0), count).take(0, count)
        if stratified
        else q.sample(random.key(0), count)
    )
    own = np.asarray(draw.state)[:, 0] == 10.0
    if stratified:
        assert own.sum() == count // 2
    else:
        assert abs(own.mean() - 0.5) < 4 * 0.5 / np.sqrt(count)
    params = np.column_stack([np.asarray(draw.params["a"]), np.asarray(draw.params["b"])])
    for s, of in ((0, own), (1, ~own)):
        f = np.column_stack([q.factors["a"][s], q.factors["b"][s]])
        covariance = np.diag(np.append(q.scale["a"][s], q.scale["b"][s]) ** 2) + f.T @ f
        centred = params[of] - np.append(q.mean["a"][s], q.mean["b"][s])
        z = [
            z_scores(centred, 0.0),
            z_scores(np.einsum("ni,nj->nij", centred, centred), covariance),
        ]
        assert np.abs(np.concatenate(z)).max() < 4, z


@pytest.mark.slow
def test_members_are_a_mixture_that_can_be_saved(tmp_path):
    method = SWAG(members=3, rank=5, num_warmup=300, num_steps=500, thin=5)
    posterior = fit(HIDDEN, regression(), method)
    assert posterior.info["step_size"].shape == (3, 500)
    assert np.all(posterior.info["step_size"][:, 300:] > 0)
    mean = flat(posterior.approximation.mean, 1)
    assert np.linalg.norm(mean[0] - mean[1]) > 0.1
    new = regression(5)[0]
    predictive = posterior.predict(new)
    assert predictive.outputs.shape[0] == 90
    assert np.all(predictive.epistemic > 0)
    posterior.save(tmp_path / "swag.credax")
    loaded = cx.load(tmp_path / "swag.credax")
    np.testing.assert_array_equal(loaded.predict(new).mean, predictive.mean)
    assert posterior.predict(new, num_samples=4).outputs.shape[0] == 4


@pytest.mark.slow
def test_the_defaults_cover_what_they_should():
    """The epistemic standard deviations of a linear model, compared with those of the exact posterior."""
    data = regression(100)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.5))
    posterior = fit(model, data, SWAG())
    design = np.column_stack([np.ones(100), data[0]])
    covariance = np.linalg.inv(design.T @ design / 0.25 + np.eye(3))
    new = np.column_stack([np.ones(20), np.random.default_rng(1).normal(size=(20, 2))])
    exact = np.sqrt(np.einsum("ni,ij,nj->n", new, covariance, new))
    ratio = np.sqrt(posterior.predict(new[:, 1:], num_samples=1000).epistemic) / exact
    assert np.all((ratio > 0.6) & (ratio < 1.7)), ratio


def test_it_goes_on_from_a_trained_posterior():
    data = regression()
    first = fit(HIDDEN, data, cx.MAP(num_steps=500))
    method = SWAG(num_warmup=0, num_steps=100, thin=5, sgd_learning_rate=1e-6)
    q = fit(HIDDEN, data, method, start=first).approximation
    np.testing.assert_allclose(flat(q.mean), flat(first.draws), atol=1e-2)


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"rank": 1}, ValueError, r"SWAG\(rank=...\) must be a whole number, at least 2; got 1"),
        ({"members": 0}, ValueError, r"SWAG\(members=...\) must be .*; got 0"),
        ({"covariance": "full"}, ValueError, r"SWAG\(covariance=...\) must be one of .*'full'"),
        (
            {"num_warmup": 9, "num_steps": 9},
            ValueError,
            r"\(num_warmup=...\) must be below .* 9; got 9",
        ),
        (
            {"sgd_learning_rate": 0},
            ValueError,
            r"\(sgd_learning_rate=...\) must be positive; got 0",
        ),
        ({"learning_rate": -1}, ValueError, r"SWAG\(learning_rate=...\) must be positive; got -1"),
    ],
)
def test_refused_settings(settings, error, message):
    with pytest.raises(error, match=message):
        SWAG(**settings)


def test_a_batch_of_all_rows_is_refused():
    with pytest.raises(ValueError, match=r"SWAG\(batch_size=...\) must be below .* 12: all rows"):
        fit(LOCATION, rows(), SWAG(batch_size=12))
    with pytest.raises(TypeError, match="SWAG needs a Model with a likelihood"):
        fit(cx.LogDensity(start, jnp.sum), None, SWAG())
