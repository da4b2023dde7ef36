r"""Convergence of Markov chains: R-hat, effective sample sizes, Monte Carlo errors (Vehtari et al., 2021).

.. math::
    \hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}, \qquad
    \mathrm{ESS} = \frac{m n}{1 + 2 \sum_{t \ge 1} \rho_t}, \qquad
    \mathrm{MCSE} = \frac{\mathrm{sd}}{\sqrt{\mathrm{ESS}}}

for m half-chains of n draws each, with within-chain variance W, variance B / n of the chain means, and
autocorrelations :math:`\rho_t`. R-hat and the bulk ESS are computed from the normal scores of the draws' ranks.

The weights of a network are not identified: hidden units can be permuted, so chains that disagree about every
weight may agree about the function. The same figures are therefore available in function space, for the
predictions E[y | w] at given inputs.

The chains of a run whose ``info`` contains ``modes`` are meant to stay in different modes. They are judged
separately and then combined: R-hat is the root mean square over the chains, effective sample sizes add up, and
the squared standard errors of the chains' means add up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from scipy.fft import next_fast_len
from scipy.special import ndtri

from credax.core.display import html_table, text_table
from credax.core.programs import jit
from credax.core.trees import named_leaves
from credax.model import Model
from credax.model.likelihoods import Heads
from credax.posterior import services
from credax.posterior.approximations import Draws

if TYPE_CHECKING:
    from credax.posterior import Posterior

BLOCK = 1 << 18
"""Numbers (quantities x draws) per block: enough to vectorise, few enough for a core's cache."""
PREDICTIONS = 1 << 22
"""Numbers (predictions x draws) computed at once on the device."""
MIN_DRAWS = 4
"""Smallest number of draws per chain: each half needs two."""


@dataclass(frozen=True, eq=False, repr=False)
class Figures:
    """Convergence figures of one or more scalar quantities; each attribute has one entry per quantity.

    A quantity that is the same in all draws has nothing to converge: its ``r_hat`` is NaN, its standard errors
    are zero, and its effective sample size is the number of draws. A quantity that is not finite in some draw
    has an infinite ``r_hat``.

    Attributes:
      mean: the mean over all draws of all chains.
      sd: the standard deviation over all draws of all chains.
      r_hat: the rank-normalised split R-hat; the larger of that of the values and that of their absolute
        deviations from the median.
      ess_bulk: the effective sample size for the bulk of the distribution.
      ess_tail: the effective sample size for the tails; the smaller of those for the 5 % and 95 % quantiles.
      mcse_mean: the Monte Carlo standard error of the mean.
      mcse_sd: the Monte Carlo standard error of the standard deviation.
    """

    mean: np.ndarray
    sd: np.ndarray
    r_hat: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    mcse_mean: np.ndarray
    mcse_sd: np.ndarray

    def __repr__(self) -> str:
        if not self.r_hat.size:
            return "Figures(0 quantities)"
        some = "1 quantity" if self.r_hat.size == 1 else f"{self.r_hat.size} quantities"
        return (
            f"Figures({some}: R-hat at most {self.worst_r_hat:.3f}, ESS at least {self.least_ess:.0f}, "
            f"MCSE at most {self.worst_error:.2g} sd)"
        )

    @property
    def constant(self) -> np.ndarray:
        """Whether each quantity is the same in all draws."""
        return np.isnan(self.r_hat)

    @property
    def worst_r_hat(self) -> float:
        """The largest R-hat; constant quantities count as converged."""
        return float(np.max(np.where(self.constant, 1.0, self.r_hat)))

    @property
    def least_ess(self) -> float:
        """The smallest effective sample size, over bulk and tail."""
        return float(min(np.min(self.ess_bulk), np.min(self.ess_tail)))

    @property
    def flat(self) -> Figures:
        """The same figures as one-dimensional arrays."""
        return self._each(np.ravel)

    def _each(self, function: Callable[[np.ndarray], np.ndarray]) -> Figures:
        return Figures(*(function(value) for value in vars(self).values()))

    @property
    def worst_error(self) -> float:
        """The largest Monte Carlo standard error of a mean, in units of the standard deviation."""
        errors = self.mcse_mean / np.where(self.sd > 0, self.sd, 1)
        return float(np.max(np.where(np.isnan(errors), np.inf, errors)))


