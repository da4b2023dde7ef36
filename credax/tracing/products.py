r"""The products of a network: the inputs of each weight, and access to the result of its product.

For a layer :math:`z = a W` the derivative of any function with respect to W is the outer product of the layer's
inputs a and the derivative g with respect to z. Methods that use the curvature need only a and g of each layer.
The code below runs the program of any network row by row, finds the product of each weight, records a, and adds
to z an array of zeros, the *tap*, with respect to which the derivative is g. The network's code is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from credax.core.rows import some_rows
from credax.core.trees import as_leaf
from credax.core.typing import Array, NetworkState, Params
from credax.model.networks.network import AbstractNetwork
from credax.tracing.jaxprs import called, evaluate, is_literal, is_marked, marks_inside
from credax.tracing.usage import Usage, usages

UNCHANGED = {"convert_element_type", "copy"}
"""Primitives that keep the shape and the order of a weight's elements."""
SHIFTING = {"broadcast_in_dim", "reshape", "convert_element_type"}
"""Primitives that may be applied to a bias before it is added."""
PASSING = {"add", "reshape", "squeeze", "slice", "transpose", "convert_element_type", "copy"}
"""Primitives after which the outputs of one row are the same up to a sum, if their number does not change."""


@dataclass(frozen=True)
class Product:
    """The product of a weight with its inputs, in which the weight is a matrix of inputs by outputs.

    Attributes:
      axes: the axes of the weight, those that run over the inputs first.
      inputs: the number of axes that run over the inputs.
      places: the number of places of a row at which the weight is multiplied, such as the positions of a
        convolution or the words of a sentence.
      shape: the shape of the result z.
      order: the axes of z, those that run over the places first.
      bias: the index of the leaf that is added to z and used nowhere else, or ``None``.
    """

    axes: tuple[int, ...]
    inputs: int
    places: int
    shape: tuple[int, ...]
    order: tuple[int, ...]
    bias: int | None = None

    @property
    def layout(self) -> tuple[int, ...]:
        """The arrangement of the weight's axes, for :func:`as_matrix` and :func:`as_leaf`."""
        return (self.inputs, *self.axes)

    def result(self, z: Array) -> Array:
        """Reshape an array of the shape of z to ``(places, outputs)``."""
        return z.transpose(self.order).reshape(self.places, -1)

    def unordered(self, result: Array) -> Array:
        """The inverse of :meth:`result`."""
        return as_leaf(result, (1, *self.order), self.shape)


