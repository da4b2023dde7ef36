"""Priors against scipy.stats, quadrature and direct sums."""
# Some tests pass wrong arguments on purpose.
# pyright: reportArgumentType=false

import math
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import credax as cx
from credax.core.trees import named_leaves, tree_paths
from credax.model import priors

CONTINUOUS = [
    (priors.Normal(0.7, 0.3), stats.norm(0.3, 0.7)),
    (priors.Laplace(0.7, -0.3), stats.laplace(-0.3, 0.7)),
    (priors.StudentT(4.5, 0.7, 0.3), stats.t(4.5, 0.3, 0.7)),
    (priors.FanInNormal(0.7), stats.norm(0, 0.7)),
]
MIXTURE = priors.ScaleMixture(0.25, 1.5, 0.1)
DISCRETE = priors.Discrete([-1, 0, 2], [0.2, 0.5, 0.3])
EVERY = [prior for prior, _ in CONTINUOUS] + [MIXTURE, DISCRETE]
POINTS = np.array([-30.0, -2.5, -0.3, 0.0, 1e-3, 0.3, 4.0, 50.0])


def name(value):
    return type(value).__name__ if isinstance(value, priors.Prior) else ""


def mixture_density(x):
    return 0.25 * stats.norm.pdf(x, 0, 1.5) + 0.75 * stats.norm.pdf(x, 0, 0.1)


# -- Densities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("x64, rtol", [(True, 1e-10), (False, 1e-5)])
@pytest.mark.parametrize("prior, reference", CONTINUOUS, ids=name)
def test_log_density(prior, reference, x64, rtol):
    with jax.enable_x64(x64):
        x = jnp.asarray(POINTS)
        density = prior.log_density(x)
        assert density.dtype == x.dtype
        assert not density.weak_type
        np.testing.assert_allclose(density, reference.logpdf(np.asarray(x, float)), rtol)
        np.testing.assert_allclose(prior.log_prob(x), reference.logpdf(POINTS).sum(), rtol)


@pytest.mark.parametrize("x64, rtol", [(True, 1e-10), (False, 1e-5)])
def test_scale_mixture_is_the_direct_sum(x64, rtol):
    with jax.enable_x64(x64):
        x = np.linspace(-6, 6, 101)
        np.testing.assert_allclose(
            MIXTURE.log_density(jnp.asarray(x)), np.log(mixture_density(x)), rtol, atol=rtol
        )


@pytest.mark.parametrize(
    "prior", [MIXTURE, priors.ScaleMixture(), priors.ScaleMixture(0.3, 0.01, 2.0)]
)
def test_the_gradient_of_a_scale_mixture_is_that_of_its_components(prior):
    """Each component pulls with its share of the density; far out, only the wider one is left."""
    w = np.array([-30.0, -0.5, -0.02, 0.0, 1e-3, 0.1, 3.0])
    first, second = (
        np.log(share) + stats.norm.logpdf(w, 0, sigma)
        for share, sigma in ((prior.pi, prior.sigma1), (1 - prior.pi, prior.sigma2))
    )
    share = np.exp(first - np.logaddexp(first, second))
    expected = -w * (share / prior.sigma1**2 + (1 - share) / prior.sigma2**2)
    gradient = jax.grad(lambda w: jnp.sum(prior.log_density(w)))(jnp.asarray(w, jnp.float32))
    np.testing.assert_allclose(gradient, expected, rtol=2e-5, atol=1e-6)


def test_scale_mixture_far_from_its_narrow_component():
    # A direct sum of the two densities would underflow to log(0) here.
    density = priors.ScaleMixture().log_density(jnp.asarray([100.0]))
    np.testing.assert_allclose(density, stats.norm.logpdf(100.0) + math.log(0.5), rtol=1e-6)


@pytest.mark.parametrize(
    "prior", [*[prior for prior, _ in CONTINUOUS], MIXTURE, priors.ScaleMixture()], ids=name
)
def test_density_integrates_to_one(prior):
    # The trapezoidal rule in s with x = sinh(s): its nodes are dense around zero and reach far into the tails.
    with jax.enable_x64(True):
        s = np.linspace(-40, 40, 200_001)
        density = np.exp(prior.log_density(jnp.asarray(np.sinh(s))))
        assert np.trapezoid(density * np.cosh(s), s) == pytest.approx(1, abs=1e-7)


