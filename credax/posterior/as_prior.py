"""A posterior as the prior of another fit: the normal distribution that it is, or the one closest to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must, number, positive
from credax.core.settings import at_least, one_among, optional
from credax.core.trees import as_leaf
from credax.core.typing import Params
from credax.model import Model
from credax.model.continuation import FromPosterior
from credax.model.priors import Around, FullCovariance, Kronecker, LowRank, Prior
from credax.posterior import approximations
from credax.posterior.approximations import Approximation

STRUCTURES = ("diagonal", "low_rank", "full", "kronecker")
DRAWS = 400
"""The number of draws to which a normal distribution is fitted if the posterior keeps none."""


class Normal(NamedTuple):
    """A normal distribution over all parameters of a model, in double precision.

    Attributes:
      mean: the mean of each parameter.
      std: the standard deviation of each parameter; zero where the posterior holds it fixed.
      joint: for each structure with correlations that the distribution has, the prior of the network's weights
        as a function of (split, widen), where ``split`` takes the network's part of a tree and ``widen`` is the
        factor of all standard deviations. The first is the structure of the distribution itself.
    """

    mean: Params
    std: Params
    joint: dict[str, Callable[[Callable[[Params], Params], float], Prior]]


def as_prior(posterior: Any, structure: Any, forget: Any, scale: Any, rank: Any) -> FromPosterior:
    """See :meth:`credax.Posterior.as_prior`."""
    model, owner = posterior.model, "as_prior"
    one_among(None, *STRUCTURES)(owner, "structure", structure)
    forget = number(owner, "forget", forget)
    if not 0 <= forget < 1:
        raise ValueError(must(owner, "forget", "at least 0 and below 1", forget))
    scale = optional(positive)(owner, "scale", scale)
    rank = at_least(1)(owner, "rank", rank)
    if not isinstance(model, Model):
        raise TypeError(
            "as_prior needs the posterior of a Model; this one is of a LogDensity, which has no prior."
        )
    if model.discrete:
        raise ValueError("as_prior needs continuous weights; those of this posterior are discrete.")
    normal = _normal(posterior.approximation, rank)
    chosen = structure or next(iter(normal.joint), "diagonal")
    if isinstance(posterior.approximation, approximations.Draws) and structure is None:
        chosen = "diagonal"
    if chosen != "diagonal" and chosen not in normal.joint:
        allowed = ", ".join(map(repr, ("diagonal", *normal.joint)))
        got = f"{chosen!r} for a {type(posterior.approximation).__name__}"
        raise ValueError(f"as_prior(structure=...) must be one of {allowed}; got {got}.")
    widen = 1 / math.sqrt(1 - forget)
    network, _ = model.split(normal.mean)
    spread, learned_spread = model.split(normal.std)
    filled = _filled(spread, scale)
    if chosen == "diagonal" or filled is not spread:
        prior = Around(_floats(network), _floats(_scaled(widen, filled)))
    else:
        prior = normal.joint[chosen](lambda tree: model.split(tree)[0], widen)
    likelihood = None
    if learned_spread is not None:
        learned_spread = _of_likelihood(posterior, learned_spread)
        centre = model.split(normal.mean)[1]
        likelihood = Around(_floats(centre), _floats(_scaled(widen, learned_spread)))
    return FromPosterior(prior, likelihood, model)


def _floats(tree: Params) -> Params:
    dtype = np.dtype(jnp.result_type(float))
    return jax.tree.map(lambda leaf: np.asarray(leaf, dtype), tree)


def _scaled(factor: float, tree: Params) -> Params:
    return jax.tree.map(lambda leaf: factor * leaf, tree)


def _filled(spread: Params, scale: float | None) -> Params:
    """The standard deviations, where those that are zero are replaced by ``scale``."""
    zeros = sum(int(np.sum(leaf == 0)) for leaf in jax.tree.leaves(spread))
    if not zeros:
        return spread
    if scale is None:
        total = sum(np.size(leaf) for leaf in jax.tree.leaves(spread))
        raise ValueError(
            f"as_prior needs to know how sure the posterior is; it says nothing about {zeros:,} of {total:,} "
            "weights (a single point, or layers that are held fixed). Give as_prior(scale=...), their standard "
            "deviation, or use a method with a distribution, such as cx.Laplace(structure='full')."
        )
    return jax.tree.map(lambda leaf: np.where(leaf == 0, scale, leaf), spread)


def _of_likelihood(posterior: Any, spread: Params) -> Params:
    """The standard deviations of the likelihood's parameters; those held fixed from what the rows tell."""
    if all(np.all(leaf > 0) for leaf in jax.tree.leaves(spread)):
        return spread
    rows = posterior.info.get("num_rows", getattr(posterior.training, "total", None))
    if rows is None:
        raise ValueError(
            "as_prior needs the number of rows of the fit, which this file of an older version does not hold."
        )
    likelihood = posterior.model.likelihood
    like = jax.tree.map(np.shape, spread, is_leaf=lambda leaf: isinstance(leaf, np.ndarray))
    each = {}
    for name, shape in like.items():
        before = likelihood.parameter_prior.at(name).gaussian(shape)
        known = 0.0 if before is None else np.asarray(before[1], np.float64) ** -2.0
        std = np.broadcast_to(1 / np.sqrt(known + rows * likelihood.information()), shape)
        each[name] = np.where(spread[name] > 0, spread[name], std)
    return each


