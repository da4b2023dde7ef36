r"""A model: network, prior and likelihood, which together give the log joint density.

.. math:: \log p(w, D) = \log p(w) + \sum_i \log p(y_i \mid f_w(x_i))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.precision import widened
from credax.core.trees import path_name
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.model.data import ArrayData, Batch, check_array, check_lengths, pair
from credax.model.likelihoods import Gaussian, Likelihood
from credax.model.networks.network import AbstractNetwork
from credax.model.priors import Normal, Prior, prior_from

BLOCK = 8192
"""Rows at once in a sum over all of them."""


@dataclass(frozen=True)
class Schema:
    """What the rows looked like: new rows must look the same.

    Attributes:
      input_shape: the shape of one row of ``x``.
      targets: how many targets a row has; ``None`` where ``y`` was one-dimensional.
      outputs: how many outputs of the network the likelihood reads.
    """

    input_shape: tuple[int, ...]
    targets: int | None
    outputs: int


@dataclass(frozen=True)
class Model:
    """A network with a prior over its weights and a likelihood of its outputs.

    Args:
      network: from ``cx.networks``.
      prior: from ``cx.priors``, or a mapping of path patterns to priors, e.g.
        ``{"layer_0/*": Normal(0.1), "*": Normal(1.0)}``.
      likelihood: from ``cx.likelihoods``.

    Where the likelihood learns something (the noise scale), the parameters are
    ``{"network": ..., "likelihood": ...}``, else just the network's.
    """

    network: AbstractNetwork
    prior: Prior | Mapping[str, Prior] = field(default_factory=Normal)
    likelihood: Likelihood = field(default_factory=lambda: Gaussian(scale=None))
    schema: Schema | None = field(default=None, kw_only=True)
    _start: Draw | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __post_init__(self):
        if not isinstance(self.network, AbstractNetwork):
            allowed = (
                "a network, e.g. cx.networks.mlp([50]) or cx.networks.from_function(init, apply)"
            )
            raise TypeError(must("Model", "network", allowed, self.network))
        object.__setattr__(self, "prior", prior_from(self.prior))
        if not isinstance(self.likelihood, Likelihood):
            allowed = "a likelihood, e.g. cx.likelihoods.Gaussian(0.1)"
            raise TypeError(must("Model", "likelihood", allowed, self.likelihood))

    # -- tying the model to data ------------------------------------------------------------------

    def bind(self, data: Any) -> Model:
        """The model complete for this data: shapes known, everything checked, nothing compiled."""
        return self.prepare(data)[0]

    def prepare(self, data: Any) -> tuple[Model, ArrayData]:
        """The bound model, and the data checked and on the device."""
        x, y = pair(data)
        x = check_array("x", x, keep_integers=self.network.integer_inputs)
        y = check_array("y", y, keep_integers=True)
        check_lengths(x, y)
        targets = None if y.ndim == 1 else int(np.prod(y.shape[1:]))
        y = self.likelihood.check_targets(y)
        likelihood = self.likelihood.bind(y)
        schema = Schema(x.shape[1:], targets, likelihood.num_outputs(y))
        network = self.network.build(schema.input_shape, schema.outputs)
        model = replace(self, network=network, likelihood=likelihood, schema=schema)
        model._check_shapes(jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype))
        return model, ArrayData(jnp.asarray(x), jnp.asarray(y))

    def _check_shapes(self, rows: jax.ShapeDtypeStruct) -> None:
        """Without compiling: the parameters fit the prior, the outputs the likelihood."""
        params = jax.eval_shape(self.network.init, jax.random.key(0))
        if not jax.tree.leaves(params):
            raise ValueError("Model(network=...) must have parameters; its init returned none.")
        self._prior.check(params)
        outputs = jax.eval_shape(self.network.apply, params, rows, self.network.init_state())
        shape = getattr(outputs, "shape", type(outputs).__name__)
        if shape != (2, self._bound.outputs):
            got = str(shape).replace("(2,", "(rows,")
            raise ValueError(
                f"Model(network=...) must map x to outputs of shape (rows, {self._bound.outputs}) for "
                f"{type(self.likelihood).__name__} and this y; got {got}."
            )
        if not jnp.issubdtype(outputs.dtype, jnp.floating):
            raise ValueError(
                f"Model(network=...) must map x to floating-point outputs; got {outputs.dtype}."
            )

    @property
    def _bound(self) -> Schema:
        if self.schema is None:
            raise ValueError(
                "This model has not seen data yet: fit it, or call model.bind((x, y))."
            )
        return self.schema

    @property
    def _prior(self) -> Prior:
        return self.prior  # pyright: ignore[reportReturnType]  (made a Prior in __post_init__)

    def check_inputs(self, x: Any) -> np.ndarray:
        """New rows, checked against those of the fit."""
        x = check_array("x", x, keep_integers=self.network.integer_inputs)
        want, got = self._bound.input_shape, x.shape[1:]
        if want != got:
            want, got = (", ".join(["rows", *map(str, shape)]) for shape in (want, got))
            raise ValueError(f"x must have shape ({want}), as in the fit; got ({got}).")
        return x

    def check_targets(self, y: Any, rows: int) -> np.ndarray:
        """New targets, checked against those of the fit."""
        y = check_array("y", y, keep_integers=True)
        if y.shape[0] != rows:
            raise ValueError(f"y must have as many rows as x, {rows}; got {y.shape[0]}.")
        targets = self._bound.targets
        if (None if y.ndim == 1 else y.shape[1]) != targets:
            want = "(rows,)" if targets is None else f"(rows, {targets})"
            raise ValueError(f"y must have shape {want}, as in the fit; got {y.shape}.")
        return self.likelihood.check_targets(y)

    # -- the densities ----------------------------------------------------------------------------

    @property
    def discrete(self) -> bool:
        """Whether the weights take only the values of a list."""
        return self._prior.discrete

    @property
    def started(self) -> bool:
        """Whether ``init`` returns a draw that was given."""
        return self._start is not None

    def starting_at(self, draw: Draw) -> Model:
        """The same model, whose ``init`` and ``init_state`` return this draw."""
        return replace(self, _start=draw)

    def init(self, key: Key) -> Params:
        """Parameters to start from: the network's own, or a draw of a discrete prior."""
        if self._start is not None:
            return self._start.params
        network_key, prior_key = jax.random.split(key)
        params = self.network.init(network_key)
        if self.discrete:
            params = self._prior.sample(prior_key, params)
        if not self.likelihood.learned:
            return params
        return {"network": params, "likelihood": self.likelihood.init(self._bound.outputs)}

    def sample_prior(self, key: Key) -> Params:
        """A draw of the prior, the likelihood's learned parameters included."""
        network_key, likelihood_key = jax.random.split(key)
        network = self._prior.sample(network_key, jax.eval_shape(self.network.init, key))
        learned = self.likelihood.parameter_prior
        if learned is None:
            return network
        like = jax.eval_shape(lambda: self.likelihood.init(self._bound.outputs))
        return {"network": network, "likelihood": learned.sample(likelihood_key, like)}

    def init_state(self) -> NetworkState:
        """What the network carries beside its parameters, at its start."""
        return self.network.init_state() if self._start is None else self._start.state

    def split(self, params: Params) -> tuple[Params, Params | None]:
        """The network's and the likelihood's parameters."""
        if self.likelihood.learned:
            return params["network"], params["likelihood"]
        return params, None

    def leaf_priors(self, params: Params) -> Params:
        """The prior of each leaf, in the structure of the parameters."""
        network, likelihood = self.split(params)

        def priors(prior, tree):
            return jax.tree_util.tree_map_with_path(lambda path, _: prior.at(path_name(path)), tree)

        if likelihood is None:
            return priors(self._prior, network)
        learned = priors(self.likelihood.parameter_prior, likelihood)
        return {"network": priors(self._prior, network), "likelihood": learned}

    def log_prior(self, params: Params) -> Array:
        """log p(w), the likelihood's learned parameters included."""
        network, likelihood = self.split(params)
        log_prob = self._prior.log_prob(network)
        return log_prob if likelihood is None else log_prob + self.likelihood.log_prior(likelihood)

    def log_likelihood(
        self, params: Params, batch: Batch, *, state: NetworkState = (), key: Key | None = None
    ) -> Array:
        """log p(D | w), estimated from the batch: its sum times N / B."""
        return self._log_likelihood(params, batch, state, key, train=False)[0]

    def full_log_likelihood(
        self, params: Params, data: ArrayData, state: NetworkState = ()
    ) -> Array:
        """log p(D | w) over all rows, in blocks that fit in memory."""
        blocks = data.rows // BLOCK
        cut = blocks * BLOCK
        one = jnp.ones((), jnp.result_type(float))

        def of(x, y):
            batch = Batch(x, y, one, jnp.zeros((), jnp.int32), 1)
            return self.log_likelihood(params, batch, state=state)

        total = of(data.x[cut:], data.y[cut:])
        if blocks:
            stack = lambda a: a[:cut].reshape(blocks, BLOCK, *a.shape[1:])  # noqa: E731
            total += jnp.sum(jax.lax.map(lambda rows: of(*rows), (stack(data.x), stack(data.y))))
        return total

    def log_joint(
        self, params: Params, batch: Batch, *, state: NetworkState = (), key: Key | None = None
    ) -> Array:
        """log p(w, D), estimated from the batch."""
        return self.log_prior(params) + self.log_likelihood(params, batch, state=state, key=key)

    def train_log_likelihood(
        self, params: Params, batch: Batch, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """As ``log_likelihood``, with dropout and batch statistics at work, and the next state."""
        return self._log_likelihood(params, batch, state, key, train=True)

    def train_log_joint(
        self, params: Params, batch: Batch, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """As ``log_joint``, with dropout and batch statistics at work, and the next state."""
        log_likelihood, state = self.train_log_likelihood(params, batch, state, key)
        return self.log_prior(params) + log_likelihood, state

    def _log_likelihood(self, params, batch, state, key, train):
        network, likelihood = self.split(params)
        outputs, state = self.network.call(network, batch.x, state=state, key=key, train=train)
        log_prob = self.likelihood.log_prob(widened(outputs), batch.y, likelihood)
        return batch.scale * jnp.sum(log_prob), state