def test_discrete_density():
    x = jnp.asarray([-1.0, 0.0, 2.0, 1.0, jnp.nan])
    expected = np.log([0.2, 0.5, 0.3, 1e-300, 1e-300])
    expected[3:] = -np.inf
    np.testing.assert_allclose(DISCRETE.log_density(x), expected, rtol=1e-6)
    np.testing.assert_allclose(DISCRETE.log_probs, np.log([0.2, 0.5, 0.3]), rtol=1e-12)
    assert DISCRETE.log_prob({"w": x}) == -jnp.inf


def test_discrete_values_compare_in_the_dtype_of_the_leaf():
    # 0.1 has no exact float32 value; the comparison must be made after rounding.
    prior = priors.Discrete([0.1, 0.3])
    for dtype in (jnp.float32, jnp.bfloat16):
        log_prob = float(prior.log_prob(jnp.asarray([0.1, 0.3], dtype)))
        assert log_prob == pytest.approx(2 * math.log(0.5), rel=1e-2)
    with pytest.raises(ValueError, match="different and finite in bfloat16"):
        priors.Discrete([1.0, 1.001]).check(jnp.ones(2, jnp.bfloat16))
    priors.Discrete([1.0, 1.001]).check(jnp.ones(2, jnp.float32))


def test_discrete_probabilities_are_normalised():
    prior = priors.Discrete((0, 1), (0.3333333, 0.6666666))
    assert np.asarray(prior.probs).sum() == pytest.approx(1, abs=1e-15)
    assert priors.Discrete([0, 1]) == priors.Discrete(np.array([0.0, 1.0]), [0.5, 0.5])


def test_fan_in():
    prior = priors.FanInNormal(2.0)
    for shape, fan_in in (((), 1), ((5,), 1), ((4, 3), 4), ((3, 3, 2, 8), 18), ((0, 3), 1)):
        x = jnp.full(shape, 0.4, jnp.float32)
        expected = x.size * stats.norm.logpdf(0.4, 0, 2 / math.sqrt(fan_in))
        np.testing.assert_allclose(prior.log_prob(x), expected, rtol=1e-5)


def test_log_prob_sums_over_leaves_in_their_dtype():
    params = {"a": jnp.ones((2, 3), jnp.float32), "b": [jnp.zeros(4, jnp.float32)]}
    log_prob = priors.Normal().log_prob(params)
    assert log_prob.shape == ()
    assert log_prob.dtype == jnp.float32
    assert not log_prob.weak_type
    expected = 6 * stats.norm.logpdf(1) + 4 * stats.norm.logpdf(0)
    np.testing.assert_allclose(log_prob, expected, rtol=1e-6)
    mixed = {"a": jnp.ones(2, jnp.bfloat16), "b": jnp.ones(2, jnp.float32)}
    assert priors.Normal().log_prob(mixed).dtype == jnp.float32
    assert priors.Normal().log_prob({}) == 0


@pytest.mark.parametrize("prior", EVERY, ids=name)
def test_gradients_are_finite(prior):
    x = jnp.asarray([0.0, 1e-30, 1e6, -1e17, 1e19], jnp.float32)
    assert jnp.all(jnp.isfinite(jax.grad(prior.log_prob)(x)))


# -- Draws ----------------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("prior", EVERY, ids=name)
def test_draws_have_the_shapes_and_dtypes_asked_for(prior):
    like = {
        "w": jax.ShapeDtypeStruct((3, 2), jnp.float32),
        "b": (jnp.zeros(2, jnp.bfloat16), jax.ShapeDtypeStruct((), jnp.float32)),
    }
    draw = prior.sample(jax.random.key(0), like)
    assert jax.tree.structure(draw) == jax.tree.structure(like)
    for got, wanted in zip(jax.tree.leaves(draw), jax.tree.leaves(like), strict=True):
        assert (got.shape, got.dtype, got.weak_type) == (wanted.shape, wanted.dtype, False)
    assert jnp.isfinite(prior.log_prob(draw))