# -- the normal distribution of each approximation -----------------------------------------------------


def _double(tree: Params) -> Params:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), jax.device_get(tree))


def _low_rank(mean: Params, scale: Params, factors: Params) -> Any:
    """The prior of diagonal plus low-rank covariance, as a function of (split, widen)."""

    def prior(split, widen):
        centre, sigma, columns = (split(tree) for tree in (mean, scale, factors))
        sigma, columns = _scaled(widen, sigma), _scaled(widen, columns)
        return LowRank.of_factors(_floats(centre), _floats(sigma), columns)

    return prior


def _full(mean: Params, covariance: np.ndarray) -> Any:
    """The prior with this covariance of all parameters, in the order of their leaves."""

    def prior(split, widen):
        leaves, tree = jax.tree.flatten(mean)
        numbers = np.split(
            np.arange(len(covariance)), np.cumsum([leaf.size for leaf in leaves])[:-1]
        )
        chosen = np.concatenate(jax.tree.leaves(split(jax.tree.unflatten(tree, numbers))))
        lower = np.linalg.cholesky(covariance[np.ix_(chosen, chosen)])
        return FullCovariance(_floats(split(mean)), _floats(widen * lower))

    return prior


@singledispatch
def _normal(approximation: Approximation, rank: int) -> Normal:
    """The normal distribution with the moments of draws, for every approximation that is none itself."""
    draws = approximation.sample(jax.random.key(0), DRAWS).params
    return _of_draws(_double(draws), np.full(DRAWS, 1 / DRAWS), rank)


@_normal.register
def _(approximation: approximations.Draws, rank: int) -> Normal:
    flat = lambda leaf: np.reshape(leaf, (-1, *np.shape(leaf)[2:]))  # noqa: E731
    return _of_draws(_double(jax.tree.map(flat, approximation.params)), approximation.probs(), rank)


def _of_draws(draws: Params, weights: np.ndarray, rank: int) -> Normal:
    mean = jax.tree.map(lambda leaf: np.tensordot(weights, leaf, 1), draws)
    # The factor makes the variance of equally weighted draws unbiased.
    unbias = 1 / max(1 - float(np.sum(weights**2)), np.finfo(np.float64).tiny)
    away = jax.tree.map(
        lambda leaf, m: np.sqrt(unbias * weights).reshape(-1, *(1,) * m.ndim) * (leaf - m),
        draws,
        mean,
    )
    if len(weights) == 1:
        return Normal(mean, jax.tree.map(np.zeros_like, mean), {})
    std = jax.tree.map(lambda leaf: np.sqrt(np.sum(leaf**2, axis=0)), away)
    columns = [leaf.reshape(len(weights), -1) for leaf in jax.tree.leaves(away)]
    columns = np.concatenate(columns, axis=1)

    def low_rank(split, widen):
        inner, structure = jax.tree.flatten(split(away))
        rows = np.concatenate([leaf.reshape(len(weights), -1) for leaf in inner], axis=1)
        _, lengths, directions = np.linalg.svd(rows, full_matrices=False)
        kept = lengths[:rank, None] * directions[:rank]
        # The diagonal holds the rest of each variance, and a little of it where nothing is left.
        whole = np.sum(rows**2, axis=0)
        rest = np.sqrt(np.maximum(whole - np.sum(kept**2, axis=0), 1e-3 * whole))
        cuts = np.cumsum([leaf[0].size for leaf in inner])[:-1]

        def shaped(matrix):
            parts = zip(np.split(matrix, cuts, axis=-1), inner, strict=True)
            made = [p.reshape(*p.shape[:-1], *leaf.shape[1:]) for p, leaf in parts]
            return jax.tree.unflatten(structure, made)

        return _low_rank(split(mean), shaped(rest), shaped(kept))(lambda t: t, widen)

    joint = {"low_rank": low_rank}
    if len(weights) > columns.shape[1] + 1:
        joint["full"] = _full(mean, columns.T @ columns)
    return Normal(mean, std, joint)


@_normal.register
def _(approximation: approximations.MeanField, rank: int) -> Normal:
    return Normal(_double(approximation.mean), _double(approximation.sigma), {})


