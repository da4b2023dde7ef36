"""Posteriors on disk: the model, the method and the run as JSON, the distribution as tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import credax.model.likelihoods
import credax.model.networks
import credax.model.priors
from credax.core import checks
from credax.core.checks import must, shown
from credax.core.errors import StorageError
from credax.core.scaling import Positions, Scaling
from credax.core.trees import named_leaves
from credax.core.typing import Draw, PyTree
from credax.core.weights import Weights, weights_in
from credax.model import LogDensity, Model, Schema
from credax.model.frame import Frame
from credax.model.inputs import InputTree
from credax.model.likelihoods import Heads, PerPosition
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.seeded import Seeded
from credax.model.networks.shaped import Shaped
from credax.model.networks.wandering import Wandering
from credax.posterior import Estimate, Posterior, StackedPosterior, services
from credax.posterior.approximations import APPROXIMATIONS, Approximation, Draws
from credax.storage.describe import Description, NotDescribable, describe, describe_or_name, rebuild
from credax.storage.files import read_file, write_file
from credax.storage.methods import rebuild_method


def save(posterior: Posterior | StackedPosterior, path: str | Path) -> None:
    """Write a posterior to one file. See :meth:`credax.Posterior.save`."""
    file = checks.path("save", "path", path)
    if file.is_dir():
        raise IsADirectoryError(must("save", "path", "a file", f"the folder {file}"))
    if isinstance(posterior, Posterior):
        write_file(file, "posterior", *_content(posterior))
        return
    headers, tensors = [], {}
    for i, part in enumerate(posterior.components):
        header, arrays = _content(part)
        headers.append(header)
        tensors |= {f"component {i}/{name}": array for name, array in arrays.items()}
    figures, arrays = _divided(posterior.info)
    tensors |= {f"info/{name}": array for name, array in arrays.items()}
    header = {"components": headers, "weights": list(posterior.weights), "info": figures}
    write_file(file, "stack", header, tensors)


def _divided(info: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers and texts of an info, and its arrays."""
    figures = {k: v.item() if hasattr(v, "item") else v for k, v in info.items() if np.ndim(v) == 0}
    return figures, {k: np.asarray(v) for k, v in info.items() if np.ndim(v) > 0}


def _content(posterior: Posterior) -> tuple[dict[str, Any], dict[str, Any]]:
    """The header and the tensors of the file of one posterior."""
    model, approximation = posterior.model, posterior.approximation
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
    figures, arrays = _divided(posterior.info)
    tensors |= {f"info/{name}": array for name, array in arrays.items()}
    described = _describe_model(model)
    # A network or prior that is not described must be passed to load, which then has its weights.
    names = [
        name
        for name in ("network", "prior", "likelihood")
        if "custom" not in described.get(name, "custom")
    ]
    for held in weights_in(tuple(getattr(model, name) for name in names)):
        tensors |= {f"weights/{held.digest}/{k}": v for k, v in held.arrays.items()}
    header = {
        "model": described,
        "parameters": _shapes(model),
        "approximation": {"type": type(approximation).__name__, **settings},
        "method": describe_or_name(posterior.method),
        "info": figures,
        "log_evidence": _describe_estimate(posterior.log_evidence),
        "elbo": _describe_estimate(posterior.elbo),
        # The rows of the fit are not saved, so what a diagnosis needs of them is computed now.
        "examination": dict(posterior.examination),
    }
    return header, tensors


def load(
    path: str | Path,
    network: AbstractNetwork | None = None,
    *,
    model: Model | LogDensity | None = None,
) -> Any:
    """Read a posterior that ``posterior.save`` wrote: a ``Posterior``, or a ``StackedPosterior``.

    Args:
      path: the file.
      network: the network, needed if it is not one of ``cx.networks``. Its parameters are checked against
        those stored.
      model: the model, needed for a ``LogDensity``, or if its prior or likelihood is not one of credax.
    """
    if network is not None and not isinstance(network, AbstractNetwork):
        raise TypeError(must("load", "network", "a network", network))
    if model is not None and not isinstance(model, Model | LogDensity):
        raise TypeError(must("load", "model", "a cx.Model or a cx.LogDensity", model))
    file = checks.path("load", "path", path)
    if file.is_dir():
        raise StorageError(must("load", "path", "a file", f"the folder {file}"))
    header, tensors = read_file(file, "posterior", "stack")
    try:
        if header["kind"] == "posterior":
            return _posterior(header, tensors, network, model)
        components = [
            _posterior(part, _below(f"component {i}/", tensors), network, model)
            for i, part in enumerate(header["components"])
        ]
        info = {**header["info"], **_below("info/", tensors)}
        weights = tuple(float(weight) for weight in header["weights"])
        return StackedPosterior(tuple(components), weights, info)
    except StorageError as error:
        raise StorageError(f"{path}: {error}") from None
    except UNREADABLE as error:
        raise StorageError(f"{path} does not describe a posterior: {error}.") from error