def test_leaves_get_keys_of_their_own():
    draw = priors.Normal().sample(jax.random.key(0), {"a": jnp.zeros(5), "b": jnp.zeros(5)})
    assert not np.any(np.isclose(draw["a"], draw["b"]))


@pytest.mark.parametrize("prior, reference", CONTINUOUS, ids=name)
def test_draws_follow_the_density(prior, reference):
    draws = np.asarray(prior.sample(jax.random.key(1), jnp.zeros(20_000)), float)
    assert stats.kstest(draws, reference.cdf).pvalue > 1e-3
    standard_error = reference.std() / math.sqrt(draws.size)
    assert abs(draws.mean() - reference.mean()) < 4 * standard_error


def test_fan_in_draws():
    draws = np.asarray(priors.FanInNormal(2.0).sample(jax.random.key(1), jnp.zeros((100, 200))))
    assert stats.kstest(draws.ravel(), stats.norm(0, 0.2).cdf).pvalue > 1e-3


def test_scale_mixture_draws():
    draws = np.asarray(MIXTURE.sample(jax.random.key(2), jnp.zeros(20_000)), float)
    cdf = lambda x: 0.25 * stats.norm.cdf(x, 0, 1.5) + 0.75 * stats.norm.cdf(x, 0, 0.1)  # noqa: E731
    assert stats.kstest(draws, cdf).pvalue > 1e-3


def test_discrete_draws():
    draws = np.asarray(DISCRETE.sample(jax.random.key(3), jnp.zeros(20_000)))
    counts = [np.sum(draws == value) for value in DISCRETE.values]
    assert sum(counts) == draws.size
    assert stats.chisquare(counts, 20_000 * np.array([0.2, 0.5, 0.3])).pvalue > 1e-3


# -- A prior for each layer -----------------------------------------------------------------------


class Layer(NamedTuple):
    weight: jax.Array
    bias: jax.Array


PARAMS = {
    "layer_0": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)},
    "layers": [Layer(jnp.ones((3, 1)), jnp.ones(1))],
}


def test_paths():
    expected = ["layer_0/bias", "layer_0/kernel", "layers/0/weight", "layers/0/bias"]
    assert tree_paths(PARAMS) == expected
    assert tree_paths(jnp.ones(2)) == [""]
    assert [leaf.shape for _, leaf in named_leaves(PARAMS)] == [(3,), (2, 3), (3, 1), (1,)]


def test_per_layer_takes_the_first_match():
    prior = priors.PerLayer(
        {"*/bias": priors.Normal(5.0), "layer_0/*": priors.Laplace(), "*": priors.Normal(2.0)}
    )
    prior.check(PARAMS)
    expected = (
        4 * stats.norm.logpdf(1, 0, 5)
        + 6 * stats.laplace.logpdf(1)
        + 3 * stats.norm.logpdf(1, 0, 2)
    )
    np.testing.assert_allclose(prior.log_prob(PARAMS), expected, rtol=1e-6)
    assert prior.at("layer_0/kernel") == priors.Laplace()
    assert not prior.discrete


def test_per_layer_draws_each_part_from_its_own():
    prior = priors.PerLayer({"a": priors.Discrete([1, 2]), "*": priors.Discrete([7])})
    like = {"a": jnp.zeros(50), "b": jnp.zeros(50)}
    draw = prior.sample(jax.random.key(0), like)
    assert prior.discrete
    assert set(np.asarray(draw["a"]).tolist()) == {1.0, 2.0}
    assert np.all(draw["b"] == 7)
    assert jnp.isfinite(prior.log_prob(draw))
    assert jnp.isinf(prior.log_prob(like))


def test_per_layer_needs_a_pattern_for_every_parameter():
    prior = priors.PerLayer({"layer_0/*": priors.Normal()})
    for call in (prior.check, prior.log_prob, lambda like: prior.sample(jax.random.key(0), like)):
        with pytest.raises(ValueError, match=r"'layers/0/weight' matches none of 'layer_0/\*'"):
            call(PARAMS)


