"""The contract of a method: pure functions over one replica. ``fit`` does everything else."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from credax.core.checks import integer, must
from credax.core.typing import Array, Draw, Key, PyTree

if TYPE_CHECKING:
    from credax.model import LogDensity, Model
    from credax.model.data import ArrayData, Batch
    from credax.posterior import Posterior


class Method(abc.ABC):
    """A way to a posterior. Concrete methods are final, frozen dataclasses of their settings.

    A replica is a chain, a member or a particle: ``init``, ``step`` and ``keep`` see one of them, ``fit``
    runs all of them as one program. A ``State`` is what the next step needs and an ``Info`` what a person
    wants to see of a step, a NamedTuple of finite scalars; both are pytrees of strongly typed arrays.
    """

    num_steps: int
    """Steps in all, warm-up included."""
    batch_size: int | None = None
    """Rows a step; ``None``: the whole data set."""
    replicas: int = 1
    num_warmup: int = 0
    """Steps whose states are not kept."""
    thin: int = 1
    """Of the steps after warm-up, every ``thin``-th state is kept."""
    at_once: int | None = None
    """How many replicas of a device run as one batch, where not all of them fit in its memory."""

    needs_likelihood: ClassVar[bool] = False
    """Whether the method tells data from prior, which a ``LogDensity`` does not."""
    needs_gradient: ClassVar[bool] = True
    """Whether the method differentiates the log joint, which discrete weights do not allow."""
    updates_state: ClassVar[bool] = True
    """Whether the method trains what a network carries beside its weights (batch statistics).

    Otherwise the network must be trained before: ``fit(..., start=posterior)``.
    """
    in_sequence: ClassVar[bool] = False
    """Whether, on a CPU, the replicas of a device run one after the other instead of as one batch.

    For products so small that a batch of them is slower, but for networks that put their rows last.
    """
    unequal_steps: ClassVar[bool] = False
    """Whether in a batch each step would wait for the longest, so that replicas take turns in any case."""
    when: ClassVar[str]
    """When to use the method, in a few words."""
    evidence_bias: ClassVar[str] = "not known"
    """To which side its log evidence errs, where it estimates one."""
    when_diverged: ClassVar[str] = "Lower learning_rate, or scale x and y to unit variance."
    """What to change when a run meets NaN."""

    def check(self, model: Model | LogDensity, data: ArrayData | None) -> None:
        """Refuses, before anything compiles, what this method cannot do with this model and data."""
        name = type(self).__name__
        if self.needs_likelihood and not hasattr(model, "log_likelihood"):
            raise TypeError(
                f"{name} needs a Model with a likelihood; got a {type(model).__name__}."
            )
        if self.needs_gradient and model.discrete:
            raise ValueError(
                f"{name} needs gradients, which the prior's discrete weights do not have. "
                "Use a continuous prior, or a method for discrete weights."
            )
        if model.discrete and model.likelihood.learned:  # pyright: ignore[reportAttributeAccessIssue]
            raise ValueError(
                f"{name} takes weights that are all discrete or all continuous: under a discrete prior the "
                "likelihood must not learn a scale. Give it, e.g. cx.likelihoods.Gaussian(scale=0.1)."
            )
        if self.batch_size is None:
            return
        if data is None:
            raise ValueError(
                must(name, "batch_size", "None where there is no data", self.batch_size)
            )
        if self.batch_size > data.rows:
            allowed = f"at most the number of rows, {data.rows}"
            raise ValueError(must(name, "batch_size", allowed, self.batch_size))

    @abc.abstractmethod
    def init(self, key: Key, model: Any, data: ArrayData | None) -> PyTree:
        """The first state of a replica, from ``model.init(key)``."""

    def batch(self, key: Key, model: Any, data: ArrayData, step: Array) -> Batch:
        """The rows of a step; the key is the replica's own and the same at every step."""
        return data.batch(key, step, self.batch_size)

    def check_start(self, states: Any) -> None:  # noqa: B027  (most runs can go on from anywhere)
        """Refuses first states, stacked along a replica axis, from which no run can go on."""

    @abc.abstractmethod
    def step(self, key: Key, state: Any, model: Any, batch: Batch | None) -> tuple[PyTree, PyTree]:
        """The next state, and the info of the step."""

    def keep(self, state: Any) -> Draw | None:
        """What of a state is a draw; ``None``: only the end counts."""
        return None

    def draw(self, key: Key, state: Any, model: Any, rows: Array) -> Draw | None:
        """A draw of the posterior that a state stands for after so many rows, in compiled code.

        For those who act while they learn. ``None``: only a run that is over can be drawn from.
        """
        return None

    def finished(self, state: Any) -> Array | None:
        """Whether a replica is done before ``num_steps``; ``None``: never.

        The run ends when all replicas are; until then a step must leave a finished one as it is.
        """
        return None

    @abc.abstractmethod
    def posterior(self, model: Any, trace: Trace) -> Posterior:
        """The posterior that the run amounts to."""

    def finish(self, posterior: Posterior, trace: Trace) -> Posterior:
        """What is worth computing once, when the run is over (the evidence, its bounds)."""
        return posterior

    def check_settings(self) -> None:
        """Checks the settings that every method shares; for ``__post_init__``."""
        name = type(self).__name__
        for setting in ("num_steps", "replicas", "thin", "num_warmup"):
            value = integer(
                name, setting, getattr(self, setting), 0 if setting == "num_warmup" else 1
            )
            if setting in vars(self):
                object.__setattr__(self, setting, value)
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", integer(name, "batch_size", self.batch_size))


@dataclass(frozen=True)
class Trace:
    """What a run leaves behind.

    Attributes:
      state: the last state, with a leading replica axis.
      draws: the kept draws, with leading axes (replica, draw), on the host; ``None`` where none were kept.
      info: each field of the method's ``Info``, ``(replica, step)``.
      data: what the run was fitted to.
      key: for whatever the posterior still has to draw.
    """

    state: PyTree
    draws: Draw | None
    info: dict[str, np.ndarray]
    data: ArrayData | None
    key: Key