@dataclass(frozen=True, eq=False, repr=False)
class Convergence:
    """The result of ``posterior.convergence``. It prints as a table.

    Figures that the run did not record are ``None``.

    Attributes:
      chains: the number of chains.
      draws: the number of draws per chain.
      log_joint: the figures of log p(w, D).
      parameters: for each leaf of the parameters, by its path, the figures of its entries, in its shape; empty
        if inputs were given.
      predictions: the figures of E[y | w] at the given inputs, in the shape of ``predict(x).mean``; ``None`` if
        no inputs were given.
      divergences: the number of steps after warm-up that diverged.
      divergent_share: the fraction of the steps after warm-up that diverged.
      bfmi: the energy's Bayesian fraction of missing information, for each chain.
      acceptance_rate: the mean acceptance rate after warm-up, for each chain.
    """

    chains: int
    draws: int
    log_joint: Figures | None = None
    parameters: Mapping[str, Figures] = field(default_factory=dict)
    predictions: Figures | None = None
    divergences: int | None = None
    divergent_share: float | None = None
    bfmi: np.ndarray | None = None
    acceptance_rate: np.ndarray | None = None

    def _found(self) -> dict[str, Figures]:
        rows = {"log joint": self.log_joint, "predictions": self.predictions, **self.parameters}
        return {name: figures for name, figures in rows.items() if figures is not None}

    def _title(self) -> str:
        chains = "1 chain" if self.chains == 1 else f"{self.chains} chains"
        return f"{chains} of {self.draws} draws"

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        heads = ("", "entries", "R-hat", "bulk ESS", "tail ESS", "MCSE / sd")
        rows = [
            (
                name,
                f"{each.r_hat.size}",
                f"{each.worst_r_hat:.3f}",
                f"{np.min(each.ess_bulk):.0f}",
                f"{np.min(each.ess_tail):.0f}",
                f"{each.worst_error:.3f}",
            )
            for name, each in self._found().items()
        ]
        return heads, rows

    def _notes(self) -> list[str]:
        found = self._found()
        notes = ["Each figure is the worst over the entries."] if found else []
        for name, each in found.items():
            if each.constant.any():
                notes.append(
                    f"{name}: {each.constant.sum()} of {each.constant.size} entries are the same in all "
                    "draws, which counts as converged."
                )
        if self.divergences is not None:
            share = f"{100 * (self.divergent_share or 0):.2g} %"
            notes.append(f"Divergent steps after warm-up: {self.divergences} ({share}).")
        if self.acceptance_rate is not None:
            notes.append(f"Acceptance rate: {_range(self.acceptance_rate)}.")
        if self.bfmi is not None:
            notes.append(f"BFMI of the energy: {_range(self.bfmi)}.")
        return notes

    def __repr__(self) -> str:
        table = [text_table(*self._table())] if self._found() else []
        return "\n".join([self._title(), *table, *self._notes()])

    def _repr_html_(self) -> str:
        return html_table(*self._table(), caption=self._title(), notes=self._notes())


def convergence(posterior: Posterior, x: Any = None) -> Convergence:
    """Judge the convergence of a posterior's chains; see :meth:`credax.Posterior.convergence`."""
    draws = chains_of(posterior)
    chains, count = draws.shape
    diverging = after_warmup(posterior, "diverging")
    acceptance = after_warmup(posterior, "acceptance_rate")
    return Convergence(
        chains,
        count,
        log_joint=log_joint_figures(posterior),
        parameters={} if x is not None else parameter_figures(posterior),
        predictions=None if x is None else prediction_figures(posterior, x),
        divergences=None if diverging is None else int(np.sum(diverging > 0)),
        divergent_share=None if diverging is None else float(np.mean(diverging > 0)),
        bfmi=bfmi(posterior),
        acceptance_rate=None if acceptance is None else acceptance.mean(1, dtype=np.float64),
    )


# -- the quantities --------------------------------------------------------------------------------


def is_chains(posterior: Posterior) -> bool:
    """Whether the draws are successive states of Markov chains."""
    draws = posterior.approximation
    if not isinstance(draws, Draws) or draws.log_weights is not None:
        return False
    return len(posterior.info.get("kept", ())) == draws.shape[1]


