"""Monte Carlo dropout against sums over all masks, and against optima known in closed form."""

import itertools
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.core import random
from credax.inference.ensembles.dropout import RATE, MCDropout, Point
from credax.model.networks.layers import dense, dropout, kernel_and_bias
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.seeded import Seeded
from credax.posterior.approximations.masks import (
    Masked,
    Seeds,
    entropy,
    expected_log_prior,
    masked,
    masks,
)
from credax.tracing.randomness import uses_key

SAMPLES = 4_000
FLOAT = {"learning_rate": 1e-2, "num_steps": 30}


def data(rows=20, features=2, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features))
    return x, np.sin(x[:, 0]) + 0.1 * generator.normal(size=rows)


def fit(network, method, pair=None, scale=0.3, prior=None, **arguments):
    model = cx.Model(network, prior or cx.priors.Normal(1.0), cx.likelihoods.Gaussian(scale))
    return cx.fit(model, data() if pair is None else pair, method, progress=False, **arguments)


# -- user-defined networks, with dropout and with running statistics ----------------------------------


@dataclass(frozen=True)
class Foreign(AbstractNetwork):
    """A network with dropout on its inputs and hidden units, which counts its training steps."""

    rate: float = 0.4
    jitted: bool = False

    def init(self, key):
        first, second = jax.random.split(key)
        return [kernel_and_bias(first, (2, 3)), kernel_and_bias(second, (3, 1))]

    def init_state(self):
        return {"steps": jnp.zeros((), jnp.int32)}

    def call(self, params, x, *, state, key, train):
        call = jax.jit(self.outputs) if self.jitted else self.outputs
        return call(params, x, key), {"steps": state["steps"] + int(train)}

    def outputs(self, params, x, key):
        keys = (None, None) if key is None else jax.random.split(key)
        hidden = jnp.tanh(dense(params[0], dropout(keys[0], self.rate, x)))
        return dense(params[1], dropout(keys[1], self.rate, hidden))


@dataclass(frozen=True)
class Centred(AbstractNetwork):
    """A network without dropout; its running mean of the inputs couples the rows of a batch."""

    def init(self, key):
        return kernel_and_bias(key, (2, 1))

    def init_state(self):
        return jnp.zeros(2, jnp.result_type(float))

    def call(self, params, x, *, state, key, train):
        mean = jnp.mean(x, axis=0) if train else state
        state = 0.9 * state + 0.1 * mean if train else state
        return dense(params, x - mean), state


# -- predictions against the sum over all masks -------------------------------------------------------


def by_hand(layers, x, scales):
    """A tanh network in NumPy, with the inputs of each layer multiplied by its entry of ``scales``."""
    for i, (layer, scale) in enumerate(zip(layers, scales, strict=True)):
        x = (np.tanh(x) if i else x) * scale @ np.float64(layer["kernel"]) + np.float64(
            layer["bias"]
        )
    return x[:, 0]


def over_all_masks(layers, x, rates):
    """The outputs and the probability of every mask; layers with a rate of zero are not masked."""
    widths = [
        len(layer["kernel"]) if rate else 0 for layer, rate in zip(layers, rates, strict=True)
    ]
    outputs, probs = [], []
    for bits in itertools.product([0, 1], repeat=sum(widths)):
        parts = np.split(np.array(bits, float), np.cumsum(widths)[:-1])
        scales = [z / (1 - p) if p else 1.0 for z, p in zip(parts, rates, strict=True)]
        chances = [
            p ** np.sum(z == 0) * (1 - p) ** np.sum(z == 1)
            for z, p in zip(parts, rates, strict=True)
        ]
        outputs.append(by_hand(layers, x, scales))
        probs.append(np.prod(chances))
    return np.array(outputs), np.array(probs)


