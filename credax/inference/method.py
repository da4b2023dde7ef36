"""The contract of a method: pure functions of one replica. ``fit`` does everything else."""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from credax.core.checks import must
from credax.core.settings import Settings
from credax.core.typing import Array, Draw, Key, PyTree
from credax.model.networks.along import TrainedAlong

if TYPE_CHECKING:
    from credax.model import LogDensity, Model
    from credax.model.data import ArrayData, Batch
    from credax.posterior import Posterior


Need = Literal["gradient", "likelihood", "trained state", "all rows"]
Ability = Literal["learn prior", "train points", "pad rows", "sum parts", "drop state"]


class Layout(enum.Enum):
    """How the replicas that are placed on one device share it.

    Whatever a method says here, replicas whose steps contain convolutions run one after the other.
    """

    TOGETHER = "as one batch"
    IN_TURN_IF_SMALL = "one after the other on a CPU, unless the network puts its rows last"
    """For products so small that a batch of them takes longer than the same products one by one."""
    IN_TURN = "one after the other on a CPU"
    """For steps of unequal length, each of which would wait for the longest in a batch."""


class Method(Settings, abc.ABC):
    """A way to a posterior. Concrete methods are final, frozen dataclasses of their settings.

    A replica is a chain, a member of an ensemble or a population of particles. ``init``, ``step`` and ``keep``
    see one replica; ``fit`` runs all of them as one program. A ``State`` is what the next step needs, and an
    ``Info`` is what a person wants to see of a step, a NamedTuple of finite scalars. Both are pytrees of
    strongly typed arrays.

    Settings are declared with :func:`credax.core.settings.setting`, which checks them when an instance is made.
    """

    num_steps: int
    """The number of steps, warm-up included."""
    batch_size: int | None = None
    """Rows per step; ``None`` for the whole data set."""
    replicas: int = 1
    num_warmup: int = 0
    """The number of steps whose states are not kept."""
    thin: int = 1
    """Of the steps after warm-up, the state after every ``thin``-th one is kept."""
    layout: Layout | int = Layout.TOGETHER
    """How the replicas share a device; a number allows at most that many in one batch, of any network."""

    kind: ClassVar[Literal["exact", "approximate", "point"]]
    """What the posterior is: exact in the limit of many steps, an approximation, or a single point."""
    needs: frozenset[Need] = frozenset({"gradient"})
    """What the method needs of a model and its data, any of

    - ``"gradient"``: continuous weights and a differentiable log joint;
    - ``"likelihood"``: data and prior told apart, which a ``LogDensity`` does not;
    - ``"trained state"``: batch statistics that were trained before, since the method holds them fixed;
    - ``"all rows"``: all rows in memory, even if a step takes only some of them; then no source will do.
    """
    can: frozenset[Ability] = frozenset({"sum parts"})
    """What ``fit`` may do with the method, any of

    - ``"learn prior"``: learn the scales of the prior (``LearnedNormal``);
    - ``"train points"``: optimise a point estimate of some weights along with the distribution of the others,
      as ``cx.networks.subset(..., rest="trained")`` asks for;
    - ``"pad rows"``: add rows of weight zero, which change nothing where a run depends on the rows only through
      weighted sums over all of them: no minibatches, no folds, no noise for each row, and no choice by the
      number of rows;
    - ``"sum parts"``: compute the log likelihood of a batch in parts, with less memory or in another float
      type, which works where steps see the rows only through it;
    - ``"drop state"``: give back the memory of the last state before ``finish``, which finds ``None`` there.
    """
    objective: str | None = None
    """What a run maximises, over all rows: ``"log_joint"``, ``"log_likelihood"``, ``"elbo"`` (with the KL
    multiplied by ``temperature``), or ``None`` for anything else."""
    when: ClassVar[str]
    """When to use the method, in a few words."""
    errs: ClassVar[str] = ""
    """What its uncertainty gets wrong, in which direction and by about how much, with the default settings."""
    when_diverged: ClassVar[str] = "Lower learning_rate, or scale x and y to unit variance."
    """What to change when a run meets NaN."""

    def check(self, model: Model | LogDensity, data: ArrayData | None) -> None:
        """Refuse, before anything compiles, what this method cannot do with this model and data."""
        name = type(self).__name__
        if "likelihood" in self.needs and not hasattr(model, "log_likelihood"):
            raise TypeError(
                f"{name} needs a Model with a likelihood; got a {type(model).__name__}."
            )
        if "gradient" in self.needs and model.discrete:
            raise ValueError(
                f"{name} needs gradients, which the prior's discrete weights do not have. "
                "Use a continuous prior, or a method for discrete weights."
            )
        network = getattr(model, "network", None)
        if isinstance(network, TrainedAlong) and "train points" not in self.can:
            raise ValueError(
                f"{name} cannot train the rest of a subset along: it treats all weights alike, and none of "
                "them as a point. Use subset(..., rest='first'), which trains the whole network before, or "
                "BayesByBackprop with rest='trained'."
            )
        if model.learned_prior and "learn prior" not in self.can:
            raise ValueError(
                f"{name} cannot learn the scales of the prior LearnedNormal. Give a scale, e.g. "
                "cx.priors.Normal(1.0), or use BayesByBackprop."
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
        """The rows of a step. The key is the replica's own, and the same at every step."""
        return data.batch(key, step, self.batch_size)

    @abc.abstractmethod
    def step(
        self, key: Key, state: Any, model: Any, batch: Batch | None, step: Array
    ) -> tuple[PyTree, PyTree]:
        """The next state, and the info of the step.

        ``step`` is the number of steps before this one. It is the same for all replicas, so a branch on it
        stays a branch when the replicas are batched.
        """

    def keep(self, state: Any) -> Draw | None:
        """The part of a state that is a draw; ``None`` where only the end of the run counts."""
        return None

    def finished(self, state: Any) -> Array | None:
        """Whether a replica is done before ``num_steps``; ``None`` if it never is.

        The run ends when all replicas are done; until then, a step must leave a finished replica unchanged.
        """
        return None

    @abc.abstractmethod
    def posterior(self, model: Any, trace: Trace) -> Posterior:
        """The posterior that the run amounts to."""

    def closing(self, model: Any, data: ArrayData) -> Any:
        """The program of ``finish`` that needs the most memory, lowered for the shapes of these rows.

        ``None`` if it needs little, or no more than a step.
        """
        return None

    def finish(self, posterior: Posterior, trace: Trace) -> Posterior:
        """The posterior with what is worth computing once, when the run is over (the evidence, a bound)."""
        return posterior


@runtime_checkable
class Starting(Protocol):
    """A method that cannot start everywhere: a chain, for example, not where the density is zero."""

    def check_start(self, states: Any) -> None:
        """Refuse first states, stacked along a replica axis, from which no run can go on."""
        ...


@runtime_checkable
class Acting(Protocol):
    """A method whose state can be drawn from while it still learns, as bandits do."""

    def draw(self, key: Key, state: Any, model: Any, rows: Array) -> Draw | None:
        """A draw of the posterior that a state stands for after ``rows`` rows, in compiled code.

        ``None`` where this method cannot do so for this model.
        """
        ...


@dataclass(frozen=True)
class Trace:
    """What a run leaves behind.

    Attributes:
      state: the last state, with a leading replica axis; ``None`` in ``finish`` where it is not read.
      draws: the kept draws, with leading axes (replica, draw), on the host; ``None`` where none were kept.
      info: each field of the method's ``Info``, ``(replica, step)``.
      data: what the run was fitted to.
      key: for whatever the posterior still has to draw.
      steps: how many steps led to the state.
    """

    state: PyTree
    draws: Draw | None
    info: dict[str, np.ndarray]
    data: ArrayData | None
    key: Key
    steps: int