def chains_of(posterior: Posterior) -> Draws:
    """The draws of a posterior, if they are Markov chains that are long enough to be judged.

    Raises:
      TypeError: if the draws are not chains.
      ValueError: if the chains are too short.
    """
    draws = posterior.approximation
    if not isinstance(draws, Draws):
        raise TypeError(
            "convergence needs a posterior made of Markov chains; this one is a "
            f"{type(draws).__name__}, whose samples are independent."
        )
    if draws.log_weights is not None:
        raise TypeError(
            "convergence needs a posterior made of Markov chains; these draws are weighted. "
            "posterior.diagnose() judges their weights."
        )
    if "kept" in posterior.info and not is_chains(posterior):
        raise TypeError(
            "convergence needs a posterior made of Markov chains; these draws are the final states of "
            "independent runs, or the particles of a population."
        )
    if draws.shape[1] < MIN_DRAWS:
        raise ValueError(
            f"convergence needs at least {MIN_DRAWS} draws per chain; got {draws.shape[1]}."
        )
    return draws


def after_warmup(posterior: Posterior, name: str) -> np.ndarray | None:
    """An entry of ``info`` at all steps after warm-up, ``(replica, step)``; ``None`` if it was not recorded."""
    history, kept = posterior.info.get(name), posterior.info.get("kept", ())
    if history is None or np.ndim(history) != 2 or not len(kept):
        return None
    thin = int(kept[1] - kept[0]) if len(kept) > 1 else 1
    return np.asarray(history)[:, max(0, int(kept[0]) - thin + 1) : int(kept[-1]) + 1]


def at_draws(posterior: Posterior, name: str) -> np.ndarray | None:
    """An entry of ``info`` at the steps kept as draws, ``(replica, draw)``; ``None`` if it was not recorded."""
    history, kept = posterior.info.get(name), posterior.info.get("kept", ())
    if history is None or np.ndim(history) != 2 or not len(kept):
        return None
    return np.asarray(history)[:, np.asarray(kept)]


def log_joint_figures(posterior: Posterior) -> Figures | None:
    """The figures of the log joint, or ``None`` if the run did not record it."""
    values = at_draws(posterior, "log_joint")
    return None if values is None or values.shape[1] < MIN_DRAWS else _judge(posterior)(values)


def parameter_figures(posterior: Posterior) -> dict[str, Figures]:
    """The figures of every parameter, by the path of its leaf."""
    leaves, judge = named_leaves(posterior.draws), _judge(posterior)
    return {path or "parameters": judge(leaf) for path, leaf in leaves if np.size(leaf)}


def checked_inputs(posterior: Any, x: Any) -> np.ndarray:
    """The inputs at which predictions are judged, checked against the model."""
    if not isinstance(posterior.model, Model):
        raise TypeError("x must be None for the posterior of a LogDensity, which predicts nothing.")
    return posterior.model.check_inputs(x)