ENUMERATED = {
    "without dropout": (
        cx.networks.mlp([4], activation="tanh"),
        MCDropout(0.25, **FLOAT),
        [0.25] * 2,
    ),
    "own": (
        cx.networks.mlp([4, 3], activation="tanh", dropout=0.3),
        MCDropout(**FLOAT),
        [0, 0.3, 0.3],
    ),
    "foreign": (Foreign(), MCDropout(**FLOAT), [0.4, 0.4]),
}


@cache
def enumerated(name):
    network, method, rates = ENUMERATED[name]
    posterior = fit(network, method)
    params = posterior.approximation.params
    layers = params if isinstance(params, list) else [params[k] for k in sorted(params)]
    x = data(6, seed=1)[0]
    return posterior, x, *over_all_masks(layers, x, rates)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ENUMERATED)
def test_moments_are_those_of_all_masks(name):
    posterior, x, outputs, probs = enumerated(name)
    assert probs.sum() == pytest.approx(1)
    mean = probs @ outputs
    deviation = outputs - mean
    variance, fourth = probs @ deviation**2, probs @ deviation**4
    predictive = posterior.predict(x, num_samples=SAMPLES)
    z = (predictive.mean - mean) / np.sqrt(variance / SAMPLES)
    assert np.all(np.abs(z) < 4)
    z = (predictive.epistemic - variance) / np.sqrt((fourth - variance**2) / SAMPLES)
    assert np.all(np.abs(z) < 4)


@pytest.mark.matrix
@pytest.mark.parametrize("name", ENUMERATED)
def test_every_draw_is_one_of_the_masks_and_as_often_as_it_should(name):
    posterior, x, outputs, probs = enumerated(name)
    drawn = posterior.predict(x, num_samples=SAMPLES).outputs[..., 0]
    distance = np.abs(drawn[:, None] - outputs).max(-1)
    assert np.all(distance.min(1) < 1e-5)
    # Masks that give the same function (of units with zero weights) are counted together.
    twins = np.abs(outputs[:, None] - outputs).max(-1) < 1e-5
    groups = np.argmax(twins, axis=1)
    counts = np.bincount(groups[np.argmin(distance, 1)], minlength=len(probs))
    wanted = SAMPLES * np.bincount(groups, weights=probs, minlength=len(probs))
    rare = wanted < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(wanted[~rare], wanted[rare].sum())
    keep = wanted > 0
    assert stats.chisquare(counts[keep], wanted[keep]).pvalue > 1e-4


@pytest.mark.parametrize("name", ENUMERATED)
def test_a_draw_is_one_function_however_the_rows_are_cut(name):
    posterior, x = enumerated(name)[:2]
    together = posterior.predict(x, num_samples=9).outputs
    alone = [posterior.predict(row[None], num_samples=9).outputs for row in x]
    np.testing.assert_allclose(together, np.concatenate(alone, axis=1), rtol=1e-5, atol=1e-6)
    twice = posterior.predict(np.concatenate([x[:1], x[:1]]), num_samples=9).outputs
    np.testing.assert_array_equal(twice[:, 0], twice[:, 1])
    assert np.ptp(together, axis=0).min() > 0


def test_a_network_without_masks_of_its_own_keeps_its_draws_in_the_weights():
    posterior = enumerated("own")[0]
    assert isinstance(posterior.approximation, Masked)
    assert posterior.info["rates"] == {"layer_1/kernel": 0.3, "layer_2/kernel": 0.3}
    sample = posterior.sample(0, 50)
    kernel, whole = sample["layer_1"]["kernel"], posterior.approximation.params["layer_1"]["kernel"]
    dropped = np.all(kernel == 0, axis=-1)
    assert 0 < dropped.mean() < 1
    np.testing.assert_allclose(
        kernel, np.where(dropped[..., None], 0, whole / 0.7), rtol=1e-5, atol=0
    )
    np.testing.assert_array_equal(sample["layer_0"]["kernel"][3], sample["layer_0"]["kernel"][0])


# -- the bound ----------------------------------------------------------------------------------------

