"""The moments of a posterior's predictions as an ONNX program, which runs in any language that has a runtime.

The conversion is that of the package ``jax2onnx``. What it makes is run once, by ``onnxruntime``, and compared
with what JAX computes: a program that disagrees is not written.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.scaling import Scaling
from credax.core.typing import Array
from credax.model.likelihoods import Bernoulli
from credax.posterior import mixture
from credax.storage.export import units
from credax.storage.export.parts import Part
from credax.storage.files import replace_file

AGREEMENT = 1e-6
"""The largest difference between ONNX and JAX, as a part of the largest result."""
TRIED = 5
"""The number of rows for which the two are compared."""


def write_onnx(parts: Sequence[Part], weights: np.ndarray, file: Path) -> None:
    """Write the predictions of several posteriors, averaged with weights, as an ONNX program.

    Args:
      parts: the posteriors, taken apart.
      weights: the weight of each of them.
      file: the file to write.

    Raises:
      ImportError: a package is missing.
      ValueError: the model cannot be converted, or its predictions have a closed form.
    """
    try:
        import jax2onnx
        import onnxruntime
    except ImportError as error:
        raise ImportError(
            f"export(format='onnx') needs the package {error.name}: pip install 'credax[onnx]'."
        ) from None
    if any("normal" in part.arrays for part in parts):
        raise ValueError(
            "export(format='onnx') averages over samples, and this posterior predicts in closed form. Give "
            "num_samples, such as 100."
        )
    model: Any = parts[0].model
    predict = _program(parts, weights)
    rows = _rows(model)
    with jax.enable_x64(True), _quiet("onnx_ir", "jax2onnx"):
        expected = {name: np.asarray(value) for name, value in predict(rows).items()}
        try:
            made: Any = jax2onnx.to_onnx(
                lambda x: tuple(predict(x).values()),
                [("rows", *rows.shape[1:])],
                input_names=["x"],
                output_names=list(expected),
                enable_double_precision=True,
            )
            del made.graph.value_info[:]  # whose shapes of batched values are not all right
            content = made.SerializeToString()
            providers = ["CPUExecutionProvider"]
            session = onnxruntime.InferenceSession(content, providers=providers)
            found = session.run(None, {"x": rows})
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise ValueError(
                f"export(format='onnx'): jax2onnx cannot carry this model ({reason}). format='stablehlo' can."
            ) from error
    for (name, one), other in zip(expected.items(), found, strict=True):
        if not np.allclose(one, other, rtol=0, atol=AGREEMENT * max(np.abs(one).max(), 1e-30)):
            raise ValueError(
                f"export(format='onnx'): the {name} of the converted program disagrees with that of JAX, so "
                "nothing was written. Use format='stablehlo'."
            )
    replace_file(file, content)


def _program(parts: Sequence[Part], weights: np.ndarray) -> Callable[[Array], dict[str, Array]]:
    """The function from rows to predictions by name, in double precision throughout."""
    model: Any = parts[0].model
    likelihood = model.likelihood
    of_parts = [_moments(part) for part in parts]
    one = model.schema.targets is None

    def predict(x: Array) -> dict[str, Array]:
        found = [of(x) for of in of_parts]
        pairs = list(zip(weights.tolist(), found, strict=True))
        mean = sum(weight * each for weight, (each, _, _) in pairs)
        epistemic = sum(
            weight * (spread + (each - mean) ** 2) for weight, (each, spread, _) in pairs
        )
        aleatoric = sum(weight * noise for weight, (_, _, noise) in pairs)
        std = jnp.sqrt(epistemic + aleatoric)
        fields: Any = {"mean": mean, "std": std, "epistemic": epistemic, "aleatoric": aleatoric}
        if likelihood.task == "classification":
            binary = isinstance(likelihood, Bernoulli)
            fields["probs"] = jnp.concatenate([1 - mean, mean], axis=1) if binary else mean
            del fields["mean"]
        shaped = lambda a: a[:, 0] if one and a.shape[1] == 1 else a  # noqa: E731
        return {name: shaped(value) for name, value in fields.items()}

    return predict


def _moments(part: Part) -> Callable[[Array], tuple[Array, Array, Array]]:
    """The mean, the epistemic and the aleatoric variance of one posterior, in the units of y."""
    model: Any = part.model
    frame, likelihood = model.frame, model.likelihood
    wide = lambda a: a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) else a  # noqa: E731
    draws, centre = jax.tree.map(wide, (part.arrays["draws"], part.arrays["centre"]))
    share = np.exp(part.arrays["log_weights"].astype(np.float64))
    share = (share / share.sum())[:, None, None]

    def moments(x: Array) -> tuple[Array, Array, Array]:
        outputs, params = jax.vmap(
            mixture.applied(model, centre, units.standard_x(frame, x)),
        )(draws)
        means = jax.vmap(likelihood.mean)(outputs, params)
        mean = jnp.sum(share * means, 0)
        spread = jnp.sum(share * (means - mean) ** 2, 0)
        noise = jnp.sum(share * jax.vmap(likelihood.variance)(outputs, params), 0)
        return (
            units.value_of_y(frame, mean),
            units.squared_width_in_y(frame, spread),
            units.squared_width_in_y(frame, noise),
        )

    return moments


def _rows(model: Any) -> np.ndarray:
    """Some rows in the units of the fit, at which the two programs are compared."""
    rows = np.random.default_rng(0).normal(size=(TRIED, *model.schema.input_shape))
    scaling = model.frame.x_scaling
    if isinstance(scaling, Scaling) and rows.ndim == 2:
        rows = np.array(scaling.centre) + np.array(scaling.scale) * rows
    return rows


@contextlib.contextmanager
def _quiet(*names: str) -> Iterator[None]:
    """Keep remarks of other packages about their own work from the user."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
