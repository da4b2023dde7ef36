r"""Pruning: remove the weights with the lowest signal-to-noise ratio (Blundell et al., 2015, section 5.1).

.. math:: \mathrm{SNR}_i = |\mu_i| / \sigma_i

A weight whose posterior mean is small compared to its standard deviation is hardly distinguishable from zero
and can be set to zero. The pruned network predicts nearly as well, and its posterior takes less space on disk.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must, number
from credax.core.display import html_table, text_table
from credax.core.typing import Params, PyTree
from credax.model import Model
from credax.posterior import Posterior
from credax.posterior.approximations import Approximation, Draws
from credax.posterior.approximations.families import (
    Categorical,
    Family,
    FullRank,
    LowRank,
    MeanField,
)
from credax.posterior.approximations.mixtures import GaussianMixture
from credax.posterior.approximations.normals import FullNormal, KroneckerNormal

if TYPE_CHECKING:
    from credax.diagnostics.calibration import Scores

FRACTIONS = (0.0, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
"""The default fractions of weights removed by :func:`pruning_curve`."""


def signal_to_noise(posterior: Posterior) -> Params:
    """The absolute mean of each network weight divided by its standard deviation.

    A weight without spread has ratio zero if it is zero, and infinity otherwise.

    Args:
      posterior: a posterior in which each weight has a mean and a variance: from ``BayesByBackprop``,
        ``IVON``, ``SWAG``, ``Laplace``, Markov chains or ensembles. Across chains or ensemble members the same
        hidden units may appear in a different order, which inflates the variance of their weights.
    """
    _check(posterior, "signal_to_noise")
    mean, variance = _moments(posterior.approximation)

    def leaf(mean, variance):
        mean, sd = (np.asarray(a, np.float64) for a in (mean, np.sqrt(np.maximum(variance, 0))))
        certain = np.where(mean == 0, 0.0, np.inf)
        return np.where(sd > 0, np.abs(mean) / np.where(sd > 0, sd, 1), certain)

    return _network(posterior, jax.tree.map(leaf, mean, variance))


def prune(posterior: Posterior, fraction: float) -> Posterior:
    """The posterior with the given fraction of the network's weights set to zero.

    The weights with the lowest signal-to-noise ratio are zero in every draw. The distribution of the other
    weights and of the likelihood's parameters is unchanged. ``log_evidence`` and ``elbo`` become ``None``,
    since they belong to the full network.

    Args:
      posterior: as for :func:`signal_to_noise`.
      fraction: the fraction of weights to remove, from 0 to 1.
    """
    _check(posterior, "prune")
    (share,) = _fractions("prune", "fraction", [fraction])
    return _without(posterior, _weakest_first(posterior), share)


@dataclass(frozen=True, eq=False, repr=False)
class Curve:
    """The result of :func:`pruning_curve`. It prints as a table.

    Attributes:
      fractions: the fractions of weights that were removed.
      weights: the number of weights left for each fraction.
      scores: the scores of each pruned posterior.
    """

    fractions: np.ndarray
    weights: np.ndarray
    scores: list[Scores]

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = [name for name, _ in self.scores[0]]
        rows = [
            [f"{fraction:.1%}", f"{count:,}", *(str(getattr(scores, name)) for name in names)]
            for fraction, count, scores in zip(
                self.fractions, self.weights, self.scores, strict=True
            )
        ]
        return ["removed", "weights left", *(name.replace("_", " ") for name in names)], rows

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table())


def pruning_curve(
    posterior: Posterior, x: Any, y: Any, fractions: Any = FRACTIONS, *, key: Any = 0
) -> Curve:
    """Evaluate the posterior with increasing fractions of its weights removed.

    Args:
      posterior: as for :func:`signal_to_noise`.
      x: rows that the fit has not seen.
      y: their targets.
      fractions: the fractions of weights to remove.
      key: an int or a JAX key, for the posterior samples used in prediction.
    """
    _check(posterior, "pruning_curve")
    shares = _fractions("pruning_curve", "fractions", fractions)
    order = _weakest_first(posterior)
    scores = [_without(posterior, order, share).evaluate(x, y, key=key) for share in shares]
    left = np.array([order.size - _removed(order, share) for share in shares])
    return Curve(np.array(shares), left, scores)


# -- which weights to remove ----------------------------------------------------------------------


def _check(posterior: Posterior, owner: str) -> None:
    if not isinstance(posterior, Posterior):
        raise TypeError(must(owner, "posterior", "a cx.Posterior", posterior))
    if not isinstance(posterior.model, Model):
        raise TypeError(f"{owner} needs a Model with a network; this posterior is of a LogDensity.")


def _fractions(owner: str, name: str, values: Any) -> list[float]:
    if np.ndim(values) != 1 or np.size(values) == 0:
        raise ValueError(must(owner, name, "one or more numbers from 0 to 1", values))
    shares = [number(owner, name, value, "a number from 0 to 1") for value in values]
    for share in shares:
        if not 0 <= share <= 1:
            raise ValueError(must(owner, name, "from 0 to 1", share))
    return shares


def _network(posterior: Posterior, tree: PyTree) -> PyTree:
    """The part of a parameter-shaped tree that belongs to the network."""
    assert isinstance(posterior.model, Model)
    return posterior.model.split(tree)[0]


def _weakest_first(posterior: Posterior) -> np.ndarray:
    """The indices of the network's weights, all leaves flattened, in order of signal-to-noise ratio."""
    ratios = [leaf.reshape(-1) for leaf in jax.tree.leaves(signal_to_noise(posterior))]
    return np.argsort(np.concatenate(ratios), kind="stable")


