"""Posteriors and checkpoints on disk: safetensors with JSON in its header, never code.

A file carries a digest over all of its content, so that a flipped bit is refused, and is written beside its
place and moved there at the end, so that a crash leaves the old one whole.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

import credax.likelihoods
import credax.networks
import credax.priors
from credax.approximations import Approximation, Draws
from credax.checks import must
from credax.describe import NotDescribable, describe, describe_or_name, rebuild
from credax.errors import StorageError
from credax.inference.ensembles.masks import Masked, Seeds
from credax.inference.ensembles.mixture import GaussianMixture
from credax.inference.normals import FullNormal, KroneckerNormal
from credax.inference.variational.families import Categorical, FullRank, LowRank, MeanField
from credax.model import LogDensity, Model, Schema
from credax.networks.network import AbstractNetwork
from credax.networks.seeded import Seeded
from credax.posterior import Posterior
from credax.sparse import Sparse, pack, unpack
from credax.trees import named_leaves
from credax.typing import PyTree
from credax.version import __version__
from credax.weights import Weights

FORMAT = 2
"""Rises when a file can no longer be read by older versions; a file says the lowest that reads it.

1: every array as it is. 2: arrays that mostly hold one value are packed (:mod:`credax.sparse`).
"""

APPROXIMATIONS: dict[str, type[Approximation]] = {
    kind.__name__: kind
    for kind in (
        *(Draws, MeanField, LowRank, FullRank, Categorical, GaussianMixture, Masked, Seeds),
        *(KroneckerNormal, FullNormal),
    )
}


# -- posteriors -----------------------------------------------------------------------------------


def save(posterior: Posterior, path: str | Path) -> None:
    """Writes a posterior to one file. See :meth:`credax.Posterior.save`."""
    model, approximation, method = posterior.model, posterior.approximation, posterior.method
    tensors, settings = {}, {}
    like = (*approximation.like_params, *approximation.like_state)
    for item in dataclasses.fields(approximation):  # pyright: ignore[reportArgumentType]
        value = getattr(approximation, item.name)
        if value is None or (
            isinstance(value, bool | int | float | str | tuple) and item.name not in like
        ):
            settings[item.name] = describe(value)
        else:
            tensors |= _named(f"approximation/{item.name}", value)
    figures = {k: v for k, v in posterior.info.items() if np.ndim(v) == 0}
    tensors |= {f"info/{k}": np.asarray(v) for k, v in posterior.info.items() if np.ndim(v) > 0}
    described = _describe_model(model)
    # What is not described must be given again at loading, with its weights.
    names = [name for name in ("network", "prior") if "custom" not in described.get(name, "custom")]
    for held in _held(tuple(getattr(model, name) for name in names)):
        tensors |= {f"weights/{held.digest}/{k}": v for k, v in held.arrays.items()}
    header = {
        "model": described,
        "parameters": _shapes(model),
        "approximation": {"type": type(approximation).__name__, **settings},
        "method": method if isinstance(method, dict) else describe_or_name(method),
        "info": {k: v.item() if hasattr(v, "item") else v for k, v in figures.items()},
        "log_evidence": _estimate(posterior.log_evidence),
        "elbo": _estimate(posterior.elbo),
    }
    write_file(Path(path), "posterior", header, tensors)


def load(
    path: str | Path,
    network: AbstractNetwork | None = None,
    *,
    model: Model | LogDensity | None = None,
) -> Posterior:
    """Reads a posterior that ``posterior.save`` wrote.

    Args:
      path: the file.
      network: the network, where it is not one of credax's own; it is checked against the stored weights.
      model: the whole model, where its prior or likelihood is not credax's own, or for a ``LogDensity``.
    """
    if network is not None and not isinstance(network, AbstractNetwork):
        raise TypeError(must("load", "network", "a network", network))
    if model is not None and not isinstance(model, Model | LogDensity):
        raise TypeError(must("load", "model", "a cx.Model or a cx.LogDensity", model))
    header, tensors = read_file(Path(path), "posterior")
    try:
        model = _rebuild_model(header["model"], tensors, network, model)
        _check_parameters(header["parameters"], _shapes(model))
        approximation = _rebuild_approximation(header["approximation"], tensors, model)
        arrays = {k.removeprefix("info/"): v for k, v in tensors.items() if k.startswith("info/")}
        info = {**header["info"], **arrays}
        log_evidence, elbo = _estimate(header["log_evidence"]), _estimate(header["elbo"])
        return Posterior(model, approximation, header["method"], info, log_evidence, elbo)
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from None
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} does not describe a posterior: {error}.") from error


def _shapes(model: Model | LogDensity) -> dict[str, list[int]]:
    """The shape of each parameter, by its path."""
    params = jax.eval_shape(model.init, jax.random.key(0))
    return {path: list(leaf.shape) for path, leaf in named_leaves(params)}


def _check_parameters(stored: dict[str, list[int]], given: dict[str, list[int]]) -> None:
    if sorted(stored) != sorted(given):
        raise StorageError(
            f"the network's parameters must be those stored, {sorted(stored)}; got {sorted(given)}."
        )
    for path, shape in given.items():
        if shape != stored[path]:
            raise StorageError(
                f"parameter {path} was stored with shape {tuple(stored[path])}; the network's has "
                f"{tuple(shape)}."
            )


def _estimate(pair: Any) -> tuple[float, float] | None:
    return None if pair is None else (float(pair[0]), float(pair[1]))


def _classes(module: Any) -> dict[str, type]:
    public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    return {k: v for k, v in public.items() if dataclasses.is_dataclass(v)}  # pyright: ignore[reportReturnType]


def _describe_model(model: Model | LogDensity) -> dict[str, Any]:
    if isinstance(model, LogDensity):
        return {"type": "LogDensity"}
    parts = {name: getattr(model, name) for name in ("network", "prior", "likelihood", "schema")}
    described: dict[str, Any] = {"type": "Model", "seeded": isinstance(model.network, Seeded)}
    if isinstance(model.network, Seeded):
        parts["network"] = model.network.network
    for name, part in parts.items():
        try:
            described[name] = describe(part)
        except NotDescribable:
            described[name] = {"custom": type(part).__name__}
    return described


def _held(value: Any) -> list[Weights]:
    """The fixed weights in a network or a prior."""
    if isinstance(value, Weights):
        return [value]
    if isinstance(value, tuple):
        return [held for item in value for held in _held(item)]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return []
    fields = [getattr(value, item.name) for item in dataclasses.fields(value) if item.compare]
    return _held(tuple(fields))


def _stored_weights(tensors: Mapping[str, np.ndarray], digest: str) -> Weights:
    prefix = f"weights/{digest}/"
    found = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    return Weights(digest, arrays=found)


def _rebuild_model(
    described: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    network: AbstractNetwork | None,
    model: Model | LogDensity | None,
) -> Model | LogDensity:
    if described["type"] == "LogDensity":
        if not isinstance(model, LogDensity):
            raise StorageError("it holds a posterior of a LogDensity; pass load(model=...).")
        return model
    schema = rebuild(described["schema"], {"Schema": Schema})
    given = {"network": network}
    if isinstance(model, Model):
        given = {"network": model.network, "prior": model.prior, "likelihood": model.likelihood}
    parts: dict[str, Any] = {}
    homes = {
        "network": credax.networks,
        "prior": credax.priors,
        "likelihood": credax.likelihoods,
    }
    for name, home in homes.items():
        if given.get(name) is not None:
            parts[name] = given[name]
        elif "custom" in described[name]:
            argument = "network" if name == "network" else "model"
            raise StorageError(
                f"its {name} ({described[name]['custom']}) is not one of credax's own; pass "
                f"load({argument}=...)."
            )
        else:
            # Not one list: a prior in a likelihood may bear the name of a likelihood.
            inner = _classes(credax.priors if name == "likelihood" else home)
            inner |= {"Weights": partial(_stored_weights, tensors)}
            parts[name] = rebuild(described[name], _classes(home), inner)
    parts["network"] = parts["network"].build(schema.input_shape, schema.outputs)
    if described.get("seeded") and not isinstance(parts["network"], Seeded):
        parts["network"] = Seeded(parts["network"])
    return Model(**parts, schema=schema)


def _rebuild_approximation(
    described: Mapping[str, Any], tensors: Mapping[str, np.ndarray], model: Model | LogDensity
) -> Approximation:
    settings = dict(described)
    kind = APPROXIMATIONS[settings.pop("type")]
    templates = dict.fromkeys(kind.like_params, jax.eval_shape(model.init, jax.random.key(0)))
    templates |= dict.fromkeys(kind.like_state, model.init_state())
    fields = {}
    for item in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
        name = f"approximation/{item.name}"
        if item.name in settings:
            fields[item.name] = rebuild(settings[item.name], {})
        elif item.name in templates:
            fields[item.name] = _unflatten(name, templates[item.name], tensors)
        else:
            fields[item.name] = tensors[name]
    return kind(**fields)


def _unflatten(name: str, template: PyTree, tensors: Mapping[str, np.ndarray]) -> PyTree:
    """The stored leaves in the structure and the dtypes of the template: those of the float type at work."""
    named = _named(name, template)
    leaves = [tensors[path].astype(leaf.dtype, copy=False) for path, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _named(prefix: str, tree: PyTree) -> dict[str, Any]:
    leaves = named_leaves(tree)
    named = {f"{prefix}/{path}" if path else prefix: leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise StorageError(f"two parameters have the same path, among {sorted(named)}; rename one.")
    return named


# -- files ----------------------------------------------------------------------------------------


def write_file(
    path: Path, kind: str, header: Mapping[str, Any], tensors: Mapping[str, Any]
) -> None:
    """One safetensors file with a header and a digest, put in its place at the end."""
    # Not ascontiguousarray, which turns a scalar into an array of one.
    arrays = {k: np.asarray(jax.device_get(v), order="C") for k, v in tensors.items()}
    arrays, shapes = _packed(arrays)
    version = {"format": 2, "sparse": shapes} if shapes else {"format": 1}
    full = {**version, "kind": kind, "credax": __version__, **header}
    text = json.dumps(full, sort_keys=True, allow_nan=True)
    metadata = {"credax": text, "sha256": _digest(text, arrays)}
    payload = safetensors.numpy.save(arrays, metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with temporary.open("xb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_file(path: Path, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and the tensors, both checked against the digest."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError, AttributeError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is not a credax file, or is cut short: {error}.") from error
    text = metadata.get("credax")
    if text is None:
        raise StorageError(f"{path} is a safetensors file, but not one of credax.")
    try:
        header = json.loads(text)
        version = int(header.get("format", 0))
    except (AttributeError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: its header cannot be read.") from error
    if version > FORMAT:
        raise StorageError(
            f"{path} was written by credax {header.get('credax')} in format {version}; this "
            f"version reads up to format {FORMAT}. Upgrade credax."
        )
    if metadata.get("sha256") != _digest(text, arrays):
        raise StorageError(f"{path} is damaged: its content does not match its digest.")
    if header.get("kind") != kind:
        raise StorageError(f"{path} holds a {header.get('kind')}, not a {kind}.")
    try:
        return header, _unpacked(arrays, header.get("sparse", {}))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise StorageError(f"{path} is damaged: {error}.") from error


def _packed(arrays: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays, those that mostly hold one value in three parts, and the shapes of these."""
    result, shapes = {}, {}
    for name, array in arrays.items():
        parts = pack(array)
        if parts is None:
            result[name] = array
        else:
            shapes[name] = array.shape
            result |= {f"sparse/{part}/{name}": value for part, value in parts._asdict().items()}
    return result, shapes


def _unpacked(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> dict[str, np.ndarray]:
    for name, shape in shapes.items():
        parts = [arrays.pop(f"sparse/{part}/{name}", None) for part in Sparse._fields]
        if any(part is None for part in parts):
            raise ValueError(f"parts of the sparse array {name} are missing")
        arrays[name] = unpack(Sparse(*parts), shape)  # pyright: ignore[reportArgumentType]
    return arrays


def _digest(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"\0{name}\0{array.dtype}\0{array.shape}\0".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