PRIORS = [
    cx.priors.Normal(0.5, loc=0.3),
    cx.priors.Laplace(0.4),
    cx.priors.StudentT(4.0, 0.5),
    pytest.param(cx.priors.ScaleMixture(0.3, 1.0, 0.1), marks=pytest.mark.slow),
    pytest.param(cx.priors.FanInNormal(2.0), marks=pytest.mark.slow),
    cx.priors.PerLayer({"layer_0/*": cx.priors.Normal(0.2), "*": cx.priors.Laplace(1.0)}),
]


@pytest.mark.matrix
@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_expected_log_prior(prior):
    """Compare with the mean over draws and, for a normal prior, with Gal and Ghahramani's weight decay."""
    model = cx.Model(cx.networks.mlp([3]), prior, cx.likelihoods.Gaussian(scale=None)).bind(data())
    params = model.init(random.key(0))
    method = MCDropout(0.3)
    sites = method.sites(model, jnp.ones((1, 2)))
    rates = method.rates(model, sites, None)
    got = expected_log_prior(model, params, sites, rates)

    @jax.jit
    @jax.vmap
    def drawn(key):
        return model.log_prior(masked(params, sites, masks(key, sites, rates)))

    values = np.asarray(drawn(jax.random.split(random.key(1), 4_000)), np.float64)
    assert abs(values.mean() - got) < 4 * values.std() / np.sqrt(len(values))
    if type(prior) is cx.priors.Normal:
        grow = lambda w: expected_log_prior(model, w, sites, rates)  # noqa: E731
        slope = jax.grad(grow)(params)["network"]["layer_0"]["kernel"]
        kernel = params["network"]["layer_0"]["kernel"]
        np.testing.assert_allclose(slope, -(kernel / 0.7 - prior.loc) / prior.scale**2, rtol=1e-4)


@pytest.mark.parametrize("name", ["without dropout", "own"])
def test_the_bound_is_the_mean_over_all_masks_of_each_row(name):
    """Compare with the log likelihood of every row under every mask, weighted by its probability."""
    posterior = enumerated(name)[0]
    method, rates = ENUMERATED[name][1:]
    x, y = data()
    model, params = posterior.model, posterior.approximation.params
    sites = posterior.approximation.sites
    outputs, probs = over_all_masks([params[k] for k in sorted(params)], x, rates)
    likelihood = probs @ stats.norm(outputs, 0.3).logpdf(y)
    want = likelihood.sum() + expected_log_prior(
        model, params, sites, method.rates(model, sites, None)
    )
    batch = model.prepare((x, y))[1].batch(random.key(0), jnp.zeros((), jnp.int32), None)

    @jax.jit
    @jax.vmap
    def bounds(key):
        return method.bound(model, sites, Point(params, None), batch, (), key)[0]

    values = np.asarray(bounds(jax.random.split(random.key(1), 4_000)), np.float64)
    assert abs(values.mean() - want) < 4 * values.std() / np.sqrt(len(values))
    # If all rows shared a mask, their errors would be correlated and the variance larger.
    each = probs @ stats.norm(outputs, 0.3).logpdf(y) ** 2 - likelihood**2
    assert values.var() == pytest.approx(each.sum(), rel=0.15)


def ridge(x, y, noise, rate, prior_scale):
    """The optimum of the bound of a linear model: ridge regression (Wager et al., 2013)."""
    design = np.column_stack([x, np.ones(len(x))])
    gram = design.T @ design
    dropped = np.diag([*[rate / (1 - rate)] * x.shape[1], 0.0]) * gram
    decay = np.diag([*[1 / (1 - rate)] * x.shape[1], 1.0]) * (noise / prior_scale) ** 2
    return np.linalg.solve(gram + dropped + decay, design.T @ y)


LINE = {"noise": 0.5, "rate": 0.3, "prior_scale": 0.4}