def test_per_layer_refuses_patterns_without_effect():
    normal = priors.Normal()
    with pytest.raises(
        ValueError, match=r"'layr_0/kernel' matches none. Similar paths: 'layer_0/kernel'"
    ):
        priors.PerLayer({"layr_0/kernel": normal, "*": normal}).check(PARAMS)
    with pytest.raises(ValueError, match=r"'zzz' matches none. Similar paths: 'layer_0/bias'"):
        priors.PerLayer({"zzz": normal, "*": normal}).check(PARAMS)
    with pytest.raises(ValueError, match=r"'layer_0/\*' is never reached"):
        priors.PerLayer({"*": normal, "layer_0/*": normal}).check(PARAMS)
    priors.PerLayer({"layer*": normal, "*": normal}).check(PARAMS)


@pytest.mark.parametrize("prior", [*EVERY, priors.PerLayer({"*": priors.Normal()})], ids=name)
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
def test_check_refuses_parameters_that_are_not_floating(prior, dtype):
    like = {"a": jnp.zeros(2), "b": [jax.ShapeDtypeStruct((2,), dtype)]}
    with pytest.raises(ValueError, match=f"floating-point array; got {np.dtype(dtype)} at 'b/0'"):
        prior.check(like)
    with pytest.raises(ValueError, match="got float at 'x'"):
        prior.check({"x": 1.0})


# -- Settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: priors.Normal(-1.0), ValueError, "Normal(scale=...) must be positive; got -1.0."),
        (lambda: priors.Normal(1.0, math.nan), ValueError, "Normal(loc=...) must be a finite"),
        (lambda: priors.Normal("1"), TypeError, "Normal(scale=...) must be a positive number"),
        (lambda: priors.Laplace(0), ValueError, "Laplace(scale=...) must be positive; got 0."),
        (lambda: priors.StudentT(df=0), ValueError, "StudentT(df=...) must be positive; got 0."),
        (lambda: priors.StudentT(scale=0), ValueError, "StudentT(scale=...) must be positive"),
        (lambda: priors.ScaleMixture(pi=1), ValueError, "ScaleMixture(pi=...) must be between"),
        (lambda: priors.ScaleMixture(sigma2=0), ValueError, "ScaleMixture(sigma2=...) must be pos"),
        (lambda: priors.FanInNormal(-2), ValueError, "FanInNormal(scale=...) must be positive"),
        (lambda: priors.Discrete([]), ValueError, "Discrete(values=...) must be one or more"),
        (lambda: priors.Discrete([1, 1]), ValueError, "different numbers; got (1.0, 1.0)."),
        (lambda: priors.Discrete([1, math.inf]), ValueError, "Discrete(values=...) must be a fin"),
        (lambda: priors.Discrete(3), TypeError, "Discrete(values=...) must be a list of numbers"),
        (lambda: priors.Discrete("ab"), TypeError, "Discrete(values=...) must be a list of num"),
        (lambda: priors.Discrete([0, 1], [1.0]), ValueError, "Discrete(probs=...) must be 2 pos"),
        (lambda: priors.Discrete([0, 1], []), ValueError, "Discrete(probs=...) must be 2 pos"),
        (lambda: priors.Discrete([0, 1], [0, 1]), ValueError, "got (0.0, 1.0)."),
        (lambda: priors.Discrete([0, 1], [0.5, 0.6]), ValueError, "that add up to one"),
        (lambda: priors.PerLayer({}), ValueError, "PerLayer(parts=...) must be a mapping"),
        (lambda: priors.PerLayer([1]), TypeError, "PerLayer(parts=...) must be a mapping"),
        (lambda: priors.PerLayer((1,)), TypeError, "PerLayer(parts=...) must be a mapping"),
        (lambda: priors.PerLayer({1: priors.Normal()}), TypeError, "path patterns to priors"),
        (lambda: priors.PerLayer({"*": 1.0}), TypeError, "got ('*', 1.0)."),
        (
            lambda: priors.PerLayer({"*": priors.PerLayer({"*": priors.Normal()})}),
            TypeError,
            "none of them PerLayer",
        ),
        (
            lambda: priors.PerLayer({"a": priors.Normal(), "b": DISCRETE}),
            ValueError,
            "PerLayer(parts=...) must be all discrete or all continuous",
        ),
        (
            lambda: priors.prior_from("Model", "prior", 1.0),
            TypeError,
            "Model(prior=...) must be a prior, e.g.",
        ),
    ],
)
def test_messages(make, error, message):
    with pytest.raises(error, match=re.escape(message)):
        make()


