"""Networks from models of Keras 3, which must run on its JAX backend."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax

from credax.core import random
from credax.core.checks import must
from credax.core.trees import named_leaves
from credax.core.typing import Array
from credax.core.weights import Weights, nested
from credax.model.networks.wrapped import (
    MutableNetwork,
    Same,
    check_pretrained,
    finite_weights,
    library,
    next_state,
)


def from_keras(model: Any, *, pretrained: bool = False) -> KerasNetwork:
    """Make a network from a Keras model that maps rows to outputs of shape ``(rows, outputs)``.

    The model may also take a dictionary of arrays, and return outputs of another shape; see ``cx.Model``.

    The trainable variables are the parameters, and the moving statistics are the state. Variables of layers
    with ``trainable = False`` keep their values. Seed generators are seeded from credax's keys.

    Args:
      model: a built ``keras.Model`` (one that begins with a ``keras.Input``, or was called once).
      pretrained: whether every replica starts from the model's own weights. If ``False``, it starts from these
        weights shuffled within each array, which is distributed like a new draw of the initialisers.

    Networks are equal if they have the same model object and the same weights; reuse the object so that a
    second fit does not compile again. A posterior can be saved, but the network must be passed again to
    ``cx.load``.
    """
    keras = library("keras")

    if keras.backend.backend() != "jax":
        raise ValueError(
            f"from_keras needs Keras on its JAX backend; it runs on {keras.backend.backend()!r}. Set "
            'os.environ["KERAS_BACKEND"] = "jax" before keras is imported for the first time.'
        )
    if not isinstance(model, keras.Model):
        raise TypeError(must("from_keras", "model", "a keras.Model", model))
    if not model.built:
        allowed = "built: begin it with keras.Input(shape), or call it once"
        raise ValueError(must("from_keras", "model", allowed, model.name))
    check_pretrained("from_keras", pretrained, True)
    weights, carried, fixed = map(_values, _variables(model)[:3])
    learned = finite_weights("from_keras", "model", weights)
    return KerasNetwork(Same(model), learned, Weights.of(carried), Weights.of(fixed), pretrained)


@dataclass(frozen=True, repr=False)
class KerasNetwork(MutableNetwork):
    """A Keras model and the values of its variables. Made by :func:`from_keras`."""

    def call(self, params, x: Array, *, state, key, train):
        """Call the model."""
        keras = library("keras")

        model = self.original.value
        trainable, carried, fixed, seeds = _variables(model)
        given = dict(named_leaves(params)) | dict(named_leaves(state))
        given |= {path: jax.numpy.asarray(value) for path, value in self.fixed.arrays.items()}
        mapping = [(v, given[path]) for path, v in (trainable | carried | fixed).items()]
        if key is not None:
            keys = jax.random.key_data(jax.random.split(random.native(key), max(len(seeds), 1)))
            mapping += [(v, keys[i]) for i, v in enumerate(seeds.values())]
        with (
            jax.numpy_dtype_promotion("standard"),
            _batch_statistics(model, train),
            _without_cudnn(model),
            keras.StatelessScope(mapping) as scope,
        ):
            outputs = model(x, training=key is not None)
        if train and state != ():
            new = {path: scope.get_current_value(v) for path, v in carried.items()}
            state = next_state(nested(new), state)
        return outputs, state

    def named_values(self, params, state):
        """The variables of the model by their paths, also those that are not trained."""
        return {**self.fixed.arrays, **super().named_values(params, state)}

    def module_with(self, params, state):
        """The model itself, whose variables are overwritten."""
        values, model = self.named_values(params, state), self.original.value
        trainable, carried, fixed, _ = _variables(model)
        for path, variable in (trainable | carried | fixed).items():
            variable.assign(values[path])
        return model


def _variables(model: Any) -> tuple[dict[str, Any], ...]:
    """The variables by their paths: weights, others that training changes, fixed ones, and seeds."""
    parts: tuple[dict[str, Any], ...] = ({}, {}, {}, {})
    layers = model._flatten_layers()
    moving = {id(v) for layer in layers if layer.trainable for v in layer._non_trainable_variables}
    metrics = {id(v) for v in model.metrics_variables}
    paths: set[str] = set()
    for variable in [*model.trainable_variables, *model.non_trainable_variables]:
        if id(variable) in metrics:
            continue
        name, copy = variable.path.removeprefix(f"{model.name}/"), 1
        path = name
        while path in paths:  # two layers have the same name
            copy += 1
            path = f"{name}_{copy}"
        paths.add(path)
        if variable.name == "seed_generator_state":
            kind = 3
        elif variable.trainable:
            kind = 0
        else:
            kind = 1 if id(variable) in moving else 2
        parts[kind][path] = variable
    return parts


def _values(variables: dict[str, Any]) -> dict[str, Any]:
    return {path: v.value for path, v in variables.items()}


@contextmanager
def _without_cudnn(model: Any) -> Iterator[None]:
    """Compute recurrent layers in JAX: NVIDIA's kernels for them cannot be batched over replicas or draws."""
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "use_cudnn")]
    chosen = [layer.use_cudnn for layer in layers]
    for layer in layers:
        layer.use_cudnn = False
    try:
        yield
    finally:
        for layer, choice in zip(layers, chosen, strict=True):
            layer.use_cudnn = choice


@contextmanager
def _batch_statistics(model: Any, update: bool) -> Iterator[None]:
    """Switch batch normalisation to training or prediction, independently of the other layers.

    Keras has a single flag for both, but dropout in prediction needs random masks without an update of the
    batch statistics.
    """
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "moving_mean")]
    for layer in layers:
        vars(layer)["call"] = partial(_call, layer, update)
    try:
        yield
    finally:
        for layer in layers:
            del vars(layer)["call"]


def _call(layer: Any, update: bool, *inputs: Any, **named: Any) -> Any:
    return type(layer).call(layer, *inputs, **(named | {"training": update}))