@cache
def line_data():
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 3)) * [1.0, 2.0, 0.5]
    return x, x @ [1.0, -0.5, 2.0] + 0.7 + 0.5 * generator.normal(size=60)


def test_the_optimum_of_a_linear_model_is_ridge_regression():
    x, y = line_data()
    want = ridge(x, y, **LINE)
    method = MCDropout(LINE["rate"], num_steps=6_000, learning_rate=0.03)
    posterior = fit(cx.networks.linear(), method, (x, y), 0.5, cx.priors.Normal(0.4))
    params = posterior.approximation.params["layer_0"]
    got = np.append(params["kernel"][:, 0], params["bias"])
    np.testing.assert_allclose(got, want, atol=0.02)
    # Without the noise of the optimiser: the mean of the gradient is zero at the optimum.
    model, sites = posterior.model, posterior.approximation.sites
    batch = model.prepare((x, y))[1].batch(random.key(0), jnp.zeros((), jnp.int32), None)
    tree = {"layer_0": {"kernel": want[:3, None], "bias": want[3:]}}
    best = Point(jax.tree.map(lambda w: jnp.asarray(w, jnp.result_type(float)), tree), None)

    @jax.jit
    @jax.vmap
    def slopes(key):
        bound = lambda point: method.bound(model, sites, point, batch, (), key)[0]  # noqa: E731
        slope = jax.grad(bound)(best).params["layer_0"]
        return jnp.append(slope["kernel"][:, 0], slope["bias"])

    slopes = np.asarray(slopes(jax.random.split(random.key(5), 4_000)), np.float64)
    assert np.all(np.abs(slopes.mean(0)) < 4 * slopes.std(0) / np.sqrt(len(slopes)))


def test_batch_statistics_are_carried_and_their_rows_share_a_mask():
    posterior = fit(Centred(), MCDropout(0.2, num_steps=200), data(seed=4))
    approximation = posterior.approximation
    assert isinstance(approximation, Masked)
    assert posterior.info["rates"] == {"kernel": 0.2}
    np.testing.assert_allclose(approximation.state, data(seed=4)[0].mean(0), atol=1e-4)
    assert np.all(posterior.predict(data()[0]).epistemic > 0)


