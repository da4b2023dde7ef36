"""The likelihood of positive targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from credax.core.checks import must, number
from credax.core.scaling import Scaling
from credax.core.settings import optional, setting
from credax.core.typing import Array
from credax.model.likelihoods.likelihood import Learned
from credax.model.likelihoods.regression import ConstantScale, _continuous, _scales
from credax.model.likelihoods.targets import as_floats, check_shape, like_outputs, plain, points
from credax.model.likelihoods.targets import width as width_of
from credax.model.priors import Normal, Prior


def _numbers(owner: str, name: str, value: Any) -> tuple[float, ...]:
    return tuple(number(owner, name, each) for each in np.atleast_1d(value).tolist())


def _widths(owner: str, name: str, value: Any) -> tuple[float, ...]:
    found = _scales(owner, name, value)
    return found if isinstance(found, tuple) else (found,)


@dataclass(frozen=True)
class LogNormal(ConstantScale):
    r"""Positive targets whose logarithm has normal noise: prices, durations, concentrations.

    .. math:: \log y \sim N(m + s f_w(x),\; s^2 \sigma^2)

    with the mean m and the standard deviation s of the logarithms of the targets in the fit, so that the
    network and the prior are those of standardised logarithms, whatever the unit of y is. Intervals are
    positive, and their width grows with the prediction.

    Args:
      scale: sigma, as one number or one number for each target. If ``None``, log sigma is learned, as the
        parameter ``log_scale``.
      scale_prior: the prior of log sigma, used if it is learned.
      centre: m, one number for each target. If ``None``, it is computed from the targets in the fit.
      width: s, likewise.
    """

    scale: float | Sequence[float] | np.ndarray | None = setting(None, optional(_scales))
    scale_prior: Prior = setting(Normal(), _continuous)
    centre: float | Sequence[float] | None = setting(None, optional(_numbers))
    width: float | Sequence[float] | None = setting(None, optional(_widths))

    standardises = False

    def check_targets(self, y):
        y = as_floats(check_shape(self, y))
        if not np.all(y > 0):
            raise ValueError(
                f"y must be positive for {type(self).__name__}(); got {plain(y[y <= 0][0])}."
            )
        return y

    def bind(self, y):
        super().bind(y)
        columns = np.log(np.asarray(y, np.float64)).reshape(len(y), -1)
        found = Scaling.learn(columns)
        centre = tuple(found.centre) if self.centre is None else self.centre
        width = tuple(found.scale) if self.width is None else self.width
        for name, value in (("centre", centre), ("width", width)):
            if len(value) not in (1, width_of(y)):  # pyright: ignore[reportArgumentType]
                allowed = f"one number, or one for each of the {width_of(y)} targets of y"
                raise ValueError(must(self._owner, name, allowed, value))
        return replace(self, centre=centre, width=width)

    def _normal(self, outputs: Array, params: Learned | None) -> tuple[Array, Array]:
        """The mean and the standard deviation of log y."""
        location, scale = self.location_scale(outputs, params)
        if self.centre is None or self.width is None:
            raise ValueError("LogNormal() needs centre= and width= before it has seen data.")
        centre, width = (jnp.asarray(value, outputs.dtype) for value in (self.centre, self.width))
        return centre + width * location, width * scale

    def log_prob(self, outputs, y, params=None):
        location, scale = self._normal(outputs, params)
        log_y = jnp.log(like_outputs(self, y, location))
        density = self.noise_log_density((log_y - location) / scale) - jnp.log(scale) - log_y
        return jnp.sum(density, axis=-1)

    def mean(self, outputs, params=None):
        location, scale = self._normal(outputs, params)
        return jnp.exp(location + scale**2 / 2)

    def variance(self, outputs, params=None):
        location, scale = self._normal(outputs, params)
        return jnp.expm1(scale**2) * jnp.exp(2 * location + scale**2)

    def sample(self, key, outputs, params=None):
        location, scale = self._normal(outputs, params)
        return jnp.exp(location + scale * self.noise_sample(key, location.shape, location.dtype))

    def cdf(self, outputs, t, params=None):
        location, scale = self._normal(outputs, params)
        t = points(t, location.dtype)
        tiny = jnp.finfo(location.dtype).tiny
        below = self.noise_cdf((jnp.log(jnp.maximum(t, tiny)) - location) / scale)
        return jnp.where(t > 0, below, jnp.zeros_like(below))
