"""Enumeration, compared with explicit sums over the same states in double precision."""

import itertools
import math
from dataclasses import dataclass
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logsumexp

import credax as cx
from credax.inference.exact import Enumeration, Lattice, _log_sum, effective_sample_size
from credax.model.networks.network import AbstractNetwork

X = np.random.default_rng(0).normal(size=(12, 2))
NEW = np.random.default_rng(1).normal(size=(4, 2))
SLOPES = np.array([0.8, -1.1])


def perceptron_init(key):
    return {"bias": jnp.zeros(1), "slope": jnp.zeros((2, 1))}


def perceptron(params, x):
    return x @ params["slope"] + params["bias"]


def hidden_init(key):
    return {"hidden": jnp.zeros((2, 2)), "out": jnp.zeros((2, 1))}


def hidden(params, x):
    return jnp.tanh(x @ params["hidden"]) @ params["out"]


@dataclass(frozen=True)
class Sums:
    """The posterior by Bayes' rule, from a loop over ``itertools.product``."""

    states: np.ndarray  # (state, weight)
    log_joint: np.ndarray
    outputs: np.ndarray  # (state, new row)

    @property
    def log_evidence(self):
        return logsumexp(self.log_joint)

    @property
    def weights(self):
        return np.exp(self.log_joint - self.log_evidence)


@dataclass(frozen=True, eq=False)
class Case:
    model: cx.Model
    y: np.ndarray
    values: tuple  # for each weight, in the order of the leaves: (values, probabilities)
    outputs: object  # (weights, x) -> the network's output, in NumPy
    density: object  # (output, y) -> log likelihood of each row

    @property
    def data(self):
        return X, self.y

    @property
    def sums(self):
        states = np.array(list(itertools.product(*(values for values, _ in self.values))))
        prior = np.array(
            [sum(map(math.log, ps)) for ps in itertools.product(*(p for _, p in self.values))]
        )
        likelihood = [self.density(self.outputs(w, X), self.y).sum() for w in states]
        return Sums(states, prior + likelihood, np.array([self.outputs(w, NEW) for w in states]))


def line(weights, x):
    return weights[0] + x @ weights[1:]


def two_layers(weights, x):
    return np.tanh(x @ weights[:4].reshape(2, 2)) @ weights[4:]


def bernoulli(output, y):
    return stats.bernoulli(expit(output)).logpmf(y)


def gaussian(scale):
    return lambda output, y: stats.norm(output, scale).logpdf(y)


NOISE = np.random.default_rng(2).normal(size=12)
BINARY = ((-1.0, 1.0), (0.5, 0.5))
TERNARY = ((-1.0, 0.0, 2.5), (0.2, 0.5, 0.3))
FOUR = ((-1.5, -0.5, 0.5, 1.5), (0.25,) * 4)

CASES = {
    "binary perceptron": Case(
        cx.Model(
            cx.networks.from_function(perceptron_init, perceptron),
            cx.priors.Discrete([-1, 1]),
            cx.likelihoods.Bernoulli(),
        ),
        (X @ SLOPES + 0.3 * NOISE > 0).astype(int),
        (BINARY,) * 3,
        line,
        bernoulli,
    ),
    "ternary": Case(
        cx.Model(
            cx.networks.from_function(perceptron_init, perceptron),
            cx.priors.Discrete(*TERNARY),
            cx.likelihoods.Gaussian(2.0),
        ),
        X @ SLOPES + 0.3 * NOISE,
        (TERNARY,) * 3,
        line,
        gaussian(2.0),
    ),
    "per layer": Case(
        cx.Model(
            cx.networks.from_function(hidden_init, hidden),
            {"out": cx.priors.Discrete(FOUR[0]), "*": cx.priors.Discrete(*TERNARY)},
            cx.likelihoods.Gaussian(0.4),
        ),
        np.tanh(X[:, 0]) - np.tanh(X[:, 1]) + 0.3 * NOISE,
        (TERNARY,) * 4 + (FOUR,) * 2,
        two_layers,
        gaussian(0.4),
    ),
}
every_case = pytest.mark.parametrize("name", CASES)


