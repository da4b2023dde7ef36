"""Data sets: arrays and tables are checked once, then divided into minibatches on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.reprs import brief
from credax.core.rows import observations
from credax.core.typing import Array, Key


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["x", "y", "scale", "index", "weights", "mean_weight"],
    meta_fields=["count"],
)
@dataclass(frozen=True)
class Batch:
    """Some rows of a data set, and the factor by which sums over them estimate sums over all rows.

    Attributes:
      x: the inputs, ``(rows, ...)``; a ``RowTree`` if they are several arrays.
      y: the targets, ``(rows,)`` or ``(rows, targets)``; ``Observed`` or a ``RowTree`` if they belong to the
        positions of a row or to several heads.
      scale: N / B. A sum over the batch times ``scale`` is an unbiased estimate of the sum over all rows.
      index: the number of the batch within its epoch, from 0.
      count: the number of batches per epoch.
      weights: the weight of each row; ``None`` if every row counts once.
      mean_weight: the mean weight of all rows of the data set, in which a row with positions has the weight of
        all of them; ``None`` if every row counts once.
    """

    x: Any
    y: Any
    scale: Array
    index: Array
    count: int
    weights: Array | None = None
    mean_weight: Array | None = None

    @classmethod
    def of(cls, x: Any, y: Any, weights: Array | None = None) -> Batch:
        """A batch of rows that stand for themselves alone."""
        one = jnp.ones((), jnp.result_type(float))
        return cls(x, y, one, jnp.zeros((), jnp.int32), 1, weights, _mean_weight(y, weights))

    @property
    def rows(self) -> Array:
        """N, the number of rows of the data set that the batch represents."""
        return self.scale * len(self.y)

    @property
    def total(self) -> Array:
        """The sum of the weights of all rows of the data set: N if every row counts once."""
        return self.rows if self.mean_weight is None else self.rows * self.mean_weight

    @property
    def data(self) -> ArrayData:
        """The rows of the batch as a data set."""
        return ArrayData(self.x, self.y, None, self.weights, self.mean_weight)

    def sum(self, values: Array) -> Array:
        """The sum of the weighted values over all rows, estimated from the values of the rows of the batch."""
        if self.weights is not None:
            values = self.weights.astype(values.dtype) * values
        return self.scale * jnp.sum(values)

    def take(self, rows: Array) -> Batch:
        """A batch of only these rows, with the same scale."""
        part = self.data.take(rows)
        return replace(self, x=part.x, y=part.y, weights=part.weights, mean_weight=part.mean_weight)

    def __repr__(self):
        return brief(self)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["x", "y", "replica", "weights", "mean_weight"],
    meta_fields=[],
)
@dataclass(frozen=True)
class ArrayData:
    """A data set that is held on the device as arrays.

    Any other source of data needs the same ``rows``, and a pure function ``batch(key, step, size)``.

    Attributes:
      x: the inputs, ``(rows, ...)``; a ``RowTree`` if they are several arrays.
      y: the targets, ``(rows,)`` or ``(rows, targets)``; ``Observed`` or a ``RowTree`` if they belong to the
        positions of a row or to several heads.
      replica: the number of the replica whose first state is being made; ``None`` at all other times.
      weights: the weight of each row; ``None`` if every row counts once. It multiplies the log likelihood of
        the row, so a weight of 2 is the row given twice, and a weight of 0 is the row left out.
      mean_weight: the mean of the weights, in which a row with positions has the weight of all of them.
    """

    x: Any
    y: Any
    replica: Array | None = None
    weights: Array | None = None
    mean_weight: Array | None = None

    @classmethod
    def weighted(cls, x: Any, y: Any, weights: Array | None) -> ArrayData:
        """A data set whose rows have these weights."""
        return cls(x, y, None, weights, _mean_weight(y, weights))

    @property
    def rows(self) -> int:
        """N, the number of rows."""
        return len(self.y)

    @property
    def total(self) -> Any:
        """The sum of the weights: N if every row counts once."""
        return self.rows if self.mean_weight is None else self.rows * self.mean_weight

    def take(self, rows: Array) -> ArrayData:
        """A data set of only these rows."""
        return ArrayData.weighted(self.x[rows], self.y[rows], at(self.weights, rows))

    def numbered(self) -> ArrayData:
        """The same rows, with the number of each in place of its inputs and target."""
        numbers = jnp.arange(self.rows, dtype=jnp.int32)
        return ArrayData(numbers, numbers)

    def __repr__(self):
        return brief(self)

    def everything(self) -> Batch:
        """The whole data set as one batch."""
        dtype = jnp.result_type(float)
        one, first = jnp.ones((), dtype), jnp.zeros((), jnp.int32)
        return Batch(self.x, self.y, one, first, 1, self.weights, self.mean_weight)

    def batch(self, key: Key, step: Array, size: int | None) -> Batch:
        """The batch of one step. Each epoch visits the rows in a new random order, without replacement.

        If N is not a multiple of ``size``, the last N mod ``size`` rows of the order are left out of that
        epoch. Every batch is therefore a uniformly drawn subset, and its scaled sums are unbiased.

        Args:
          key: the key of the data order, the same for all steps of a run.
          step: the number of the step.
          size: the number of rows per batch. If ``None``, the batch holds all rows.
        """
        if size is None:
            return self.everything()
        chosen, index, count = rows_of_step(key, step, size, self.rows)
        take = lambda a: a.at[chosen].get(mode="promise_in_bounds")  # noqa: E731
        scale = jnp.asarray(self.rows / size, jnp.result_type(float))
        x, y, weights = jax.tree.map(take, (self.x, self.y, self.weights))
        return Batch(x, y, scale, index, count, weights, self.mean_weight)


def _mean_weight(y: Any, weights: Array | None) -> Array | None:
    """The mean weight of the rows, in which a row with positions has the weight of all of them."""
    counts = observations(y)
    if counts is not None:
        return jnp.mean(counts if weights is None else counts * weights)
    return None if weights is None else jnp.mean(weights)


def at(weights: Array | None, rows: Any) -> Array | None:
    """The weights of some rows; ``None`` if every row counts once."""
    return None if weights is None else weights[rows]


def roots(weights: Array, like: Array) -> Array:
    """The square roots of the weights, in the dtype of an array of as many rows, and with as many axes."""
    return jnp.sqrt(weights).reshape(-1, *[1] * (like.ndim - 1)).astype(like.dtype)


def check_weights(weights: Any, rows: int) -> np.ndarray | None:
    """Check the weights of the rows of a fit; return them as an array, or ``None`` if there are none."""
    if weights is None:
        return None
    checked = check_array("weights", weights)
    if checked.shape != (rows,):
        raise ValueError(
            f"weights must have shape ({rows},), one for each row; got {checked.shape}."
        )
    if (checked < 0).any():
        at = int(np.argmax(checked < 0))
        raise ValueError(f"weights must not be negative; got {checked[at]} at row {at}.")
    if not (checked > 0).any():
        raise ValueError("weights must be positive for at least one row; got only zeros.")
    return checked


def rows_of_step(key: Key, step: Array, size: int, rows: int) -> tuple[Array, Array, int]:
    """The numbers of the rows of a step, the number of its batch in the epoch, and the batches per epoch."""
    count = rows // size
    epoch, index = step // count, step % count
    positions = index * size + jnp.arange(size, dtype=jnp.int32)
    return random.shuffled(jax.random.fold_in(key, epoch), positions, rows), index, count


def check_array(
    name: str, value: Any, *, keep_integers: bool = False, double: bool = False
) -> np.ndarray:
    """Check that the value holds finite real numbers; return it as a NumPy array in JAX's default float type.

    Booleans, whole numbers and floats of any width and byte order are accepted. The input is never modified.

    Args:
      name: the name of the argument, for error messages.
      value: an array, a data frame or nested lists.
      keep_integers: whether whole numbers are kept, as int32.
      double: whether the result is in double precision, for numbers that are to be standardised.
    """
    given, value = value, to_numpy(name, value)
    if value.dtype == object and value.ndim == 0:
        raise TypeError(
            f"{name} must be an array, a data frame or nested lists of numbers; got "
            f"{'None' if given is None else type(given).__name__}."
        )
    if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
        hint = {
            "c": " Split it into real and imaginary columns.",
            "O": " Convert it to numbers first.",
            "U": " Encode text as numbers first.",
            "S": " Encode text as numbers first.",
            "M": " Convert dates to numbers first.",
            "m": " Convert durations to numbers first.",
        }.get(value.dtype.kind, "")
        raise TypeError(f"{name} must hold real numbers; got dtype {value.dtype}.{hint}")
    if value.ndim == 0:
        raise ValueError(f"{name} must have rows; got a single value.")
    if value.shape[0] == 0:
        raise ValueError(f"{name} must have at least 1 row; got shape {value.shape}.")
    if keep_integers and value.dtype.kind in "iu":
        beyond = (value > np.iinfo(np.int32).max) | (value < np.iinfo(np.int32).min)
        if beyond.any():
            got = value[beyond][0]
            raise ValueError(f"{name} must hold whole numbers of at most 32 bits; got {got}.")
        return np.ascontiguousarray(value, np.int32)
    dtype = np.dtype(np.float64 if double else jnp.result_type(float))
    with np.errstate(over="ignore", invalid="ignore"):
        result = np.ascontiguousarray(value, dtype)
    bad = ~np.isfinite(result)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        got = value[where]
        place = f"row {where[0]}" + (f", column {where[1]}" if len(where) > 1 else "")
        beyond = np.isfinite(got) if value.dtype.kind == "f" else False
        limit = (
            f" within the range of {dtype} (enable jax_enable_x64 or scale it)" if beyond else ""
        )
        raise ValueError(f"{name} must hold finite numbers{limit}; got {got} at {place}.")
    return result


def to_numpy(name: str, value: Any) -> np.ndarray:
    """Convert an array, a data frame or nested lists to a NumPy array, which may share the memory."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array: fill or drop the masked values first.")
    if hasattr(value, "tocsr") or hasattr(value, "todense"):
        raise TypeError(
            f"{name} must be dense; got a sparse {type(value).__name__}. Use .toarray()."
        )
    columns = getattr(value, "columns", None)
    if columns is not None and hasattr(value, "dtypes"):
        _check_columns(name, value)
    if hasattr(value, "to_numpy") and not isinstance(value, np.ndarray):
        array = value.to_numpy()
        if columns is not None and hasattr(value, "iloc") and array.dtype == object:
            # pandas uses the dtype object for columns of different kinds and for nullable columns.
            array = value.to_numpy(dtype=np.float64, na_value=np.nan)
        value = array
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{name} must be an array, a data frame or nested lists of numbers; got {type(value).__name__}."
        ) from error