class Rows:
    """The program of a network whose rows do not interact, run one row at a time.

    Args:
      network: any network.
      params: its parameters, or their shapes and dtypes.
      state: its state.
      x: the inputs, or their shape and dtype.
    """

    def __init__(self, network: AbstractNetwork, params: Params, state: NetworkState, x: Any):
        self._count = len(jax.tree.leaves(params))

        def call(params, state, row):
            return network.apply(params, row, state)

        self._call = call
        shape = lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf))  # noqa: E731
        row = some_rows(x, 1)
        given = jax.tree.map(shape, (params, state))
        self._program: Any = jax.make_jaxpr(call)(*given, row)
        uses = usages(lambda params, rest: call(params, *rest), given[0], (given[1], row))
        self._uses: list[Usage] = jax.tree.leaves(uses)
        self._shapes = given[0], given[1], row
        self.products, self.last = self._find(jax.tree.leaves((given, row)))

    def outputs(
        self, leaves: list[Array], state: NetworkState, row: Array, taps: dict[int, Array]
    ) -> tuple[Array, dict[int, Array]]:
        """The outputs of one row, and the inputs ``(places, inputs)`` of each product that has a tap.

        Args:
          leaves: the leaves of the parameters.
          state: the state of the network.
          row: one row.
          taps: for the index of a leaf, an array that is added to the result of its product.
        """
        inputs: dict[int, Array] = {}

        def visit(leaf, product, multiplied, result):
            if leaf not in taps:
                return result
            inputs[leaf] = multiplied()
            return result + taps[leaf]

        arguments = [*leaves, *jax.tree.leaves((state, row[None]))]
        program = self._program
        weights = self._weights(program)
        return _run(program.jaxpr, program.consts, arguments, weights, visit)[0][0], inputs

    def final(self) -> int | None:
        """The index of the weight whose product is the output, up to a sum with other terms, or ``None``."""
        for leaf, product in self.products.items():
            one_axis = sum(length > 1 for length in product.shape) <= 1
            if product.places == 1 and one_axis and self._returned(leaf, product):
                return leaf
        return None

    def inputs(
        self,
        leaf: int,
        params: Params,
        state: NetworkState,
        x: Array,
        multiply: Callable[[Array], Array],
    ) -> tuple[Array, Array]:
        """The outputs of many rows, and the inputs ``(rows, inputs)`` of one product.

        Args:
          leaf: the index of the weight of the product, which each row uses at one place.
          params: the parameters.
          state: the state of the network.
          x: the inputs of the network.
          multiply: a function from the inputs of the product to its results ``(rows, outputs)``, which is used
            instead of the product itself.
        """

        def change(product, inputs, result):
            return product.unordered(multiply(inputs)).astype(result.dtype)

        outputs, inputs = self._recorded({leaf}, params, state, x, change)
        return outputs, inputs[leaf]

    def all_inputs(self, params: Params, state: NetworkState, x: Array) -> dict[int, Array]:
        """The inputs of every product, ``(rows * places, inputs)``."""
        return self._recorded(set(self.products), params, state, x)[1]

    def _recorded(
        self, leaves: set[int], params, state, x, change: Callable | None = None
    ) -> tuple[Array, dict[int, Array]]:
        """The outputs of many rows, and the inputs of the products of some weights.

        ``change(product, inputs, result)`` returns what takes the place of a product's result.
        """
        values = jax.tree.leaves((params, state))

        def run(program, x):
            inputs: dict[int, Array] = {}

            def visit(leaf, product, multiplied, result):
                if leaf not in leaves:
                    return result
                inputs[leaf] = multiplied()
                return result if change is None else change(product, inputs[leaf], result)

            weights = self._weights(program)
            given = [*values, *jax.tree.leaves(x)]
            outputs = _run(program.jaxpr, program.consts, given, weights, visit)[0]
            return outputs, inputs

        program: Any = jax.make_jaxpr(self._call)(params, state, x)
        if self._products_of(program, [*values, *jax.tree.leaves(x)]) >= leaves:
            return run(program, x)
        # Some libraries write a product differently for many rows: PyTorch may repeat the weight for each row.
        outputs, inputs = jax.vmap(lambda row: run(self._program, row[None]))(x)
        return outputs[:, 0], {i: a.reshape(-1, a.shape[-1]) for i, a in inputs.items()}

    def _products_of(self, program: Any, shapes: Any) -> set[int]:
        """The leaves that a program uses only in one product."""
        used: dict[int, list[bool]] = {}

        def visit(leaf, product, multiplied, result):
            used.setdefault(leaf, []).append(product is not None)
            return result

        run = lambda *args: _run(  # noqa: E731
            program.jaxpr, program.consts, args, self._weights(program), visit
        )
        jax.eval_shape(run, *shapes)
        return {leaf for leaf, each in used.items() if each == [True]}

    def _weights(self, program: Any) -> dict[Any, _Weight]:
        """The leaf of the parameters that each of the first variables of a program holds."""
        return {v: _Weight(i) for i, v in enumerate(program.jaxpr.invars[: self._count])}

    def _returned(self, leaf: int, product: Product) -> bool:
        """Whether the result of a product is the output, up to a sum with other terms."""
        params, state, row = self._shapes
        leaves = jax.tree.leaves(params)
        tap = jax.ShapeDtypeStruct(product.shape, leaves[leaf].dtype)
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), row)
        run = lambda tap, leaves, state, row: self.outputs(leaves, state, row, {leaf: tap})[0]  # noqa: E731
        program: Any = jax.make_jaxpr(run)(tap, leaves, state, one).jaxpr
        variable: Any = program.invars[0]
        while variable is not program.outvars[0]:
            # An equation that uses the variable twice (z + z) is listed twice.
            users = [e for e in program.eqns for atom in e.invars if atom is variable]
            if len(users) != 1 or users[0].primitive.name not in PASSING:
                return False
            before, variable = variable, users[0].outvars[0]
            if variable.aval.size != before.aval.size:
                return False
        return True

    def _find(self, shapes: Any) -> tuple[dict[int, Product], tuple[int, ...]]:
        """Find the product of each weight that has exactly one.

        Returns:
          The products by the index of their weight, and the indices of the last of these weights and of all
          leaves that are used after it.
        """
        found: dict[int, Product] = {}
        used: list[int] = []

        def visit(leaf, product, multiplied, result):
            used.append(leaf)
            if product is not None and self._uses[leaf] in (Usage.PRODUCT, Usage.PRODUCTS):
                alone = product.bias is not None and self._uses[product.bias] is Usage.SUM
                found[leaf] = product if alone else replace(product, bias=None)
            return result

        program = self._program
        weights = self._weights(program)
        run = lambda *args: _run(program.jaxpr, program.consts, args, weights, visit)  # noqa: E731
        jax.eval_shape(run, *shapes)
        if not found:
            return found, ()
        final = max(used.index(leaf) for leaf in found)
        return found, tuple(sorted({leaf for leaf in used if used.index(leaf) >= final}))


@dataclass(frozen=True)
class _Weight:
    """The leaf of the parameters that a variable holds.

    Attributes:
      leaf: the index of the leaf.
      axes: the axes of the leaf in the order of the variable's axes; ``None`` if the order is unchanged.
      product: whether the variable holds each element exactly once, as a product needs.
    """

    leaf: int
    axes: tuple[int, ...] | None = None
    product: bool = True