def _removed(order: np.ndarray, share: float) -> int:
    return round(share * order.size)


def _without(posterior: Posterior, order: np.ndarray, share: float) -> Posterior:
    kept = np.ones(order.size, bool)
    kept[order[: _removed(order, share)]] = False
    shapes = jax.eval_shape(posterior.model.init, jax.random.key(0))
    leaves, tree = jax.tree.flatten(_network(posterior, shapes))
    parts = np.split(kept, np.cumsum([leaf.size for leaf in leaves])[:-1])
    keep = jax.tree.unflatten(
        tree, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
    )
    if posterior.model.likelihood.learned:  # pyright: ignore[reportAttributeAccessIssue]
        all_of = jax.tree.map(lambda leaf: np.ones(leaf.shape, bool), shapes["likelihood"])
        keep = {"network": keep, "likelihood": all_of}
    approximation = _pruned(posterior.approximation, keep)
    return dataclasses.replace(posterior, approximation=approximation, log_evidence=None, elbo=None)


# -- the mean and the variance of each weight -----------------------------------------------------


@singledispatch
def _moments(approximation: Approximation) -> tuple[Params, Params]:
    raise _refusal(approximation, "does not give each weight a variance")


@_moments.register
def _(approximation: Family):
    return approximation.moments()


@_moments.register
def _(approximation: Draws):
    if approximation.shape == (1, 1):
        raise _refusal(approximation, "is a single draw, whose weights have no spread")
    weights = np.exp(approximation._normalised()).reshape(approximation.shape)

    def leaf(draws):
        draws = np.asarray(draws, np.float64)
        mean = np.tensordot(weights, draws, 2)
        return mean, np.tensordot(weights, (draws - mean) ** 2, 2)

    return _pairs(leaf, approximation.params)


@_moments.register
def _(approximation: GaussianMixture):
    def leaf(mean, scale, factors):
        spread = jnp.mean(scale**2 + jnp.sum(factors**2, axis=1), axis=0)
        return jnp.mean(mean, axis=0), jnp.var(mean, axis=0) + spread

    return _pairs(leaf, approximation.mean, approximation.scale, approximation.factors)


@_moments.register
def _(approximation: FullNormal):
    variance = jnp.sum(jnp.asarray(approximation.root) ** 2, axis=1)
    return approximation.mean, _over_free(approximation, variance)


@_moments.register
def _(approximation: KroneckerNormal):
    if any(leaf.size for leaf in jax.tree.leaves((approximation.inputs, approximation.outputs))):
        raise _refusal(approximation, 'correlates the weights; use Laplace(structure="diagonal")')
    variance = jax.tree.map(
        lambda mean, scale: jnp.reshape(scale, mean.shape) ** 2,
        approximation.mean,
        approximation.scale,
    )
    return approximation.mean, variance


# -- the same distribution with some weights fixed at zero -----------------------------------------


@singledispatch
def _pruned(approximation: Approximation, keep: PyTree) -> Approximation:
    raise _refusal(approximation, "cannot fix a weight at zero")


@_pruned.register
def _(approximation: Draws, keep):
    return dataclasses.replace(approximation, params=_kept(keep, approximation.params))


@_pruned.register
def _(approximation: MeanField, keep):
    mean = _kept(keep, approximation.mean)
    return dataclasses.replace(approximation, mean=mean, rho=_certain(keep, approximation.rho))


