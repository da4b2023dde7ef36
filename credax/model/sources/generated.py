"""A function as a source, for rows that are made or chosen by the user's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from credax.core import random
from credax.core.checks import integer, must
from credax.core.errors import SourceError
from credax.model.data import to_numpy
from credax.model.sources.source import Rows, Source, check_rows, digest, host


def function(batch: Callable[[Any, int, int], tuple[Any, Any]], rows: int, *, name: str) -> Source:
    """A function that returns the rows of a step as a source.

    Args:
      batch: ``batch(key, step, size) -> (x, y)`` with a JAX key, the number of the step and the number of rows.
        It is called on the host, ahead of the step, in another thread. It must return the same rows for the
        same arguments; then a run that was killed continues with the same bits. Its rows should be a random
        sample of all rows. Each replica has a key of its own.
      rows: N, the number of rows that the batches represent. Sums over a batch are multiplied by N / size.
      name: identifies the rows and their version: a run is only continued with the same name.
    """
    if not callable(batch):
        raise TypeError(must("function", "batch", "a function of (key, step, size)", batch))
    if not isinstance(name, str) or not name:
        raise TypeError(must("function", "name", "a text", name))
    return Generated(batch, integer("function", "rows", rows), name)


class Generated(Source):
    """Rows from a function; see :func:`function`."""

    quick = countable = False

    def __init__(self, batch: Callable[..., Any], rows: int, name: str):
        self._batch, self._name = batch, name
        self.rows = check_rows(rows)

    def batches(
        self, words: np.ndarray, steps: np.ndarray, size: int, part: slice = slice(None)
    ) -> Rows:
        """The results of the function, one after the other."""
        found = [self._call(*each, size) for each in zip(words, steps, strict=True)]
        x, y = (np.concatenate([a[part] for a in parts]) for parts in zip(*found, strict=True))
        rows = range(*part.indices(size))

        def place(at: int) -> str:
            step = int(steps[at // len(rows)])
            return f"row {rows[at % len(rows)]} of the batch of step {step}"

        return Rows(x, y, place)

    def _call(self, words: np.ndarray, step: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        step = int(step)
        with jax.default_device(host()):
            key = jax.random.wrap_key_data(jnp.asarray(words), impl=random.IMPLEMENTATION)
            found = self._batch(key, step, size)
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise SourceError(
                f"batch(key, {step}, {size}) of the source {self._name!r} must return a pair (x, y); got "
                f"{type(found).__name__}."
            )
        x, y = (to_numpy(name, part) for name, part in zip("xy", found, strict=True))
        for name, part in (("x", x), ("y", y)):
            if part.ndim == 0 or len(part) != size:
                raise SourceError(
                    f"batch(key, {step}, {size}) of the source {self._name!r} must return {size} rows of "
                    f"{name}; got shape {part.shape}."
                )
        return x, y

    def take(self, numbers: np.ndarray) -> Any:
        """Rows of a function have no numbers."""
        raise SourceError(f"The rows of the source {self._name!r}, a function, cannot be counted.")

    def draw(self, count: int, size: int) -> Iterator[Rows]:
        """``count`` rows in batches of ``size``, with keys that no run uses."""
        words = np.asarray(jax.random.key_data(random.key(2**64 - 1)))
        for step in range(-(-count // size)):
            yield self.batches(words[None], np.array([step]), min(size, count - step * size))

    def fingerprint(self) -> str:
        """Of the name and the number of rows: the function itself has no fingerprint."""
        return digest("function", self._name, self.rows)