def prediction_figures(posterior: Posterior, x: Any) -> Figures:
    """The figures of E[y | w] at each row of x, computed in blocks of rows to bound the memory."""
    x, (chains, count) = checked_inputs(posterior, x), chains_of(posterior).shape
    model: Any = posterior.model
    learned = jax.tree.map(
        lambda leaf: np.reshape(leaf, (chains * count, *leaf.shape[2:])),
        model.split(posterior.draws)[1],
    )
    rows = max(1, PREDICTIONS // (chains * count * model.schema.outputs))
    parts = []
    if isinstance(model.likelihood, Heads):
        raise TypeError("convergence(x=...) is for one target; this model has several heads.")
    for begin in range(0, len(x), rows):
        predictive = posterior.predict(x[begin : begin + rows])
        if model.divided:
            means = predictive.means.reshape(chains * count, -1, predictive.means.shape[-1])
        else:
            of_draws = _mean(model.likelihood, predictive.outputs, learned)
            means = model.frame.value_of_y(np.asarray(of_draws))
        parts.append(_judge(posterior)(means.reshape(chains, count, *means.shape[1:])))
    found = joined(parts)
    if model.schema.targets is None and found.mean.shape[1] == 1:
        return found._each(lambda value: value[:, 0])
    return found


@jit(static_argnames=("likelihood",))
def _mean(likelihood, outputs, learned):
    return jax.vmap(likelihood.mean)(outputs, learned)


def bfmi(posterior: Posterior) -> np.ndarray | None:
    """The Bayesian fraction of missing information of each chain (Betancourt, 2016).

    This is the mean squared change of the energy per step divided by the variance of the energy. The result is
    ``None`` if the run did not record the energy.
    """
    energy = after_warmup(posterior, "energy")
    if energy is None or energy.shape[1] < MIN_DRAWS:
        return None
    energy = energy.astype(np.float64)
    change, spread = np.square(np.diff(energy)).mean(1), energy.var(1, ddof=1)
    moving = spread > 0
    return np.where(moving, change, 1) / np.where(moving, spread, 1)


# -- the figures -----------------------------------------------------------------------------------


def _judge(posterior: Posterior) -> Callable[[Any], Figures]:
    return figures_of_each if posterior.info.get("modes") else figures_of


def figures_of_each(values: Any) -> Figures:
    """Like :func:`figures_of`, for chains that are not meant to agree: each is judged separately."""
    values = np.asarray(values)
    found = [figures_of(values[chain : chain + 1]) for chain in range(len(values))]
    stack = lambda name: np.stack([getattr(figures, name) for figures in found])  # noqa: E731
    flat = values.reshape(-1, *values.shape[2:]).astype(np.float64)
    r_hat, constant = stack("r_hat"), np.all(flat == flat[:1], axis=0)
    # The R-hat of a chain that never moves is undefined and counts as 1. The result is undefined only if the
    # quantity is the same in all draws of all chains.
    mean_square = np.mean(np.where(np.isnan(r_hat), 1.0, r_hat) ** 2, axis=0)
    error = lambda name: np.sqrt(np.sum(stack(name) ** 2, axis=0)) / len(values)  # noqa: E731
    return Figures(
        stack("mean").mean(0),
        np.where(constant, 0.0, flat.std(0, ddof=1)),
        np.where(constant, np.nan, np.sqrt(mean_square)),
        stack("ess_bulk").sum(0),
        stack("ess_tail").sum(0),
        error("mcse_mean"),
        error("mcse_sd"),
    )


def figures_of(values: Any) -> Figures:
    """The convergence figures of an array of quantities.

    The definitions are those of ArviZ, and tests compare the values. ArviZ loops over the quantities in Python,
    which takes one or two minutes for 10,000 weights; this vectorised version takes seconds.

    Args:
      values: the draws, with leading axes (chain, draw).
    """
    values = np.asarray(values)
    chains, count, *shape = values.shape
    flat = values.reshape(chains, count, -1)
    size = max(1, BLOCK // (chains * count))
    blocks = (flat[..., begin : begin + size] for begin in range(0, flat.shape[-1], size))
    # NumPy and SciPy release the interpreter lock while they sort and transform.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        parts = list(pool.map(_figures, blocks))
    return joined(parts)._each(lambda value: value.reshape(shape))


def _figures(values: np.ndarray) -> Figures:
    """The figures of one block of shape (chain, draw, quantity)."""
    values = np.moveaxis(values, -1, 0).astype(np.float64, order="C")
    finite = np.all(np.isfinite(values), (1, 2))
    values = np.where(finite[:, None, None], values, 0.0)
    halves = _split(values)
    constant = halves.max((1, 2)) == halves.min((1, 2))
    everything = (len(values), -1)

    scores = _normal_scores(halves)
    middle = np.median(halves.reshape(everything), axis=1)[:, None, None]
    spread = _normal_scores(np.abs(halves - middle))
    r_hat = np.where(constant, np.nan, np.fmax(_r_hat(scores), _r_hat(spread)))

    ends = np.quantile(values.reshape(everything), [0.05, 0.95], axis=1)[..., None, None]
    tail = np.minimum(*(_ess((halves <= end).astype(np.float64)) for end in ends))

    mean = values.mean((1, 2))
    squares = (values - mean[:, None, None]) ** 2
    variance = squares.mean((1, 2))
    sd = np.where(constant, 0, values.std((1, 2), ddof=1))
    # The delta method applied to the variance of the squares, as in ArviZ 1.0.
    of_variance = squares.std((1, 2)) / np.sqrt(_ess(_split(squares)))
    mcse_sd = of_variance / (2 * np.sqrt(np.where(variance > 0, variance, 1)))
    found = (
        np.where(constant, values[:, 0, 0], mean),
        sd,
        r_hat,
        _ess(scores),
        tail,
        sd / np.sqrt(_ess(halves)),
        np.where(constant, 0, mcse_sd),
    )
    otherwise = (np.nan, np.nan, np.inf, 0.0, 0.0, np.nan, np.nan)
    return Figures(*(np.where(finite, *pair) for pair in zip(found, otherwise, strict=True)))


def _split(values: np.ndarray) -> np.ndarray:
    """Split each chain into two halves; the middle draw is dropped if their number is odd."""
    half = values.shape[-1] // 2
    return np.concatenate([values[..., :half], values[..., -half:]], axis=1)


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """Normal quantiles of the ranks over all draws (Blom, 1958); ties get their average rank."""
    flat = values.reshape(len(values), -1)
    size = flat.shape[1]
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, 1)
    edge = np.ones((len(flat), 1), bool)
    differs = ordered[:, 1:] != ordered[:, :-1]
    place = np.arange(size)
    first = np.maximum.accumulate(np.where(np.hstack([edge, differs]), place, 0), axis=1)
    last = np.where(np.hstack([differs, edge]), place, size)
    last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
    quantiles = ndtri((np.arange(2 * size - 1) / 2 + 1 - 3 / 8) / (size + 1 / 4))
    scores = np.empty_like(flat)
    np.put_along_axis(scores, order, quantiles[first + last], 1)
    return scores.reshape(values.shape)


def _r_hat(values: np.ndarray) -> np.ndarray:
    """R-hat of an array (quantity, chain, draw), without splitting or rank normalisation."""
    count = values.shape[-1]
    within = values.var(-1, ddof=1).mean(-1)
    between = count * values.mean(-1).var(-1, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((between / within + count - 1) / count)


def _ess(values: np.ndarray) -> np.ndarray:
    """Effective sample size of an array (quantity, chain, draw), by Geyer's initial monotone sequence.

    The autocorrelations are summed in pairs of lags (0, 1), (2, 3), ... up to the first pair whose sum is not
    positive, and no pair sum may exceed an earlier one. Of the last pair only the even lag counts.
    """
    quantities, chains, count = values.shape
    constant = values.max((1, 2)) == values.min((1, 2))
    covariance = _autocovariance(values)
    between = values.mean(-1).var(-1, ddof=1)
    total = np.where(constant, 1, covariance[:, 0] + between)
    within = covariance[:, 0] * count / (count - 1)
    correlation = 1 - (within[:, None] - covariance) / total[:, None]
    correlation[:, 0] = 1

    furthest = max(0, (count - 3) // 2)
    pairs = correlation[:, : 2 * furthest + 2].reshape(quantities, -1, 2).sum(-1)
    ended = pairs <= 0
    stop = np.where(ended.any(1), ended.argmax(1), furthest)
    each = np.arange(quantities)
    summed = np.where(np.arange(furthest + 1) < stop[:, None], np.minimum.accumulate(pairs, 1), 0)
    even = correlation[each, 2 * stop]
    rest = np.where((pairs[each, stop] >= 0) | (even > 0), even, 0)
    time = 2 * summed.sum(1) - 1 + rest
    # Antithetic chains can beat independent draws; the bound keeps their effective sample size finite.
    size = chains * count
    ess = size / np.maximum(time, 1 / np.log10(size))
    return np.where(constant, size, ess)


def _autocovariance(values: np.ndarray) -> np.ndarray:
    """The autocovariance at every lag, averaged over the chains, by the inverse transform of the mean power."""
    count = values.shape[-1]
    padded = next_fast_len(
        2 * count, real=True
    )  # zero padding, so that the convolution is not circular
    spectrum = np.fft.rfft(values - values.mean(-1, keepdims=True), padded)
    power = (spectrum.real**2 + spectrum.imag**2).mean(1)
    return np.fft.irfft(power, padded)[:, :count] / count


def joined(parts: Iterable[Figures]) -> Figures:
    """The parts concatenated along the first axis."""
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Figures(*(np.concatenate(column) for column in columns))


def _range(values: np.ndarray) -> str:
    low, high = f"{np.min(values):.2f}", f"{np.max(values):.2f}"
    return low if low == high else f"{low} to {high}"


services.convergence = convergence