def _below(prefix: str, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors whose names begin with a prefix, by the rest of their names."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _posterior(
    header: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    network: AbstractNetwork | None,
    given: Model | LogDensity | None,
) -> Posterior:
    """The posterior that ``_content`` described."""
    model = _rebuild_model(header["model"], tensors, network, given)
    _check_parameters(header["parameters"], _shapes(model))
    approximation = _rebuild_approximation(header["approximation"], tensors, model)
    _check_draws(approximation, model)
    info = {**header["info"], **_below("info/", tensors)}
    method = rebuild_method(header["method"])
    log_evidence, elbo = Estimate.of(header["log_evidence"]), Estimate.of(header["elbo"])
    examined = header.get("examination")
    return Posterior(model, approximation, method, info, log_evidence, elbo, examined=examined)


FRAMES = {"Frame": Frame, "Scaling": Scaling, "Positions": Positions}
UNREADABLE = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError),
    *(TypeError, ValueError),
)
"""What can go wrong when an object is built from a description that no version of credax has written."""


def _shapes(model: Model | LogDensity) -> dict[str, list[int]]:
    """The shape of each parameter by path."""
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


def _describe_estimate(estimate: Estimate | None) -> Description:
    # Older versions read the first two entries and ignore the third.
    return None if estimate is None else [*estimate, estimate.errs]


def _classes(module: Any) -> dict[str, type]:
    public = {k: v for k, v in vars(module).items() if not k.startswith("_")}
    return {k: v for k, v in public.items() if dataclasses.is_dataclass(v)}  # pyright: ignore[reportReturnType]


def _describe_model(model: Model | LogDensity) -> dict[str, Any]:
    if isinstance(model, LogDensity):
        return {"type": "LogDensity"}
    parts = {name: getattr(model, name) for name in ("network", "prior", "likelihood", "schema")}
    described: dict[str, Any] = {"type": "Model", "seeded": isinstance(model.network, Seeded)}
    described |= {"standardise": model.standardise, "frame": describe(model.frame)}
    if isinstance(model.network, Wandering):
        described["wandering"] = [model.network.columns, model.network.features]
    parts["network"] = _inner(model.network)
    for name, part in parts.items():
        try:
            described[name] = describe(part)
        except NotDescribable:
            described[name] = {"custom": type(part).__name__}
    return described


def _inner(network: AbstractNetwork) -> AbstractNetwork:
    """The network that the user gave, without what a fit puts around it."""
    while isinstance(network, Seeded | Shaped | Wandering):
        network = network.network
    return network


def _rebuild_likelihood(described: Mapping[str, Any], inner: Mapping[str, Any]) -> Any:
    """The likelihood; those of positions and heads hold others, whose names priors may have as well."""
    kind = described["type"]
    if kind == "PerPosition":
        part = _rebuild_likelihood(described["likelihood"], inner)
        return PerPosition(part, tuple(described["positions"]))
    if kind == "Heads":
        pairs = [
            (name, _rebuild_likelihood(each, inner)) for name, each in described["likelihoods"]
        ]
        prior = rebuild(described["learned_prior"], inner)
        return Heads(dict(pairs), described["sizes"], prior)
    return rebuild(described, _classes(credax.model.likelihoods), inner)


def _as_in_fit(likelihood: Any, schema: Schema) -> Any:
    """The likelihood, around whose given one a fit has put its positions and the sizes of its heads."""
    if isinstance(likelihood, Mapping):
        likelihood = Heads(likelihood)
    if isinstance(likelihood, Heads) and likelihood.sizes is None:
        parts = zip(likelihood.names, schema.heads, strict=True)
        pairs = {name: _as_in_fit(likelihood[name], part) for name, part in parts}
        return dataclasses.replace(
            likelihood, likelihoods=pairs, sizes=tuple(part.outputs for part in schema.heads)
        )
    if schema.positions is None or isinstance(likelihood, PerPosition):
        return likelihood
    return PerPosition(likelihood, schema.positions)