@_normal.register
def _(approximation: approximations.LowRank, rank: int) -> Normal:
    mean, variance = approximation.moments()
    low_rank = _low_rank(*map(_double, (mean, approximation.sigma, approximation.factors)))
    return Normal(_double(mean), jax.tree.map(np.sqrt, _double(variance)), {"low_rank": low_rank})


@_normal.register
def _(approximation: approximations.FullRank, rank: int) -> Normal:
    mean, variance = map(_double, approximation.moments())
    lower = _double(approximation.lower)
    return Normal(mean, jax.tree.map(np.sqrt, variance), {"full": _full(mean, lower @ lower.T)})


@_normal.register
def _(approximation: approximations.GaussianMixture, rank: int) -> Normal:
    # The moments of the mixture: the means of the components differ along further columns of F.
    means, scales, columns = map(
        _double, (approximation.mean, approximation.scale, approximation.factors)
    )
    count = approximation.components
    mean = jax.tree.map(lambda leaf: leaf.mean(0), means)
    scale = jax.tree.map(lambda leaf: np.sqrt(np.mean(leaf**2, axis=0)), scales)

    def joined(f, m, centre):
        within = f.reshape(-1, *f.shape[2:])
        between = (m - centre) if count > 1 else m[:0]
        return np.concatenate([within, between]) / math.sqrt(count)

    factors = jax.tree.map(joined, columns, means, mean)
    add = lambda s, f: np.sqrt(s**2 + np.sum(f**2, axis=0))  # noqa: E731
    std = jax.tree.map(add, scale, factors)
    low_rank = len(jax.tree.leaves(factors)[0]) > 0
    # Weights that vary along the columns alone have no diagonal part, which the prior needs.
    least = lambda s, total: np.maximum(s, 1e-3 * total)  # noqa: E731
    scale = jax.tree.map(least, scale, std)
    return Normal(mean, std, {"low_rank": _low_rank(mean, scale, factors)} if low_rank else {})


@_normal.register
def _(approximation: approximations.FullNormal, rank: int) -> Normal:
    mean, root = _double(approximation.mean), _double(approximation.root)
    leaves, tree = jax.tree.flatten(mean)
    sizes = [
        np.size(leaf) if free else 0 for leaf, free in zip(leaves, approximation.free, strict=True)
    ]
    variances = np.split(np.sum(root**2, axis=1), np.cumsum(sizes)[:-1])
    std = [
        np.sqrt(part).reshape(leaf.shape) if free else np.zeros_like(leaf)
        for leaf, free, part in zip(leaves, approximation.free, variances, strict=True)
    ]
    inside = np.repeat(approximation.free, [np.size(leaf) for leaf in leaves])
    covariance = np.zeros((len(inside), len(inside)))
    covariance[np.ix_(inside, inside)] = root @ root.T
    return Normal(mean, jax.tree.unflatten(tree, std), {"full": _full(mean, covariance)})


@_normal.register
def _(approximation: approximations.KroneckerNormal, rank: int) -> Normal:
    mean, inputs, outputs, scale = map(
        _double,
        (approximation.mean, *(getattr(approximation, n) for n in ("inputs", "outputs", "scale"))),
    )
    leaves, tree = jax.tree.flatten(mean)
    factors = [jax.tree.leaves(part) for part in (inputs, outputs, scale)]
    each = zip(leaves, *factors, approximation.layouts, strict=True)
    std = jax.tree.unflatten(tree, [np.sqrt(_marginal(*parts)) for parts in each])

    def kronecker(split, widen):
        parts = [_floats(split(part)) for part in (mean, inputs, outputs, _scaled(widen, scale))]
        layouts = split(
            jax.tree.unflatten(tree, [_Layout(layout) for layout in approximation.layouts])
        )
        axes = tuple(layout.axes for layout in jax.tree.leaves(layouts))
        return Kronecker(*parts, layouts=axes)

    return Normal(mean, std, {"kronecker": kronecker})


class _Layout:
    """A layout as one leaf of a pytree, which a tuple is not."""

    def __init__(self, axes: tuple[int, ...]):
        self.axes = axes


def _marginal(leaf, inputs, outputs, scale, layout) -> np.ndarray:
    """The variance of each weight of a Kronecker-factored leaf."""
    variance = scale**2
    if inputs.size and inputs.shape[1] < inputs.shape[0]:
        others = 1 - np.sum(inputs**2, axis=1, keepdims=True)
        variance = inputs**2 @ variance[:-1] + others * variance[-1]
    elif inputs.size:
        variance = inputs**2 @ variance
    if outputs.size:
        variance = variance.reshape(-1, len(outputs)) @ (outputs**2).T
    return np.asarray(as_leaf(variance, layout, leaf.shape))