def fit(name, method=None, **arguments):
    case = CASES[name]
    arguments = {"progress": False, **arguments}
    return cx.fit(case.model, case.data, method or Enumeration(), **arguments)


@cache
def cached_fit(name, dtype):
    return fit(name)


def fitted(name):
    return cached_fit(name, jnp.result_type(float))


def flat(params):
    """An array of shape (states, weights), with the weights in the order of the leaves."""
    leaves = [np.asarray(leaf[0], np.float64) for leaf in jax.tree.leaves(params)]
    return np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)


def by_state(states, values):
    """The values, sorted by their states."""
    order = np.lexsort(states.T)
    return states[order], values[order]


# -- the posterior ----------------------------------------------------------------------------------


@pytest.mark.matrix
@every_case
def test_every_state_is_there_once_with_its_log_joint(name):
    posterior, sums = fitted(name), CASES[name].sums
    got = by_state(flat(posterior.draws), posterior.log_weights[0])
    want = by_state(sums.states, sums.log_joint)
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=2e-6, atol=1e-5)
    assert posterior.log_weights.shape == (1, len(sums.states))
    assert posterior.log_weights.dtype == np.float64


@every_case
def test_evidence(name):
    value, error = fitted(name).log_evidence
    assert value == pytest.approx(CASES[name].sums.log_evidence, abs=2e-5)
    assert error == 0.0


@every_case
def test_marginals(name):
    posterior, sums = fitted(name), CASES[name].sums
    log_weights = posterior.log_weights[0]
    weights = np.exp(log_weights - logsumexp(log_weights))
    for i, (values, _) in enumerate(CASES[name].values):
        for value in values:
            want = sums.weights[sums.states[:, i] == value].sum()
            got = weights[flat(posterior.draws)[:, i] == value].sum()
            assert got == pytest.approx(want, rel=1e-4)
    # The data are informative, but several states remain plausible.
    assert 0.05 < sums.weights.max() < 0.9


@every_case
def test_prediction(name):
    sums, predictive = CASES[name].sums, fitted(name).predict(NEW)
    is_class = name == "binary perceptron"
    means = expit(sums.outputs) if is_class else sums.outputs
    mean = sums.weights @ means
    epistemic = sums.weights @ (means - mean) ** 2
    scale = {"ternary": 2.0, "per layer": 0.4}.get(name)
    aleatoric = sums.weights @ (means * (1 - means)) if is_class else scale**2
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-4)
    np.testing.assert_allclose(predictive.epistemic, epistemic, rtol=1e-3)
    np.testing.assert_allclose(predictive.variance, epistemic + aleatoric, rtol=1e-4)
    y = np.array([0, 1, 1, 0])
    density = CASES[name].density(sums.outputs, y)
    want = logsumexp(density, axis=0, b=sums.weights[:, None])
    np.testing.assert_allclose(predictive.log_prob(y), want, rtol=1e-4)


def test_draws_follow_the_probabilities():
    sums = CASES["ternary"].sums
    sample = fitted("ternary").sample(0, 4_000)
    columns = [np.asarray(leaf).reshape(4_000, -1) for leaf in jax.tree.leaves(sample)]
    drawn = np.concatenate(columns, axis=1)
    counts = np.array([(drawn == state).all(axis=1).sum() for state in sums.states])
    assert counts.sum() == 4_000
    expected = 4_000 * sums.weights
    frequent = expected > 5
    chi_square = np.sum((counts - expected)[frequent] ** 2 / expected[frequent])
    assert stats.chi2.sf(chi_square, frequent.sum() - 1) > 1e-4


