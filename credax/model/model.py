r"""The model: a network, a prior and a likelihood, which together define the log joint density.

.. math:: \log p(w, D) = \log p(w) + \sum_i c_i \log p(y_i \mid f_w(x_i))

where the weight :math:`c_i` of a row is one unless weights are given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.checks import must
from credax.core.precision import widened
from credax.core.reprs import brief
from credax.core.rows import RowTree, some_rows
from credax.core.scaling import Positions, Scaling
from credax.core.settings import REQUIRED, Settings, instance_of, setting
from credax.core.trees import path_name
from credax.core.typing import Array, Draw, Key, NetworkState, Params
from credax.core.weights import filled, hollowed, weights_in
from credax.model import shapes
from credax.model.compute import Compute, OfBatch
from credax.model.data import ArrayData, Batch, check_array, check_lengths, check_weights, pair
from credax.model.frame import Frame, as_rows, column_names, in_order, weights_of_rows
from credax.model.inputs import InputTree, check_tree, is_tree, row_shape
from credax.model.likelihoods import Gaussian, Heads, Likelihood
from credax.model.networks.fan_in import fan_in
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.shaped import Shaped
from credax.model.priors import Normal, Prior, prior_from
from credax.model.shapes import Schema

BLOCK = 8192
"""The number of rows that are evaluated at once in a sum over all rows."""


_network = instance_of(
    AbstractNetwork,
    "a network, e.g. cx.networks.mlp([50]) or cx.networks.from_function(init, apply)",
)
_one_likelihood = instance_of(
    Likelihood,
    "a likelihood, e.g. cx.likelihoods.Gaussian(0.1), or a mapping of names to likelihoods",
)


def _likelihood(owner: str, name: str, value: Any) -> Likelihood:
    return Heads(value) if isinstance(value, Mapping) else _one_likelihood(owner, name, value)


_frame = instance_of(Frame, "a Frame, which bind makes")


def _standardise(owner: str, name: str, value: Any) -> bool | str:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if not isinstance(value, str) or value not in ("x", "y"):
        raise TypeError(must(owner, name, "True, False, 'x' or 'y'", value))
    return value


def _on_device(given: Any, x: Any, y: Any, weights: np.ndarray | None) -> ArrayData:
    """The rows of a fit on the device.

    On a CPU, JAX may use the memory of an array as it is. What the user has given is then copied: the rows of a
    fit stay as they are when the user changes the arrays afterwards.
    """
    users = jax.tree.leaves(given)

    def place(leaf: np.ndarray) -> Array:
        # Not by jnp.asarray, which takes the memory of a second copy as long as the array exists.
        placed = jax.device_put(leaf)
        shared = (not isinstance(a, np.ndarray) or np.may_share_memory(a, leaf) for a in users)
        if jax.default_backend() != "cpu" or not leaf.size or not any(shared):
            return placed
        same = placed.unsafe_buffer_pointer() == leaf.ctypes.data
        # Not by jnp.array, which compiles a program for each shape. JAX copies in the background: the user may
        # change the array only after that.
        return jax.block_until_ready(jax.device_put(placed, may_alias=False) if same else placed)

    return ArrayData.weighted(*jax.tree.map(place, (x, y, weights)))


@dataclass(frozen=True)
class Model(Settings):
    """A network with a prior over its weights and a likelihood of the targets given its outputs.

    Args:
      network: a network from ``cx.networks``.
      prior: a prior from ``cx.priors``, or a mapping from path pattern to prior, e.g.
        ``{"layer_0/*": Normal(0.1), "*": Normal(1.0)}``.
      likelihood: a likelihood from ``cx.likelihoods``; or a mapping of names to likelihoods, for a network that
        returns a dictionary of outputs. If the network returns ``(rows, positions..., outputs)``, it is the
        likelihood of one position.
      standardise: whether the model works in units in which every column of ``x`` and every real-valued target
        has mean zero and standard deviation one. The centres and scales are those of the rows of the fit, and
        are saved with the posterior. The network, the prior and the likelihood are then those of the
        standardised data: ``Gaussian(0.1)`` is a noise of a tenth of the standard deviation of ``y``. You pass
        ``x`` and ``y`` in your own units, and predictions, densities and the evidence are in your own units.
        ``"x"`` and ``"y"`` standardise only one of them. Classes and counts are never standardised.

    If the likelihood has learned parameters (such as the noise scale), the parameters of the model are
    ``{"network": ..., "likelihood": ...}``; otherwise they are those of the network.
    """

    network: AbstractNetwork = setting(REQUIRED, _network)
    prior: Prior | Mapping[str, Prior] = setting(Normal(), prior_from)
    likelihood: Likelihood = setting(Gaussian(scale=None), _likelihood)
    standardise: bool | str = setting(False, _standardise, kw_only=True)
    schema: Schema | None = field(default=None, kw_only=True)
    # The name of the head that this model is of, and whether the heads together have learned parameters.
    _head: tuple[str, bool] | None = field(default=None, kw_only=True, repr=False)
    # Not compared: the same program runs for every scale of the data.
    frame: Frame = setting(Frame(), _frame, kw_only=True, repr=False, compare=False)
    # How `fit` computes batches; a posterior's model has none.
    compute: Compute | None = field(default=None, kw_only=True, repr=False)
    _start: Draw | None = field(default=None, kw_only=True, repr=False, compare=False)

    def __repr__(self):
        return brief(self, "prior", "likelihood")

    # -- the arrays of the prior, as arguments of compiled programs ---------------------------------

    @cached_property
    def lifted(self) -> tuple[Model, list[Mapping[str, Any]]] | None:
        """This model without the arrays of its prior, and these arrays; ``None`` if there are none."""
        held = weights_in((self.prior, self.likelihood))
        if not held:
            return None
        prior, likelihood = hollowed((self.prior, self.likelihood))
        return replace(self, prior=prior, likelihood=likelihood), [each.arrays for each in held]

    def filled(self, arrays: list[Mapping[str, Any]]) -> Model:
        """A model without the arrays of its prior, with these as them."""
        prior, likelihood = filled((self.prior, self.likelihood), arrays)
        return replace(self, prior=prior, likelihood=likelihood)

    # -- binding the model to data ----------------------------------------------------------------

    def bind(self, data: Any) -> Model:
        """The model completed with the shapes of this data, after all checks and without compiling anything."""
        return self.prepare(data)[0]

    def prepare(self, data: Any, weights: Any = None) -> tuple[Model, ArrayData]:
        """The bound model, and the checked data on the device, with the weights of its rows."""
        given_x, given_y = pair(data)
        if self.schema is not None and isinstance(self.network, Shaped):
            return shapes.unbound(self).prepare(data, weights)  # other data may have other shapes
        if self._divided(given_x, given_y):
            return self._prepare_divided(given_x, given_y, weights)
        frame, x, y, weights = self._framed(given_x, given_y, weights)
        targets = None if y.ndim == 1 else int(np.prod(y.shape[1:]))
        y = self.likelihood.check_targets(y)
        likelihood = self.likelihood.bind(y)
        shape = row_shape(x)
        schema = Schema(frame.user_shape(shape), targets, likelihood.num_outputs(y))
        network = self.network.build(shape, schema.outputs)
        network = Shaped(network) if isinstance(x, RowTree) else network
        model = replace(self, network=network, likelihood=likelihood, schema=schema, frame=frame)
        return model._completed(x), _on_device((data, weights), x, y, weights)

    def _divided(self, x: Any, y: Any) -> bool:
        """Whether the targets belong to the positions of a row, or to several heads."""
        if isinstance(self.likelihood, Heads):
            return True
        if self.network.quantiles is not None or isinstance(y, Mapping) or np.ndim(y) < 2:
            return False
        few = x[:2] if hasattr(x, "__getitem__") and not is_tree(x) else x
        return shapes.has_positions(self.network, self._numbers(few, False), y)

    def _prepare_divided(self, given_x: Any, given_y: Any, weights: Any) -> tuple[Model, ArrayData]:
        """As :meth:`prepare`, for targets at positions or of several heads."""
        scales_x, scales_y = self._scales()
        x = self._numbers(given_x, scales_x)
        frame = Frame(column_names(given_x))
        if scales_x:
            of_rows = check_weights(weights, len(x)) if np.ndim(weights) == 1 else None
            frame = replace(frame, x_scaling=Scaling.learn(as_rows(x), weights_of_rows(of_rows, x)))
            x = frame.standard_x(x).astype(jnp.result_type(float))
        network, bound = shapes.bind(self, x, given_y, weights, scales_y)
        schema = replace(bound.schema, input_shape=row_shape(x))
        frame = replace(frame, y_scaling=bound.frame.y_scaling)
        parts = {"network": network, "likelihood": bound.likelihood}
        model = replace(self, **parts, schema=schema, frame=frame)
        return model._completed(x), _on_device(
            (given_x, given_y, weights), x, bound.y, bound.weights
        )

    def prepare_as(self, data: Any, earlier: Model, weights: Any = None) -> tuple[Model, ArrayData]:
        """Like :meth:`prepare`, with the shapes, classes, names and scales of the data of an earlier fit.

        The weights then mean the same in both fits.

        Args:
          data: ``(x, y)``, with the columns of the earlier fit.
          earlier: the model of the earlier fit.
          weights: how often each row counts; ``None`` if every row counts once.
        """
        if self.standardise != earlier.standardise:
            allowed = f"{earlier.standardise!r}, as in the fit that the prior comes from"
            raise ValueError(must("Model", "standardise", allowed, self.standardise))
        schema, frame = earlier._bound, earlier.frame
        likelihood = shapes.bound_as(self.likelihood, earlier.likelihood)
        network = self.network.build(frame.network_shape(schema.input_shape), schema.outputs)
        if isinstance(earlier.network, Shaped):
            network = replace(earlier.network, network=network)
        model = replace(self, network=network, likelihood=likelihood, schema=schema, frame=frame)
        given_x, given_y = pair(data)
        x = model.network_inputs(given_x)
        if model.divided:
            y = model.likelihood_targets(given_y, len(x), weights)
            rows = isinstance(weights, Mapping) or np.ndim(weights) > 1
            checked = None if rows else check_weights(weights, len(x))
            return model._completed(x), _on_device((data, weights), x, y, checked)
        y = model.likelihood_targets(given_y, len(x))
        return model._completed(x), _on_device(
            (data, weights), x, y, check_weights(weights, len(y))
        )

    def _completed(self, x: Any) -> Model:
        """This model with the prior completed for its network, after the checks of all shapes."""
        # A number of rows that is no number of columns too, so that a network that mixes them up is noticed.
        taken = {length for leaf in jax.tree.leaves(x) for length in leaf.shape[1:]}
        some = next(n for n in range(2, 99) if n not in {*taken, self._bound.outputs})
        rows = some_rows(x, some)
        self._check_shapes(rows)
        return replace(self, prior=self._prior.for_network(lambda: fan_in(self.network, rows)))

    def _framed(
        self, given_x: Any, given_y: Any, given_weights: Any
    ) -> tuple[Frame, np.ndarray, np.ndarray, np.ndarray | None]:
        """The names and scales of the columns; the inputs and targets, standardised if asked for; weights."""
        scales_x, scales_y = self._scales()
        x, y = self._numbers(given_x, scales_x), check_array("y", given_y, keep_integers=True)
        check_lengths(x, y)
        weights = check_weights(given_weights, len(y))
        frame = Frame(column_names(given_x), column_names(given_y))
        if self.network.quantiles is not None:
            self._check_table(x, scales_x)
            frame = replace(frame, x_scaling=Positions.learn(x, self.network.quantiles, weights))
        elif scales_x:
            frame = replace(frame, x_scaling=Scaling.learn(as_rows(x), weights_of_rows(weights, x)))
        if scales_x:
            x = frame.standard_x(x).astype(jnp.result_type(float))
        if scales_y:
            self.likelihood.check_targets(y)
            y = check_array("y", given_y, double=True)
            frame = replace(frame, y_scaling=Scaling.learn(as_rows(y), weights_of_rows(weights, y)))
            y = frame.standard_y(y)
        return frame, x, y, weights

    def _scales(self) -> tuple[bool, bool]:
        """Whether x and y are standardised."""
        if isinstance(self.likelihood, Heads) and self.standardise in (True, "y"):
            allowed = "False or 'x' for several heads; scale the targets of a head yourself"
            raise ValueError(must("Model", "standardise", allowed, self.standardise))
        numbers = self.likelihood.task == "regression" and self.likelihood.standardises
        scales_y = self.standardise in (True, "y") and numbers
        if self.standardise == "y" and not scales_y:
            allowed = f"True, False or 'x' for {self.likelihood._owner}, whose y has no units"
            raise ValueError(must("Model", "standardise", allowed, "y"))
        return self.standardise in (True, "x"), scales_y

    def _check_table(self, x: np.ndarray, scales_x: bool) -> None:
        """Check that the rows suit a network that takes positions among quantiles."""
        name = self.network._owner
        if not scales_x:
            allowed = f"True or 'x' for {name}, which learns the quantiles of x"
            raise ValueError(must("Model", "standardise", allowed, self.standardise))
        if x.ndim != 2:
            shape = ", ".join(["rows", *map(str, x.shape[1:])])
            hint = " A single feature is x[:, None]." if x.ndim == 1 else ""
            raise ValueError(
                f"x must be 2-D, (rows, features), for {name}; got shape ({shape}).{hint}"
            )

    def of_standard_data(self) -> Model:
        """The bound model of the standardised data themselves, as :meth:`prepare` returns them."""
        schema = replace(self._bound, input_shape=self.frame.network_shape(self._bound.input_shape))
        return replace(self, standardise=False, frame=Frame(), schema=schema)

    def _numbers(self, x: Any, scaled: bool) -> Any:
        """The inputs as an array, in double precision if they are to be standardised; or as a tree."""
        if is_tree(x):
            if scaled or self.network.quantiles is not None:
                allowed = "False or 'y' where x is a tree of arrays; scale its arrays yourself"
                raise ValueError(must("Model", "standardise", allowed, self.standardise))
            known = None if self.schema is None else self.schema.input_shape
            return check_tree(x, known if isinstance(known, InputTree) else None)
        if scaled:
            return check_array("x", x, double=True)
        return check_array("x", x, keep_integers=self.network.integer_inputs)

    def _check_shapes(self, rows: jax.ShapeDtypeStruct) -> None:
        """Check, without compiling, that the prior fits the parameters and the likelihood the outputs."""
        params, outputs = self.network.shapes(rows)
        if not jax.tree.leaves(params):
            raise ValueError("Model(network=...) must have parameters; its init returned none.")
        self._prior.check(params)
        shape = getattr(outputs, "shape", None)
        if shape != (len(rows), self._bound.outputs):
            targets = self._bound.targets
            y = "(rows,)" if targets is None else f"(rows, {targets})"
            raise ValueError(
                f"Model(network=...) must map x to outputs of shape (rows, {self._bound.outputs}) for "
                f"{type(self.likelihood).__name__} and y of shape {y}; got "
                f"{shapes.outputs_text(outputs, len(rows))}."
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
        return self.prior  # pyright: ignore[reportReturnType]  (the check makes it a Prior)

    @property
    def divided(self) -> bool:
        """Whether the targets belong to the positions of a row, or to several heads."""
        return self._bound.positions is not None or bool(self._bound.heads)

    def check_undivided(self, what: str) -> None:
        """Refuse a use that is for rows with targets of their own, without positions and heads."""
        if self.divided:
            kind = "several heads" if self._bound.heads else "targets at the positions of a row"
            raise TypeError(f"{what} is for rows with targets of their own; this model has {kind}.")

    def a_row(self) -> Any:
        """The shape and dtype of one row as the network gets it."""
        shape = self._bound.input_shape
        if isinstance(shape, InputTree):
            return RowTree(shape.rows(1))
        return jax.ShapeDtypeStruct((1, *self.frame.network_shape(shape)), jnp.result_type(float))

    def check_inputs(self, x: Any) -> Any:
        """Check new inputs against those in the fit; return them as an array, with the columns in order.

        Inputs that are a tree of arrays are returned as a ``RowTree``. They remain in the units of the fit. See
        :meth:`network_inputs` for what the network gets.
        """
        x = in_order("x", x, self.frame.x_names)
        tree = isinstance(self._bound.input_shape, InputTree)
        if tree != is_tree(x):
            want = (
                f"the arrays of the fit, {self._bound.input_shape}"
                if tree
                else "one array, as in the fit"
            )
            raise TypeError(f"x must be {want}; got {type(x).__name__}.")
        x = self._numbers(x, self.frame.x_scaling is not None)
        if tree:
            return x
        want: Any = self._bound.input_shape
        got = x.shape[1:]
        if want != got:
            want, got = (", ".join(["rows", *map(str, shape)]) for shape in (want, got))
            raise ValueError(f"x must have shape ({want}), as in the fit; got ({got}).")
        return x

    def network_inputs(self, x: Any) -> Any:
        """Check new inputs like :meth:`check_inputs`, and standardise them if the model does so."""
        x = self.check_inputs(x)
        if self.frame.x_scaling is None:
            return x
        return self.frame.standard_x(x).astype(jnp.result_type(float))

    def check_targets(self, y: Any, rows: int) -> Any:
        """Check new targets against those in the fit; return them as an array, with the columns in order.

        They remain in the units of the fit. See :meth:`likelihood_targets` for what the likelihood gets.
        """
        if self.divided:
            return shapes.check_targets(self, y, rows, None)
        y = in_order("y", y, self.frame.y_names)
        scaled = self.frame.y_scaling is not None
        y = check_array("y", y, keep_integers=not scaled, double=scaled)
        if y.shape[0] != rows:
            raise ValueError(f"y must have as many rows as x, {rows}; got {y.shape[0]}.")
        targets = self._bound.targets
        if (None if y.ndim == 1 else y.shape[1]) != targets:
            want = "(rows,)" if targets is None else f"(rows, {targets})"
            raise ValueError(f"y must have shape {want}, as in the fit; got {y.shape}.")
        return y if scaled else self.likelihood.check_targets(y)

    def likelihood_targets(self, y: Any, rows: int, weights: Any = None) -> Any:
        """Check new targets like :meth:`check_targets`, and standardise them if the model does so.

        Args:
          y: the targets.
          rows: the number of rows of x.
          weights: the weights of positions or heads, if the model has them; where one is zero, the target may
            be anything.
        """
        if self.divided:
            return shapes.check_targets(self, y, rows, weights)
        y = self.check_targets(y, rows)
        return (
            y
            if self.frame.y_scaling is None
            else self.likelihood.check_targets(self.frame.standard_y(y))
        )

    # -- the densities ----------------------------------------------------------------------------

    @property
    def discrete(self) -> bool:
        """Whether every weight takes one of finitely many values."""
        return self._prior.discrete

    @property
    def learned_prior(self) -> bool:
        """Whether the method has to learn the scale of the prior."""
        return self._prior.learned

    @property
    def correlated_prior(self) -> bool:
        """Whether weights are correlated under the prior, so that leaves have no prior of their own."""
        return not self._prior.independent

    @property
    def started(self) -> bool:
        """Whether ``init`` returns a given draw, set by :meth:`starting_at`."""
        return self._start is not None

    def starting_at(self, draw: Draw) -> Model:
        """The same model, except that ``init`` and ``init_state`` return this draw."""
        return replace(self, _start=draw)

    def init(self, key: Key) -> Params:
        """Initial parameters: those of the network, or a draw from the prior if it is discrete."""
        if self._start is not None:
            return self._start.params
        network_key, prior_key = jax.random.split(key)
        params = self.network.init(network_key)
        if self.discrete:
            params = self._prior.sample(prior_key, params)
        else:
            params = self._prior.near(prior_key, params)
        learned = self.likelihood.parameter_prior
        if learned is None:
            return params
        own = self.likelihood.init(self._bound.outputs)
        likelihood = learned.near(jax.random.fold_in(prior_key, 1), own)
        return {"network": params, "likelihood": likelihood}

    def sample_prior(self, key: Key) -> Params:
        """A draw of all parameters from their priors, including the learned ones of the likelihood."""
        network_key, likelihood_key = jax.random.split(key)
        network = self._prior.sample(network_key, jax.eval_shape(self.network.init, key))
        learned = self.likelihood.parameter_prior
        if learned is None:
            return network
        like = jax.eval_shape(lambda: self.likelihood.init(self._bound.outputs))
        return {"network": network, "likelihood": learned.sample(likelihood_key, like)}

    def init_state(self) -> NetworkState:
        """The initial state of the network, such as its batch statistics."""
        return self.network.init_state() if self._start is None else self._start.state

    def split(self, params: Params) -> tuple[Params, Params | None]:
        """The parameters of the network, and those of the likelihood or ``None``."""
        if self._head is not None:
            name, learned = self._head
            return (
                (params["network"], params["likelihood"].get(name)) if learned else (params, None)
            )
        if self.likelihood.learned:
            return params["network"], params["likelihood"]
        return params, None

    def point_weights(self, params: Params) -> Params | None:
        """For each leaf, whether it gets a point estimate in any case; ``None`` if no leaf does."""
        network, likelihood = self.split(params)
        is_point = self.network.is_point
        found = jax.tree_util.tree_map_with_path(lambda path, _: is_point(path_name(path)), network)
        if not any(jax.tree.leaves(found)):
            return None
        if likelihood is None:
            return found
        return {"network": found, "likelihood": jax.tree.map(lambda _: False, likelihood)}

    def leaf_priors(self, params: Params) -> Params:
        """The prior of each leaf, as a pytree with the structure of the parameters."""
        network, likelihood = self.split(params)

        def priors(prior, tree):
            return jax.tree_util.tree_map_with_path(lambda path, _: prior.at(path_name(path)), tree)

        if likelihood is None:
            return priors(self._prior, network)
        learned = priors(self.likelihood.parameter_prior, likelihood)
        return {"network": priors(self._prior, network), "likelihood": learned}

    def log_prior(self, params: Params) -> Array:
        """log p(w), including the learned parameters of the likelihood."""
        network, likelihood = self.split(params)
        log_prob = self._prior.log_prob(network)
        return log_prob if likelihood is None else log_prob + self.likelihood.log_prior(likelihood)

    def log_likelihood(
        self, params: Params, batch: Batch, *, state: NetworkState = (), key: Key | None = None
    ) -> Array:
        """log p(D | w), estimated by the weighted sum over the batch times N / B."""
        return self._log_likelihood(params, batch, state, key, train=False)[0]

    def full_log_likelihood(
        self, params: Params, data: ArrayData, state: NetworkState = (), block: int = BLOCK
    ) -> Array:
        """log p(D | w) over all rows, evaluated in blocks to limit the memory in use, also of its gradient.

        Args:
          params: the parameters.
          data: all rows.
          state: the state of the network.
          block: the number of rows that are evaluated at once.
        """
        blocks = data.rows // block
        cut = blocks * block
        rows = (data.x, data.y, data.weights)

        def of(rows):
            return self.log_likelihood(params, Batch.of(*rows), state=state)

        if data.rows <= block:
            return of(rows)
        stack = lambda a: a[:cut].reshape(blocks, block, *a.shape[1:])  # noqa: E731
        # Otherwise a gradient would keep the activations of all blocks.
        total = jnp.sum(jax.lax.map(jax.checkpoint(of), jax.tree.map(stack, rows)))
        # Not with no rows at all, which networks need not expect.
        return total + of(jax.tree.map(lambda a: a[cut:], rows)) if cut < data.rows else total

    def log_joint(
        self, params: Params, batch: Batch, *, state: NetworkState = (), key: Key | None = None
    ) -> Array:
        """log p(w, D), estimated from the batch."""
        return self.log_prior(params) + self.log_likelihood(params, batch, state=state, key=key)

    def train_log_likelihood(
        self, params: Params, batch: Batch, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """Like ``log_likelihood``, with dropout and batch statistics as in training; also the next state."""
        return self._log_likelihood(params, batch, state, key, train=True)

    def train_log_joint(
        self, params: Params, batch: Batch, state: NetworkState, key: Key
    ) -> tuple[Array, NetworkState]:
        """Like ``log_joint``, with dropout and batch statistics as in training; also the next state."""
        log_likelihood, state = self.train_log_likelihood(params, batch, state, key)
        return self.log_prior(params) + log_likelihood, state

    def _log_likelihood(self, params, batch, state, key, train):
        network, likelihood = self.split(params)

        def of_batch(batch, state, key):
            outputs, state = self.forward.call(network, batch.x, state=state, key=key, train=train)
            log_prob = self.likelihood.log_prob(widened(outputs), batch.y, likelihood)
            return batch.sum(log_prob), state

        return self.sum_of_parts(of_batch, batch, state, key)

    @property
    def forward(self) -> AbstractNetwork:
        """The network as batches are computed with it in a fit, perhaps in another float type."""
        return self.network if self.compute is None else self.compute.network(self.network)

    def sum_of_parts(
        self, of_batch: OfBatch, batch: Batch, state: NetworkState, key: Key | None
    ) -> tuple[Array, NetworkState]:
        """``of_batch(batch, state, key)``, a log likelihood and the next state, computed as ``fit`` asks."""
        if self.compute is None:
            return of_batch(batch, state, key)
        return self.compute.summed(of_batch, batch, state, key)
