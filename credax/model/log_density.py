"""Any differentiable log density, instead of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from credax.core.evaluation import shapes_from
from credax.core.reprs import labelled
from credax.core.settings import function
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model.priors import Normal


@dataclass(frozen=True)
class LogDensity:
    """Any differentiable log density, which can be fitted instead of a :class:`Model`.

    Args:
      init: ``init(key) -> params``, a function that returns initial parameters, a pytree of floating-point
        arrays.
      log_joint: ``log_joint(params) -> scalar``, the log density up to a constant.

    Every method that does not need a network accepts it: ``cx.fit(LogDensity(init, log_joint), None, method)``.
    """

    init_function: Callable[[Key], Params]
    log_joint_function: Callable[[Params], Array]
    _start: Draw | None = field(default=None, kw_only=True, repr=False, compare=False)

    discrete = False
    learned_prior = False
    correlated_prior = False

    def __init__(
        self,
        init: Callable[[Key], Params],
        log_joint: Callable[[Params], Array],
        *,
        _start: Draw | None = None,
    ):
        # The fields cannot have the names of the arguments, which are those of the methods below.
        fields = {
            "init_function": function("LogDensity", "init", init),
            "log_joint_function": function("LogDensity", "log_joint", log_joint),
            "_start": _start,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __repr__(self):
        return labelled(self, init=self.init_function, log_joint=self.log_joint_function)

    def bind(self, data: None) -> LogDensity:
        """Check the two functions, without compiling them; return the density itself."""
        return self.prepare(data)[0]

    def prepare(self, data: None, weights: None = None) -> tuple[LogDensity, None]:
        """Like :meth:`Model.prepare`, except that there is no data."""
        if weights is not None:
            raise TypeError(
                f"weights must be None for a LogDensity, which has no rows; got {type(weights).__name__}."
            )
        if data is not None:
            raise TypeError(f"data must be None for a LogDensity; got {type(data).__name__}.")
        hint = " LogDensity takes init(key) first and log_joint(params) second."
        key = jax.random.key(0)
        params = shapes_from("LogDensity: init(key)", self.init_function, key, hint=hint)
        if not jax.tree.leaves(params):
            raise ValueError("LogDensity(init=...) must return parameters; it returned none.")
        Normal().check(params)
        log_joint = self.log_joint_function
        got = shapes_from("LogDensity: log_joint(params)", log_joint, params, hint=hint)
        if getattr(got, "shape", None) != ():
            shape = getattr(got, "shape", type(got).__name__)
            raise ValueError(f"LogDensity(log_joint=...) must return a scalar; got shape {shape}.")
        return self, None

    @property
    def started(self) -> bool:
        """Whether ``init`` returns a given draw, set by :meth:`starting_at`."""
        return self._start is not None

    def starting_at(self, draw: Draw) -> LogDensity:
        """The same density, except that ``init`` returns the parameters of this draw."""
        return LogDensity(self.init_function, self.log_joint_function, _start=draw)

    def init(self, key: Key) -> Params:
        """Initial parameters."""
        return self.init_function(key) if self._start is None else self._start.params

    def init_state(self) -> NetworkState:
        """The network state, which is empty because there is no network."""
        return ()

    def log_joint(self, params: Params, batch: None = None, **_: Any) -> Array:
        """The log density."""
        return self.log_joint_function(params)

    def train_log_joint(
        self, params: Params, batch: None, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """Like :meth:`Model.train_log_joint`: the log density and the unchanged state."""
        return self.log_joint_function(params), state