@pytest.mark.slow
def test_double_precision(x64):
    for name in ("binary perceptron", "per layer"):
        posterior, sums = fitted(name), CASES[name].sums
        assert posterior.log_evidence[0] == pytest.approx(sums.log_evidence, abs=1e-11)
        got = by_state(flat(posterior.draws), posterior.log_weights[0])[1]
        want = by_state(sums.states, sums.log_joint)[1]
        np.testing.assert_allclose(got, want, rtol=1e-12)
        assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {np.dtype(np.float64)}
        assert posterior.info["log_evidence"].dtype == np.float64


# -- blocks, chunks and keys ------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("num_steps", [1, 10, 26, 100])
def test_blocks_need_not_divide_the_states(num_steps):
    """27 states in blocks of 27, of 3, of 2 (the last one half empty), and of 1 (most steps have none)."""
    posterior, whole = fit("ternary", Enumeration(num_steps=num_steps)), fitted("ternary")
    assert posterior.info["steps"] == num_steps
    np.testing.assert_array_equal(flat(posterior.draws), flat(whole.draws))
    np.testing.assert_allclose(posterior.log_weights, whole.log_weights, rtol=1e-6)
    assert posterior.log_evidence == pytest.approx(whole.log_evidence, rel=1e-6)
    history = posterior.info["log_evidence"]
    assert history.shape == (1, num_steps)
    assert history[0, -1] == pytest.approx(whole.log_evidence[0], rel=1e-6)


def test_pieces_of_a_block(monkeypatch):
    """A block that does not fit in memory is evaluated in pieces."""
    whole = fitted("per layer")
    monkeypatch.setattr("credax.inference.weighting.ELEMENTS", 200)  # enough for 6 states
    posterior = fit("per layer", Enumeration(num_steps=37))
    np.testing.assert_allclose(posterior.log_weights, whole.log_weights, rtol=1e-6)


def test_bits_do_not_depend_on_the_chunks():
    runs = [fit("per layer", chunk_steps=steps) for steps in (None, 1, 7)]
    for run in runs[1:]:
        np.testing.assert_array_equal(run.log_weights, runs[0].log_weights)
        np.testing.assert_array_equal(run.info["log_evidence"], runs[0].info["log_evidence"])
        assert run.log_evidence == runs[0].log_evidence


def test_the_key_is_of_no_consequence():
    one, other = fit("per layer", key=1), fit("per layer", key=2)
    np.testing.assert_array_equal(flat(one.draws), flat(other.draws))
    np.testing.assert_allclose(one.log_weights, other.log_weights, rtol=1e-6)
    assert one.log_evidence == pytest.approx(other.log_evidence, rel=1e-7)
    # The order of the visits differs.
    assert not np.array_equal(one.info["log_evidence"], other.info["log_evidence"])


def test_a_second_fit_compiles_nothing(compilations):
    fit("ternary").predict(NEW)
    case = CASES["ternary"]
    with compilations() as count:
        posterior = cx.fit(case.model, (X[::-1], case.y), Enumeration(), key=5, progress=False)
        posterior.predict(NEW)
    assert count() == 0


@pytest.mark.filterwarnings("ignore:Only .* states:credax.core.errors.PosteriorWarning")
def test_resumed_from_a_checkpoint_it_ends_with_the_same_bits(tmp_path):
    whole = fit("per layer")
    cut = fit(
        "per layer",
        checkpoint=tmp_path,
        chunk_steps=10,
        callbacks=[lambda event: event.step >= 100],
    )
    assert cut.info["ended"] == "callback"
    resumed = fit("per layer", checkpoint=tmp_path)
    np.testing.assert_array_equal(resumed.log_weights, whole.log_weights)
    assert resumed.log_evidence == whole.log_evidence


def test_saved_and_loaded(tmp_path):
    posterior = fitted("per layer")
    posterior.save(tmp_path / "exact.credax")
    loaded = cx.load(tmp_path / "exact.credax", CASES["per layer"].model.network)
    np.testing.assert_array_equal(loaded.log_weights, posterior.log_weights)
    np.testing.assert_array_equal(loaded.predict(NEW).mean, posterior.predict(NEW).mean)
    assert loaded.log_evidence == posterior.log_evidence
    assert loaded.info["states"] == 3**4 * 4**2
    assert loaded.method == Enumeration()