def _stored_weights(tensors: Mapping[str, np.ndarray], digest: str) -> Weights:
    prefix = f"weights/{digest}/"
    return Weights(digest, arrays=_below(prefix, tensors))


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
    schema = rebuild(described["schema"], {"Schema": Schema, "InputTree": InputTree})
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
            # Two lists, since a prior inside a likelihood may have the same name as a likelihood.
            inner = _classes(credax.model.priors if name == "likelihood" else home)
            inner |= {"Weights": partial(_stored_weights, tensors)}
            if name == "likelihood":
                parts[name] = _rebuild_likelihood(described[name], inner)
            else:
                parts[name] = rebuild(described[name], _classes(home), inner)
    parts["likelihood"] = _as_in_fit(parts["likelihood"], schema)
    heads = isinstance(parts["likelihood"], Heads)
    network = _inner(parts["network"])
    if isinstance(schema.input_shape, InputTree) or schema.positions is not None or heads:
        network = Shaped(network, parts["likelihood"].names if heads else ())
    if described.get("seeded"):
        network = Seeded(network)
    if described.get("wandering"):
        network = Wandering(network, *map(int, described["wandering"]))
    parts["network"] = network
    # Files of older versions have neither: there were no names and no scales of columns.
    frame = rebuild(described.get("frame", {"type": "Frame"}), FRAMES)
    shape = frame.network_shape(schema.input_shape)
    parts["network"] = parts["network"].build(shape, schema.outputs)
    standardise = described.get("standardise", False)
    return Model(**parts, schema=schema, standardise=standardise, frame=frame)


def _rebuild_approximation(
    described: Mapping[str, Any], tensors: Mapping[str, np.ndarray], model: Model | LogDensity
) -> Approximation:
    settings = dict(described)
    kind = APPROXIMATIONS[settings.pop("type")]
    params, state = _templates(model)
    templates = dict.fromkeys(kind.like_params, params) | dict.fromkeys(kind.like_state, state)
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


def _templates(model: Model | LogDensity) -> tuple[PyTree, PyTree]:
    """The shapes and dtypes of the parameters and of the network's state; a file can ask for any size."""
    return jax.eval_shape(model.init, jax.random.key(0)), jax.eval_shape(model.init_state)


def _check_draws(approximation: Approximation, model: Model | LogDensity) -> None:
    """Refuse arrays whose draws would not have the shapes of the model's parameters, without drawing any."""
    axes, params = approximation.leading_axes, getattr(approximation, approximation.like_params[0])
    if len({leaf.shape[:axes] for leaf in jax.tree.leaves(params)}) > 1:
        raise ValueError("its arrays hold different numbers of draws")
    if isinstance(approximation, Draws):
        log_weights = approximation.log_weights
        if log_weights is not None and log_weights.shape != approximation.shape:
            raise ValueError("its weights and its draws differ in number")
    samples = approximation.samples(jax.random.key(0), None)
    drawn = jax.eval_shape(lambda: samples.take(0, 1))
    expected = jax.tree.map(lambda leaf: (1, *leaf.shape), Draw(*_templates(model)))
    found = jax.tree.map(lambda leaf: leaf.shape, drawn)
    if found != expected:
        raise ValueError(
            f"its draws have other shapes than the model's parameters, {shown(expected)}"
        )


def _unflatten(name: str, template: PyTree, tensors: Mapping[str, np.ndarray]) -> PyTree:
    """The stored leaves in the structure of the template, converted to its dtypes (the float type in use)."""
    named = _named(name, template)
    leaves = [tensors[path].astype(leaf.dtype, copy=False) for path, leaf in named.items()]
    return jax.tree.unflatten(jax.tree.structure(template), leaves)


def _named(prefix: str, tree: PyTree) -> dict[str, Any]:
    leaves = named_leaves(tree)
    named = {f"{prefix}/{path}" if path else prefix: leaf for path, leaf in leaves}
    if len(named) < len(leaves):
        raise StorageError(f"two parameters have the same path, among {sorted(named)}; rename one.")
    return named


services.save = save