def test_settings_hash_and_compare_by_value():
    assert priors.Normal(1) == priors.Normal(np.float32(1.0)) != priors.Normal(2)
    assert priors.Normal(1.0) != priors.Laplace(1.0)
    first = priors.PerLayer({"a": priors.Normal(1), "*": priors.Laplace()})
    second = priors.PerLayer((("a", priors.Normal(1.0)), ("*", priors.Laplace(1.0))))
    assert first == second
    assert hash(first) == hash(second)
    assert hash(priors.Discrete([0, 1])) == hash(priors.Discrete((0.0, 1.0)))


def test_prior_from():
    assert priors.prior_from("Model", "prior", DISCRETE) is DISCRETE
    mapping = {"*": DISCRETE}
    assert priors.prior_from("Model", "prior", mapping) == priors.PerLayer(mapping)


def test_only_discrete_priors_say_so():
    assert [prior.discrete for prior in EVERY] == [False] * 5 + [True]


def test_priors_are_static_arguments():
    traces = []

    def log_prob(prior, x):
        traces.append(prior)
        return prior.log_prob(x)

    compiled = jax.jit(log_prob, static_argnums=0)
    for scale in (1.0, 1, np.float64(1)):
        compiled(priors.Normal(scale), jnp.ones(3))
    assert len(traces) == 1


# -- around given weights -------------------------------------------------------------------------


CENTRE = {"a": np.arange(6.0, dtype=np.float32).reshape(2, 3), "b": np.float32([7.0])}


def test_around_is_a_normal_at_each_weight():
    prior = cx.priors.Around(CENTRE, 0.5)
    like = jax.tree.map(jnp.asarray, CENTRE)
    w = jax.tree.map(lambda leaf: leaf + 0.3, like)
    wanted = 7 * stats.norm(0, 0.5).logpdf(0.3)
    np.testing.assert_allclose(prior.log_prob(w), wanted, rtol=1e-5)
    leaf = prior.at("a")
    np.testing.assert_array_equal(leaf.gaussian((2, 3))[0], CENTRE["a"])
    expected = leaf.expected_log_density(w["a"], jnp.full((2, 3), 0.04))
    np.testing.assert_allclose(expected, wanted / 7 - 0.04 / (2 * 0.25), rtol=1e-4)
    draws = jax.vmap(lambda key: prior.sample(key, like))(jax.random.split(cx.random.key(0), 4000))
    for name, centre in CENTRE.items():
        z = (draws[name] - centre) / 0.5
        assert np.all(np.abs(z.mean(0)) < 4.5 / np.sqrt(4000))
        assert np.all(np.abs(z.std(0) - 1) < 4.5 / np.sqrt(8000))


def test_around_is_equal_by_value_and_checks_its_shapes():
    prior = cx.priors.Around(CENTRE, 0.5)
    assert prior == cx.priors.Around({name: leaf.copy() for name, leaf in CENTRE.items()}, 0.5)
    assert hash(prior) == hash(cx.priors.Around(CENTRE, 0.5))
    assert prior != cx.priors.Around({**CENTRE, "b": np.float32([8.0])}, 0.5)
    prior.check(CENTRE)
    with pytest.raises(ValueError, match=r"must hold every parameter.*'c'"):
        prior.check({**CENTRE, "c": np.float32([8.0])})
    with pytest.raises(ValueError, match=r"must have the shapes.*\(2,\) at 'b'; got \(1,\)"):
        prior.check({**CENTRE, "b": np.float32([8.0, 9.0])})
    with pytest.raises(ValueError, match="must be positive"):
        cx.priors.Around(CENTRE, 0.0)