# -- a run that is cut short ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_part_of_the_states_says_how_uncertain_its_evidence_is():
    name, stop = "per layer", 100
    with pytest.warns(cx.PosteriorWarning, match="Only .* states of the weights were counted"):
        posterior = fit(name, callbacks=[lambda event: event.step == stop], chunk_steps=1)
    block = math.ceil(1296 / 256)
    assert (posterior.info["counted"], posterior.info["states"]) == (stop * block, 1296)
    states = flat(posterior.draws)
    assert len(np.unique(states, axis=0)) == len(states) == stop * block
    known = dict(zip(map(tuple, CASES[name].sums.states), CASES[name].sums.log_joint, strict=True))
    want = [known[tuple(state)] for state in states]
    np.testing.assert_allclose(posterior.log_weights[0], want, rtol=2e-6, atol=1e-5)
    value, error = posterior.log_evidence
    assert error > 0
    assert abs(value - CASES[name].sums.log_evidence) < 4 * error
    size = posterior.info["effective_sample_size"]
    assert size == pytest.approx(effective_sample_size(np.array(want)), rel=1e-4)
    # Uneven weights are no problem if they are exact.
    assert "effective_sample_size" not in fitted(name).info


def test_the_evidence_of_a_sample_is_unbiased_and_its_error_calibrated():
    generator = np.random.default_rng(0)
    log_joint = generator.normal(size=1296)
    lattice = Lattice.of(CASES["per layer"].model.bind(CASES["per layer"].data))
    assert lattice.count == 1296
    truth = logsumexp(log_joint)
    parts = [generator.choice(log_joint, 900, replace=False) for _ in range(400)]
    values, errors = np.transpose([_log_sum(part, lattice) for part in parts])
    ratio = np.exp(values - truth)
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(400)
    chi_square = np.sum(((values - truth) / errors) ** 2)
    assert 1e-4 < stats.chi2.sf(chi_square, 400) < 1 - 1e-4
    assert _log_sum(log_joint, lattice) == (pytest.approx(truth, abs=1e-12), 0.0)
    assert _log_sum(log_joint[:1], lattice) is None


# -- the fewest states, and states of probability zero ----------------------------------------------


def one_weight(params, x):
    return x[:, :1] * params


def scalar_init(key):
    return jnp.zeros(())


@pytest.mark.parametrize("values", [(2.0,), (-1.0, 1.0)])
def test_one_weight(values):
    model = cx.Model(
        cx.networks.from_function(scalar_init, one_weight),
        cx.priors.Discrete(values),
        cx.likelihoods.Gaussian(1.0),
    )
    y = X[:, 0]
    posterior = cx.fit(model, (X, y), Enumeration(num_steps=3), progress=False)
    log_joint = [
        stats.norm(value * X[:, 0]).logpdf(y).sum() - math.log(len(values)) for value in values
    ]
    np.testing.assert_array_equal(posterior.draws[0], values)
    np.testing.assert_allclose(posterior.log_weights[0], log_joint, rtol=1e-5)
    assert posterior.log_evidence == (pytest.approx(logsumexp(log_joint), rel=1e-6), 0.0)


def counts_model(values):
    return cx.Model(
        cx.networks.from_function(scalar_init, one_weight),
        cx.priors.Discrete(values),
        cx.likelihoods.Poisson(),
    )