def _check_columns(name: str, frame: Any) -> None:
    """Raise an error that names the columns of a data frame that do not hold numbers."""
    kinds = dict(zip(frame.columns, frame.dtypes, strict=True))
    numeric = lambda dtype: (  # noqa: E731
        dtype.is_numeric() or str(dtype) == "Boolean"  # polars
        if hasattr(dtype, "is_numeric")
        else getattr(dtype, "kind", "O") in "biuf"  # pandas
    )
    bad = [f"{column} ({dtype})" for column, dtype in kinds.items() if not numeric(dtype)]
    if bad:
        raise TypeError(f"{name} must have numeric columns only; got {', '.join(map(str, bad))}.")


def pair(data: Any) -> tuple[Any, Any]:
    """Check that the data is a pair; return ``x`` and ``y`` unchanged."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        got = "None" if data is None else f"{type(data).__name__}"
        got += f" of length {len(data)}" if isinstance(data, tuple | list) else ""
        raise TypeError(f"data must be a pair (x, y); got {got}.")
    return data[0], data[1]


def check_lengths(x: Any, y: Any) -> None:
    """Raise an error if the inputs and the targets have different numbers of rows."""
    if len(x) != len(y):
        raise ValueError(f"x and y must have the same number of rows; got {len(x)} and {len(y)}.")