def test_around_is_saved_with_the_posterior(tmp_path):
    network = cx.networks.linear().build((2,), 1)
    prior = cx.priors.Around(network.init(cx.random.key(0)), 0.1)
    x = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(100.0))
    posterior = cx.fit(
        model, (x, x[:, 0]), cx.MAP(num_steps=300, learning_rate=0.1), progress=False
    )
    # The data carry no information, so the weights stay at the mean of the prior.
    near = jax.tree.map(
        lambda leaf, mean: np.abs(leaf[0, 0] - mean).max() < 0.01,
        posterior.draws,
        network.init(cx.random.key(0)),
    )
    assert all(jax.tree.leaves(near))
    posterior.save(tmp_path / "a.credax")
    assert cx.load(tmp_path / "a.credax").model == posterior.model


def test_many_weights_in_half_precision_are_summed_in_single():
    weights = jnp.asarray(np.random.default_rng(0).normal(size=2_000), jnp.bfloat16)
    each = np.asarray(priors.Normal(1.0).log_density(weights), np.float64)
    found = priors.Normal(1.0).log_prob({"w": weights})
    assert found.dtype == jnp.float32
    assert found == pytest.approx(each.sum(), rel=1e-5)


# -- Scales that are learned ------------------------------------------------------------------------


def expected(mean, variance, scale):
    """The expectation of the log density of N(0, scale^2), by hand."""
    return -0.5 * ((mean**2 + variance) / scale**2 + np.log(2 * np.pi * scale**2))


@pytest.mark.parametrize(
    "shape, groups", [((3, 4), (3, 1)), ((5,), (1,)), ((2, 2, 3, 4), (1, 1, 3, 1)), ((), ())]
)
def test_learned_scales_are_those_with_the_largest_expected_log_density(shape, groups, x64):
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=shape), rng.uniform(0.1, 1, size=shape)
    prior = priors.LearnedNormal()
    loc, scale = prior.matched(jnp.asarray(mean), jnp.asarray(variance))
    assert loc == 0
    assert scale.shape == groups
    total = lambda scale: expected(mean, variance, scale).sum()  # noqa: E731
    found = prior.expected_log_density(jnp.asarray(mean), jnp.asarray(variance))
    np.testing.assert_allclose(np.sum(found), total(np.asarray(scale)), rtol=1e-12)
    for _ in range(20):
        other = np.asarray(scale) * np.exp(rng.normal(0, 0.1, size=groups))
        assert total(other) < total(np.asarray(scale))


def test_learned_scales_share_a_unit_and_leave_the_others_alone(x64):
    mean = jnp.asarray([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    variance = jnp.asarray([[0.0, 0.0, 0.0], [0.01, 0.01, 0.01]])
    _, scale = priors.LearnedNormal().matched(mean, variance)
    np.testing.assert_allclose(scale[:, 0], [1.0, 0.1], rtol=1e-12)


def test_a_learned_prior_has_no_density_and_no_draws():
    prior, weights = priors.LearnedNormal(), {"w": jnp.ones((2, 3))}
    with pytest.raises(ValueError, match="LearnedNormal has no density of its own"):
        prior.log_prob(weights)
    with pytest.raises(ValueError, match="For everything else, give a scale"):
        prior.sample(jax.random.key(0), weights)


@pytest.mark.parametrize(
    "prior", [priors.LearnedNormal(), {"*/bias": priors.Normal(), "*": priors.LearnedNormal()}]
)
@pytest.mark.parametrize(
    "name", [name for name, cls in cx.inference.METHODS.items() if "learn prior" not in cls().can]
)
def test_methods_that_cannot_learn_the_prior_refuse_it(name, prior):
    x = np.linspace(-1, 1, 20)[:, None]
    model, data = cx.Model(cx.networks.mlp([2]), prior, cx.likelihoods.Gaussian(0.1)).prepare(
        (x, x[:, 0])
    )
    with pytest.raises(ValueError, match=r"cannot learn the scales|discrete"):
        cx.inference.METHODS[name]().check(model, data)