def test_impossible_states_weigh_nothing():
    """A rate of exp(500) overflows, so that the counts have probability zero."""
    x, y = np.full((3, 1), 1.0), np.array([1, 2, 1])
    model = counts_model((500.0, 0.3, -0.2))
    posterior = cx.fit(model, (x, y), Enumeration(num_steps=5), progress=False)
    want = [stats.poisson(np.exp(value)).logpmf(y).sum() - math.log(3) for value in (0.3, -0.2)]
    order = np.argsort(posterior.draws[0])
    np.testing.assert_allclose(posterior.log_weights[0, order], [*want[::-1], -np.inf], rtol=1e-5)
    assert posterior.log_evidence[0] == pytest.approx(logsumexp(want), rel=1e-5)
    weights = np.exp(want - logsumexp(want))
    mean = posterior.predict(np.ones((1, 1))).mean
    np.testing.assert_allclose(mean, weights @ np.exp([0.3, -0.2]), rtol=1e-4)
    assert np.all(np.isfinite(posterior.info["log_evidence"]))


def test_no_possible_state_is_refused():
    x, y = np.full((3, 1), 1.0), np.array([1, 2, 1])
    message = r"no weights that explain the data: each of 2 states has the log joint -inf"
    with pytest.raises(ValueError, match=message):
        cx.fit(counts_model((500.0, 600.0)), (x, y), Enumeration(num_steps=2), progress=False)


class Shifted(AbstractNetwork):
    """A line whose offset is part of the network's state, and known in advance."""

    pretrained = True

    def init(self, key):
        return {"slope": jnp.zeros((2, 1))}

    def init_state(self):
        return {"offset": jnp.ones((1,))}

    def call(self, params, x, *, state, key, train):
        return x @ params["slope"] + state["offset"], state


def test_a_network_that_carries_state():
    y = 1 + X @ [1.0, -1.0]
    model = cx.Model(Shifted(), cx.priors.Discrete([-1, 1]), cx.likelihoods.Gaussian(0.1))
    posterior = cx.fit(model, (X, y), Enumeration(num_steps=2), progress=False)
    assert posterior.approximation.state["offset"].shape == (1, 4, 1)
    np.testing.assert_allclose(posterior.predict(NEW).mean, 1 + NEW @ [1.0, -1.0], rtol=1e-4)


# -- the numbering ----------------------------------------------------------------------------------


def test_numbers_and_states_are_one_to_one():
    lattice = Lattice.of(CASES["per layer"].model.bind(CASES["per layer"].data))
    numbers = np.arange(lattice.count, dtype=np.int32)
    states = lattice.at(numbers)
    assert len(np.unique(flat(jax.tree.map(lambda leaf: leaf[None], states)), axis=0)) == 1296
    on_device = jax.vmap(lattice.at)(jnp.asarray(numbers))
    jax.tree.map(np.testing.assert_array_equal, states, on_device)
    three = tuple(
        (shape, "float32", tuple(range(radix)))
        for shape, radix in [((2,), 2), ((), 2), ((3, 1), 4)]
    )
    mixed = Lattice(jax.tree.structure((0, 0, 0)), three)
    everything = flat(tuple(leaf[None] for leaf in mixed.at(np.arange(mixed.count))))
    assert mixed.count == len(np.unique(everything, axis=0)) == 2**3 * 4**3
    one = lattice.at(np.int32(17))
    jax.tree.map(lambda leaf, many: np.testing.assert_array_equal(leaf, many[17]), one, states)


@pytest.mark.parametrize(
    "powers, text",
    [
        ({2: 100}, "2^100 = 1.27e+30 states"),
        ({2: 3, 3: 2}, "2^3 x 3^2 = 72 states"),
        ({1: 7, 2: 1}, "2^1 = 2 states"),
        ({1: 7}, "1 = 1 states"),
        ({2: 29}, "2^29 = 536,870,912 states"),
        ({10: 40}, "10^40 = 1.00e+40 states"),
        ({2: 100_000_000}, "2^100000000 = 3.68e+30102999 states"),
    ],
)
def test_the_count_in_words(powers, text):
    leaves = tuple(
        ((weights,), "float32", tuple(range(values))) for values, weights in powers.items()
    )
    assert str(Lattice(None, leaves)) == text


# -- what is refused --------------------------------------------------------------------------------


