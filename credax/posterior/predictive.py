r"""Predictions: moments, quantiles and entropies of the mixture over posterior samples.

.. math::
    p(y \mid x, D) \approx \sum_s \omega_s\, p(y \mid x, w_s), \qquad
    \operatorname{Var} y = \underbrace{\operatorname{Var}_w E[y \mid w]}_{\text{epistemic}}
                         + \underbrace{E_w \operatorname{Var}[y \mid w]}_{\text{aleatoric}}

Moments are accumulated sample by sample in blocks of rows, so memory does not grow with the number of samples.

A posterior may replace the network by its linear expansion at a centre (Khan et al., 2019; Immer et al., 2021).
Its outputs are then normal. If the noise is normal as well, so is the prediction, and nothing is sampled:

.. math:: y \sim N\left(f(x, \hat w),\; J \Sigma J^\top + \Sigma_\text{noise}\right)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import ndtr, ndtri, xlogy

from credax.core import random
from credax.core.checks import fraction, integer, must
from credax.core.display import html_table, text_table
from credax.core.rows import Observed, filled_up, observations
from credax.core.typing import Array, Draw
from credax.model import Model, Schema
from credax.model.data import check_array, check_weights
from credax.model.likelihoods import Bernoulli
from credax.model.shapes import flattened
from credax.posterior import closed_form, crps, display, mixture, services
from credax.posterior.approximations import Approximation, Samples
from credax.posterior.mixture import Moments

ROWS = 2048
"""The number of rows in a block: few enough that the activations of a layer stay in the cache."""
SAMPLE_BYTES = 16 << 20
"""The most bytes of sampled parameters that are on the device at the same time."""
SHOWN = 5
"""The number of rows that ``repr`` shows."""
COMPONENTS = 4 << 20
"""The most numbers (samples x rows x outputs) in memory if a result needs all samples together."""


class Predictive:
    """The predictive distribution of each row.

    Fields are arrays of shape ``(rows,)`` if ``y`` was one-dimensional in the fit, else ``(rows, targets)``;
    for a categorical likelihood, ``(rows, classes)``. If rows are divided into positions, these axes come after
    the rows: ``(rows, positions..., classes)``. They are computed when they are first used.

    Args:
      model: the model. If it standardises y, all results are in the units of y nevertheless.
      x: the rows, as the network takes them.
      samples: the samples of the parameters to average over.
      normal: the distribution of the weights if predictions under it may have a closed form.
    """

    def __init__(self, model: Model, x: Any, samples: Samples, normal: Approximation | None = None):
        # Inside, each position is a row of its own; only results have the axes of the positions.
        self._whole, self._model = model, flattened(model)
        self._x, self._samples = x, samples
        divided = self._model is not model
        self._positions: tuple[int, ...] | None = model.schema.positions if divided else None  # pyright: ignore[reportOptionalMemberAccess]
        self._places = math.prod(self._positions or ())
        self._frame = model.frame
        self._normal: Any = jax.device_put(normal) if closed_form.exists(model) else None

    def __repr__(self) -> str:
        title, columns, note = self._table()
        lines = [title, text_table(*columns), note]
        return "\n".join(line for line in lines if line)

    def _repr_html_(self) -> str:
        title, columns, note = self._table()
        return html_table(*columns, title, (note,) if note else ())

    def _table(self) -> tuple[str, tuple[list[str], list[list[str]]], str]:
        """A title, the headings and cells of the first rows, and how many rows more there are."""
        rows = len(self._x)
        here = self if rows <= SHOWN or "_moments" in vars(self) else self._first_rows
        if self._model.likelihood.task != "classification":
            names = ["mean", "std", "epistemic", "aleatoric"]
            columns = [getattr(here, name) for name in names]
        else:
            names = ["entropy", "mutual information"]
            columns = [here.entropy, here.mutual_information]
            if self._several_labels:
                names, columns = ["mean", *names], [here.mean, *columns]
            else:
                names = ["label", "probability", *names]
                columns = [here.label, np.max(here.probs, axis=-1), *columns]
        shown = range(min(rows, SHOWN))
        cells = [[str(row), *(display.cell(column[row]) for column in columns)] for row in shown]
        how = "in closed form"
        if self._normal is None:
            how = f"averaged over {display.count(self._samples.count, 'samples')}"
        more = f"... {display.count(rows - SHOWN, 'more rows')}" if rows > SHOWN else ""
        return f"Predictive({display.count(rows, 'rows')}, {how})", (["", *names], cells), more

    def head(self, rows: int) -> Predictive:
        """The predictions of the first rows, with the same samples and the moments that are known."""
        if rows >= len(self._x):
            return self
        result = Predictive(self._whole, self._x[:rows], self._samples, self._normal)
        if "_moments" in vars(self):
            places, total = rows * self._places, len(self._x) * self._places
            every = lambda a: a[:places] if len(a) == total else a  # noqa: E731
            vars(result)["_moments"] = Moments(*map(every, self._moments))
        return result

    @cached_property
    def _first_rows(self) -> Predictive:
        """The predictions of the rows that ``repr`` shows, so that it does not compute all of them."""
        return Predictive(self._whole, self._x[:SHOWN], self._samples, self._normal)

    def plot(self, x: Any = None, y: Any = None, *, kind: str | None = None, **options: Any) -> Any:
        """Draw the predictions with matplotlib (``pip install 'credax[plot]'``); returns the Axes.

        Args:
          x: one input, to draw over: a number for each row.
          y: the true values or classes.
          kind: one of the functions of ``cx.plots``: ``"intervals"``, ``"predicted"``, ``"calibration"``,
            ``"uncertainty"`` or ``"probabilities"``. If ``None``, intervals or probabilities; if there is a
            ``y`` and no ``x``, a comparison with it: predicted against true values, or calibration.
          **options: other arguments of that function, such as ``ax``.
        """
        self._whole.check_undivided("plot")
        return services.plot_predictive(self, x, y, kind, **options)

    # -- every likelihood -------------------------------------------------------------------------

    @property
    def positions(self) -> tuple[int, ...] | None:
        """The lengths of the axes of positions; ``None`` if rows are not divided."""
        return self._positions

    @property
    def mean(self) -> np.ndarray:
        """E[y]; for classification, the probability of each class."""
        return self._shaped(self._frame.value_of_y(self._moments.mean))

    @property
    def epistemic(self) -> np.ndarray:
        """Var_w E[y | w]: the part of the variance that more data would reduce."""
        return self._shaped(self._frame.width_in_y(self._moments.spread, 2))

    @property
    def aleatoric(self) -> np.ndarray:
        """E_w Var[y | w]: the part of the variance that remains however much data there is."""
        return self._shaped(self._frame.width_in_y(self._moments.variance, 2))

    @property
    def variance(self) -> np.ndarray:
        """The variance of y: the sum of its epistemic and its aleatoric part."""
        return self.epistemic + self.aleatoric

    @property
    def std(self) -> np.ndarray:
        """The standard deviation of y: the square root of the variance."""
        return np.sqrt(self.variance)

    def log_prob(self, y: Any, *, weights: Any = None, joint: bool = False) -> np.ndarray:
        """The log density of each row's target under the mixture: the log of the mean density, ``(rows,)``.

        If rows are divided into positions, it is that of each position, ``(rows, positions...)``.

        Args:
          y: the targets.
          weights: the weights of the rows, or of the positions. Where one is zero, the result is zero, and the
            target at a position may be anything. Other weights change only a joint density.
          joint: whether to return the density of all positions of a row together, ``(rows,)``: the log of the
            mean over the samples of the product over the positions, each to the power of its weight.
        """
        targets = self._whole.likelihood_targets(y, len(self._x), weights)
        start = partial(np.full, fill_value=-np.inf, dtype=np.dtype(jnp.result_type(float)))
        if joint:
            found = self._stream(mixture.add_log_density, start, targets, whole=True)
            counts = observations(targets)
            return found - self._frame.log_scale * (1 if counts is None else np.asarray(counts))
        if self._normal is not None:
            found = self._blocks(
                partial(closed_form.log_density, self._model, self._normal), targets
            )
        else:
            found = self._stream(mixture.add_log_density, start, targets)
        found = self._by_position(found - self._frame.log_scale)
        if weights is None:
            return found
        weights = check_array("weights", weights)
        if weights.shape != found.shape:
            weights = check_weights(weights, len(found)).reshape(-1, *[1] * (found.ndim - 1))  # pyright: ignore[reportOptionalMemberAccess]
        return np.where(weights > 0, found, np.zeros_like(found))

    @cached_property
    def outputs(self) -> np.ndarray:
        """The network's outputs for every sample, ``(samples, rows, outputs)``, which may be large."""
        blocks = [np.asarray(block[0])[:, :rows] for block, rows, _ in self._components(ROWS)]
        return self._by_position(np.concatenate(blocks, axis=1), 1)

    @cached_property
    def means(self) -> np.ndarray:
        """E[y | w] for every sample, ``(samples, rows, targets or classes)``, which may be large."""
        found = [
            np.asarray(mixture.each_mean(self._model, components))[:, :rows]
            for components, rows, _ in self._components(ROWS)
        ]
        return self._by_position(self._frame.value_of_y(np.concatenate(found, axis=1)), 1)

    @property
    def log_weights(self) -> np.ndarray:
        """The normalised log weight of every sample, ``(samples,)``."""
        return self._samples.log_weights

    def log_probs(self, y: Any) -> np.ndarray:
        """log p(y | w) of each row's target for every sample, ``(samples, rows)``."""
        y = self._flat_targets(y)
        found = []
        for components, rows, begin in self._components(ROWS):
            here = _pad(y[begin : begin + rows], components[0].shape[1])
            found.append(np.asarray(mixture.each_log_prob(self._model, components, here))[:, :rows])
        return self._by_position(np.concatenate(found, axis=1) - self._frame.log_scale, 1)

    def sample(self, key: Any, n: int) -> np.ndarray:
        """Draws of y from the predictive distribution, ``(n, rows)`` or ``(n, rows, targets)``."""
        n = integer("sample", "n", n)
        which_key, noise_key = jax.random.split(random.key(key))
        if (
            self._normal is not None
        ):  # n new draws of the weights, so that the result is exactly normal
            fresh = Predictive(self._whole, self._x, self._normal.samples(which_key, n))
            found, which = fresh._components(ROWS), jnp.arange(n)
        else:
            log_weights = jnp.asarray(self._samples.log_weights)
            which = jax.random.categorical(which_key, log_weights, shape=(n,))
            found = self._components(ROWS)
        blocks = []
        for i, (components, rows, _) in enumerate(found):
            keys = jax.random.split(jax.random.fold_in(noise_key, i), n)
            drawn = mixture.sample_targets(
                self._model, keys, jax.tree.map(lambda a: a[which], components)
            )
            blocks.append(np.asarray(drawn)[:, :rows])
        result = np.concatenate(blocks, axis=1)
        if result.ndim == 2:  # one class per row or position
            result = self._by_position(result, 1)
            return result if self._schema.targets is None else result[..., None]
        return self._shaped(self._frame.value_of_y(result))

    # -- regression and counts --------------------------------------------------------------------

    def quantile(self, q: Any) -> np.ndarray:
        """Quantiles of y under the mixture, not of E[y | w].

        Args:
          q: the levels, each between 0 and 1. The result has the shape of ``q``, then that of ``mean``.
        """
        self._only("quantile", classification=False)
        levels = _floats("quantile", "q", "between 0 and 1, both excluded", q)
        # Checked after rounding: no distribution here has finite ends, so the levels 0 and 1 have no quantile.
        rounded = levels.astype(jnp.result_type(float))
        if levels.size == 0 or not np.all((rounded > 0) & (rounded < 1)):
            raise ValueError(must("quantile", "q", "between 0 and 1, both excluded", q))
        if self._normal is not None:
            spread = ndtri(levels)[(..., *(None,) * self._moments.mean.ndim)] * np.sqrt(self._total)
            found = (self._moments.mean + spread).astype(self._total.dtype)
            return self._shaped(self._frame.value_of_y(found))
        blocks = []
        for components, count, begin in self._components(self._rows_at_once):
            size, here = components[0].shape[1], slice(begin, begin + count)
            moments = [_pad(a[here], size) for a in (self._moments.mean, self._total)]
            log_weights = self._samples.log_weights
            found = mixture.quantiles(
                self._model, components, log_weights, moments, np.ravel(levels)
            )
            blocks.append(np.asarray(found)[:, :count])
        result = np.concatenate(blocks, axis=1)
        result = result.reshape(*levels.shape, *result.shape[1:])
        return self._shaped(self._frame.value_of_y(result))

    def interval(self, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that contains y with probability ``level``: its lower and upper ends."""
        level = fraction("interval", "level", level)
        lower, upper = self.quantile([(1 - level) / 2, (1 + level) / 2])
        return lower, upper

    def cdf(self, t: Any) -> np.ndarray:
        """P(y <= t) for each target.

        Args:
          t: an array of the shape of ``mean``; or several of them, stacked along leading axes.
        """
        self._only("cdf", classification=False)
        mean = self._moments.mean
        t = _floats("cdf", "t", f"numbers of shape (..., {self.mean.shape})", t)
        if t.shape[t.ndim - self.mean.ndim :] != self.mean.shape:
            raise ValueError(must("cdf", "t", f"of shape (..., {self.mean.shape})", t))
        stacked = self._frame.standard_y(t.reshape(-1, *mean.shape)).astype(mean.dtype)
        if self._normal is not None:
            found = ndtr((stacked - mean) / np.sqrt(self._total))
            return found.reshape(t.shape).astype(mean.dtype)
        blocks = []
        for components, count, begin in self._components(self._rows_at_once):
            here = np.moveaxis(stacked[:, begin : begin + count], 1, 0)
            here = jnp.moveaxis(_pad(here, components[0].shape[1]), 0, 1)
            found = mixture.cdf(self._model, components, self._samples.log_weights, here)
            blocks.append(np.asarray(found)[:, :count])
        return np.concatenate(blocks, axis=1).reshape(t.shape)

    def crps(self, y: Any, *, weights: Any = None) -> np.ndarray:
        r"""The continuous ranked probability score of each target, in the units of y: lower is better.

        .. math:: \int \bigl( P(y' \le t) - 1[y \le t] \bigr)^2 \,\mathrm{d}t

        (Gneiting & Raftery, 2007.)

        Args:
          y: the targets.
          weights: the weights of positions. Where one is zero, the target may be anything, and so is the score.
        """
        self._only("crps", classification=False)
        y = self._flat_targets(y, weights).reshape(self._moments.mean.shape)
        if self._normal is not None:
            found = crps.normal(y, self._moments.mean, np.sqrt(self._total))
            return self._shaped(self._frame.width_in_y(found))
        blocks = []
        for components, count, begin in self._components(max(1, self._rows_at_once // crps.POINTS)):
            here = _pad(y[begin : begin + count], components[0].shape[1])
            log_weights = self._samples.log_weights
            found = crps.mixture(self._model.likelihood, components, log_weights, here)
            blocks.append(np.asarray(found)[:count])
        return self._shaped(self._frame.width_in_y(np.concatenate(blocks)))

    # -- classification ---------------------------------------------------------------------------

    @property
    def probs(self) -> np.ndarray:
        """The probability of each class, ``(rows, classes)``."""
        self._only("probs", classification=True)
        mean = self._moments.mean
        if not isinstance(self._model.likelihood, Bernoulli):
            return self._by_position(mean)
        if self._several_labels:
            raise AttributeError(
                f"probs is for one label per row; y has {mean.shape[1]}. Use mean: the probability that "
                "each label is 1."
            )
        return self._by_position(np.concatenate([1 - mean, mean], axis=1))

    @property
    def label(self) -> np.ndarray:
        """The most probable class of each row, or of each position."""
        return np.argmax(self.probs, axis=-1)

    @property
    def entropy(self) -> np.ndarray:
        """The entropy of the class probabilities in nats: the total uncertainty of each row.

        If a row has several labels, their entropies are added, as in ``expected_entropy``.
        """
        self._only("entropy", classification=True)
        probs = self._moments.mean
        if isinstance(self._model.likelihood, Bernoulli):
            probs = np.concatenate([1 - probs, probs], axis=1)
        return self._by_position(-np.sum(xlogy(probs, probs), axis=1))

    @property
    def expected_entropy(self) -> np.ndarray:
        """The entropy of p(class | x, w), averaged over w: the aleatoric part of the entropy."""
        self._only("expected_entropy", classification=True)
        return self._by_position(self._moments.entropy)

    @property
    def mutual_information(self) -> np.ndarray:
        """The mutual information of class and weights, entropy - expected entropy: the epistemic part."""
        return np.maximum(self.entropy - self.expected_entropy, 0)

    # -- computation -------------------------------------------------------------------------------

    @cached_property
    def _moments(self) -> Moments:
        """The moments of all rows after the last sample, on the host."""
        if self._normal is not None:
            return Moments(*self._blocks(partial(closed_form.moments, self._model, self._normal)))
        return self._stream(mixture.add_moments, partial(mixture.no_moments, self._model))

    @property
    def _several_labels(self) -> bool:
        """Whether each row has several labels, each of which is 0 or 1."""
        return isinstance(self._model.likelihood, Bernoulli) and self._schema.outputs > 1

    @property
    def _rows_at_once(self) -> int:
        """The number of rows of which the outputs for all samples fit in memory (see ``COMPONENTS``)."""
        rows = max(1, COMPONENTS // (self._samples.count * self._places * self._schema.outputs))
        return min(ROWS, 1 << rows.bit_length() - 1)

    @property
    def _total(self) -> np.ndarray:
        return self._moments.spread + self._moments.variance

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Values ``(..., rows, targets)``, without the axis of targets if y had none."""
        axis = values.ndim - 2
        if self._schema.targets is None and values.shape[-1] == 1:
            values = values[..., 0]
        return self._by_position(values, axis)

    def _by_position(self, values: np.ndarray, axis: int = 0) -> np.ndarray:
        """Values of which one axis runs over all positions, with an axis for rows and those of positions."""
        if self._positions is None:
            return values
        before, after = values.shape[:axis], values.shape[axis + 1 :]
        return values.reshape(*before, len(self._x), *self._positions, *after)

    def _flat_targets(self, y: Any, weights: Any = None) -> np.ndarray:
        """The targets as the likelihood takes them, one position after the other."""
        y = self._whole.likelihood_targets(y, len(self._x), weights)
        return y.flat if isinstance(y, Observed) else y

    @property
    def _schema(self) -> Schema:
        assert self._model.schema is not None, "only a bound model predicts"
        return self._model.schema

    def _only(self, name: str, *, classification: bool) -> None:
        if (self._model.likelihood.task == "classification") != classification:
            kind = "classes" if classification else "numbers"
            likelihood = type(self._model.likelihood).__name__
            raise AttributeError(
                f"{name} is for predictions of {kind}; the likelihood is {likelihood}."
            )

    def _stream(
        self, update: Callable, start: Callable[[int], Any], *rows: Any, whole: bool = False
    ) -> Any:
        """Fold ``update`` over all samples, for all rows, or for all positions of all rows.

        Args:
          update: a function of the likelihood, a carry, a log weight, outputs, parameters and ``rows``.
          start: the first carry for a number of rows.
          *rows: arrays that belong to the rows, such as their targets.
          whole: whether the positions of a row are kept together.
        """
        model, places = (self._whole, 1) if whole else (self._model, self._places)
        size = self._block_rows
        blocks = [
            [_pad(a[begin : begin + size], size) for a in (self._x, *rows)]
            for begin in range(0, len(self._x), size)
        ]
        if not whole:
            blocks = [[a.flat if isinstance(a, Observed) else a for a in block] for block in blocks]
        carries: list[Any] = [start(size * places) for _ in blocks]
        total = len(self._x) * places
        for draws, log_weights in self._pieces():
            # Pieces must not pile up: while this one was taken, the one before was in use.
            jax.block_until_ready(carries)
            for i, block in enumerate(blocks):
                carries[i] = mixture.fold(
                    model,
                    update,
                    carries[i],
                    draws,
                    log_weights,
                    self._samples.centre,
                    *block,
                )
        join = lambda *parts: np.concatenate([np.atleast_1d(p) for p in parts])[:total]  # noqa: E731
        return jax.tree.map(join, *carries)

    @property
    def _block_rows(self) -> int:
        """The number of rows in a block."""
        return min(max(1, ROWS // self._places), 1 << (len(self._x) - 1).bit_length())

    def _blocks(self, function: Callable, *rows: np.ndarray) -> Any:
        """The result of a function of ``x`` and of other arrays of the rows, computed block by block."""
        total = len(self._x)
        size = min(ROWS, 1 << (total - 1).bit_length())
        parts = [
            function(*(_pad(a[begin : begin + size], size) for a in (self._x, *rows)))
            for begin in range(0, total, size)
        ]
        return jax.tree.map(lambda *each: np.concatenate(each)[:total], *parts)

    def _pieces(self) -> Iterator[tuple[Draw, np.ndarray]]:
        """The samples in pieces of equal size that fit on the device; samples that fill up have weight zero."""
        count = self._samples.count
        # Only the shapes of a sample are needed, not a program that draws it.
        first = jax.eval_shape(lambda: self._samples.take(0, 1))
        one = sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(first))
        pieces = -(-count * one // SAMPLE_BYTES)
        size = -(-count // max(pieces, 1))
        dtype = np.dtype(jnp.result_type(float))
        for begin in range(0, count, size):
            log_weights = np.full(size, -np.inf, dtype)
            part = self._samples.log_weights[begin : begin + size]
            log_weights[: len(part)] = part
            yield jax.device_put((self._samples.take(begin, begin + size), log_weights))

    def _components(self, size: int) -> Iterator[tuple[tuple[Array, Any], int, int]]:
        """For each block of rows: outputs and likelihood parameters of all samples, row count, first row.

        Rows are counted by their positions if they are divided.
        """
        total = len(self._x)
        size = min(size, self._block_rows)
        for begin in range(0, total, size):
            x = self._x[begin : begin + size]
            parts: list[Any] = []
            for draws, _ in self._pieces():
                jax.block_until_ready(parts[-1:])
                found = mixture.outputs(self._model, draws, self._samples.centre, _pad(x, size))
                parts.append(found)
            joined = jax.tree.map(lambda *a: jnp.concatenate(a)[: self._samples.count], *parts)
            yield joined, len(x) * self._places, begin * self._places


def _floats(owner: str, name: str, allowed: str, value: Any) -> np.ndarray:
    """The value as numbers in double precision."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise TypeError(must(owner, name, allowed, value)) from None


_pad = filled_up  # so that few shapes are compiled


def mean_log_prob(predictive: Any, y: Any, weights: Any = None) -> float:
    """The mean log density of the targets, over the positions if rows are divided into them, by weight."""
    if weights is None:
        return float(np.average(predictive.log_prob(y)))
    if not isinstance(predictive, Predictive):  # of several heads
        found = predictive.log_prob(y, weights=weights)
        return float(np.average(found, weights=None if isinstance(weights, Mapping) else weights))
    found = predictive.log_prob(y, weights=weights)
    each = np.asarray(weights, np.float64)
    each = each if each.shape == found.shape else each.reshape(-1, *[1] * (found.ndim - 1))
    return float(np.average(found, weights=np.broadcast_to(each, found.shape)))
