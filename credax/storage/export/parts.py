"""The computations of one posterior for a block of rows, as programs that can be called from other programs.

Everything here is computed in the precision of the fit, and in the units of the model: a model that
standardises its data gets standardised rows, and its results are those of standardised targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.scipy.special import ndtr
from scipy.special import ndtri

from credax.core import random
from credax.core.typing import Array, Draw, PyTree
from credax.model import Model
from credax.posterior import closed_form, mixture
from credax.posterior.posterior import Posterior

BLOCK = 64
"""The number of rows in a block: few, so that a request for one row costs little."""


class Summary(NamedTuple):
    """What a block of rows gives."""

    mean: Array
    epistemic: Array
    aleatoric: Array
    entropy: Array  # that of p(class | x, w), averaged over w; zeros if y is no class
    quantiles: Array  # (levels, rows, targets); of no levels if y is a class
    components: PyTree  # what ``cdf`` needs


@dataclass(frozen=True, eq=False)
class Part:
    """One posterior, taken apart into arrays and programs.

    Attributes:
      model: the model.
      arrays: the samples that predictions average over, their log weights, the centre of a linear expansion
        and, if predictions have a closed form, the distribution of the weights instead.
      levels: the levels of the quantiles; none for classes.
      integers: whether the rows are whole numbers.
      platforms: the platforms that the programs are for.
      dtype: the float type in which predictions are computed.
    """

    model: Model
    arrays: dict[str, Any]
    levels: tuple[float, ...]
    integers: bool
    platforms: tuple[str, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, posterior: Posterior, num_samples: int | None, key: Any, **options: Any) -> Part:
        """The part with the samples that ``posterior.predict`` averages over."""
        samples = posterior.approximation.samples(random.key(key), num_samples)
        dtype = np.dtype(jnp.result_type(float))
        model: Any = posterior.model
        if num_samples is None and samples.centre is not None and closed_form.exists(model):
            arrays: dict[str, Any] = {"normal": posterior.approximation}
        else:
            arrays = {
                "draws": samples.take(0, samples.count),
                "log_weights": samples.log_weights.astype(dtype),
                "centre": samples.centre,
            }
        return cls(model, jax.tree.map(np.asarray, arrays), dtype=dtype, **options)

    @cached_property
    def leaves(self) -> list[np.ndarray]:
        """The arrays, which are arguments of every program."""
        return jax.tree.leaves(self.arrays)

    # -- the programs -------------------------------------------------------------------------------

    @cached_property
    def summary(self) -> Callable[..., Summary]:
        """A program of the arrays and of rows."""
        return self._program(self._summary, self._rows)

    @cached_property
    def cdf(self) -> Callable[..., Array]:
        """A program of the arrays, of the components of a summary and of values of y for each level."""
        found = jax.eval_shape(self._summary, self.arrays, self._rows)
        return self._program(self._cdf, found.components, found.quantiles)

    def chosen(self, count: int) -> Callable[..., Draw]:
        """A program of the arrays and a key, which chooses the weights of some draws of y."""
        key = jax.ShapeDtypeStruct((2,), np.uint32)
        return self._program(lambda arrays, key: self._chosen(arrays, key, count), key)

    def draws(self, count: int) -> Callable[..., Array]:
        """A program of the arrays, chosen weights, rows, a key and the number of the block: draws of y."""
        key, block = (jax.ShapeDtypeStruct(shape, np.uint32) for shape in ((2,), ()))
        weights = jax.eval_shape(
            lambda arrays, key: self._chosen(arrays, key, count), self.arrays, key
        )
        return self._program(self._draws, weights, self._rows, key, block)

    @property
    def _rows(self) -> jax.ShapeDtypeStruct:
        model: Any = self.model
        shape = model.frame.network_shape(model.schema.input_shape)
        dtype = np.int32 if self.integers else self.dtype
        return jax.ShapeDtypeStruct((BLOCK, *shape), dtype)

    def _program(self, function: Callable[..., Any], *like: Any) -> Callable[..., Any]:
        tree = jax.tree.structure(self.arrays)

        def of_leaves(leaves: Sequence[Array], *given: Any) -> Any:
            return function(jax.tree.unflatten(tree, leaves), *given)

        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.leaves]
        return export.export(jax.jit(of_leaves), platforms=self.platforms)(shapes, *like).call

    # -- what they compute --------------------------------------------------------------------------

    def _summary(self, arrays: dict[str, Any], x: Array) -> Summary:
        levels = np.array(self.levels, self.dtype)
        if "normal" in arrays:
            moments = mixture.Moments(*closed_form.moments(self.model, arrays["normal"], x))
            components = moments.mean, moments.spread + moments.variance
            z = ndtri(np.array(self.levels)).astype(levels.dtype)[:, None, None]
            quantiles = moments.mean + z * jnp.sqrt(components[1])
        else:
            draws, log_weights, centre = (
                arrays[name] for name in ("draws", "log_weights", "centre")
            )
            start = mixture.no_moments(self.model, len(x))
            moments = mixture.fold(
                self.model, mixture.add_moments, start, draws, log_weights, centre, x
            )
            components, quantiles = (), jnp.zeros((0, *moments.mean.shape), moments.mean.dtype)
            if self.levels:
                components = mixture.outputs(self.model, draws, centre, x)
                spread = [moments.mean, moments.spread + moments.variance]
                quantiles = mixture.quantiles(self.model, components, log_weights, spread, levels)
        return Summary(
            *(moments.mean, moments.spread, moments.variance, moments.entropy),
            *(quantiles, components),
        )

    def _cdf(self, arrays: dict[str, Any], components: Any, t: Array) -> Array:
        if "normal" in arrays:
            mean, variance = components
            return ndtr((t - mean) / jnp.sqrt(variance))
        return mixture.cdf(self.model, components, arrays["log_weights"], t)

    def _chosen(self, arrays: dict[str, Any], key: Array, count: int) -> Draw:
        if "normal" in arrays:  # new weights, so that the draws of y are exactly normal
            return arrays["normal"].samples(random.key(key), count).take(0, count)
        which = jax.random.categorical(random.key(key), arrays["log_weights"], shape=(count,))
        return jax.tree.map(lambda leaf: leaf[which], arrays["draws"])

    def _draws(
        self, arrays: dict[str, Any], weights: Draw, x: Array, key: Array, block: Array
    ) -> Array:
        centre = arrays["normal"].centre if "normal" in arrays else arrays["centre"]
        components = lax.map(mixture.applied(self.model, centre, x), weights)
        count = len(jax.tree.leaves(components)[0])
        keys = jax.random.split(jax.random.fold_in(random.key(key), block), count)
        return mixture.sample_targets(self.model, keys, components)
