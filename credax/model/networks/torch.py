"""Networks from PyTorch modules, run as JAX programs.

``torch.export`` translates the module to a list of ATen operations, which :mod:`credax.model.networks.aten`
runs on JAX arrays. During a fit PyTorch itself only traces the module, once for each number of rows.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import must
from credax.core.trees import named_leaves
from credax.core.weights import Weights, nested
from credax.model.networks import aten
from credax.model.networks.wrapped import (
    MutableNetwork,
    Same,
    check_pretrained,
    finite_weights,
    library,
    next_state,
)

STATISTICS = ("running_mean", "running_var")


def from_torch(module: Any, *, pretrained: bool = False) -> TorchNetwork:
    """Make a network from a PyTorch module that maps rows to outputs of shape ``(rows, outputs)``.

    The module is called with one argument, ``x``: an array, or the dictionary or tuple of arrays that ``fit``
    was given, such as token ids with a mask. It may return a dictionary of outputs, or outputs of another
    shape; see ``cx.Model``.

    The module's parameters with ``requires_grad`` are the parameters, and the running statistics of its
    normalisation layers are the state. All other parameters and buffers keep their values. The control flow
    of the module must not depend on the values of its tensors, and it may use the common operations only: any
    other is named in an error.

    Args:
      module: a ``torch.nn.Module``; images are ``(rows, channels, height, width)``, as is usual in PyTorch.
      pretrained: whether every replica starts from the module's own weights. If ``False``, it starts from these
        weights shuffled within each array, which is distributed like a new draw of the initialisers.

    Networks are equal if they have the same module object and the same weights; reuse the object so that a
    second fit does not compile again. A posterior can be saved, but the network must be passed again to
    ``cx.load``.
    """
    torch = library("torch")

    if not isinstance(module, torch.nn.Module):
        raise TypeError(must("from_torch", "module", "a torch.nn.Module", module))
    check_pretrained("from_torch", pretrained, True)
    weights, fixed, carried = {}, {}, {}
    for name, parameter in module.named_parameters():
        (weights if parameter.requires_grad else fixed)[_path(name)] = _array(parameter)
    for name, buffer in module.named_buffers():
        owner, _, last = name.rpartition(".")
        statistic = last in STATISTICS and _normalises(module.get_submodule(owner))
        (carried if statistic else fixed)[_path(name)] = _array(buffer)
    return TorchNetwork(
        Same(module),
        finite_weights("from_torch", "module", weights),
        Weights.of(carried),
        Weights.of(fixed),
        pretrained,
    )


@dataclass(frozen=True, repr=False)
class TorchNetwork(MutableNetwork):
    """A PyTorch module and the values of its tensors. Made by :func:`from_torch`."""

    def call(self, params, x: Any, *, state, key, train):
        """Run the operations of the module."""
        double = jnp.result_type(float) == np.float64
        leaves, form = jax.tree.flatten(x)
        rows = tuple((leaf.shape, str(leaf.dtype)) for leaf in leaves)
        program = _exported(self.original, form, rows, key is not None, train, double)
        values = dict(named_leaves(params)) | dict(named_leaves(state))
        values |= dict(named_leaves(self.fixed.tree))
        key = None if key is None else random.native(key)
        with jax.numpy_dtype_promotion("standard"):
            outputs, changed = aten.run(program, values, leaves, key)
        if train and state != ():
            new = {path: changed[path] for path, _ in named_leaves(state)}
            state = next_state(nested(new), state)
        return outputs, state

    def named_values(self, params, state):
        """The arrays of the module's state dictionary, those of shared tensors under each of their names."""
        values = dict(self.fixed.arrays)
        values |= {path: np.asarray(a) for path, a in [*named_leaves(params), *named_leaves(state)]}
        module = self.original.value
        shared, tensors = _first_names(module), module.state_dict()
        return {
            name: values[_path(shared[name])].astype(_array(tensor).dtype)
            for name, tensor in tensors.items()
        }

    def module_with(self, params, state):
        """The module itself, whose state dictionary is overwritten, set to predict."""
        module = self.original.value
        values = self.named_values(params, state)
        module.load_state_dict({name: _tensor(array) for name, array in values.items()})
        return module.eval()


@lru_cache
def _exported(
    module: Same,
    form: Any,
    rows: tuple[tuple[tuple[int, ...], str], ...],
    drop: bool,
    update: bool,
    double: bool,
) -> aten.Program:
    """The operations for inputs of these shapes, with dropout and batch statistics each switched on or off.

    Args:
      module: the module.
      form: the containers of the inputs.
      rows: the shape and the dtype of each array in them.
      drop: whether dropout is active.
      update: whether batch statistics are updated.
      double: whether the module computes in double precision.
    """
    torch = library("torch")

    # The dtypes of the module become part of the exported operations.
    whole = copy.deepcopy(module.value).double() if double else module.value
    zeros = (torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in rows)
    x = jax.tree.unflatten(form, zeros)
    with _switched(whole, drop, update), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # which concern PyTorch itself
        try:
            exported = torch.export.export(whole, (x,)).run_decompositions()
        except Exception as error:
            reason = (str(error).strip() or "no message").splitlines()[0].rstrip(".")
            raise ValueError(
                "from_torch(module=...) must be a module that torch.export can list the operations of; for "
                f"inputs of shape {', '.join(str(shape) for shape, _ in rows)} it failed with "
                f"{type(error).__name__}: {reason}. Its control flow must not depend on the values of tensors; "
                'a model of the package transformers may need attn_implementation="eager" in its '
                "configuration."
            ) from error
    signature = exported.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {
        name: _array(exported.constants[target])
        for name, target in signature.inputs_to_lifted_tensor_constants.items()
    }
    changed = {name: _path(path) for name, path in signature.buffers_to_mutate.items()}
    shared = _first_names(module.value)
    inputs = {name: _path(shared.get(str(path), str(path))) for name, path in names.items()}
    _, form_of_outputs = exported.call_spec
    return aten.Program(
        exported.graph,
        inputs,
        constants,
        signature.user_inputs,
        partial(torch.utils._pytree.tree_unflatten, treespec=form_of_outputs),
        signature.user_outputs,
        changed,
    )


@contextmanager
def _switched(module: Any, drop: bool, update: bool) -> Iterator[None]:
    layers = list(module.modules())
    before = [layer.training for layer in layers]
    try:
        for layer in layers:
            layer.training = update if _normalises(layer) else drop
        yield
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.training = training


def _normalises(layer: Any) -> bool:
    torch = library("torch")

    return isinstance(layer, torch.nn.modules.batchnorm._NormBase)


def _first_names(module: Any) -> dict[str, str]:
    """For each name of a parameter or buffer, the first name of the same tensor: modules may share it."""
    every = {"remove_duplicate": False}
    tensors = [*module.named_parameters(**every), *module.named_buffers(**every)]
    first = {id(tensor): name for name, tensor in reversed(tensors)}
    return {name: first[id(tensor)] for name, tensor in tensors}


def _path(name: str) -> str:
    return name.replace(".", "/")


def _array(tensor: Any) -> np.ndarray:
    torch, tensor = library("torch"), tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have
        return np.asarray(jnp.asarray(tensor.float().numpy(), jnp.bfloat16))
    return tensor.numpy()


def _tensor(array: np.ndarray) -> Any:
    torch = library("torch")
    if array.dtype == jnp.bfloat16:
        return torch.tensor(array.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(array)
