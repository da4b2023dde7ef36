"""Deep ensembles (Lakshminarayanan et al., 2017; Hansen & Salamon, 1990)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.checks import integer, must, number, positive
from credax.core.rows import RowTree
from credax.core.settings import flag, one_among, optional, setting
from credax.core.typing import Array, Key, Params
from credax.inference import noise
from credax.inference.method import Layout, Method
from credax.inference.optimiser import LearningRate, learning_rate, optimiser
from credax.inference.point import MAP, JointInfo, ascend_marginal, points
from credax.inference.point import State as MemberState
from credax.model.data import at
from credax.model.likelihoods import Gaussian, MultivariateGaussian


class State(NamedTuple):
    """The state of a member, and what distinguishes it from the others."""

    member: MemberState
    shift: Params  # from the prior mean to the centre of the member's prior; () if all members share the prior
    reach: Array | tuple[()]  # how far each input is moved in adversarial training; () without it
    spread: Any  # C of the noise's estimate


def several(owner: str, name: str, value: Any) -> int:
    """Check for a number of members, at least two; return it."""
    members = integer(owner, name, value)
    if members == 1:
        allowed = "at least 2, since one alone has no spread (it is cx.MAP)"
        raise ValueError(must(owner, name, allowed, value))
    return members


def _flag_or_scale(owner: str, name: str, value: Any) -> bool | float:
    if isinstance(value, bool):
        return value
    allowed = "True, False or a number, at least 0"
    scale = number(owner, name, value, allowed)
    if scale < 0:
        raise ValueError(must(owner, name, allowed, scale))
    return scale


@dataclass(frozen=True)
class DeepEnsemble(Method):
    r"""Several networks, trained independently from different initial weights.

    .. math::
        \bar f = \tfrac{1}{S} \sum_s f_s, \qquad \operatorname{Var} f = \tfrac{1}{S} \sum_s (f_s - \bar f)^2

    Each member is a ``MAP`` run with its own initial weights and minibatches; all members run as one batched
    program. Optionally, members also differ in their rows, their prior or their targets.

    Args:
      members: the number of networks S, at least two.
      num_steps: the number of optimiser steps for each member.
      batch_size: the number of rows per step. If ``None``, every step uses all rows.
      learning_rate: the learning rate of the optimiser. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the name of an optimiser in ``optax``, or an optax transformation.
      bootstrap: whether to train each member on a bootstrap sample: as many rows as the data set has, drawn
        with replacement.
      random_prior: whether to centre the prior of each member at a draw from the prior instead of at its mean,
        so that members differ where there is no data (Osband et al., 2018). A number scales the distance of
        that draw from the mean.
      noisy_targets: whether to add separate noise to the targets of each member, drawn from the likelihood,
        which must be Gaussian with a given scale. Together with ``random_prior``, the members of a linear model
        are then exact draws from its posterior.
      adversarial: also train on adversarial inputs, moved in the direction that lowers the likelihood by this
        fraction of each column's range (0.01 in the paper). If ``None``, no adversarial inputs are used.
      members_at_once: how many of the members on a device run as one batch. If ``None``, all of them. Smaller
        batches need less memory for gradients and take longer; they change the last bits of the result.
      noise: how a noise scale that the likelihood learns is estimated, under a Gaussian prior of the weights:
        ``"marginal"`` by its marginal likelihood, ``"mode"`` at the joint mode of weights and noise, where it
        is too small if the network has many weights.

    References: Hansen & Salamon, Neural network ensembles, 1990; Lakshminarayanan, Pritzel & Blundell,
    Simple and scalable predictive uncertainty estimation using deep ensembles, 2017.
    """

    members: int = setting(5, several)
    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(1e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    bootstrap: bool = setting(False, flag)
    random_prior: bool | float = setting(False, _flag_or_scale)
    noisy_targets: bool = setting(False, flag)
    adversarial: float | None = setting(None, optional(positive))
    members_at_once: int | None = setting(None, optional(integer))
    noise: str = setting("marginal", one_among(*noise.CHOICES))

    kind = "approximate"
    when = "a robust first choice for networks of any size"
    errs = (
        "members that end at nearly the same function: up to fifty times too sure on small tables, "
        "inside and outside the data"
    )

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One replica for each member."""
        return self.members

    @property
    def objective(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The log joint, unless the members have rows, targets or priors of their own."""
        own = self.bootstrap or self.random_prior or self.noisy_targets
        return None if own or self.adversarial is not None else self.member.objective

    @property
    def layout(self) -> Layout | int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One batch, of at most ``members_at_once`` members."""
        return self.members_at_once or Layout.TOGETHER

    @property
    def member(self) -> MAP:
        """The method that trains one member."""
        return MAP(self.num_steps, self.batch_size, self.learning_rate, self.optimiser)

    def check(self, model: Any, data: Any) -> None:
        """Also refuse options that do not suit the model."""
        super().check(model, data)
        options = {
            "bootstrap": self.bootstrap,
            "random_prior": self.random_prior,
            "noisy_targets": self.noisy_targets,
            "adversarial": self.adversarial is not None,
        }
        if data is None:
            for setting in (setting for setting, chosen in options.items() if chosen):
                got = getattr(self, setting)
                allowed = "left out for a LogDensity, which has no data"
                raise ValueError(must("DeepEnsemble", setting, allowed, got))
            return
        if model.network.pretrained and self.batch_size is None and not any(options.values()):
            raise ValueError(
                "DeepEnsemble needs members that differ; all of them would start at this network's pretrained "
                "weights and see the same rows. Give batch_size, bootstrap=True or random_prior=True, or a "
                "network with pretrained=False."
            )
        if self.random_prior:
            params = jax.eval_shape(model.init, jax.random.key(0))
            for prior in jax.tree.leaves(model.split(model.leaf_priors(params))[0]):
                if prior.gaussian(()) is None:
                    allowed = f"False unless the prior is Gaussian, which {prior} is not"
                    raise ValueError(
                        must("DeepEnsemble", "random_prior", allowed, self.random_prior)
                    )
        likelihood = model.likelihood
        known = isinstance(likelihood, Gaussian | MultivariateGaussian) and not likelihood.learned
        if self.noisy_targets and not known:
            allowed = "False unless the likelihood is a Gaussian of given scale (bootstrap=True serves all)"
            raise ValueError(must("DeepEnsemble", "noisy_targets", allowed, True))
        if self.adversarial is not None:
            if isinstance(data.x, RowTree):
                allowed = "None where x is a tree of arrays"
                raise ValueError(must("DeepEnsemble", "adversarial", allowed, self.adversarial))
            if not jnp.issubdtype(data.x.dtype, jnp.floating):
                allowed = f"None where x holds {data.x.dtype}, which cannot be moved a little"
                raise ValueError(must("DeepEnsemble", "adversarial", allowed, self.adversarial))

    def batch(self, key, model, data, step):
        """The rows of a step, together with all rows if the noise is estimated from them."""
        batch = self._member_batch(key, model, data, step)
        return noise.with_all_rows(self.noise, model, data, batch)

    def _member_batch(self, key, model, data, step):
        """The rows of a step, taken from the member's bootstrap sample and with its noisy targets."""
        if not (self.bootstrap or self.noisy_targets):
            return super().batch(key, model, data, step)
        key, own_key = jax.random.split(key)
        batch = data.numbered().batch(key, step, self.batch_size)
        # The row and the noise at each position of a member's data set depend only on its key and the position.
        pair = jax.vmap(lambda place: jax.random.split(jax.random.fold_in(own_key, place)))
        row_keys, noise_keys = pair(batch.x).T
        chosen = batch.x
        if self.bootstrap:
            chosen = jax.vmap(lambda key: jax.random.randint(key, (), 0, data.rows))(row_keys)
        y = data.y[chosen]
        if self.noisy_targets:
            y = jax.vmap(lambda key, y: _perturbed(key, y, model.likelihood))(noise_keys, y)
        batch = replace(
            batch, x=data.x[chosen], y=y, weights=at(getattr(data, "weights", None), chosen)
        )
        return replace(batch, mean_weight=data.mean_weight) if model.divided else batch

    def init(self, key, model, data: Any):
        """The initial weights of a member, and the centre of its prior."""
        shift, reach = (), ()
        if self.random_prior:
            # `fit` splits the same key in two, for rows and steps; the third part is used nowhere else.
            drawn = model.sample_prior(jax.random.split(key, 3)[2])
            network, priors = (model.split(tree)[0] for tree in (drawn, model.leaf_priors(drawn)))

            def from_centre(w, prior):
                return float(self.random_prior) * (w - prior.gaussian(w.shape)[0])

            shift = jax.tree.map(from_centre, network, priors)
        if self.adversarial is not None:
            reach = self.adversarial * (data.x.max(0) - data.x.min(0))
        spread = noise.no_spread(self.noise, model)
        return State(self.member.init(key, model, data), shift, reach, spread)

    def step(self, key, state, model, batch, step):
        """Take one training step of a member."""

        def objective(params, batch, network, key):
            value, network = self._log_likelihood(params, batch, network, key, model, state.reach)
            return value + self._log_prior(params, model, state.shift), network

        plain = not self.random_prior and self.adversarial is None
        member, spread, value = ascend_marginal(
            *(self.member, key, state.member, state.spread, model, batch, step),
            objective=None if plain else objective,
        )
        return state._replace(member=member, spread=spread), JointInfo(value)

    def _log_prior(self, params, model, shift) -> Array:
        """The log density of the prior, moved to the member's centre."""
        if not self.random_prior:
            return model.log_prior(params)
        network, likelihood = model.split(params)
        moved = jax.tree.map(jnp.subtract, network, shift)
        if likelihood is None:
            return model.log_prior(moved)
        return model.log_prior({"network": moved, "likelihood": likelihood})

    def _log_likelihood(self, params, batch, network, key, model, reach):
        """The log likelihood; in adversarial training, its mean over the inputs and the adversarial inputs."""
        if self.adversarial is None:
            return model.train_log_likelihood(params, batch, network, key)

        def of_inputs(x):
            return model.train_log_likelihood(params, replace(batch, x=x), network, key)

        slope, _ = jax.grad(of_inputs, has_aux=True)(batch.x)
        value, after = of_inputs(batch.x)
        moved, _ = of_inputs(lax.stop_gradient(batch.x - reach * jnp.sign(slope)))
        return 0.5 * (value + moved), after

    def draw(self, key, state, model, rows):
        """The weights of the member, for every key."""
        return self.member.draw(key, state.member, model, rows)

    def posterior(self, model, trace: Any):
        """The members, equally weighted."""
        return points(model, replace(trace, state=trace.state.member))


def _perturbed(key: Key, y: Array, likelihood: Any) -> Array:
    """The targets of one row with noise: a draw from the likelihood for network outputs equal to y."""
    drawn = likelihood.sample(key, jnp.atleast_1d(y)[None])
    return drawn.reshape(y.shape).astype(y.dtype)
