"""Microcanonical Langevin ensembles (MILE; Sommer et al., 2025)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from credax.core.checks import integer, must, positive
from credax.core.settings import at_least, one_among, optional, setting
from credax.core.trees import Flat
from credax.core.typing import Draw
from credax.inference import folds
from credax.inference.method import Layout, Method, Need
from credax.inference.montecarlo.mclmc import MCLMC, Info
from credax.inference.optimiser import LearningRate, learning_rate, make_optimiser, optimiser
from credax.inference.point import MAP
from credax.posterior.approximations import Draws

CLIP = 1.0
"""The largest norm of the gradient per row in training; longer gradients are clipped. If the initial weights
predict a tiny scale, gradients that are a million times too long would stay in the optimiser's memory for
thousands of steps, and one member in ten would not fit at all."""
FIRST_STEP = 1e-4
"""The first step size, as a fraction of the length L. The tuned step sizes of networks are tens of times
larger. They are approached from below, since a first step that is far too long can end where the density is
NaN."""
LONGEST_TRAINING = 3_000
"""The most training steps by default. The chain continues to climb while it cools, and reaches regions of
higher density than a longer training does."""
NORMS = 1.5
"""The length L of the chain, as a multiple of the norm of the trained weights."""
HEAT = 100.0
"""The ``heat`` of a chain when its tuning begins, so that it can leave the point at which training ended."""


class State(NamedTuple):
    """The training of a member, and the chain that starts at the trained weights."""

    training: Any  # the state of MAP
    chain: Any  # the state of MCLMC; zeros until training is over
    rows: Any = ()  # the numbers of the member's rows; () if it uses all of them


@dataclass(frozen=True)
class MicrocanonicalEnsemble(Method):
    r"""A deep ensemble in which a Markov chain starts from each member (MILE).

    Member s is trained to a mode of the posterior, from which a chain of :class:`MCLMC` draws:

    .. math::
        \hat w_s \approx \arg\max_w\, p(Y \mid X, w)\, p(w), \qquad
        w_s^{(1)}, w_s^{(2)}, \dots \sim p(w \mid D) \text{ from } \hat w_s, \qquad
        p(y \mid x, D) \approx \tfrac{1}{S K} \sum_{s, k} p(y \mid x, w_s^{(k)})

    The members cover modes between which no chain would move, and the chains add the spread around each of
    them. The chains move in coordinates that whiten the inputs of each layer at the mode (``mass="inputs"``
    of :class:`MCLMC`).

    Args:
      members: S, the number of members.
      num_warmup: steps of each member before its first draw: first training, then tuning of the chain.
      num_draws: K, the number of draws per member.
      thin: steps per draw.
      training_steps: how many of the ``num_warmup`` steps are training steps. If ``None``, a quarter of them,
        but at most 3,000.
      training_batch_size: rows per training step. If ``None``, all rows are used. The chain always uses all
        rows.
      learning_rate: the learning rate of the training. A number decays to zero along a cosine; an optax
        schedule is used unchanged.
      optimiser: the optimiser of the training: a name in ``optax`` or an optax transformation.
      length: L of the chain, the distance over which its direction is forgotten. If ``None``,
        :math:`1.5\, |\hat w_s|`.
      desired_energy_variance: the variance of the energy error per step and dimension that the step size of the
        chain is tuned to. It is a hundred times larger when the tuning begins.
      collapse: whether the chains integrate out the last layer of a regression with Gaussian noise in closed
        form, and draw it at the end given the other weights. If ``None``, this is done wherever it is possible.
      folds: the number of folds into which the rows are divided. Member s then leaves out the rows of fold s,
        so that ``posterior.info["held_out_log_prob"]`` judges the model on rows that a member has not seen. If
        ``None``, all members use all rows.

    Reference: Sommer, Robnik, Nozadze, Seljak & Rügamer, Microcanonical Langevin ensembles: Advancing the
    sampling of Bayesian neural networks, 2025.
    """

    members: int = setting(10, integer)
    num_warmup: int = setting(12_000, integer)
    num_draws: int = setting(100, integer)
    thin: int = setting(40, integer)
    training_steps: int | None = setting(None, optional(at_least(0)))
    training_batch_size: int | None = setting(None, optional(integer))
    learning_rate: LearningRate = setting(2e-2, learning_rate)
    optimiser: Any = setting("adam", optimiser)
    length: float | None = setting(None, optional(positive))
    desired_energy_variance: float = setting(3e-3, positive)
    collapse: bool | None = setting(None, one_among(None, False, True))
    folds: int | None = setting(None, optional(at_least(2)))

    kind = "approximate"  # all modes have the same weight, whatever their share of the posterior
    layout = Layout.IN_TURN_IF_SMALL  # as for MCLMC
    when_diverged = MCLMC.when_diverged
    when = "the best predictions on tables, if a minute of computing time is acceptable"
    errs = "all modes have the same weight; otherwise within a fifth"

    def __post_init__(self):
        super().__post_init__()
        steps = self.training_steps
        if steps is not None and steps >= self.num_warmup:
            allowed = f"below num_warmup, {self.num_warmup}, whose other steps tune the chain"
            raise ValueError(must(type(self).__name__, "training_steps", allowed, steps))

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of members."""
        return self.members

    @property
    def num_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps of training, tuning and drawing."""
        return self.num_warmup + self.num_draws * self.thin

    @property
    def needs(self) -> frozenset[Need]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Without training, batch statistics must have been trained before, since a chain holds them fixed."""
        return frozenset({"gradient"} if self.trained else {"gradient", "trained state"})

    @property
    def trained(self) -> int:
        """The number of training steps."""
        if self.training_steps is None:
            return min(self.num_warmup // 4, LONGEST_TRAINING)
        return self.training_steps

    @property
    def member(self) -> MAP:
        """The method that trains a member."""
        plain = MAP(
            num_steps=max(self.trained, 1),
            learning_rate=self.learning_rate,
            optimiser=self.optimiser,
        )
        clipped = optax.chain(optax.clip_by_global_norm(CLIP), make_optimiser(plain))
        return replace(plain, optimiser=clipped)

    @property
    def chain(self) -> MCLMC:
        """The method that draws from a trained member on."""
        return MCLMC(
            chains=self.members,
            num_warmup=self.num_warmup - self.trained,
            num_draws=self.num_draws,
            thin=self.thin,
            length=self.length or 1.0,  # a placeholder until training is over
            desired_energy_variance=self.desired_energy_variance,
            mass="inputs",
            collapse=self.collapse,
            heat=HEAT,
        )

    def check(self, model, data):
        """Check what training and sampling check."""
        super().check(model, data)
        self.chain.check_collapse("MicrocanonicalEnsemble", model, data)
        self.chain.check(model, data)
        if self.folds is not None and (data is None or data.rows < 2 * self.folds):
            allowed = "None where there is no data"
            if data is not None:
                allowed = f"at most half the number of rows, {data.rows // 2}"
            raise ValueError(must(type(self).__name__, "folds", allowed, self.folds))
        rows = self.training_batch_size
        if rows is None:
            return
        if data is None or rows > data.rows:
            allowed = (
                "None where there is no data" if data is None else f"at most {data.rows}, all rows"
            )
            raise ValueError(must(type(self).__name__, "training_batch_size", allowed, rows))

    def init(self, key, model, data: Any):
        """The initial weights of a member, its rows, and a placeholder for its chain."""
        training, rows = self.member.init(key, model, data), ()
        if self.folds is not None:
            fold = lax.rem(data.replica, jnp.asarray(self.folds, data.replica.dtype))
            rows = folds.training_rows(data.rows, fold, self.folds)
        like = jax.eval_shape(lambda: self.chain.unseen(key, model, data))
        chain = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return State(training, chain, rows)

    def step(self, key, state, model, batch: Any, step):
        """One training step, or one step of the chain."""
        if self.folds is not None:
            batch = batch.take(state.rows)
        training, chain, info = lax.cond(
            step < self.trained,
            lambda: self._train(key, step, state, model, batch),
            lambda: self._sample(key, step, state, model, batch),
        )
        return State(training, chain, state.rows), info

    def _train(self, key, step, state, model, batch):
        if self.training_batch_size is not None:
            rows_key, key = jax.random.split(key)
            batch = batch.data.batch(rows_key, jnp.zeros((), jnp.int32), self.training_batch_size)
        training, (log_joint,) = self.member.step(key, state.training, model, batch, step)
        nothing = jnp.zeros((), state.chain.position.vector.dtype)
        return training, state.chain, Info(log_joint, nothing, nothing, nothing)

    def _sample(self, key, step, state, model, batch):
        begin_key, key = jax.random.split(key)

        def begin():
            trained = model.starting_at(Draw(state.training.params, state.training.network))
            data = None if batch is None else batch.data
            return self._at_mode(self.chain.unseen(begin_key, trained, data))

        chain = lax.cond(step == self.trained, begin, lambda: state.chain)
        chain, info = self.chain.step(key, chain, model, batch, step - self.trained)
        return state.training, chain, info

    def _at_mode(self, chain):
        """The chain at its start, with its length and first step size."""
        length = self.length
        if length is None:
            length = NORMS * jnp.linalg.norm(chain.position.vector)
        length = jnp.asarray(length, chain.position.vector.dtype)
        tuning = chain.tuning.tree._replace(length=length, step_size=FIRST_STEP * length)
        return chain._replace(tuning=Flat.of(tuning))

    def keep(self, state):
        """The parameters of the chain."""
        return self.chain.keep(state.chain)

    def posterior(self, model, trace):
        """All draws of all members, with equal weights."""
        if self.folds is None:
            posterior = self.chain.posterior(model, trace)
        else:
            posterior = self._of_folds(model, trace)
        return replace(posterior, info={**posterior.info, "modes": self.members})

    def _of_folds(self, model, trace: Any):
        """The draws of each member given its own rows, from which a collapsed layer is drawn."""
        found = []
        for i in range(self.members):
            one = lambda leaf, i=i: leaf[i : i + 1]  # noqa: E731
            rows = trace.state.rows[i]
            own = replace(
                trace,
                state=jax.tree.map(one, trace.state),
                draws=jax.tree.map(one, trace.draws),
                data=trace.data.take(rows),
                key=jax.random.fold_in(trace.key, i),
            )
            found.append(self.chain.posterior(model, own))
        parts: list[Any] = [part.approximation for part in found]
        join = lambda *leaves: np.concatenate(leaves)  # noqa: E731
        params = jax.tree.map(join, *(part.params for part in parts))
        state = jax.tree.map(join, *(part.state for part in parts))
        return replace(found[0], approximation=Draws(params, state))

    def finish(self, posterior, trace: Any):
        """Also the log density of each row that a member has not seen, if there are folds."""
        if self.folds is None:
            return posterior
        scored = folds.held_out_log_prob(posterior, trace.data, self.folds)
        return replace(posterior, info={**posterior.info, **scored})
