"""Densities and distribution functions that keep their digits in float32."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, erfc, gammaincc, gammaln, ndtr

from credax.core.typing import Array, Key

# log(1 + t) / t on [0, 1], interpolated at Chebyshev points; relative error 2e-7, a rounding of float32.
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
    """log(1 + e^x) at the cost of one exponential, and its derivative at that of one more.

    The compiler's own logarithm is most of the cost of a step of mean-field inference; here t = e^-|x| lies
    in (0, 1], where a polynomial does. The gradient ends in a division, so XLA on CPUs keeps it in memory
    and does not compute it anew wherever it is broadcast.
    """
    return _softplus(x, jnp.exp(-jnp.abs(x)))


@softplus.defjvp  # pyright: ignore[reportFunctionMemberAccess]
def _(primals, tangents):
    (x,), (tangent,) = primals, tangents
    # At infinity the next derivative would not be a number.
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
    """:func:`softplus` for a backward pass, which then reads x alone and leaves one array.

    XLA on CPUs keeps in memory what is costly (an exponential, a division) and used at two places. Spelled in
    another way than in the forward pass, the exponential is computed anew instead; and since the gradient ends
    in a division, it is kept as a whole and not in its parts.
    """
    return _softplus(x, _falling(x))


def _falling(x: Array) -> Array:
    return jnp.exp(jnp.minimum(x, -x))


def _backward(x: Array, gradient: Array) -> tuple[Array]:
    t = _falling(x)
    return (gradient * jnp.where(x > 0, 1, t) / (1 + t),)


softplus_anew.defvjp(lambda x: (softplus_anew(x), x), _backward)  # pyright: ignore[reportFunctionMemberAccess]


def normal_log_density(z: Array) -> Array:
    """The standard normal log density."""
    return -0.5 * z**2 - 0.5 * math.log(2 * math.pi)


def student_t_log_density(z: Array, df: float) -> Array:
    """The log density of Student's t with ``df`` degrees of freedom."""
    log_normaliser = math.lgamma(df / 2) - math.lgamma((df + 1) / 2) + 0.5 * math.log(df * math.pi)
    return -0.5 * (df + 1) * jnp.log1p(z**2 / df) - log_normaliser


def student_t_cdf(t: Array, df: float) -> Array:
    """P(T <= t), without loss around zero or in the left tail.

    Up to 30 degrees of freedom by the incomplete beta function, as a distance from one half in the
    middle and as a tail outside. Above, where that function loses digits, by the normal deviate of
    Hill, Algorithm 395, 1970 (its error is below 1e-11 there).
    """
    square = jnp.minimum(t**2, jnp.finfo(t.dtype).max)  # infinity would meet itself below
    if df <= 30:
        from_half = 0.5 * jnp.sign(t) * betainc(0.5, df / 2, square / (df + square))
        tail = 0.5 * betainc(df / 2, 0.5, df / (df + square))
        return jnp.where(square < df, 0.5 + from_half, jnp.where(t < 0, tail, 1 - tail))
    a, b = df - 0.5, 48 * (df - 0.5) ** 2
    w = a * jnp.log1p(square / df)
    correction = (((-0.4 * w - 3.3) * w - 24) * w - 85.5) / (0.8 * w**2 + 100 + b)
    return ndtr(jnp.sign(t) * jnp.sqrt(w) * (1 + (w + 3 + correction) / b))


def poisson_log_prob(y: Array, log_rate: Array) -> Array:
    r"""y log(rate) - rate - log y!, with its large terms cancelled by hand.

    .. math:: \log P(y) = y \, (u - (e^u - 1)) - (\log y! - y \log y + y), \quad
              u = \log\lambda - \log y

    The first bracket vanishes at the mode; the second is what Stirling's formula approximates, a
    few units whatever y. (Where y = 0 the expansion is around 1.)
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

    JAX's own loses digits as the count a grows (in float32 it is wrong by 0.04 at a = 1e5); there
    the uniform expansion of Temme, 1979, takes over:

    .. math:: Q(a, x) \approx \tfrac12 \operatorname{erfc}\left(\eta\sqrt{a/2}\right)
              + \frac{e^{-a\eta^2/2}}{\sqrt{2\pi a}}
              \left(c_0(\eta) + \frac{c_1(\eta)}{a}\right), \quad
              \tfrac12\eta^2 = \mu - \log(1 + \mu), \quad \mu = \frac{x - a}{a}
    """
    largest = 1e30  # in place of infinity, which would meet itself in mu
    a = jnp.floor(jnp.clip(t, 0, largest)) + 1
    a, x = jnp.broadcast_arrays(a, jnp.minimum(rate, largest))
    # The error of the expansion falls, that of the function grows: they meet about here.
    large = a > float(jnp.finfo(a.dtype).eps) ** -0.2
    exact = gammaincc(jnp.where(large, 1, a), jnp.where(large, 1, x))
    mu = (x - a) / a
    half_square = _mu_minus_log1p(mu)
    eta = jnp.sign(mu) * jnp.sqrt(2 * half_square)
    c0 = -1 / 3 + eta * (1 / 12 - eta * (2 / 135 - eta / 864))
    c1 = -1 / 540 - eta / 288
    gaussian = jnp.exp(-a * half_square) / jnp.sqrt(2 * math.pi * a)
    correction = jnp.where(gaussian > 0, gaussian * (c0 + c1 / a), 0)
    expansion = 0.5 * erfc(eta * jnp.sqrt(a / 2)) + correction
    return jnp.where(t < 0, 0, jnp.where(large, expansion, exact))


def _mu_minus_log1p(mu: Array) -> Array:
    """mu - log(1 + mu), which is about half the square of a small mu."""
    v = mu / (2 + mu)  # log(1 + mu) = 2 atanh(v)
    square = v**2
    series = 1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9))
    return jnp.where(jnp.abs(mu) < 0.1, v * (mu - 2 * square * series), mu - jnp.log1p(mu))


def poisson_sample(key: Key, rate: Array) -> Array:
    """Poisson draws for any key and any rate, as floats.

    ``jax.random.poisson`` takes keys of its own generator only, and neither its float32 rejection
    test nor its integers hold for large rates. Above 1000 the quantile function is expanded around
    the normal deviate w (Giles, Algorithm 955, 2016), to less than 1e-4 standard deviations.
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
    r"""Nodes and weights of a sum that stands for an integral from zero to infinity.

    The double exponential rule (Takahasi & Mori, 1974), :math:`t = e^{\frac{\pi}{2} \sinh u}` at equal steps of
    u: it needs no scale, and converges for integrands that fall off as slowly as a power.

    >>> t, weights = half_line()
    >>> abs(float(weights @ np.exp(-(t**2))) - math.sqrt(math.pi) / 2) < 1e-6
    True
    """
    u = np.linspace(-3.2, 2.2, nodes)
    t = np.exp(np.pi / 2 * np.sinh(u))
    return t, (u[1] - u[0]) * np.pi / 2 * np.cosh(u) * t
