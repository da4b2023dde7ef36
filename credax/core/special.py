"""Densities and distribution functions that remain accurate in float32."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.scipy.special import betainc, erfc, gammaincc, gammaln, ndtr

from credax.core.typing import Array, Key

logsumexp: Callable[..., Any] = scipy.special.logsumexp
"""SciPy's, for arrays on the host. It is not typed, and what a checker infers depends on the order of files."""

# log(1 + t) / t on [0, 1], interpolated at Chebyshev points; its relative error of 2e-7 is about the rounding
# error of float32.
LOG1P = (
    1.0,
    -0.49999893,
    0.3332971,
    -0.24951616,
    0.19663274,
    -0.15269667,
    0.105436236,
    -0.056373615,
    0.019542528,
    -0.003176057,
)


@jax.custom_jvp
def softplus(x: Array) -> Array:
    """log(1 + e^x), computed with one exponential; its derivative needs one more.

    Computing ``log1p`` would be most of the cost of a step of mean-field inference. Its argument t = e^-|x|
    lies in (0, 1], where a polynomial approximates it well. The gradient ends in a division, so that XLA on
    CPUs keeps its value in memory and does not recompute it wherever it is broadcast.
    """
    return _softplus(x, jnp.exp(-jnp.abs(x)))


@softplus.defjvp  # pyright: ignore[reportFunctionMemberAccess]
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    # If the exponential were infinite, the second derivative would be NaN.
    most = math.log(jnp.finfo(x.dtype).max) - 1
    return softplus(x), tangent / (1 + jnp.exp(jnp.minimum(-x, most)))


def _softplus(x: Array, t: Array) -> Array:
    """log(1 + e^x), given t = e^-|x|."""
    if x.dtype != jnp.float32:
        return jnp.maximum(x, 0) + jnp.log1p(t)
    ratio = jnp.full_like(x, LOG1P[-1])
    for coefficient in LOG1P[-2::-1]:
        ratio = ratio * t + coefficient
    return jnp.maximum(x, 0) + t * ratio


@jax.custom_vjp
def softplus_anew(x: Array) -> Array:
    """:func:`softplus` whose backward pass reads only x and stores only one array.

    XLA on CPUs keeps an expensive result (an exponential, a division) in memory if it is used twice. Here the
    backward pass writes the exponential in a different form from the forward pass, so that it is recomputed
    instead; and because the gradient ends in a division, it is stored as one array rather than as its factors.
    """
    return _softplus(x, _falling(x))


def _falling(x: Array) -> Array:
    return jnp.exp(jnp.minimum(x, -x))


def _backward(x: Array, gradient: Array) -> tuple[Array]:
    t = _falling(x)
    return (gradient * jnp.where(x > 0, 1, t) / (1 + t),)


softplus_anew.defvjp(lambda x: (softplus_anew(x), x), _backward)  # pyright: ignore[reportFunctionMemberAccess]


def normal_log_density(z: Array) -> Array:
    """The log density of the standard normal distribution."""
    # Halved before it is squared: half of a square may be finite where the square is not.
    return (-0.5 * z) * z - 0.5 * math.log(2 * math.pi)


def student_t_log_density(z: Array, df: float) -> Array:
    """The log density of Student's t with ``df`` degrees of freedom, finite wherever z is.

    Far from zero, log(1 + r^2) is written as 2 log r + log(1 + r^-2), since the square of r would overflow.
    """
    log_normaliser = math.lgamma(df / 2) - math.lgamma((df + 1) / 2) + 0.5 * math.log(df * math.pi)
    ratio = jnp.abs(z) / math.sqrt(df)
    near = ratio < 1
    # Each branch gets an argument at which its derivative is finite as well.
    inner, outer = jnp.where(near, z / math.sqrt(df), 0), jnp.where(near, 1, ratio)
    log = jnp.where(near, jnp.log1p(inner**2), 2 * jnp.log(outer) + jnp.log1p(outer**-2))
    return -0.5 * (df + 1) * log - log_normaliser


def student_t_cdf(t: Array, df: float) -> Array:
    """P(T <= t) for Student's t, accurate also around zero and in the left tail.

    Up to 30 degrees of freedom it is computed from the incomplete beta function: near zero as the difference
    from one half, elsewhere as the probability of the tail. For more degrees of freedom that function loses
    digits, and t is transformed to a normal deviate instead (Hill, Algorithm 395, 1970), with an error below
    1e-11.
    """
    square = jnp.minimum(t**2, jnp.finfo(t.dtype).max)  # an infinity would give inf / inf below
    if df <= 30:
        from_half = 0.5 * jnp.sign(t) * betainc(0.5, df / 2, square / (df + square))
        tail = 0.5 * betainc(df / 2, 0.5, df / (df + square))
        return jnp.where(square < df, 0.5 + from_half, jnp.where(t < 0, tail, 1 - tail))
    a, b = df - 0.5, 48 * (df - 0.5) ** 2
    w = a * jnp.log1p(square / df)
    correction = (((-0.4 * w - 3.3) * w - 24) * w - 85.5) / (0.8 * w**2 + 100 + b)
    return ndtr(jnp.sign(t) * jnp.sqrt(w) * (1 + (w + 3 + correction) / b))


