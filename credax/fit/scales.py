"""Whether the scale of the data suits the model, judged before anything of a run is compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core.programs import jit
from credax.core.rows import RowTree
from credax.core.scaling import Scaling, has_outliers, is_constant, outlier_text
from credax.model import LogDensity, Model
from credax.model.frame import as_rows
from credax.model.likelihoods import LogNormal, StudentT
from credax.model.networks.fan_in import multiplies_inputs
from credax.model.sources.streamed import SourceData, in_memory

FAR = 30.0
"""Numbers whose ratio is beyond this, either way, are not of the same scale."""
LARGE, SMALL = 100.0, 0.01
"""The largest and the smallest standard deviation of a column of inputs that is about one."""
ROWS = 10_000
"""The most rows that are examined, evenly spaced among all."""
DRAWS, PROBED = 32, 256
"""The number of draws from the prior, and of rows at which the network is evaluated with them."""

REMEDY = "cx.Model(..., standardise=True) works in units of mean zero and standard deviation one."


def unsuitable(model: Model | LogDensity, data: Any) -> str | None:
    """What in the scale of the data does not suit the model, in sentences; ``None`` if all does."""
    if isinstance(model, LogDensity):
        return None
    held = in_memory(data)
    if isinstance(held.x, RowTree) or model.divided:
        return None  # trees of arrays, positions and heads have no columns to be named
    step = -(-len(held.x) // ROWS)
    x, y = (np.asarray(a if step == 1 else a[::step]) for a in (held.x, held.y))
    numbers = data.numbers if isinstance(data, SourceData) else range(data.rows)
    found = [*_of_inputs(model, x), *_of_targets(model, x, y)]
    found += [REMEDY] if found else []
    found += _of_outliers(model, y, numbers[::step])
    return " ".join(found) or None


def _of_inputs(model: Model, x: np.ndarray) -> list[str]:
    """Columns of x that are far from zero, very wide or very narrow."""
    if x.dtype.kind != "f" or x.size == 0:
        return []  # whole numbers that the network keeps, such as the numbers of words
    columns = as_rows(x).astype(np.float64)
    mean, sd, constant = columns.mean(0), columns.std(0), is_constant(columns)
    largest = np.abs(columns).max(0)
    # Most values of a column for a rare category or of a dark pixel are the same.
    varied = np.percentile(columns, 25, axis=0) < np.percentile(columns, 75, axis=0)
    far = np.where(constant, largest > FAR, (np.abs(mean) > FAR * sd) & (largest > FAR))
    wide, narrow = sd > LARGE, varied & ~constant & (sd < SMALL) & (largest < SMALL)
    bad = np.flatnonzero(far | wide | narrow)
    if not bad.size or not multiplies_inputs(
        model.network, jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype)
    ):
        return []
    names = model.frame.x_names
    which = (
        "x" if x.ndim != 2 else f"column {bad[0] if names is None else repr(names[bad[0]])} of x"
    )
    more = f" (and {len(bad) - 1} more columns)" if len(bad) > 1 else ""
    first = bad[0]
    text = (
        f"The inputs are not of a scale of about one: {which} has mean {mean[first]:.3g} and standard "
        f"deviation {sd[first]:.3g}{more}, and the network multiplies it by its weights as it is."
    )
    return [text]


def _of_targets(model: Model, x: np.ndarray, y: np.ndarray) -> list[str]:
    """Real-valued targets whose centre or spread the prior predictive distribution does not reach."""
    if model.likelihood.task != "regression" or not model.likelihood.standardises:
        return []
    scaling = Scaling.learn(as_rows(y))
    level, sd = np.abs(scaling.centre), np.array(scaling.scale)
    if np.all((level <= FAR) & (sd <= FAR) & (sd >= 1 / FAR)):
        return []  # of unit scale, which suits every usual prior; the network is not evaluated
    probed = x[np.linspace(0, len(x) - 1, min(len(x), PROBED)).astype(int)]
    typical = np.asarray(_prior_scale(model, probed), np.float64)
    size = np.sqrt(level**2 + sd**2)
    off = (
        (size > FAR * typical) | (sd * FAR < typical) | ((level > FAR * sd) & (level > 3 * typical))
    )
    if not off.any():
        return []
    at = int(np.argmax(off))
    names = model.frame.y_names
    which = "y" if y.ndim == 1 else f"column {at if names is None else repr(names[at])} of y"
    text = (
        f"The targets are not of the scale of the model: {which} is around {scaling.centre[at]:.3g} with "
        f"standard deviation {sd[at]:.3g}, while a typical target under the prior and the likelihood is "
        f"{typical[at]:.2g} away from zero."
    )
    return [text]


@jit(static_argnames=("model",))
def _prior_scale(model: Model, x: Any) -> Any:
    """The size of a typical target under the prior: the median over draws of its root mean square."""

    def one(key):
        network, learned = model.split(model.sample_prior(key))
        outputs = model.network.apply(network, x, model.init_state()).astype(jnp.result_type(float))
        mean = model.likelihood.mean(outputs, learned)
        return jnp.sqrt(jnp.mean(mean**2 + model.likelihood.variance(outputs, learned), axis=0))

    sizes = jax.lax.map(one, jax.random.split(jax.random.key(0), DRAWS))
    return jnp.median(sizes, axis=0)


def _of_outliers(model: Model, y: np.ndarray, numbers: Any) -> list[str]:
    """Targets so far out that normal noise would be decided by them alone."""
    if model.likelihood.task != "regression" or isinstance(model.likelihood, StudentT | LogNormal):
        return []
    columns = as_rows(model.frame.value_of_y(y[:, None] if y.ndim == 1 else y)).astype(np.float64)
    outlying = columns[:, has_outliers(columns)]
    if not outlying.size:
        return []
    text = outlier_text(outlying[:, 0], numbers)
    sentences = (
        f"y has {text}, by which the noise of {type(model.likelihood).__name__} is decided. Correct or remove "
        "these rows, or use cx.likelihoods.StudentT(scale=None)."
    )
    return [sentences]
