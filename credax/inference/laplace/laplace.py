"""The Laplace approximation (MacKay, 1992; Ritter et al., 2018; Immer et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from credax.core.checks import integer, must
from credax.core.errors import DivergedError, SourceError
from credax.core.precision import widened
from credax.core.programs import jit
from credax.core.settings import one_among, optional, setting
from credax.core.trees import as_matrix
from credax.core.typing import Array, Params
from credax.inference import noise
from credax.inference.laplace.curvature import (
    Kind,
    Sums,
    accumulate,
    accumulate_hessian,
    check_memory,
    kinds_of,
    product_with,
)
from credax.inference.laplace.decrement import newton_decrement
from credax.inference.laplace.evidence import (
    FLATTEST,
    MOST_DIFFERENCES,
    best_precision,
    log_evidence,
    log_integral,
)
from credax.inference.laplace.low_rank import accumulate_low_rank
from credax.inference.laplace.prior import (
    PriorAt,
    all_scales,
    check_correlated,
    leaf_priors,
    log_volume,
    prior_at,
    prior_curvature,
    prior_scales,
)
from credax.inference.laplace.streamed import added
from credax.inference.method import Method
from credax.inference.optimiser import LearningRate, learning_rate, optimiser
from credax.inference.point import MAP, JointInfo, ascend_marginal, points
from credax.inference.point import State as Ascent
from credax.model import Model
from credax.model.priors import Around
from credax.model.sources.streamed import SourceData, in_memory
from credax.posterior import Estimate
from credax.posterior.approximations.normals import FullNormal, KroneckerNormal, LowRankNormal
from credax.tracing.products import Rows

STRUCTURES = ("kronecker", "diagonal", "full", "last_layer", "low_rank")
CURVATURES = ("ggn", "fisher", "hessian")
PREDICTIVES = ("linearised", "sampled")
FULL_BYTES = 1 << 30
"""The most bytes that a matrix over all weights may take: 16,384 weights in float32."""


class State(NamedTuple):
    """The state of the ascent to the mode, and whether it is over."""

    ascent: Ascent
    arrived: Array
    spread: Any  # C of the noise's estimate


@dataclass(frozen=True)
class Laplace(Method):
    r"""A normal distribution around the posterior mode, from the curvature of the log joint there.

    .. math::
        q(w) = N\left(\hat w, P^{-1}\right), \qquad \hat w = \arg\max_w \log p(w, D), \qquad
        P = -\nabla^2 \log p(\hat w) + \sum_i J_i^\top H_i J_i

    with the Jacobian :math:`J_i` of the outputs for row i and the Hessian :math:`H_i` of its negative log
    likelihood in the outputs. The steps are those of a ``MAP`` run; then the curvature is summed over all rows.
    A run that starts from a posterior (``fit(..., start=posterior)``) takes that point as the mode and makes no
    steps. In predictions, what the likelihood learns (:math:`\theta`, such as the noise scale) keeps its
    estimate. The evidence integrates over it, by another Laplace approximation of

    .. math::
        \log p(D, \theta) \approx \log p(\theta) + \log p(D, \hat w \mid \theta) + \tfrac{d}{2} \log 2\pi
        - \tfrac{1}{2} \log\det P(\theta).

    Args:
      structure: the structure of P: ``"kronecker"`` (for each layer, one factor for its inputs and one for its
        outputs), ``"diagonal"``, ``"full"``, ``"last_layer"`` (the full matrix of the last layer; all other
        layers are fixed at the mode), or ``"low_rank"`` (the prior's precision, and the curvature along its
        largest eigenvectors, found without Jacobians).
      curvature: the curvature of the log likelihood: ``"ggn"`` (the generalised Gauss-Newton matrix above),
        ``"fisher"`` (the empirical Fisher matrix: outer products of the gradients of the rows), or
        ``"hessian"`` (exact, for small networks).
      prior_precision: if ``None``, the prior of the model is used. ``"marginal_likelihood"`` multiplies all
        prior precisions by the one factor that maximises the evidence.
      predictive: ``"linearised"`` predicts with the linear expansion of the network at the mode, for which the
        Gauss-Newton matrix is exact. ``"sampled"`` predicts with the network itself, with weights drawn from q.
      num_steps: the number of optimiser steps.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax`` (``"adam"``, ``"sgd"``, ...), or an optax transformation.
      noise: how a noise scale that the likelihood learns is estimated, under a Gaussian prior of the weights:
        ``"marginal"`` by its marginal likelihood, ``"mode"`` at the joint mode of weights and noise, where it
        is too small if the network has many weights.
      rank: the number of eigenvectors for ``structure="low_rank"``; as many as there are weights give the full
        matrix.

    References: MacKay, A practical Bayesian framework for backpropagation networks, 1992; Ritter, Botev &
    Barber (2018) for Kronecker factors; Immer, Korzepa & Bauer (2021) for linearised predictions.
    """

    structure: str = setting("kronecker", one_among(*STRUCTURES))
    curvature: str = setting("ggn", one_among(*CURVATURES))
    prior_precision: str | None = setting(None, one_among(None, "marginal_likelihood"))
    predictive: str = setting("linearised", one_among(*PREDICTIVES))
    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    noise: str = setting("marginal", one_among(*noise.CHOICES))
    rank: int = setting(20, integer)

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood"})
    when = "uncertainty for a network that is already trained, and an estimate of the evidence"
    errs = (
        'one mode: within a factor of two if linearised; with predictive="sampled" far too '
        "unsure on few rows"
    )

    def __post_init__(self):
        super().__post_init__()
        if self.structure == "kronecker" and self.curvature == "hessian":
            allowed = '"ggn" or "fisher" for structure="kronecker": the Hessian has no such factors'
            raise ValueError(must("Laplace", "curvature", allowed, self.curvature))
        if self.structure == "low_rank" and self.curvature == "hessian":
            allowed = '"ggn" or "fisher" for structure="low_rank", which has no negative directions'
            raise ValueError(must("Laplace", "curvature", allowed, self.curvature))

    @property
    def ascent(self) -> MAP:
        """The method that finds the mode."""
        return MAP(self.num_steps, self.batch_size, self.learning_rate, self.optimiser)

    def check(self, model: Any, data: Any) -> None:
        """Also refuse a prior without curvature, and a matrix that does not fit in memory."""
        super().check(model, data)
        if isinstance(data, SourceData) and not data.source.countable:
            raise SourceError(
                f"Laplace needs the curvature of every row, and those of {data.source!r}, a function, cannot "
                "be read one by one. Use BayesByBackprop or IVON."
            )
        if isinstance(data, SourceData) and self.structure == "low_rank":
            raise SourceError(
                "Laplace(structure='low_rank') needs all rows in memory; got a source. Use "
                "structure='kronecker' or 'diagonal'."
            )
        params = jax.eval_shape(model.init, jax.random.key(0))
        network, _ = model.split(params)
        priors = leaf_priors(model, params)
        leaves = jax.tree.leaves(network)
        rows = Rows(model.network, network, model.init_state(), data.x)
        if self.structure == "last_layer" and not rows.last:
            raise ValueError(
                "Laplace(structure='last_layer') found no layer: no weight of this network is used in exactly "
                "one product. Use structure='full' or 'diagonal'."
            )
        kinds = kinds_of(rows, [leaf.shape for leaf in leaves], self.structure)
        check_memory(model, rows, kinds, leaves, self.structure, self.curvature)
        check_correlated(self, model)
        normal_only = self.structure == "kronecker" or self.prior_precision is not None
        for leaf, prior, kind in zip(leaves, priors, kinds, strict=True):
            if kind is Kind.FIXED or prior is None:
                continue
            if prior.gaussian(leaf.shape) is None:
                self._check_prior(prior, leaf, normal_only)
        joint = self.structure in ("full", "last_layer") or self.curvature == "hessian"
        count = sum(x.size for x, kind in zip(leaves, kinds, strict=True) if kind is not Kind.FIXED)
        size = count**2 * np.dtype(jnp.result_type(float)).itemsize
        if joint and size > FULL_BYTES:
            raise ValueError(
                f"Laplace(structure={self.structure!r}, curvature={self.curvature!r}) needs a matrix of all "
                f"{count:,} weights, {size / 2**30:,.1f} GiB; the limit is {FULL_BYTES / 2**30:g} GiB. Use "
                "Laplace(structure='kronecker')."
            )

    def _check_prior(self, prior: Any, leaf: Any, normal_only: bool) -> None:
        flat = jnp.full((1,), 0.1, leaf.dtype)
        if normal_only or not np.any(np.asarray(prior_curvature(prior, flat))):
            settings = f"structure={self.structure!r}, prior_precision={self.prior_precision!r}"
            reason = (
                "needs a Gaussian prior (Normal, FanInNormal)"
                if normal_only
                else "needs a prior with a curved log density"
            )
            raise ValueError(
                f"Laplace({settings}) {reason}; got {prior}. Other priors with a curved log density work with "
                "structure='full' or 'diagonal' and prior_precision=None."
            )

    def batch(self, key, model, data, step):
        """The rows of a step, together with all rows if the noise is estimated from them."""
        batch = super().batch(key, model, data, step)
        return noise.with_all_rows(self.noise, model, data, batch)

    def init(self, key, model, data):
        """The weights with which the network is initialised; a run with a given start is already over."""
        ascent = self.ascent.init(key, model, data)
        return State(ascent, jnp.asarray(model.started), noise.no_spread(self.noise, model))

    def step(self, key, state, model, batch, step):
        """Take one optimiser step towards the mode."""
        ascent, spread, value = ascend_marginal(
            self.ascent, key, state.ascent, state.spread, model, batch, step
        )
        return State(ascent, state.arrived, spread), JointInfo(value)

    def finished(self, state):
        """Whether the run started from a posterior, and so needs no steps."""
        return state.arrived

    def posterior(self, model, trace):
        """The point reached so far; ``finish`` computes its curvature, once, at the end of the run."""
        return points(model, replace(trace, state=trace.state.ascent))

    def finish(self, posterior, trace):
        """The normal distribution around the mode, and the evidence."""
        model: Any = posterior.model
        ascent: Any = jax.tree.map(lambda leaf: leaf[0], trace.state.ascent)
        found: Found = jax.device_get(self._found(model, ascent, ascent.params, trace.data))
        values, slopes = _joined(found.values), _joined(found.slopes)
        self._check_values(values, found)

        evidence = partial(log_evidence, values, float(found.penalty), float(found.offset))
        precision = 1.0 if self.prior_precision is None else best_precision(evidence)
        approximation = self._normal(model, ascent, trace.data, found, precision)
        info = {
            "free_parameters": int(found.weights),
            "effective_parameters": float(np.sum(values / (values + precision))),
            "gradient_norm": float(found.gradient_norm),
            "newton_decrement": float(np.sum(slopes**2 / (values + 1))),
        }
        unlike = model.correlated_prior or isinstance(trace.data, SourceData)
        if self.structure in ("kronecker", "diagonal", "low_rank") and not unlike:
            # Those that were found are along other directions if each weight has its own.
            own = self.structure == "low_rank" or isinstance(model.prior, Around)
            scales = prior_scales(model, ascent.params) if own else found.scales
            where = (ascent.params, ascent.network, trace.data, scales)
            info["newton_decrement"] = float(newton_decrement(model, *where))
        info |= noise.left_out(model, ascent.params, ascent.network, trace.data)
        if trace.steps == 0:
            info |= noise.at_joint_mode(model, ascent.params, ascent.network, trace.data)
        if self.prior_precision is not None:
            info["prior_scale_factor"] = precision**-0.5
        errs = "to either side: the posterior is taken to be normal"
        volume = self._log_noise_volume(model, ascent, trace.data, found)
        return replace(
            posterior,
            approximation=approximation,
            info=info,
            log_evidence=Estimate(evidence(precision) + volume, 0.0, errs),
        )

    def closing(self, model, data):
        """The sum of the curvature over all rows."""
        params, state = jax.eval_shape(model.init, jax.random.key(0)), model.init_state()
        if self.structure == "low_rank":
            scale = jax.eval_shape(partial(all_scales, model), params)
            given = (min(self.rank, len(scale)), params, state, data, scale)
            return accumulate_low_rank.lower(model, self.curvature, *given)
        if self.curvature == "hessian":
            return accumulate_hessian.lower(model, self.structure, params, state, data)
        return accumulate.lower(model, self.structure, self.curvature, params, state, data)

    def _found(self, model, ascent: Ascent, params, data) -> Found:
        """The curvature at these parameters, decomposed."""
        where = (params, ascent.network)
        if self.structure == "low_rank":
            scale = all_scales(model, params)
            rank = min(self.rank, len(scale))
            sums = accumulate_low_rank(model, self.curvature, rank, *where, data, scale)
            return _decompose(model, self.structure, *where, data, sums)
        if self.curvature == "hessian":
            of_rows = partial(accumulate_hessian, model, self.structure, *where)
        else:
            of_rows = partial(accumulate, model, self.structure, self.curvature, *where)
        return _decompose(model, self.structure, *where, in_memory(data), added(of_rows, data))

    def _log_noise_volume(self, model, ascent: Ascent, data, found: Found) -> float:
        """What the evidence gains when the learned parameters of the likelihood are integrated out.

        For other parameters of the likelihood, the mode of the weights is one Newton step away, and half the
        Newton decrement above.
        """
        learned = model.split(ascent.params)[1]
        if learned is None:
            return 0.0
        start, unravel = ravel_pytree(jax.tree.map(widened, learned))
        at = (model, ascent.params, ascent.network)
        fixed = np.asarray(added(partial(_fixed_weights_curvature, *at), data))
        fixed = fixed + np.asarray(_noise_prior_curvature(model, ascent.params))
        values, vectors = np.linalg.eigh(np.float64(fixed))
        values = np.maximum(values, FLATTEST * values[-1])
        scales = vectors / np.sqrt(values)

        def conditional(found: Found) -> float:
            values, slopes, penalty, offset = jax.device_get(
                (found.values, found.slopes, found.penalty, found.offset)
            )
            values, slopes = _joined(values), _joined(slopes)
            with np.errstate(invalid="ignore"):
                at_point = log_evidence(values, float(penalty), float(offset), 1.0)
            return at_point + 0.5 * float(np.sum(slopes**2 / (values + 1)))

        def log_density(theta: np.ndarray) -> float:
            moved = unravel(jnp.asarray(theta, start.dtype))
            found = self._found(model, ascent, {**ascent.params, "likelihood": moved}, data)
            return conditional(found) + float(model.likelihood.log_prior(moved))

        if len(start) <= MOST_DIFFERENCES:
            return log_integral(log_density, np.asarray(start), scales) - conditional(found)
        # Where the noise maximises its marginal likelihood, this is nearly the curvature of the latter: for one
        # scale, both are 2 (N - gamma).
        volume = len(start) * math.log(2 * math.pi) - np.sum(np.log(values))
        return float(model.likelihood.log_prior(learned)) + 0.5 * float(volume)

    def _check_values(self, values: np.ndarray, found: Found) -> None:
        if found.flat:
            raise ValueError(
                "Laplace needs a log prior density that is concave at the mode; it is not for "
                f"{int(found.flat)} weights. Use a Gaussian prior (Normal, FanInNormal)."
            )
        if not np.all(np.isfinite(values)) or not np.isfinite(found.offset):
            raise DivergedError(
                "Laplace met a curvature that is not finite. Give a tighter prior, scale x and y to unit "
                "variance, or enable jax_enable_x64."
            )
        least = np.min(values) + 1
        if least <= 0:
            raise ValueError(
                "Laplace(curvature='hessian') found no mode: the log joint is not concave where the run ended. "
                f"The smallest eigenvalue of the precision, relative to the prior's, is {least:.3g}. "
                "Raise num_steps, or use curvature='ggn', which is always positive semidefinite."
            )

    def _normal(self, model, ascent: Ascent, data, found: Found, precision: float):
        """The approximation, with the prior precision multiplied by ``precision``."""
        mode = jax.device_get(ascent)
        network, learned = model.split(mode.params)
        leaves, tree = jax.tree.flatten(network)
        rows = Rows(model.network, network, mode.network, data.x)
        kinds = kinds_of(rows, [leaf.shape for leaf in leaves], self.structure)
        linearised = self.predictive == "linearised"
        dtype = np.dtype(jnp.result_type(float))

        def whole(parts, known):
            inner = jax.tree.unflatten(tree, parts)
            if learned is None:
                return inner
            return {"network": inner, "likelihood": jax.tree.map(known, learned)}

        # For each leaf of all parameters, its index in the network; -1 for parameters of the likelihood.
        places = jax.tree.leaves(whole(list(range(len(leaves))), lambda _: -1))
        if self.structure == "low_rank":
            # The last value is zero, for all directions without an eigenvector.
            values = found.values[0][:-1]
            return LowRankNormal(
                mode.params,
                found.outputs[0].astype(dtype),
                (values / (values + precision)).astype(dtype),
                (found.scales[0] / np.sqrt(precision)).astype(dtype),
                tuple(i >= 0 for i in places),
                linearised,
                mode.network,
            )
        if Kind.JOINT in kinds:
            root = (
                found.scales[0][:, None] * found.outputs[0] / np.sqrt(found.values[0] + precision)
            )
            free = tuple(i >= 0 and kinds[i] is Kind.JOINT for i in places)
            return FullNormal(mode.params, root.astype(dtype), free, linearised, mode.network)
        parts = zip(found.scales, found.values, strict=True)
        spread = [(scale / np.sqrt(v + precision)).astype(dtype) for scale, v in parts]
        layouts = [
            rows.products[i].layout if i >= 0 and kinds[i] is Kind.KRONECKER else () for i in places
        ]
        empty = lambda _: np.zeros((0, 0), dtype)  # noqa: E731
        return KroneckerNormal(
            mode.params,
            whole(list(found.inputs), empty),
            whole(list(found.outputs), empty),
            whole(spread, np.zeros_like),
            tuple(layouts),
            linearised,
            mode.network,
        )


def _joined(parts: tuple[Any, ...]) -> np.ndarray:
    return np.concatenate([np.ravel(part) for part in parts]).astype(np.float64)


@jit(static_argnames=("model",))
def _fixed_weights_curvature(model: Model, params: Params, state, data) -> Array:
    """Minus the Hessian of the log likelihood in its own learned parameters."""
    network, learned = model.split(params)
    start, unravel = ravel_pytree(jax.tree.map(widened, learned))

    def negative(theta):
        whole = {"network": network, "likelihood": unravel(theta)}
        return -model.full_log_likelihood(whole, data, state)

    return jax.hessian(negative)(start)


@jit(static_argnames=("model",))
def _noise_prior_curvature(model: Model, params: Params) -> Array:
    """Minus the Hessian of the log prior density of the learned parameters of the likelihood."""
    start, unravel = ravel_pytree(jax.tree.map(widened, model.split(params)[1]))
    return jax.hessian(lambda theta: -model.likelihood.log_prior(unravel(theta)))(start)


# -- the eigenvectors, along which the posterior factorises ---------------------------------------------


class Found(NamedTuple):
    """The eigendecomposition of the curvature, in units of the prior's standard deviation s.

    In these units, the precision is the curvature plus the identity. Its eigenvectors are therefore those of
    the curvature, also if the prior precision is multiplied by a number. The tuples have one entry for each
    leaf, or a single entry for all joint leaves.

    Attributes:
      inputs: the eigenvectors of a product's input factor; empty if there is no such factor. If there are fewer
        eigenvectors than inputs, all other directions have no curvature.
      outputs: the eigenvectors of the output factor, or of the only matrix; empty for a diagonal.
      values: the eigenvalues; with fewer eigenvectors than inputs, the last row is zero, for all others.
      slopes: the gradient of the log joint along the eigenvectors.
      scales: s.
      penalty: the sum of the squared distances of the weights from the prior mean, in units of s.
      offset: the log evidence without the terms that depend on the volume of the posterior.
      gradient_norm: the norm of the gradient of the log joint.
      flat: the number of weights at which the log prior density is not concave.
      weights: the number of weights that are not fixed.
    """

    inputs: tuple[Array, ...]
    outputs: tuple[Array, ...]
    values: tuple[Array, ...]
    slopes: tuple[Array, ...]
    scales: tuple[Array, ...]
    penalty: Array
    offset: Array
    gradient_norm: Array
    flat: Array
    weights: Array


@jit(static_argnames=("model", "structure"))
def _decompose(model: Model, structure: str, params: Params, state, data, sums: Sums) -> Found:
    network, _ = model.split(params)
    leaves = jax.tree.leaves(network)
    rows = Rows(model.network, network, state, data.x)
    kinds = kinds_of(rows, [leaf.shape for leaf in leaves], structure)
    free = [i for i, kind in enumerate(kinds) if kind is not Kind.FIXED]
    prior = prior_at(model, params, free)
    slopes = {i: sums.gradient[i] + prior.slopes[i] for i in free}
    count = sum(leaves[i].size for i in free)

    with jax.default_matmul_precision("highest"):
        if sums.joint is not None:
            slope = jnp.concatenate([slopes[i].reshape(-1) for i in free])
            if structure == "low_rank":
                values, vectors = sums.joint
                parts = [prior.low_rank(values, vectors, slope)]
            else:
                parts = [prior.joint(sums.joint, slope)]
        else:
            factors = {
                i: (_input_directions(sums.leaves[i][0]), jnp.linalg.eigh(sums.leaves[i][1]))
                for i in free
                if kinds[i] is Kind.KRONECKER
            }
            total = data.total
            if model.divided:  # the places of a product are counted for themselves
                total = data.rows if data.weights is None else jnp.sum(data.weights)
            parts = [
                _directions(i, kinds[i], rows, factors, sums.leaves[i], prior, slopes[i], total)
                for i in free
            ]
    inputs, outputs, values, along, units = zip(*parts, strict=True)
    if sums.joint is not None:
        volume = prior.joint_log_volume()
    else:
        each = zip(free, units, inputs, strict=True)
        volume = sum(log_volume(unit, leaves[i].shape, own) for i, unit, own in each)
    offset = sums.log_likelihood + prior.log_density + volume
    return Found(
        inputs,
        outputs,
        values,
        along,
        units,
        penalty=prior.penalty,
        offset=offset + 0.5 * count * math.log(2 * math.pi),
        gradient_norm=jnp.sqrt(jnp.sum(jnp.stack([jnp.sum(slopes[i] ** 2) for i in free]))),
        flat=prior.flat,
        weights=jnp.asarray(count),
    )


def _input_directions(kept: Array) -> tuple[Array, Array]:
    """Eigenvalues and eigenvectors of a product's input factor, from the factor itself or from fewer inputs.

    From inputs A, those that are not zero: with A' = Q R, the factor A' A is Q (R R') Q'.
    """
    if len(kept) == kept.shape[1]:
        return jnp.linalg.eigh(kept)
    basis, triangle = jnp.linalg.qr(kept.T)
    values, vectors = jnp.linalg.eigh(triangle @ triangle.T)
    return values, basis @ vectors


def _directions(i, kind, rows, factors, kept, prior: PriorAt, slope, count):
    """The entries of ``Found`` for one leaf."""
    none = jnp.zeros((0, 0), slope.dtype)
    if kind is Kind.DIAGONAL:
        scale = prior.each(i, slope.shape)
        return none, none, scale**2 * kept, scale * slope, scale
    if kind is Kind.KRONECKER:
        # Both factors are sums over rows and places; the Kronecker product needs one of them as a mean (Martens
        # & Grosse, 2015; for several places, the "expand" form of Eschenhagen et al., 2023).
        (a, inputs), (g, outputs) = factors[i]
        product = rows.products[i]
        scale = prior.along(i, product.layout, inputs, outputs)
        a, g = jnp.maximum(a, 0) / (count * product.places), jnp.maximum(g, 0)
        along = inputs.T @ as_matrix(slope, product.layout) @ outputs
        if len(a) < len(inputs):  # one more row stands for all directions without curvature
            a, along = (jnp.pad(b, [(0, 1)] + [(0, 0)] * (b.ndim - 1)) for b in (a, along))
        return inputs, outputs, scale**2 * a[:, None] * g, scale * along, scale
    g, outputs = factors[product_with(rows, i)][1] if kind is Kind.SHARED else jnp.linalg.eigh(kept)
    scale = prior.along(i, (), none, outputs)
    scale = scale if scale.ndim == 0 else scale.reshape(slope.shape)
    g = jnp.maximum(g, 0).reshape(slope.shape)
    along = slope.reshape(-1) @ outputs
    along = along if scale.ndim == 0 else along.reshape(slope.shape)
    return none, outputs, scale**2 * g, scale * along, scale