@_pruned.register
def _(approximation: LowRank, keep):
    mean, factors = (_kept(keep, tree) for tree in (approximation.mean, approximation.factors))
    rho = _certain(keep, approximation.rho)
    return dataclasses.replace(approximation, mean=mean, rho=rho, factors=factors)


@_pruned.register
def _(approximation: FullRank, keep):
    # Each row of the factor belongs to one weight. Its column stays: it carries covariance of other weights.
    row = np.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(keep)])
    factor = jnp.where(row[:, None], jnp.asarray(approximation.factor), 0)
    diagonal = jnp.where(row, jnp.diagonal(factor), -jnp.inf)
    factor = jnp.fill_diagonal(factor, diagonal, inplace=False)
    return dataclasses.replace(approximation, mean=_kept(keep, approximation.mean), factor=factor)


@_pruned.register
def _(approximation: Categorical, keep):
    leaves, tree = jax.tree.flatten(approximation.logits)
    pruned = []
    for logits, values, kept in zip(
        leaves, approximation.values, jax.tree.leaves(keep), strict=True
    ):
        if 0.0 not in values and not kept.all():
            raise _refusal(
                approximation, f"has weights with values {values}, which do not include 0"
            )
        # The lowest finite number: the entropy would multiply minus infinity by zero.
        zero = np.where(np.equal(values, 0.0), 0.0, np.finfo(logits.dtype).min).astype(logits.dtype)
        pruned.append(jnp.where(kept, logits, zero.reshape(-1, *(1,) * kept.ndim)))
    return dataclasses.replace(approximation, logits=jax.tree.unflatten(tree, pruned))


@_pruned.register
def _(approximation: GaussianMixture, keep):
    trees = (approximation.mean, approximation.scale, approximation.factors)
    mean, scale, factors = (_kept(keep, tree) for tree in trees)
    return dataclasses.replace(approximation, mean=mean, scale=scale, factors=factors)


@_pruned.register
def _(approximation: FullNormal, keep):
    parts = zip(jax.tree.leaves(keep), approximation.free, strict=True)
    row = np.concatenate([leaf.reshape(-1) for leaf, free in parts if free])
    root = jnp.where(row[:, None], jnp.asarray(approximation.root), 0)
    return dataclasses.replace(approximation, mean=_kept(keep, approximation.mean), root=root)


@_pruned.register
def _(approximation: KroneckerNormal, keep):
    mean = _kept(keep, approximation.mean)
    scale = jax.tree.map(
        lambda kept, scale: jnp.where(kept.reshape(scale.shape), scale, 0),
        keep,
        approximation.scale,
    )
    return dataclasses.replace(approximation, mean=mean, scale=scale)


# -- trees ----------------------------------------------------------------------------------------


def _kept(keep: PyTree, tree: PyTree) -> PyTree:
    """Zeros for the removed weights; leaves may have leading axes (draws, directions or components)."""
    return jax.tree.map(lambda kept, leaf: np.where(kept, leaf, np.zeros_like(leaf)), keep, tree)


def _certain(keep: PyTree, rho: PyTree) -> PyTree:
    """Standard deviation zero for the removed weights: softplus(-inf) = 0."""
    return jax.tree.map(
        lambda kept, leaf: np.where(kept, leaf, np.full_like(leaf, -np.inf)), keep, rho
    )


def _pairs(function: Any, *trees: PyTree) -> tuple[PyTree, PyTree]:
    """Apply a function that returns a mean and a variance to each leaf; return a tree of each."""
    leaves = zip(*map(jax.tree.leaves, trees), strict=True)
    means, variances = zip(*[function(*each) for each in leaves], strict=True)
    structure = jax.tree.structure(trees[0])
    return jax.tree.unflatten(structure, means), jax.tree.unflatten(structure, variances)


def _over_free(approximation: FullNormal, vector: Any) -> PyTree:
    """Unflatten a vector over the entries of the free leaves; the other leaves become zero."""
    leaves, tree = jax.tree.flatten(approximation.mean)
    sizes = [
        leaf.size if free else 0 for leaf, free in zip(leaves, approximation.free, strict=True)
    ]
    parts = np.split(np.asarray(vector), np.cumsum(sizes)[:-1])
    filled = [
        part.reshape(leaf.shape) if part.size else np.zeros(leaf.shape)
        for part, leaf in zip(parts, leaves, strict=True)
    ]
    return jax.tree.unflatten(tree, filled)


def _refusal(approximation: Approximation, reason: str) -> ValueError:
    return ValueError(
        "Pruning needs the mean and the variance of each weight; this posterior, "
        f"{type(approximation).__name__}, {reason}."
    )
