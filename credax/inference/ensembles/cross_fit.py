"""Ensembles whose members leave out different rows and stop early on them (Krogh & Vedelsby, 1995)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

from credax.core.checks import integer, must, positive
from credax.core.settings import flag, optional, setting
from credax.core.typing import Array, Draw, Key
from credax.inference import folds
from credax.inference.ensembles import averaging, stretching, wandering
from credax.inference.method import Method
from credax.inference.optimiser import make_optimiser, optimiser
from credax.inference.point import MAP, points
from credax.inference.point import State as MemberState
from credax.model.data import ArrayData
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

CLIP = 1.0
"""The largest norm of the gradient per row; longer gradients are clipped."""
WARMUP = 20
"""The learning rate rises during one step in this many."""


class State(NamedTuple):
    """The training of a member, the fold that it leaves out, and its last score there."""

    member: MemberState
    fold: Array
    held_out: Array


class Info(NamedTuple):
    """The info of a step."""

    log_joint: Array  # minibatch estimate, at the parameters before the step
    held_out: (
        Array  # log likelihood per row of the fold that was left out, when it was last computed
    )


class _Rows(NamedTuple):
    """What a step needs to choose its rows, for which it must know the fold of its member."""

    key: Key
    data: ArrayData


def _several(owner: str, name: str, value: Any) -> int:
    count = integer(owner, name, value)
    if count == 1:
        raise ValueError(must(owner, name, "at least 2", value))
    return count


@dataclass(frozen=True)
class CrossFitEnsemble(Method):
    r"""Networks that each leave out different rows, taken where they predict these rows best.

    Member s is trained on the rows outside fold s, from different initial weights. Snapshots
    :math:`w_s^{(1)}, w_s^{(2)}, \dots` are kept along the way. The posterior consists of the snapshots of the
    time t at which the members predict best the rows that they have not seen:

    .. math::
        t = \arg\max_t \sum_s \sum_{i \in \text{fold } s} \log p(y_i \mid x_i, w_s^{(t)}), \qquad
        p(y \mid x, D) \approx \tfrac{1}{S} \sum_s p(y \mid x, w_s^{(t)})

    So no member is trained for so long that it takes noise for structure, every row is used by most members,
    and each row has a prediction by a member that has not seen it. The log densities of these predictions are
    in ``posterior.info["held_out_log_prob"]``, and judge the model without further rows.

    Args:
      members: S, the number of networks.
      num_steps: the number of optimiser steps for each member.
      batch_size: the number of rows per step, at most those outside a fold. If ``None``, all of them.
      learning_rate: the largest learning rate. It rises over the first twentieth of the steps, and then decays
        to zero along a cosine.
      optimiser: the name of an optimiser in ``optax``.
      folds: the number of folds. If ``None``, one for each member.
      snapshots: how many times the weights are kept and judged.
      prior_functions: whether each member gets a random function that is nearly zero where there are data, so
        that members differ elsewhere. Only for inputs that are one array of floating-point numbers, and targets
        that belong to rows.
      calibrate: whether the predictive density is stretched around its mean so that it suits the errors at rows
        that members have not seen. Only for :class:`cx.likelihoods.MixtureDensity`, whose ``stretch`` it sets.
      average: whether the weights of some snapshots around the best one are averaged, if members then predict
        better the rows that they have not seen.

    References: Krogh & Vedelsby, Neural network ensembles, cross validation, and active learning, 1995;
    Prechelt, Early stopping - but when?, 1998; Osband, Aslanides & Cassirer, Randomized prior functions for
    deep reinforcement learning, 2018; Izmailov et al., Averaging weights leads to wider optima and better
    generalization, 2018.
    """

    members: int = setting(8, _several)
    num_steps: int = setting(2_000, integer)
    batch_size: int | None = setting(None, optional(integer))
    learning_rate: float = setting(8e-3, positive)
    optimiser: str = setting("adam", optimiser)
    folds: int | None = setting(None, optional(_several))
    snapshots: int = setting(20, integer)
    prior_functions: bool = setting(True, flag)
    calibrate: bool = setting(True, flag)
    average: bool = setting(True, flag)

    kind = "approximate"
    needs = frozenset({"gradient", "likelihood", "all rows"})
    when = "the best predictions on tables of any size, in seconds"
    errs = (
        "about right inside the data; far outside as unsure as its random functions are large, which is an "
        "assumption; in gaps of a combination of many columns often too sure"
    )

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """One replica for each member."""
        return self.members

    @property
    def thin(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of steps between two snapshots."""
        return max(self.num_steps // self.snapshots, 1)

    @property
    def num_folds(self) -> int:
        """The number of folds."""
        return self.folds or self.members

    @property
    def member(self) -> MAP:
        """The method that trains one member."""
        steps = self.num_steps
        warmup = min(steps // WARMUP + 1, steps - 1)
        rate: Any = self.learning_rate
        if warmup > 0:
            rate = optax.warmup_cosine_decay_schedule(0.0, self.learning_rate, warmup, steps)
        plain = MAP(steps, self.batch_size, rate, self.optimiser)
        clipped = optax.chain(optax.clip_by_global_norm(CLIP), make_optimiser(plain))
        return replace(plain, optimiser=clipped)

    def check(self, model, data: Any):
        """Also refuse folds without rows, and batches that are larger than the rows outside a fold."""
        super().check(model, data)
        if data.rows < 2 * self.num_folds:
            name = "members" if self.folds is None else "folds"
            if data.rows < 4:
                raise ValueError(
                    "CrossFitEnsemble needs at least 4 rows, since each member leaves some out; got "
                    f"{data.rows}."
                )
            allowed = f"at most half the number of rows, {data.rows // 2}"
            raise ValueError(must("CrossFitEnsemble", name, allowed, self.num_folds))
        rest = data.rows - folds.size(data.rows, self.num_folds)
        if self.batch_size is not None and self.batch_size > rest:
            allowed = f"at most the number of rows outside a fold, {rest}"
            raise ValueError(must("CrossFitEnsemble", "batch_size", allowed, self.batch_size))

    def batch(self, key, model, data, step) -> Any:
        """The whole data set: the rows of a step depend on the fold, which the state knows."""
        return _Rows(key, data)

    def init(self, key, model, data: Any):
        """The initial weights of a member, and the fold that it leaves out."""
        fold = lax.rem(data.replica, jnp.asarray(self.num_folds, data.replica.dtype))
        nothing = jnp.zeros((), jnp.result_type(float))
        return State(self.member.init(key, model, data), fold, nothing)

    def step(self, key, state, model, batch: Any, step):
        """Take one training step; judge the member if a snapshot is due."""
        data, fold, count = batch.data, state.fold, self.num_folds
        rows = folds.batch(data, fold, count, batch.key, step, self.batch_size)
        member, info = self.member.step(key, state.member, model, rows, step)

        def judged():
            draw = Draw(member.params, member.network)
            score = averaging.held_out_score(model, draw, fold, data, count)
            return score.astype(state.held_out.dtype)

        due = (step + 1) % self.thin == 0
        held_out = lax.cond(due, judged, lambda: state.held_out)
        return State(member, fold, held_out), Info(info.log_joint, held_out)

    def keep(self, state):
        """The weights of the member."""
        return Draw(state.member.params, state.member.network)

    def posterior(self, model, trace: Any):
        """The members at the best snapshot, or averaged around it, equally weighted."""
        kept = 0 if trace.draws is None else jax.tree.leaves(trace.draws)[0].shape[1]
        if kept == 0:
            return points(model, replace(trace, state=trace.state.member))
        steps = self.thin * np.arange(1, kept + 1) - 1
        history = trace.info["held_out"][:, steps]
        best, averaged = int(np.argmax(history.mean(0))), 1
        given: Any = trace.draws
        draws = jax.tree.map(lambda leaf: leaf[:, best : best + 1], given)
        if self.average:
            known = np.asarray(history[:, best], np.float64)
            draws, averaged = averaging.best_average(
                model, given, trace.data, self.num_folds, best, known
            )
        # One point per member, taken from the run: not a chain of which every draw was kept.
        info = {"best_snapshot": best + 1, "snapshots": kept, "kept": np.zeros(0, int)}
        info["averaged_snapshots"] = averaged
        return Posterior(model, Draws(draws.params, draws.state), info=info)

    def finish(self, posterior, trace: Any):
        """Also the random functions, the width of the density, and the log density of unseen rows."""
        if self.prior_functions and wandering.suits(posterior.model, trace.data):
            posterior = wandering.with_functions(posterior, trace.data)
        alone, info = posterior, dict(posterior.info)
        if self.calibrate and stretching.suits(posterior):
            single, together = stretching.factors(posterior, trace.data, self.num_folds)
            alone = stretching.with_stretch(posterior, single)
            posterior = stretching.with_stretch(posterior, together)
            info |= {"stretch_of_members": single, "stretch": together}
        info |= folds.held_out_log_prob(alone, trace.data, self.num_folds)
        return replace(posterior, info=info)
