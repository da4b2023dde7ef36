"""A posterior's predictions in one file that JAX and NumPy can run without credax.

The file is a NumPy archive (``.npz``) of plain arrays, so that reading it runs no code. It holds

- ``predict``: a program of the weights and of rows, which gives a dictionary of predictions;
- ``draws``: a program of the weights, of rows and of a seed, which gives draws of y;
- ``weights/0000``, ``weights/0001``, ...: the weights, which are the first argument of both;
- ``about``: what the programs take and give, as JSON.

Programs are stored in StableHLO as :func:`jax.export.export` writes it. Rows are computed in blocks of equal
size, so that the network's program needs no more memory for more rows, and any network can be exported.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from credax.core import checks, random
from credax.core.checks import fraction, integer, must
from credax.core.typing import Array
from credax.core.version import __version__
from credax.model import Model
from credax.model.inputs import InputTree
from credax.model.likelihoods import Bernoulli
from credax.posterior import Posterior, StackedPosterior, services
from credax.posterior.stacked import BISECTIONS
from credax.storage.export import units
from credax.storage.export.onnx import write_onnx
from credax.storage.export.parts import BLOCK, Part, Summary
from credax.storage.files import replace_file

PLATFORMS = ("cpu", "cuda", "tpu")
FORMAT = 1
SUFFIXES = {"stablehlo": ".npz", "onnx": ".onnx"}
"""The formats, and how the names of their files end."""


def export(
    posterior: Posterior | StackedPosterior,
    path: str | Path,
    *,
    format: str = "stablehlo",
    level: float = 0.9,
    draws: int = 100,
    num_samples: int | None = None,
    key: Any = 0,
    integers: bool = False,
    platforms: Sequence[str] = PLATFORMS,
) -> None:
    """Write the predictions of a posterior to a file. See :meth:`credax.Posterior.export`."""
    file = checks.path("export", "path", path)
    suffix = SUFFIXES[checks.one_of("export", "format", format, SUFFIXES)]
    if file.suffix != suffix:
        allowed = f"a file whose name ends in {suffix} for format={format!r}"
        raise ValueError(must("export", "path", allowed, str(path)))
    if file.is_dir():
        raise IsADirectoryError(must("export", "path", "a file", f"the folder {file}"))
    level, draws = fraction("export", "level", level), integer("export", "draws", draws)
    if num_samples is not None:
        integer("export", "num_samples", num_samples)
    platforms = _check_platforms(platforms)
    if format == "onnx":
        _export_onnx(posterior, file, num_samples, key, integers)
        return
    if importlib.util.find_spec("flatbuffers") is None:
        raise ImportError("export needs the package flatbuffers: pip install 'credax[export]'.")
    components, weights = _components(posterior)
    for part in components:
        _check_model(part.model, integers)
    classes = components[0].model.likelihood.task == "classification"  # pyright: ignore[reportAttributeAccessIssue]
    levels = () if classes else ((1 - level) / 2, (1 + level) / 2)
    options = {"levels": levels, "integers": integers, "platforms": platforms}
    keys = _keys(posterior, key)
    mix = Mix(
        [
            Part.of(each, num_samples, k, **options)
            for each, k in zip(components, keys, strict=True)
        ],
        weights,
    )
    programs, about = mix.exported(draws)
    about |= {"level": None if classes else level, "draws": draws, "platforms": list(platforms)}
    replace_file(file, _archive(programs, mix.stored, about))


def _export_onnx(
    posterior: Any, file: Path, num_samples: int | None, key: Any, integers: bool
) -> None:
    components, weights = _components(posterior)
    for part in components:
        _check_model(part.model, integers)
    if integers:
        raise ValueError(must("export", "integers", "False for format='onnx'", integers))
    options: dict[str, Any] = {"levels": (), "integers": False, "platforms": ("cpu",)}
    pairs = zip(components, _keys(posterior, key), strict=True)
    write_onnx([Part.of(each, num_samples, k, **options) for each, k in pairs], weights, file)


def _archive(programs: dict[str, Any], weights: list[np.ndarray], about: dict[str, Any]) -> bytes:
    arrays = {"about": np.array(json.dumps(about, indent=2))}
    arrays |= {name: np.frombuffer(p.serialize(), np.uint8) for name, p in programs.items()}
    arrays |= {f"weights/{i:04d}": array for i, array in enumerate(weights)}
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


# -- what can be exported ----------------------------------------------------------------------------


def _components(posterior: Any) -> tuple[tuple[Posterior, ...], np.ndarray]:
    if isinstance(posterior, StackedPosterior):
        return posterior.components, np.array(posterior.weights, np.float64)
    return (posterior,), np.ones(1)


def _keys(posterior: Any, key: Any) -> list[Any]:
    """The key of each component, as ``predict`` gives it."""
    made = random.key(key)
    if isinstance(posterior, StackedPosterior):
        return list(jax.random.split(made, len(posterior.components)))
    return [made]


def _check_model(model: Any, integers: bool) -> None:
    if not isinstance(model, Model):
        raise TypeError("export needs a Model with a network; this posterior is of a LogDensity.")
    if model.schema is None:
        raise ValueError("export needs a model that is bound to data, as fit returns it.")
    model.check_undivided("export")
    if isinstance(model.schema.input_shape, InputTree):
        raise TypeError("export is for one array of inputs; this model takes a tree of arrays.")
    if not isinstance(integers, bool):
        raise TypeError(must("export", "integers", "True or False", integers))
    if integers and (not model.network.integer_inputs or model.frame.x_scaling is not None):
        raise ValueError(
            must(
                "export",
                "integers",
                "False for a network whose inputs are not whole numbers",
                integers,
            )
        )


def _check_platforms(platforms: Any) -> tuple[str, ...]:
    known = (*PLATFORMS, "rocm")
    found = tuple(platforms) if isinstance(platforms, list | tuple) else ()
    if not found or any(name not in known for name in found):
        allowed = f"a list of one or more of {', '.join(known)}"
        raise ValueError(must("export", "platforms", allowed, platforms))
    return found


# -- the programs in the user's units ----------------------------------------------------------------


class Mix:
    """Several posteriors, whose predictions are averaged with weights; one of weight 1 is a usual posterior.

    Args:
      parts: the posteriors, taken apart.
      weights: the weight of each of them.
    """

    def __init__(self, parts: list[Part], weights: np.ndarray):
        self._parts, self._weights = parts, weights
        self._model: Any = parts[0].model

    @property
    def stored(self) -> list[np.ndarray]:
        """All arrays. Formats that NumPy does not know, such as bfloat16, are stored as their bits."""
        return [_as_bits(leaf) for part in self._parts for leaf in part.leaves]

    def exported(self, draws: int) -> tuple[dict[str, jax.export.Exported], dict[str, Any]]:
        """The programs by name, and what they take and give."""
        parts = self._parts
        mixed = parts if len(parts) > 1 and parts[0].levels else []
        programs = [part.summary for part in parts], [part.cdf for part in mixed]
        sampling = [(part.chosen(draws), part.draws(draws)) for part in parts]
        model = self._model
        # Whatever the precision of the fit, rows and results are in double precision, as in ``predict``.
        with jax.enable_x64(True):
            (rows,) = jax.export.symbolic_shape("rows")
            dtype = np.dtype(np.int32 if parts[0].integers else np.float64)
            x = jax.ShapeDtypeStruct((rows, *model.schema.input_shape), dtype)
            seed = jax.ShapeDtypeStruct((), np.int64)
            weights = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self.stored]

            def predict(weights, x):
                return self._predict(*programs, self._of_parts(weights), x)

            def draw(weights, x, seed):
                return self._draw(sampling, draws, self._of_parts(weights), x, seed)

            def make(function, *like):
                jitted = jax.jit(function)
                return jax.export.export(jitted, platforms=parts[0].platforms)(*like)

            made = {"predict": make(predict, weights, x), "draws": make(draw, weights, x, seed)}
            outputs = jax.eval_shape(
                predict, weights, jax.ShapeDtypeStruct((BLOCK, *x.shape[1:]), dtype)
            )
        about = {
            "format": FORMAT,
            "credax": __version__,
            "jax": jax.__version__,
            "task": model.likelihood.task,
            "x": {
                "shape": ["rows", *model.schema.input_shape],
                "dtype": dtype.name,
                "columns": None if model.frame.x_names is None else list(model.frame.x_names),
            },
            "predict": {name: ["rows", *leaf.shape[1:]] for name, leaf in outputs.items()},
        }
        return made, about

    def _of_parts(self, weights: Sequence[Array]) -> list[list[Array]]:
        """The arrays of each part, in their own formats."""
        rest = iter(weights)
        return [
            [_from_bits(next(rest), leaf.dtype) for leaf in part.leaves] for part in self._parts
        ]

    def _predict(self, summaries: list, cdfs: list, weights: list, x: Array) -> dict[str, Array]:
        def block(x, _):
            found = []
            for part, summary, arrays in zip(self._parts, summaries, weights, strict=True):
                found.append(_in_y(part, summary(arrays, _inputs(part, x))))
            return self._fields(found, self._quantiles(found, cdfs, weights))

        return _in_blocks(block, x)

    def _fields(self, found: list[Summary], quantiles: Array) -> dict[str, Array]:
        """The predictions of a block, by name."""
        mean = self._average([each.mean for each in found])
        epistemic = self._average([each.epistemic + (each.mean - mean) ** 2 for each in found])
        aleatoric = self._average([each.aleatoric for each in found])
        fields = {
            "mean": mean,
            "std": jnp.sqrt(epistemic + aleatoric),
            "epistemic": epistemic,
            "aleatoric": aleatoric,
        }
        if self._model.likelihood.task != "classification":
            fields |= {"lower": quantiles[0], "upper": quantiles[1]}
            return {name: self._shaped(value) for name, value in fields.items()}
        binary = isinstance(self._model.likelihood, Bernoulli)
        both = jnp.concatenate([1 - mean, mean], axis=1) if binary else mean
        entropy = -jnp.sum(jax.scipy.special.xlogy(both, both), axis=1)
        expected = self._average([each.entropy for each in found])
        fields = {name: self._shaped(value) for name, value in fields.items()}
        if not (binary and mean.shape[1] > 1):  # several labels a row have no single label
            fields |= {"probs": both, "label": jnp.argmax(both, axis=1)}
        fields |= {"entropy": entropy, "expected_entropy": expected}
        return fields | {"mutual_information": jnp.maximum(entropy - expected, 0)}

    def _quantiles(self, found: list[Summary], cdfs: list, weights: list) -> Array:
        """The quantiles of the mixture, by bisection between those of its parts."""
        each = jnp.stack([summary.quantiles for summary in found])
        if len(found) == 1 or not self._parts[0].levels:
            return each[0]
        levels = np.array(self._parts[0].levels)[:, None, None]

        def below(t):
            at = []
            for part, cdf, summary, arrays in zip(self._parts, cdfs, found, weights, strict=True):
                z = units.standard_y(part.model.frame, t).astype(part.dtype)
                at.append(cdf(arrays, summary.components, z).astype(np.float64))
            return self._average(at) < levels

        def halve(_, bracket):
            lower, upper = bracket
            middle = (lower + upper) / 2
            low = below(middle)
            return jnp.where(low, middle, lower), jnp.where(low, upper, middle)

        lower, upper = lax.fori_loop(0, BISECTIONS, halve, (each.min(0), each.max(0)))
        return (lower + upper) / 2

    def _draw(self, sampling: list, count: int, weights: list, x: Array, seed: Array) -> Array:
        """Draws of y: for each draw a part is chosen, then its weights, then the noise of every row."""
        data = jnp.stack([(seed >> 32), seed]).astype(np.uint32)
        part_key, *keys = jax.random.split(random.key(data), 2 * len(self._parts) + 1)
        which = jax.random.categorical(part_key, np.log(self._weights), shape=(count,))
        bits = [jax.random.key_data(each) for each in keys]
        chosen = [
            choose(arrays, bits[2 * i])
            for i, ((choose, _), arrays) in enumerate(zip(sampling, weights, strict=True))
        ]

        def block(x, number):
            found = []
            for i, (part, (_, draw), arrays) in enumerate(
                zip(self._parts, sampling, weights, strict=True)
            ):
                drawn = draw(arrays, chosen[i], _inputs(part, x), bits[2 * i + 1], number)
                found.append(self._drawn_in_y(part, drawn))
            picked = found[0]
            for i, other in enumerate(found[1:], 1):
                picked = jnp.where((which == i).reshape(-1, *[1] * (other.ndim - 1)), other, picked)
            return jnp.moveaxis(picked, 0, 1)  # rows first

        return jnp.moveaxis(_in_blocks(block, x), 0, 1)

    def _drawn_in_y(self, part: Part, drawn: Array) -> Array:
        if drawn.ndim == 2:  # one class per row
            return drawn if self._model.schema.targets is None else drawn[..., None]
        return self._shaped(units.value_of_y(part.model.frame, drawn.astype(np.float64)))

    def _average(self, values: list[Array]) -> Array:
        total = self._weights[0] * values[0]
        for weight, value in zip(self._weights[1:], values[1:], strict=True):
            total = total + weight * value
        return total

    def _shaped(self, values: Array) -> Array:
        one = self._model.schema.targets is None and values.shape[-1] == 1
        return values[..., 0] if one else values


def _inputs(part: Part, x: Array) -> Array:
    return x if part.integers else units.standard_x(part.model.frame, x).astype(part.dtype)


def _in_y(part: Part, found: Summary) -> Summary:
    """A summary in the units of y and in double precision, except for the components."""
    frame = part.model.frame
    wide = lambda a: a.astype(np.float64)  # noqa: E731
    return Summary(
        units.value_of_y(frame, wide(found.mean)),
        units.squared_width_in_y(frame, wide(found.epistemic)),
        units.squared_width_in_y(frame, wide(found.aleatoric)),
        wide(found.entropy),
        units.value_of_y(frame, wide(found.quantiles)),
        found.components,
    )


def _in_blocks(function: Callable[[Array, Array], Any], x: Array) -> Any:
    """The results of a function of a block of rows and its number, for any number of rows."""
    rows = x.shape[0]
    blocks = (rows + (BLOCK - 1)) // BLOCK
    # The last row is repeated up to a whole number of blocks.
    index = jnp.minimum(jnp.arange(blocks * BLOCK), jnp.asarray(rows - 1))
    stacked = x[index].reshape(blocks, BLOCK, *x.shape[1:])
    numbers = jnp.arange(blocks).astype(np.uint32)
    found = lax.map(lambda pair: function(*pair), (stacked, numbers))
    kept = jnp.arange(rows)
    return jax.tree.map(lambda a: a.reshape(blocks * BLOCK, *a.shape[2:])[kept], found)


def _as_bits(array: np.ndarray) -> np.ndarray:
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _from_bits(array: Array, dtype: np.dtype) -> Array:
    return array if array.dtype == dtype else lax.bitcast_convert_type(array, dtype)


services.export = export