@pytest.mark.parametrize("learned", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_batch_normalisation_beside_dropout(learned):
    network = cx.networks.mlp([4], batch_norm=True, dropout=0.2)
    x, y = data(seed=4)
    method = MCDropout(num_steps=60, learned=learned)
    posterior = fit(network, method, (3 * x + 5, y))
    assert set(posterior.info["rates"]) == {"layer_1/kernel"}
    statistics = posterior.approximation.state["norm_0"]
    assert np.abs(statistics["mean"]).max() > 0.5
    predictive = posterior.predict(3 * x[:3] + 5)
    assert np.all(predictive.epistemic > 0)
    alone = posterior.predict(3 * x[1:2] + 5)
    np.testing.assert_allclose(alone.mean, predictive.mean[1:2], rtol=1e-4, atol=1e-5)


# -- concrete dropout ---------------------------------------------------------------------------------


def line_bound(x, y, noise, prior_scale, rate):
    """The bound of a linear model at the best weights for a rate, up to a constant."""
    weights = ridge(x, y, noise, rate, prior_scale)
    kernel = weights[:-1]
    error = np.sum((y - x @ kernel - weights[-1]) ** 2)
    spread = rate / (1 - rate) * np.sum(kernel**2 * np.sum(x**2, axis=0))
    decay = np.sum(kernel**2) / (1 - rate) + weights[-1] ** 2
    entropy = len(kernel) * stats.bernoulli(rate).entropy()
    return -(error + spread) / (2 * noise**2) - decay / (2 * prior_scale**2) + entropy


def learned_line(pair):
    method = MCDropout(learned=True, num_steps=3_000, learning_rate=0.03)
    posterior = fit(cx.networks.linear(), method, pair, 0.5, cx.priors.Normal(0.4))
    rates = np.geomspace(1e-5, 0.6, 1_000)
    best = rates[np.argmax([line_bound(*pair, 0.5, 0.4, rate) for rate in rates])]
    return posterior, posterior.info["rates"]["layer_0/kernel"], best


@pytest.mark.slow
def test_learned_rates_are_high_for_noise_and_low_for_signal():
    x, y = line_data()
    noise = np.random.default_rng(9).normal(size=len(y)) * 0.5
    posterior, low, _ = learned_line((x, y))
    _, high, best_high = learned_line((x, noise))
    assert low < RATE < high
    # The relaxed masks are not exactly zero or one, so the learned rate is only close to the best.
    bound = lambda rate: line_bound(x, y, 0.5, 0.4, rate)  # noqa: E731
    assert bound(1e-6) - bound(low) < 0.3  # nats; without noise in the inputs no dropout is best
    assert bound(1e-6) - bound(RATE) > 10
    assert best_high - 0.1 < high < best_high + 0.1
    assert posterior.info["rate"].shape == (1, 3_000)
    assert posterior.info["rate"][0, -1] == pytest.approx(low, rel=2e-3)  # of three digits
    kernel = posterior.sample(0, 2_000)["layer_0"]["kernel"][..., 0]
    dropped = np.mean(kernel == 0)
    assert abs(dropped - low) < 4 * np.sqrt(low * (1 - low) / kernel.size)


@pytest.mark.slow
def test_gradient_of_the_relaxed_bound(x64):
    method = MCDropout(0.2, learned=True)
    model, rows = cx.Model(
        cx.networks.mlp([3], activation="tanh"), likelihood=cx.likelihoods.Gaussian(0.3)
    ).prepare(data())
    sites = method.sites(model, rows.x)
    batch = rows.batch(random.key(0), jnp.zeros((), jnp.int32), 8)
    state = method.init(random.key(1), model, rows)
    point = Point(state.params.params, state.params.logits + jnp.arange(4.0) / 4)
    flat, unravel = jax.flatten_util.ravel_pytree(point)

    @jax.jit
    def bound(flat):
        return method.bound(model, sites, unravel(flat), batch, (), random.key(2))[0]

    slope = jax.grad(bound)(flat)
    step = 1e-5
    ends = [(bound(flat.at[i].add(step)), bound(flat.at[i].add(-step))) for i in range(len(flat))]
    numeric = np.array([(up - down) / (2 * step) for up, down in ends])
    np.testing.assert_allclose(slope, numeric, rtol=1e-5, atol=1e-6)
    assert np.count_nonzero(slope[-4:]) == 2  # the rates of the kernels, not of the biases


def test_entropy():
    model = cx.Model(cx.networks.mlp([3])).bind(data())
    method = MCDropout(0.3)
    sites = method.sites(model, jnp.ones((1, 2)))
    got = entropy(sites, method.rates(model, sites, None))
    assert float(got) == pytest.approx((2 + 3) * stats.bernoulli(0.3).entropy(), rel=1e-5)


# -- networks -----------------------------------------------------------------------------------------


def test_which_networks_have_dropout():
    row = lambda shape: jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float))  # noqa: E731
    tell = lambda network, *shape: uses_key(network, row(shape))  # noqa: E731
    assert tell(Foreign(), 2)
    assert tell(Foreign(jitted=True), 2)
    assert not tell(Foreign(rate=0.0, jitted=True), 2)
    assert not tell(Centred(), 2)
    for rate in (0.0, 0.2):
        assert tell(cx.networks.mlp([3], dropout=rate).build((2,), 1), 2) == bool(rate)
        assert tell(cx.networks.cnn(dropout=rate).build((8, 8), 3), 8, 8) == bool(rate)
    # Without hidden units there is nothing to drop.
    assert not tell(cx.networks.MLP(dropout=0.3).build((2,), 1), 2)


