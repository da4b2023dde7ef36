"""``memory``: what memory a fit would need."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import jax

from credax.core import random
from credax.core.settings import flag
from credax.fit import checking, computing, program
from credax.fit.mesh import mesh_for, placed
from credax.fit.needs import Memory, Parts, limit
from credax.fit.run import model_and_data
from credax.fit.streamed import Feeder, refusing
from credax.inference.method import Method
from credax.inference.optimiser import compact
from credax.model.data import ArrayData
from credax.model.sources.streamed import SourceData


def memory(
    model: Any,
    data: Any,
    method: Method,
    *,
    mesh: Any = None,
    weights: Any = None,
    micro_batch: int | None = None,
    rematerialise: bool = False,
    compute_dtype: str | None = None,
    optimiser_dtype: str | None = None,
    draws: Any = None,
    memory_limit: float | None = None,
    compile: bool = True,
) -> Memory:
    """The memory that ``fit`` needs for the same arguments; nothing is run.

    Args:
      model: a ``Model``, or a ``LogDensity`` (then ``data`` is ``None``).
      data: ``(x, y)``, or a source.
      method: the method.
      mesh: as in ``fit``.
      weights: as in ``fit``.
      micro_batch: as in ``fit``.
      rematerialise: as in ``fit``.
      compute_dtype: as in ``fit``.
      optimiser_dtype: as in ``fit``.
      draws: as in ``fit``; nothing is written there.
      memory_limit: as in ``fit``.
      compile: whether to compile the program, whose temporaries are then known exactly. ``fit`` uses the same
        program and does not compile it again. If ``False``, the result is a lower bound from the shapes alone.

    The memory is that of the run; for ``Laplace``, also that of the sum of the curvature over all rows when the
    run is over, if the program is compiled. What other methods compute then is not included.
    """
    checking.check_arguments(model, method, True, None, None, None)
    flag("memory", "compile", compile)
    checking.folder("draws", draws)
    method = compact(method, optimiser_dtype)
    how = {"rematerialise": rematerialise, "compute_dtype": compute_dtype}
    model = computing.computed(model, method, micro_batch=micro_batch, **how)
    with ExitStack() as held:
        rows: Any
        bound, rows = model_and_data(model, data, weights, None)
        with refusing(method):
            method.check(bound, rows)
            mesh = mesh_for(mesh, method, rows, program.endless(method))
            if isinstance(rows, SourceData):
                feeder = Feeder(method, bound, rows)
                held.callback(feeder.close)
                rows = feeder.empty()
        rows = placed(mesh, method, rows)
        key = jax.random.split(random.key(0), 4)[0]
        given = (method, bound, mesh, key, rows, None, draws is not None, limit(memory_limit))
        found = Parts.of_shapes(*given).memory(compile)
        last = method.closing(bound, rows) if compile and isinstance(rows, ArrayData) else None
        return found if last is None else replace(found, finish=_bytes(last))


def _bytes(lowered: Any) -> int:
    """What a program takes besides its arguments."""
    found = lowered.compile().memory_analysis()
    return 0 if found is None else int(found.temp_size_in_bytes + found.output_size_in_bytes)
