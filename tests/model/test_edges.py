"""Densities and distribution functions at the edges of their float types, for values chosen by Hypothesis.

The answers are SciPy's in double precision, at the values as they are rounded to the float type under test.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

import credax as cx
from credax.posterior.approximations import MeanField

few = settings(max_examples=12, deadline=None, derandomize=True)
exponents = st.floats(-30, 30)
"""Decimal exponents of scales."""
LARGEST = 3e38


@st.composite
def deviates(draw, largest=30.0):
    """Eight standardised values, of any size up to ten to the power of ``largest``, zero among them."""
    power = st.floats(-5, largest)
    values = draw(st.lists(st.tuples(st.sampled_from([-1.0, 1.0]), power), min_size=7, max_size=7))
    return np.array([0.0, *(sign * 10.0**size for sign, size in values)])


def close(found, exact, rtol, atol=0.0):
    """Whether values agree: never NaN, and infinite only beyond the largest number of single precision."""
    found, exact = np.asarray(found, np.float64), np.asarray(exact)
    within = np.abs(exact) < LARGEST
    np.testing.assert_allclose(found[within], exact[within], rtol=rtol, atol=atol)
    np.testing.assert_array_equal(np.sign(found[~within]), np.sign(exact[~within]))


def single(value):
    return np.float64(np.float32(value))


@pytest.mark.parametrize("df", [None, 4.0, 60.0])
@few
@given(exponents, deviates())
# The square of the last value is infinite in single precision, and half of it is not.
@example(17.625, np.array([0.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1e20]))
def test_likelihoods_at_any_scale(df, exponent, z):
    scale = single(10.0**exponent)
    y = np.clip(z * scale, -1e37, 1e37).astype(np.float32)
    outputs = jnp.zeros((8, 1))
    likelihood = (
        cx.likelihoods.Gaussian(scale) if df is None else cx.likelihoods.StudentT(df, scale)
    )
    noise = stats.norm(0, scale) if df is None else stats.t(df, 0, scale)
    wide = y.astype(np.float64)
    with np.errstate(over="ignore"):
        close(likelihood.log_prob(outputs, y), noise.logpdf(wide), 2e-5, 2e-5)
    close(likelihood.cdf(outputs, y)[:, 0], noise.cdf(wide), 2e-4, 1e-6)
    slope = jax.grad(lambda o: jnp.sum(jnp.maximum(likelihood.log_prob(o, y), -LARGEST)))(outputs)
    assert not np.isnan(slope).any()


@few
@given(exponents, st.integers(0, 2**31))
def test_draws_at_any_scale_follow_the_distribution(exponent, seed):
    scale = 10.0**exponent
    for likelihood, noise in (
        (cx.likelihoods.Gaussian(scale), stats.norm),
        (cx.likelihoods.StudentT(4.0, scale), stats.t(4)),
    ):
        outputs = jnp.zeros((200, 1))
        drawn = likelihood.sample(jax.random.key(seed), outputs)
        assert np.isfinite(drawn).all()
        levels = np.asarray(likelihood.cdf(outputs, drawn))[:, 0]
        # Some fifty tests: one in a million each.
        assert stats.kstest(levels, "uniform").pvalue > 1e-6
        assert stats.kstest(np.asarray(drawn, np.float64)[:, 0] / scale, noise.cdf).pvalue > 1e-6


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@few
@given(exponents, deviates())
def test_priors_at_any_scale(dtype, exponent, z):
    # All operations round, to eight bits in bfloat16.
    scale, eps = single(10.0**exponent), float(jnp.finfo(dtype).eps)
    w = jnp.asarray(np.clip(z * scale, -1e37, 1e37)).astype(dtype)
    wide = np.asarray(w, np.float64)
    for prior, exact in (
        (cx.priors.Normal(scale), stats.norm(0, scale)),
        (cx.priors.Laplace(scale), stats.laplace(0, scale)),
        (cx.priors.StudentT(3.0, scale), stats.t(3, 0, scale)),
        (cx.priors.StudentT(0.5, scale), stats.t(0.5, 0, scale)),
    ):
        with np.errstate(over="ignore"):
            # The terms of a density are as large as its scale's logarithm, though they may cancel.
            close(
                prior.log_density(w),
                exact.logpdf(wide),
                8 * eps,
                8 * eps * (2 + abs(np.log(scale))),
            )
        slope = jax.grad(lambda w, prior=prior: jnp.sum(jnp.maximum(prior.log_density(w), -1e38)))(
            w
        )
        assert not np.isnan(np.asarray(slope, np.float64)).any()


@few
@given(exponents, exponents, deviates())
def test_mixtures_of_any_two_scales(first, second, z):
    wide, narrow = (single(10.0**power) for power in (max(first, second), min(first, second)))
    prior = cx.priors.ScaleMixture(0.3, wide, narrow)
    for scale in (wide, narrow):
        w = np.clip(z * scale, -1e37, 1e37).astype(np.float32)
        with np.errstate(over="ignore"):
            exact = np.logaddexp(
                np.log(0.3) + stats.norm(0, wide).logpdf(w.astype(np.float64)),
                np.log(0.7) + stats.norm(0, narrow).logpdf(w.astype(np.float64)),
            )
        close(prior.log_density(jnp.asarray(w)), exact, 2e-5, 2e-4)
        slope = jax.grad(lambda w: jnp.sum(jnp.maximum(prior.log_density(w), -1e38)))(w)
        assert not np.isnan(np.asarray(slope)).any()


@pytest.mark.parametrize(
    "prior",
    [cx.priors.Normal(1e-50), cx.priors.StudentT(3.0, 1e-42), cx.priors.ScaleMixture(0.5, 1e39)],
)
def test_scales_beyond_the_float_type_are_refused(prior):
    name = type(prior).__name__
    with pytest.raises(ValueError, match=re.escape(f"{name}(") + ".*must be between 1.2e-38 and"):
        prior.check({"w": jnp.zeros(2)})
    prior.check({"w": np.zeros(2)})  # double precision


@pytest.mark.parametrize("dtype, scale", [(jnp.float16, 1e-8), (jnp.float16, 1e5)])
def test_scales_beyond_half_precision_are_refused(dtype, scale):
    with pytest.raises(ValueError, match="for float16; got"):
        cx.priors.Normal(scale).check({"w": jnp.zeros(2, dtype)})


@pytest.mark.parametrize("scale", [1e-25, 1e25, (1.0, 1e-20)])
def test_noise_whose_variance_is_no_number_is_refused(scale):
    """In single precision the variance would be zero or infinite, and so would every interval."""
    y = np.zeros((3, np.size(scale)))
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(scale))
    with pytest.raises(
        ValueError, match=r"Gaussian\(scale=\.\.\.\) must be between 1.1e-19 and 1.8e\+19"
    ):
        model.bind((np.zeros((3, 1)), y))


@few
@given(st.floats(-10, 10), st.floats(-3, 3), st.floats(-3, 3))
def test_expected_log_priors_and_entropies_against_quadrature(distance, log_q, log_p):
    """KL(q || p) of normal distributions is the integral of q log q / p."""
    q_scale, p_scale = single(10.0**log_q), single(10.0**log_p)
    mean = single(distance * p_scale)
    prior = cx.priors.Normal(p_scale)
    family = MeanField.around({"w": jnp.full((1,), mean, jnp.float32)}, q_scale)
    got, variance = family.moments()
    q = stats.norm(float(got["w"][0]), float(variance["w"][0]) ** 0.5)
    nodes, weights = np.polynomial.legendre.leggauss(200)
    t = q.mean() + 10 * q.std() * nodes
    gauss = 10 * q.std() * weights * q.pdf(t)
    expected = gauss @ stats.norm(0, p_scale).logpdf(t)
    entropy = -gauss @ q.logpdf(t)
    found = prior.expected_log_density(got["w"], variance["w"])
    np.testing.assert_allclose(found[0], expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(family.entropy(), entropy, rtol=2e-5, atol=2e-5)
    assert q.std() == pytest.approx(q_scale, rel=1e-4)


@few
@given(st.lists(st.floats(-15, 15), min_size=6, max_size=6), st.integers(0, 10_000))
def test_poisson_sums_to_its_distribution_function(log_rates, count):
    """The probability of a count is a step of the distribution function."""
    outputs = jnp.asarray(log_rates, jnp.float32)[:, None]
    rates = np.exp(np.asarray(outputs, np.float64))[:, 0]
    poisson = cx.likelihoods.Poisson()
    y = np.full(6, count, np.float32)
    exact = stats.poisson(rates)
    close(poisson.log_prob(outputs, y), exact.logpmf(count), 1e-4, 1e-3)
    close(poisson.cdf(outputs, y)[:, 0], exact.cdf(count), 2e-3, 2e-3)
    assert not np.isnan(poisson.cdf(outputs, np.full(6, 1e30, np.float32))).any()


def test_poisson_far_below_a_huge_rate():
    """A count of 1e30 under a rate of e^80, which is 5.5e34."""
    assert cx.likelihoods.Poisson().cdf(jnp.array([[80.0]]), np.array([1e30])) == 0


@pytest.mark.parametrize("classes", [2, 5])
@few
@given(st.data())
def test_classes_at_any_logits(classes, data):
    sizes = data.draw(st.lists(st.floats(-30, 30), min_size=classes, max_size=classes))
    signs = data.draw(st.lists(st.sampled_from([-1.0, 1.0]), min_size=classes, max_size=classes))
    logits = np.array([[s * 10.0**e for s, e in zip(signs, sizes, strict=True)]], np.float32)
    categorical = cx.likelihoods.Categorical(num_classes=classes)
    wide = logits.astype(np.float64)
    exact = wide - np.logaddexp.reduce(wide, axis=1, keepdims=True)
    found = [categorical.log_prob(logits, np.array([k]))[0] for k in range(classes)]
    # A difference of two logits has the rounding error of the larger one.
    np.testing.assert_allclose(found, exact[0], rtol=1e-5, atol=1e-6 * (1 + np.abs(wide).max()))
    assert float(categorical.probs(logits).sum()) == pytest.approx(1, abs=1e-5)
    entropy = float(categorical.entropy(logits)[0])
    assert -1e-6 <= entropy <= np.log(classes) + 1e-5
    bernoulli = cx.likelihoods.Bernoulli()
    one = logits[:, :1]
    both = [float(bernoulli.log_prob(one, np.array([k]))[0]) for k in (0, 1)]
    np.testing.assert_allclose(
        both, [-np.logaddexp(0, wide[0, 0]), -np.logaddexp(0, -wide[0, 0])], rtol=1e-5, atol=1e-30
    )