def binary(weights, **settings):
    """A model with this many binary weights, and its data."""
    x = np.random.default_rng(0).normal(size=(5, weights - 1))
    prior = settings.pop("prior", cx.priors.Discrete([-1, 1]))
    network = cx.networks.mlp([])
    model = cx.Model(network, prior, settings.pop("likelihood", cx.likelihoods.Gaussian(1.0)))
    return model, (x, x[:, 0])


def test_too_many_states_are_refused_with_their_number():
    with pytest.raises(ValueError, match=r"2\^100 = 1\.27e\+30 states") as error:
        cx.fit(*binary(100), Enumeration())
    assert str(error.value) == (
        "Enumeration(limit=...) must be at least the number of states of the weights, "
        "2^100 = 1.27e+30 states; got 1048576. For so many states, use Metropolis, SimulatedAnnealing or "
        "BlackBoxVI, which also take discrete weights."
    )


def test_the_limit_itself_is_allowed():
    model, data = binary(5)
    Enumeration(limit=32).check(*model.prepare(data))
    with pytest.raises(ValueError, match=r"2\^5 = 32 states; got 31\."):
        Enumeration(limit=31).check(*model.prepare(data))


def test_different_values_in_different_layers_are_counted():
    case = CASES["per layer"]
    with pytest.raises(ValueError, match=r"3\^4 x 4\^2 = 1,296 states; got 1000\."):
        cx.fit(case.model, case.data, Enumeration(limit=1000))


def test_more_states_than_memory_holds_are_refused():
    message = r"keeps every state, and 2\^26 = 67,108,864 states take 7\.5 GB; the limit is 2\.1 GB"
    with pytest.raises(ValueError, match=message):
        cx.fit(*binary(26), Enumeration(limit=2**40))


def test_a_million_weights_are_refused_at_once():
    model = cx.Model(
        cx.networks.mlp([1000]), cx.priors.Discrete([-1, 0, 1]), cx.likelihoods.Gaussian(1.0)
    )
    x = np.zeros((2, 1000))
    with pytest.raises(ValueError, match=r"3\^1002001 = 9\.43e\+478075 states"):
        cx.fit(model, (x, np.zeros(2)), Enumeration(limit=2**200))


def test_continuous_weights_are_refused():
    message = r"needs weights that take a few values each.*Discrete.*got the prior Normal\(scale=2"
    with pytest.raises(ValueError, match=message):
        cx.fit(*binary(3, prior=cx.priors.Normal(2.0)), Enumeration())
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(ValueError, match=r"needs weights that take a few values.*got LogDensity"):
        cx.fit(density, None, Enumeration())


def test_a_learned_scale_is_refused():
    with pytest.raises(ValueError, match="all discrete or all continuous"):
        cx.fit(*binary(3, likelihood=cx.likelihoods.Gaussian(scale=None)), Enumeration())


@pytest.mark.parametrize(
    "settings, error",
    [
        ({"limit": 0}, ValueError),
        ({"limit": 2.5}, TypeError),
        ({"num_steps": 0}, ValueError),
        ({"num_steps": "many"}, TypeError),
    ],
)
def test_bad_settings(settings, error):
    (name,) = settings
    with pytest.raises(error, match=rf"Enumeration\({name}=\.\.\.\) must be a whole number"):
        Enumeration(**settings)


def test_settings_are_numbers_of_python():
    assert Enumeration(np.int64(8), np.int32(4)) == Enumeration(8, 4)
    assert hash(Enumeration(np.int64(8))) == hash(Enumeration(8))


@pytest.mark.filterwarnings("ignore:Only .* states:credax.core.errors.PosteriorWarning")
def test_the_order_is_random():
    """The states that a stopped run has visited do not depend on how the states are numbered."""
    name = "per layer"
    cut = fit(name, callbacks=[lambda event: event.step == 100], chunk_steps=1)
    half = flat(cut.draws)
    for i, (values, _) in enumerate(CASES[name].values):
        shares = np.array([(half[:, i] == value).mean() for value in values])
        assert np.all(np.abs(shares - 1 / len(values)) < 0.1)
