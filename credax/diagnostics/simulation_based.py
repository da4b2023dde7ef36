"""Simulation-based calibration: a test of whether a method finds the correct posterior (Talts et al., 2018)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.progress import track
from scipy import stats

from credax.core import random
from credax.core.checks import integer, must
from credax.core.errors import PosteriorWarning
from credax.core.precision import widened
from credax.core.typing import Array, Draw, Key, Params
from credax.fit import fit
from credax.model import Model
from credax.model.data import ArrayData, Batch
from credax.posterior.approximations import Approximation, Draws

if TYPE_CHECKING:
    from credax.inference.method import Method

Quantity = Callable[[Params, Array, Array], Array]
"""``quantity(params, x, y)``: a scalar function of the weights and, optionally, of the data."""
LEVEL = 0.01
"""The p-value below which the ranks are reported as uneven, i.e. the method as miscalibrated."""
CORRELATED = 0.2
"""The correlation of neighbouring draws above which even a correct method gives uneven ranks."""
BINS = 10
"""Number of bins of the chi-square test. More bins detect draws that are too narrow equally well, but draws
that are shifted or too wide less often."""
BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True, eq=False, repr=False)
class Ranks:
    """The ranks of the true values among the posterior draws, uniform if the method is correct.

    It prints as a summary with a histogram for each quantity.

    Attributes:
      names: the names of the quantities.
      ranks: the ranks, ``(simulation, quantity)``, from 0 to ``num_draws``.
      num_draws: the number of draws of each posterior among which the true value is ranked.
      correlation: the correlation of neighbouring draws of each quantity, averaged over the simulations.
      warned: the warnings issued by the fits.
    """

    names: tuple[str, ...]
    ranks: np.ndarray
    num_draws: int
    correlation: np.ndarray
    warned: tuple[str, ...] = ()

    @property
    def histogram(self) -> np.ndarray:
        """The number of ranks in each bin, ``(bin, quantity)``."""
        edges = self._edges
        return np.stack([np.histogram(ranks, edges)[0] for ranks in self.ranks.T], axis=1)

    @property
    def expected(self) -> np.ndarray:
        """The expected number of uniform ranks in each bin, ``(bin,)``."""
        return len(self.ranks) * np.diff(self._edges) / (self.num_draws + 1)

    @property
    def p_values(self) -> dict[str, float]:
        """For each quantity, the p-value of a chi-square test for uniform ranks."""
        tests = stats.chisquare(self.histogram, self.expected[:, None])
        return dict(zip(self.names, tests.pvalue.tolist(), strict=True))

    @property
    def p_value(self) -> float:
        """The p-value for all quantities together: the smallest one times their number (Bonferroni)."""
        return min(1.0, len(self.names) * min(self.p_values.values()))

    @property
    def _edges(self) -> np.ndarray:
        """The edges of the bins: ten bins, or fewer so that at least five ranks are expected in each."""
        count = int(np.clip(len(self.ranks) // 5, 2, min(BINS, self.num_draws + 1)))
        return np.round(np.linspace(0, self.num_draws + 1, count + 1)) - 0.5

    def __repr__(self) -> str:
        verdict = "uneven" if self.p_value < LEVEL else "even, as they should be"
        head = f"{len(self.ranks)} simulations, ranks among {self.num_draws} draws: {verdict}"
        lines = [f"{head} (p = {self.p_value:.2g} for all quantities together)."]
        width = max(map(len, self.names))
        for name, p, counts, ranks in zip(
            self.names, self.p_values.values(), self.histogram.T, self.ranks.T, strict=True
        ):
            bars = "".join(BARS[int(count * 7.99 / max(counts.max(), 1))] for count in counts)
            uneven = p < LEVEL / len(self.names)
            how = f"  {_shape((ranks + 0.5) / (self.num_draws + 1))}" if uneven else ""
            lines.append(f"  {name:<{width}}  {bars}  p = {p:.2g}{how}")
        if self.correlation.max() > CORRELATED:
            name = self.names[int(self.correlation.argmax())]
            lines.append(
                f"Neighbouring draws are correlated ({self.correlation.max():.2f} for {name}), which alone "
                "makes ranks uneven: thin the chains more (thin), or rank among fewer draws (num_draws)."
            )
        if self.warned:
            lines.append(f"The fits gave {len(self.warned)} warnings, the first: {self.warned[0]}")
        return "\n".join(lines)


def simulation_based_calibration(
    model: Model,
    data: Any,
    method: Method,
    *,
    key: Any = 0,
    num_simulations: int = 100,
    num_draws: int = 99,
    quantities: Mapping[str, Quantity] | None = None,
    progress: bool = True,
) -> Ranks:
    r"""Fit data sets simulated from the model, and rank the true weights among the posterior draws.

    .. math:: w \sim p(w), \quad D \sim p(D \mid w), \quad w_1, \dots, w_L \sim p(w \mid D)
    .. math:: \#\{l : q(w_l) < q(w)\} \sim \operatorname{Uniform}\{0, \dots, L\}

    for any scalar quantity q, since the true weights and exact posterior draws have the same distribution given
    D. A method whose draws are too narrow, too wide or shifted gives ranks that are not uniform.

    Args:
      model: a model whose prior can be sampled.
      data: ``(x, y)`` as for ``fit``; of ``y`` only the shape and the number of classes are used.
      method: the method under test. Chains should be thinned until their draws are nearly uncorrelated.
      key: an int or a JAX key.
      num_simulations: the number of simulated data sets, each of which is fitted once.
      num_draws: L, the number of draws of each posterior that are used; if a chain keeps more, evenly spaced
        ones are taken.
      quantities: a mapping of names to functions ``quantity(params, x, y)`` that return a scalar. If ``None``,
        the outputs of the network at three rows, the log prior and the log likelihood. Individual weights are a
        hard test if hidden units can be permuted, since a correct method must then visit every permutation.
      progress: whether to show a progress bar.
    """
    owner = "simulation_based_calibration"
    if not isinstance(model, Model):
        raise TypeError(must(owner, "model", "a cx.Model, whose prior can be sampled", model))
    num_simulations = integer(owner, "num_simulations", num_simulations, minimum=10)
    num_draws = integer(owner, "num_draws", num_draws)
    bound, rows = model.prepare(data)
    bound = bound.of_standard_data()  # the simulated targets are in its units
    chosen = _default_quantities(bound, rows) if quantities is None else _checked(quantities)
    simulate_key, fit_key, thin_key, tie_key = jax.random.split(random.key(key), 4)
    truths, targets = jax.device_get(_simulate(bound, num_simulations, simulate_key, rows))
    fit_keys = jax.random.split(fit_key, num_simulations)
    thin_keys = jax.random.split(thin_key, num_simulations)
    evaluate = jax.jit(
        jax.vmap(partial(_evaluate, tuple(chosen.values())), in_axes=(0, None, None))
    )
    x, state = np.asarray(rows.x), jax.device_get(bound.init_state())

    values, warned = [], []
    simulations = track(
        range(num_simulations),
        f"{type(method).__name__} on simulated data",
        console=Console(stderr=True),
        disable=not progress,
    )
    for i in simulations:
        with _collected(warned):
            posterior = fit(bound, (x, targets[i]), method, key=fit_keys[i], progress=False)
        draws = _thinned(posterior.approximation, thin_keys[i], num_draws)
        truth = Draw(jax.tree.map(lambda leaf: leaf[i], truths), state)  # noqa: B023  (used at once)
        together = jax.tree.map(lambda a, b: np.concatenate([a[None], b]), truth, draws)
        values.append(np.asarray(evaluate(together, x, targets[i])))
    values = np.stack(values)  # (simulation, truth and draws, quantity)
    if not np.isfinite(values).all():
        name = list(chosen)[int(np.argwhere(~np.isfinite(values))[0, 2])]
        raise ValueError(f"{owner}(quantities=...) must be finite; {name!r} is not.")
    truth, drawn = values[:, :1], values[:, 1:]
    below, ties = (drawn < truth).sum(1), (drawn == truth).sum(1)
    uniform = np.asarray(jax.random.uniform(tie_key, below.shape))
    ranks = below + np.minimum((uniform * (ties + 1)).astype(int), ties)
    return Ranks(tuple(chosen), ranks, num_draws, _correlation(drawn), tuple(warned))


# -- the simulations --------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("model", "count"))
def _simulate(model: Model, count: int, key: Key, rows: ArrayData) -> tuple[Params, Array]:
    """Samples of the weights from the prior and, for each of them, of the targets at the given rows."""

    def one(key):
        weights_key, noise_key = jax.random.split(key)
        params = model.sample_prior(weights_key)
        network, learned = model.split(params)
        outputs = widened(model.network.apply(network, rows.x, model.init_state()))
        y = model.likelihood.sample(noise_key, outputs, learned)
        return params, y.reshape(rows.y.shape).astype(rows.y.dtype)

    return jax.lax.map(one, jax.random.split(key, count))


@contextmanager
def _collected(warned: list[str]) -> Iterator[None]:
    """Collect the warnings about posteriors in a list, and let all other warnings through."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", PosteriorWarning)
        yield
    for warning in caught:
        if issubclass(warning.category, PosteriorWarning):
            warned.append(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _thinned(approximation: Approximation, key: Key, count: int) -> Draw:
    """``count`` draws: evenly spaced along chains, or independent samples of any other approximation."""
    if not isinstance(approximation, Draws) or approximation.log_weights is not None:
        return jax.device_get(approximation.sample(key, count))
    total = approximation.shape[0] * approximation.shape[1]
    if count > total:
        allowed = f"at most the number of draws that the method keeps, {total}"
        raise ValueError(must("simulation_based_calibration", "num_draws", allowed, count))
    chosen = ((np.arange(count) + 0.5) * total / count).astype(int)
    draws = Draw(approximation.params, approximation.state)
    return jax.tree.map(lambda leaf: np.reshape(leaf, (total, *leaf.shape[2:]))[chosen], draws)


# -- the quantities ---------------------------------------------------------------------------------


def _evaluate(
    quantities: tuple[Callable[..., Array], ...], draw: Draw, x: Array, y: Array
) -> Array:
    dtype = jnp.result_type(float)
    return jnp.stack([jnp.asarray(quantity(draw, x, y), dtype) for quantity in quantities])


def _checked(
    quantities: Mapping[str, Quantity],
) -> dict[str, Callable[[Draw, Array, Array], Array]]:
    if not isinstance(quantities, Mapping) or not quantities:
        allowed = "a mapping of names to functions of (params, x, y)"
        raise TypeError(must("simulation_based_calibration", "quantities", allowed, quantities))
    return {
        name: lambda draw, x, y, quantity=quantity: quantity(draw.params, x, y)
        for name, quantity in quantities.items()
    }


def _default_quantities(
    model: Model, rows: ArrayData
) -> dict[str, Callable[[Draw, Array, Array], Array]]:
    def output(row, column, draw, x, y):
        return model.network.apply(model.split(draw.params)[0], x[row : row + 1], draw.state)[
            0, column
        ]

    def log_likelihood(draw, x, y):
        batch = Batch(x, y, jnp.ones((), jnp.result_type(float)), jnp.zeros((), jnp.int32), 1)
        return model.log_likelihood(draw.params, batch, state=draw.state)

    assert model.schema is not None, "the model is bound by prepare"
    places = dict.fromkeys([0, rows.rows // 2, rows.rows - 1])
    outputs = {
        f"output {column} at row {row}": partial(output, row, column)
        for row, column in zip(places, (i % model.schema.outputs for i in range(3)), strict=False)
    }
    return {
        **outputs,
        "log prior": lambda draw, x, y: model.log_prior(draw.params),
        "log likelihood": log_likelihood,
    }


# -- interpretation of the ranks --------------------------------------------------------------------


def _correlation(drawn: np.ndarray) -> np.ndarray:
    """The correlation between successive draws, averaged over the simulations, ``(quantity,)``."""
    away = drawn - drawn.mean(1, keepdims=True)
    scale = np.maximum((away**2).sum(1), np.finfo(drawn.dtype).tiny)
    return ((away[:, 1:] * away[:, :-1]).sum(1) / scale).mean(0)


def _shape(uniform: np.ndarray) -> str:
    """A description of how normalised ranks, between 0 and 1, deviate from uniform ones."""
    count = len(uniform)
    shift = (uniform.mean() - 0.5) * np.sqrt(12 * count)
    # The mean of (u - 1/2)^2 is 1/12, its variance 1/180.
    spread = (np.mean((uniform - 0.5) ** 2) - 1 / 12) * np.sqrt(180 * count)
    if abs(shift) > abs(spread):
        return "the draws are too low" if shift > 0 else "the draws are too high"
    return "the draws are too narrow" if spread > 0 else "the draws are too wide"