def _run(jaxpr: Any, consts: Any, arguments: Any, weights: dict, visit: Callable) -> list[Any]:
    """Evaluate a program.

    For every equation that uses a weight, ``visit(leaf, product, inputs, result)`` returns the result to go
    on with.
    """
    values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, arguments, strict=True))
    read = lambda atom: atom.val if is_literal(atom) else values[atom]  # noqa: E731
    biases = _biases(jaxpr, weights)
    for equation in jaxpr.eqns:
        given = [read(atom) for atom in equation.invars]
        met = [(i, weights[a]) for i, a in enumerate(equation.invars) if is_marked(a, weights)]
        inner = called(equation)
        if met and inner is not None:
            inside = marks_inside(equation, inner, weights)
            results = _run(inner.jaxpr, inner.consts, given, inside, visit)
            values.update(zip(equation.outvars, results, strict=True))
            continue
        results = evaluate(jaxpr, equation, given)
        for side, weight in met:
            moved = _moved(equation, weight, given[side])
            if moved is not None:
                weights[equation.outvars[0]] = moved
                continue
            product = multiplied = None
            if len(met) == 1 and weight.product:
                product, multiplied = _product(
                    equation, side, weight, given, biases.get(equation.outvars[0])
                )
            results[0] = visit(weight.leaf, product, multiplied, results[0])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _moved(equation: Any, weight: _Weight, value: Any) -> _Weight | None:
    """The weight after a primitive that only rearranges its elements; ``None`` after any other primitive."""
    name = equation.primitive.name
    axes = tuple(range(value.ndim)) if weight.axes is None else weight.axes
    if name in UNCHANGED:
        return weight
    if name == "transpose":
        return _Weight(
            weight.leaf, tuple(axes[i] for i in equation.params["permutation"]), weight.product
        )
    if name in ("reshape", "squeeze", "broadcast_in_dim"):
        return _Weight(weight.leaf, None, product=False)
    return None


def _product(equation, side, weight, given, bias):
    """The product of an equation and a function that returns its inputs; or ``None`` for both."""
    name, value = equation.primitive.name, given[side]
    axes = tuple(range(value.ndim)) if weight.axes is None else weight.axes
    shape = equation.outvars[0].aval.shape
    if name == "dot_general":
        contracted, batch = equation.params["dimension_numbers"]
        if any(batch):
            return None, None
        mine, others, x = contracted[side], contracted[1 - side], given[1 - side]
        free = [i for i in range(value.ndim) if i not in mine]
        places = [i for i in range(x.ndim) if i not in others]
        outputs = tuple(range(len(shape)))
        order = outputs if side == 1 else (*outputs[len(free) :], *outputs[: len(free)])
        count = math.prod(x.shape[i] for i in places)
        ordered = tuple(axes[i] for i in (*mine, *free))
        product = Product(ordered, len(mine), count, shape, order, bias)
        return product, lambda: x.transpose((*places, *others)).reshape(count, -1)
    if name == "conv_general_dilated" and side == 1:
        settings = equation.params
        if settings["feature_group_count"] > 1 or settings["batch_group_count"] > 1:
            return None, None
        numbers = settings["dimension_numbers"]
        out, kernel = numbers.out_spec, numbers.rhs_spec
        order = (out[0], *out[2:], out[1])
        count = math.prod(shape[i] for i in order[:-1])
        ordered = tuple(axes[i] for i in (*kernel[1:], kernel[0]))
        product = Product(ordered, len(kernel) - 1, count, shape, order, bias)

        def patches():
            found = lax.conv_general_dilated_patches(
                given[0],
                [value.shape[i] for i in kernel[2:]],
                settings["window_strides"],
                settings["padding"],
                settings["lhs_dilation"],
                settings["rhs_dilation"],
                numbers,
            )
            return found.transpose(order).reshape(count, -1)

        return product, patches
    return None, None


def _biases(jaxpr: Any, weights: dict) -> dict[Any, int]:
    """For each variable that is used only in a sum with a vector of weights, the leaf of that vector."""
    vectors = {v: w.leaf for v, w in weights.items() if getattr(v.aval, "ndim", 0) == 1}
    uses: dict[Any, int] = {}
    for atom in [a for e in jaxpr.eqns for a in e.invars] + list(jaxpr.outvars):
        if not is_literal(atom):
            uses[atom] = uses.get(atom, 0) + 1
    found = {}
    for equation in jaxpr.eqns:
        mine = [is_marked(atom, vectors) for atom in equation.invars]
        if not any(mine):
            continue
        if equation.primitive.name in SHIFTING:
            vectors[equation.outvars[0]] = vectors[equation.invars[0]]
        elif equation.primitive.name == "add" and sum(mine) == 1:
            side = mine.index(True)
            other = equation.invars[1 - side]
            same = other.aval.shape == equation.outvars[0].aval.shape
            if not is_literal(other) and uses.get(other) == 1 and same:
                found[other] = vectors[equation.invars[side]]
    return found
