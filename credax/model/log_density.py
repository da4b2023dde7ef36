"""Any differentiable log density, in the place of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax

from credax.core.checks import must
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model.priors import Normal


@dataclass(frozen=True)
class LogDensity:
    """Any differentiable log density in place of a :class:`Model`.

    Args:
      init: ``init(key) -> params``, a pytree of floating point arrays.
      log_joint: ``log_joint(params) -> scalar``, up to a constant.

    Every method that needs no network runs on it: ``cx.fit(LogDensity(init, log_joint), None, method)``.
    """

    init_function: Callable[[Key], Params]
    log_joint_function: Callable[[Params], Array]
    _start: Draw | None = field(default=None, kw_only=True, repr=False, compare=False)

    discrete = False

    def __init__(self, init, log_joint, *, _start=None):
        for name, function in (("init", init), ("log_joint", log_joint)):
            if not callable(function):
                raise TypeError(must("LogDensity", name, "a function", function))
        object.__setattr__(self, "init_function", init)
        object.__setattr__(self, "log_joint_function", log_joint)
        object.__setattr__(self, "_start", _start)

    def bind(self, data: None) -> LogDensity:
        """The density itself, its functions checked without compiling."""
        return self.prepare(data)[0]

    def prepare(self, data: None) -> tuple[LogDensity, None]:
        """As :meth:`Model.prepare`; a density has no data."""
        if data is not None:
            raise TypeError(f"data must be None for a LogDensity; got {type(data).__name__}.")
        params = jax.eval_shape(self.init_function, jax.random.key(0))
        if not jax.tree.leaves(params):
            raise ValueError("LogDensity(init=...) must return parameters; it returned none.")
        Normal().check(params)
        got = jax.eval_shape(self.log_joint_function, params)
        if getattr(got, "shape", None) != ():
            shape = getattr(got, "shape", type(got).__name__)
            raise ValueError(f"LogDensity(log_joint=...) must return a scalar; got shape {shape}.")
        return self, None

    @property
    def started(self) -> bool:
        """Whether ``init`` returns a draw that was given."""
        return self._start is not None

    def starting_at(self, draw: Draw) -> LogDensity:
        """The same density, whose ``init`` returns this draw."""
        return LogDensity(self.init_function, self.log_joint_function, _start=draw)

    def init(self, key: Key) -> Params:
        """Parameters to start from."""
        return self.init_function(key) if self._start is None else self._start.params

    def init_state(self) -> NetworkState:
        """A density carries no state."""
        return ()

    def log_joint(self, params: Params, batch: None = None, **_: Any) -> Array:
        """The log density."""
        return self.log_joint_function(params)

    def train_log_joint(
        self, params: Params, batch: None, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """As :meth:`Model.train_log_joint`."""
        return self.log_joint_function(params), state