def poisson_log_prob(y: Array, log_rate: Array) -> Array:
    r"""y log(rate) - rate - log y!, rearranged so that its large terms cancel without rounding errors.

    .. math:: \log P(y) = y \, (u - (e^u - 1)) - (\log y! - y \log y + y), \quad
              u = \log\lambda - \log y

    The first bracket vanishes at the mode. The second is the quantity that Stirling's formula approximates, and
    is only a few units large for every y. (For y = 0, u is taken relative to 1 instead of y.)
    """
    centre = jnp.maximum(y, 1)
    u = log_rate - jnp.log(centre)
    exact = gammaln(y + 1) - y * jnp.log(centre) + centre
    inverse = 1 / centre
    series = inverse * (1 / 12 - inverse**2 * (1 / 360 - inverse**2 / 1260))
    stirling = 0.5 * jnp.log(2 * math.pi * centre) + series
    return y * u - centre * jnp.expm1(u) - jnp.where(y < 16, exact, stirling)


def poisson_cdf(t: Array, rate: Array) -> Array:
    r"""P(Y <= t) = Q(floor(t) + 1, rate), the regularised incomplete gamma function.

    JAX's implementation loses digits as the first argument a grows (in float32 its error is 0.04 at a = 1e5),
    and takes long. In float32 the probabilities of all counts are added up instead if a is small. If a is
    large, the uniform expansion of Temme, 1979, is used:

    .. math:: Q(a, x) \approx \tfrac12 \operatorname{erfc}\left(\eta\sqrt{a/2}\right)
              + \frac{e^{-a\eta^2/2}}{\sqrt{2\pi a}}
              \left(c_0(\eta) + \frac{c_1(\eta)}{a}\right), \quad
              \tfrac12\eta^2 = \mu - \log(1 + \mu), \quad \mu = \frac{x - a}{a}
    """
    largest = 1e36  # instead of infinity, which would give inf - inf in mu
    a = jnp.floor(jnp.clip(t, 0, largest)) + 1
    a, x = jnp.broadcast_arrays(a, jnp.minimum(rate, largest))
    # The error of the expansion falls with a, that of JAX's function grows; they are about equal here.
    large = a > float(jnp.finfo(a.dtype).eps) ** -0.2
    exact = _sum_of_terms if a.dtype == jnp.float32 else gammaincc
    exact = exact(jnp.where(large, 1, a), jnp.where(large, 1, x))
    mu = (x - a) / a
    half_square = _mu_minus_log1p(mu)
    eta = jnp.sign(mu) * jnp.sqrt(2 * half_square)
    c0 = -1 / 3 + eta * (1 / 12 - eta * (2 / 135 - eta / 864))
    c1 = -1 / 540 - eta / 288
    gaussian = jnp.exp(-a * half_square) / jnp.sqrt(2 * math.pi * a)
    correction = jnp.where(gaussian > 0, gaussian * (c0 + c1 / a), 0)
    expansion = 0.5 * erfc(eta * jnp.sqrt(a / 2)) + correction
    return jnp.where(t < 0, 0, jnp.where(large, expansion, exact))


def _sum_of_terms(a: Array, x: Array) -> Array:
    """Q(a, x) = e^-x (1 + x + x^2 / 2! + ... ) for whole numbers a up to 24, the number of terms."""
    total = jnp.zeros_like(x)
    for k in range(24, 0, -1):
        total = jnp.where(a >= k, 1 + total * x / k, 0)
    # Beyond 80, where the powers would overflow, e^-x times the sum is below 1e-12.
    return jnp.where(x < 80, jnp.exp(-x) * total, 0)


def _mu_minus_log1p(mu: Array) -> Array:
    """mu - log(1 + mu), accurate also for small mu, where it is about mu^2 / 2."""
    v = mu / (2 + mu)  # log(1 + mu) = 2 atanh(v)
    square = v**2
    series = 1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9))
    return jnp.where(jnp.abs(mu) < 0.1, v * (mu - 2 * square * series), mu - jnp.log1p(mu))


def poisson_sample(key: Key, rate: Array) -> Array:
    """Draws from a Poisson distribution, as floats, for keys of any generator and for any rate.

    ``jax.random.poisson`` accepts only keys of JAX's own generator, and for large rates neither its rejection
    test in float32 nor its integers are accurate. For rates of 1000 and more, a normal deviate w is transformed
    by an expansion of the quantile function (Giles, Algorithm 955, 2016), whose error is below 1e-4 standard
    deviations.
    """
    bits_key, normal_key = jax.random.split(key)
    bits = jax.random.bits(bits_key, (2,), jnp.uint32)
    threefry_key = jax.random.wrap_key_data(bits, impl="threefry2x32")
    small = jax.random.poisson(threefry_key, jnp.minimum(rate, 1000)).astype(rate.dtype)
    w = jax.random.normal(normal_key, rate.shape, rate.dtype)
    large = jnp.floor(rate * (1 + w / jnp.sqrt(rate)) + (2 + w**2) / 6)
    return jnp.where(rate < 1000, small, large)


@cache
def half_line(nodes: int = 48) -> tuple[np.ndarray, np.ndarray]:
    r"""Nodes and weights of a quadrature rule for integrals from zero to infinity.

    The double exponential rule (Takahasi & Mori, 1974) places the nodes :math:`t = e^{\frac{\pi}{2} \sinh u}`
    at equal steps of u. The integrand needs no rescaling, and may fall off as slowly as a power of t.

    >>> t, weights = half_line()
    >>> abs(float(weights @ np.exp(-(t**2))) - math.sqrt(math.pi) / 2) < 1e-6
    True
    """
    u = np.linspace(-3.2, 2.2, nodes)
    t = np.exp(np.pi / 2 * np.sinh(u))
    return t, (u[1] - u[0]) * np.pi / 2 * np.cosh(u) * t