@pytest.mark.slow
def test_a_foreign_network_is_fitted_saved_and_gone_on_with(tmp_path, compilations):
    posterior, x = enumerated("foreign")[:2]
    assert isinstance(posterior.approximation, Seeds)
    assert isinstance(posterior.model.network, Seeded)
    assert int(posterior.approximation.state[0]["steps"]) == FLOAT["num_steps"]
    first = posterior.predict(x)
    first.mean  # noqa: B018
    with compilations() as count:
        again = fit(Foreign(), MCDropout(**FLOAT), data(seed=8), key=1)
        again.predict(x).mean  # noqa: B018
        assert count() == 0
    posterior.save(tmp_path / "foreign.credax")
    with pytest.raises(cx.StorageError, match="Foreign"):
        cx.load(tmp_path / "foreign.credax")
    for network in (Foreign(), Seeded(Foreign())):
        loaded = cx.load(tmp_path / "foreign.credax", network)
        assert loaded.model == posterior.model
        np.testing.assert_array_equal(loaded.predict(x).mean, first.mean)
        np.testing.assert_array_equal(loaded.predict(x).epistemic, first.epistemic)
    for method in (MCDropout(num_steps=1), cx.MAP(num_steps=1, learning_rate=1e-6)):
        more = fit(Foreign(), method, start=posterior)
        state = more.approximation.state
        steps = state[0]["steps"] if isinstance(state, tuple) else state["steps"]
        assert int(np.ravel(steps)[0]) == FLOAT["num_steps"] + 1
    np.testing.assert_allclose(
        np.squeeze(more.approximation.params[0]["kernel"]),
        posterior.approximation.params[0]["kernel"],
        atol=1e-5,
    )


@pytest.mark.slow
def test_images():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(30, 8, 8)), generator.integers(0, 3, 30)
    network = cx.networks.cnn((2,), (5,), kernel_size=3)
    model = cx.Model(network, likelihood=cx.likelihoods.Categorical())
    posterior = cx.fit(model, (x, y), MCDropout(num_steps=5, batch_size=10), progress=False)
    kernels = ["conv_0/kernel", "dense_0/kernel", "dense_1/kernel"]
    assert posterior.info["rates"] == dict.fromkeys(kernels, RATE)
    assert np.all(posterior.predict(x[:4]).mutual_information > 0)


# -- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
def test_bad_rates(rate):
    with pytest.raises(ValueError, match=r"MCDropout\(rate=\.\.\.\) must be"):
        MCDropout(rate)


def test_bad_settings():
    with pytest.raises(TypeError, match=r"MCDropout\(rate=\.\.\.\) must be between 0 and 1"):
        MCDropout("0.1")
    with pytest.raises(TypeError, match=r"MCDropout\(learned=\.\.\.\) must be True or False; got"):
        MCDropout(learned="yes")
    message = r"must be {} for a network with dropout of its own, which keeps its rates; got"
    with pytest.raises(ValueError, match=r"MCDropout\(rate=\.\.\.\) " + message.format("None")):
        fit(Foreign(), MCDropout(0.2))
    with pytest.raises(ValueError, match=r"MCDropout\(learned=\.\.\.\) " + message.format("False")):
        fit(Foreign(), MCDropout(learned=True))


def test_bad_models():
    scaled = cx.networks.from_function(
        lambda key: jnp.ones(2), lambda w, x: jnp.sum(x * w, 1)[:, None]
    )
    with pytest.raises(ValueError, match=r"MCDropout needs a network with dropout.*has neither"):
        fit(scaled, MCDropout())
    with pytest.raises(ValueError, match="MCDropout needs gradients"):
        fit(cx.networks.linear(), MCDropout(), prior=cx.priors.Discrete([-1.0, 1.0]))
    density = cx.LogDensity(lambda key: jnp.zeros(1), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match="MCDropout needs a Model with a likelihood"):
        cx.fit(density, None, MCDropout(), progress=False)
