"""The part that all Markov chain samplers share: settings, starting points, and the posterior of the draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core.checks import integer, must
from credax.core.settings import at_least, one_among, setting
from credax.core.trees import Flat
from credax.core.typing import Array, Draw, Key, NetworkState
from credax.inference.method import Ability, Method
from credax.inference.montecarlo.collapsed import Collapsed, complete
from credax.posterior import Posterior
from credax.posterior.approximations import Draws

ATTEMPTS = 100
"""The most random starting points that are tried until one has positive density."""


@dataclass(frozen=True)
class Chains(Method):
    """Base class of Markov chain samplers.

    After ``num_warmup`` steps of warm-up, every ``thin``-th state is kept as a draw. The state of a chain has
    the fields ``position`` (the parameters, ``Flat``), ``log_density`` (its log density) and ``network`` (the
    network's state).
    """

    chains: int = setting(4, integer)
    num_warmup: int = setting(1_000, at_least(0))
    num_draws: int = setting(1_000, integer)
    thin: int = setting(1, integer)
    initial: str = setting("network", one_among("network", "prior"))

    collapse = False
    """Whether the last layer of a regression is integrated out; ``None`` for wherever that is possible."""
    kind = "exact"
    needs = frozenset({"gradient", "trained state"})
    when_diverged = (
        "Scale x and y to unit variance, give a tighter prior, or start from an optimum: "
        "fit(..., start=cx.fit(model, data, cx.MAP()))."
    )

    @property
    def replicas(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of chains."""
        return self.chains

    @property
    def num_steps(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The steps of the warm-up, and all steps after it."""
        return self.num_warmup + self.num_draws * self.thin

    @property
    def can(self) -> frozenset[Ability]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the last layer may be integrated out, a step takes the features of all rows."""
        return frozenset({"sum parts"} if self.collapse is False else ())

    def check(self, model, data):
        """Refuse ``initial="prior"`` for a model without a prior, and ``collapse=True`` where impossible."""
        super().check(model, data)
        if self.initial == "prior" and not hasattr(model, "sample_prior"):
            allowed = f"'network' for a {type(model).__name__}, which has no prior"
            raise ValueError(must(type(self).__name__, "initial", allowed, self.initial))
        self.check_collapse(type(self).__name__, model, data)

    def check_collapse(self, owner: str, model: Any, data: Any) -> None:
        """Refuse ``collapse=True`` for a model whose last layer cannot be integrated out.

        Args:
          owner: the class name with which the error message begins.
          model: the model.
          data: the data of the fit.
        """
        if not self.collapse:
            return
        try:
            self.view(model, data)
        except ValueError as error:
            raise ValueError(
                f"{owner}(collapse=True) needs {error}. With collapse=None the last layer is integrated out "
                "only where this is possible."
            ) from None

    def view(self, model: Any, rows: Any) -> Any:
        """The model that the chains sample from: ``model`` itself, or ``model`` without its last layer."""
        if self.collapse is not None and not self.collapse:
            return model
        x: Any = None if rows is None else rows.x
        try:
            collapsed = Collapsed(model, x)
        except ValueError:
            if self.collapse:
                raise
            return model
        # With more features than rows, the integral costs more than the network.
        return collapsed if self.collapse or collapsed.features <= len(x) else model

    def check_start(self, states):
        """Refuse chains that start where the density is zero."""
        values = np.asarray(states.log_density)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            which = "every chain" if len(bad) == len(values) else f"chain {bad[0]}"
            raise ValueError(
                f"{type(self).__name__} cannot start: the log density of {which} at its start is "
                f"{values[bad[0]]}. Start it where the density is positive: fit(..., start=posterior), or an "
                "init that returns such parameters."
            )

    def keep(self, state):
        """The parameters of the chain."""
        return Draw(state.position.tree, state.network)

    def posterior(self, model, trace):
        """All draws, with equal weights."""
        draws: Any = trace.draws
        params = draws.params
        if isinstance(self.view(model, trace.data), Collapsed):
            params = jax.device_get(complete(model, trace.key, draws, trace.data))
        return Posterior(model, Draws(params, draws.state))


def target(model: Any, batch: Any, network: NetworkState) -> Callable[[Flat], Array]:
    """The log joint density as a function of the position of a chain."""
    return lambda position: model.log_joint(position.tree, batch, state=network)


def first_position(
    method: Chains, key: Key, model: Any, data: Any
) -> tuple[Flat, Array, NetworkState]:
    """The starting point of a chain, its log density, and the network's state.

    Random starting points are drawn until one has positive density; a point given by ``fit(start=...)`` is used
    unchanged.
    """
    network = model.init_state()
    log_density = target(model, None if data is None else data.everything(), network)
    drawn = model.sample_prior if _from_prior(method, model) else model.init

    def draw(key):
        position = Flat.of(drawn(key))
        return position, log_density(position)

    def attempt(carry):
        tries, key, _ = carry
        key, draw_key = jax.random.split(key)
        return tries + 1, key, draw(draw_key)

    def failed(carry):
        tries, _, (_, value) = carry
        return (tries < ATTEMPTS) & ~jnp.isfinite(value)

    # The first attempt is made inside the loop, so that the model is compiled only once.
    none = jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), jax.eval_shape(draw, key))
    *_, (position, value) = lax.while_loop(failed, attempt, (jnp.zeros((), jnp.int32), key, none))
    return position, value, network


def _from_prior(method: Chains, model: Any) -> bool:
    return method.initial == "prior" and not model.started
