"""``fit``: prepare a run, run it, and build the posterior from its trace."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from credax.core import hosts, random
from credax.core.devices import one_blas_thread
from credax.core.errors import PosteriorWarning, SourceError
from credax.core.settings import flag
from credax.fit import checking, computing
from credax.fit.first import trained_first
from credax.fit.needs import limit
from credax.fit.program import next_length
from credax.fit.progress import Bar, deferred_signals, end_by_sigterm
from credax.fit.run import Run, continued, prepare
from credax.fit.sharded import Checkpoint
from credax.fit.stopping import EarlyStopping
from credax.inference.method import Method
from credax.inference.optimiser import compact
from credax.model import LogDensity, Model
from credax.model.continuation import FromPosterior
from credax.model.priors import Prior
from credax.posterior import Posterior, services
from credax.posterior.training import TrainingRows


class Event(NamedTuple):
    """The argument of a callback, which is called after each chunk of steps.

    Attributes:
      step: the number of steps so far.
      num_steps: the number of steps of the whole run.
      figures: for each field of the method's ``Info``, its mean over the last steps and all replicas.
      seconds: the time since the start of the run, compilation included.
    """

    step: int
    num_steps: int
    figures: dict[str, float]
    seconds: float


def fit(
    model: Model | LogDensity,
    data: Any,
    method: Method,
    *,
    key: Any = 0,
    progress: bool = True,
    callbacks: Callable[[Event], Any] | Iterable[Callable[[Event], Any]] = (),
    checkpoint: str | Path | Checkpoint | None = None,
    start: Posterior | None = None,
    prior: Prior | Mapping[str, Prior] | FromPosterior | None = None,
    early_stopping: EarlyStopping | bool | None = None,
    mesh: Mesh | Mapping[str, int] | None = None,
    chunk_steps: int | None = None,
    weights: Any = None,
    pad_rows: bool = False,
    micro_batch: int | None = None,
    rematerialise: bool = False,
    compute_dtype: str | None = None,
    optimiser_dtype: str | None = None,
    draws: str | Path | None = None,
    memory_limit: float | None = None,
) -> Posterior:
    """Fit a model to data by any method, and return the posterior.

    Args:
      model: a ``Model``, or a ``LogDensity`` (then ``data`` is ``None``).
      data: ``(x, y)``, arrays or data frames, or dictionaries and tuples of arrays; or a source from
        ``cx.sources``, whose rows need not fit in memory, for methods that take batches.
      method: how to approximate the posterior, e.g. ``cx.DeepEnsemble(members=5)``.
      key: an int or a JAX key. The same key gives the same bits.
      progress: whether to show a progress bar with the figures of the method.
      callbacks: one or more functions that are called with an ``Event`` about twice a second. A callback that
        returns ``True`` ends the run.
      checkpoint: a folder for checkpoints, or a ``Checkpoint`` that also says how they are written. A run that
        was killed continues from there when ``fit`` is called again with the same arguments, and ends with the
        same bits as if it had not been killed.
      start: a posterior whose draws are the starting points of the replicas.
      prior: a prior instead of the model's. ``posterior.as_prior()`` makes an earlier posterior the prior, so
        that the model goes on learning from new rows; the model is then bound as in the earlier fit.
      early_stopping: whether to end the run, with its best state, when the held-out log likelihood stops
        rising. ``True`` holds out a tenth of the rows; an ``EarlyStopping`` sets this and more.
      mesh: the devices of the run: a ``jax.sharding.Mesh`` or a mapping from axis to number of devices, e.g.
        ``{"replica": 2, "data": 4, "model": 2}``. Replicas are spread over ``replica``, the rows of each batch
        over ``data``, and the arrays of each replica's state over ``model``. If ``None``, replicas are spread
        over all local devices; after ``use_hosts``, replicas and rows over those of all hosts.
      chunk_steps: the largest number of steps in a chunk, after which callbacks are called and checkpoints
        written. If ``None``, chunks last about half a second.
      weights: a number of at least zero for each row, which multiplies the log likelihood of the row: a weight
        of 2 is the row given twice, and a weight of 0 is the row left out. If ``None``, every row counts once.
        If rows are divided into positions, also a number for each position, ``(rows, positions...)``; if the
        model has several heads, also a dictionary of them. The target at a position of weight 0 may be
        anything.
      pad_rows: whether the compiled program runs on a few more rows, of weight zero, so that fits to nearly as
        many rows share it, such as those to the folds of a cross-validation. Rows are added only if they change
        nothing but rounding errors: for ``MAP``, ``MaximumLikelihood``, ``HMC`` and ``NUTS`` with all rows in
        each step, on a plain ``mlp``.
      micro_batch: the number of rows of a batch that are computed at once. The log likelihood and its gradient
        are summed over the parts of a batch, so that only one part needs memory. The result is the same up to
        rounding, except that the noise of dropout is drawn for each part.
      rematerialise: whether gradients compute the activations of the network again instead of keeping them:
        less memory for about a third more time.
      compute_dtype: ``"bfloat16"`` to evaluate the network in that float type. The weights, the prior, the
        likelihood and all sums over rows keep theirs.
      optimiser_dtype: ``"bfloat16"`` to keep the optimiser's running mean of gradients in that float type, for
        the optimisers for which optax offers it.
      draws: a folder to which the kept draws are written during the run, so that they need no memory. The
        posterior reads the parts that it needs from there, so the folder must stay. If ``None``, draws are
        kept in memory.
      memory_limit: the most bytes that the fit may need, as ``cx.memory`` estimates them; a fit that needs more
        is refused before it runs. If ``None``, what the device has left; ``math.inf`` for no limit.

    Returns:
      The posterior. If the run is interrupted with Ctrl-C, the posterior from the steps so far.
    """
    callbacks = checking.functions_of(callbacks)
    checking.check_arguments(model, method, progress, checkpoint, start, chunk_steps)
    earlier, model = continued(model, prior)
    method = compact(method, optimiser_dtype)
    how = {"rematerialise": rematerialise, "compute_dtype": compute_dtype}
    model = computing.computed(model, method, micro_batch=micro_batch, **how)
    model = trained_first(partial(fit, progress=progress), model, data, key, early_stopping)
    with ExitStack() as held:
        group = held.enter_context(hosts.together())
        arguments = (data, method, random.key(key), checkpoint, start, early_stopping, weights)
        padding = flag("fit", "pad_rows", pad_rows)
        most, folder = limit(memory_limit), checking.folder("draws", draws)
        with group.telling():
            run = prepare(model, *arguments, held, earlier, padding, mesh, group, most, folder)
            _run(run, progress and group.first, callbacks, chunk_steps)
            posterior = finish(run)
    for finding in services.alarms(posterior):
        warnings.warn(str(finding), PosteriorWarning, stacklevel=2)
    return posterior


def _run(run: Run, progress: bool, callbacks: tuple, chunk_steps: int | None) -> None:
    """Run the steps in compiled chunks; check, show and save the run after each chunk."""
    clock = time.perf_counter()
    with (
        one_blas_thread,
        Bar(run.method, progress, done=run.step) as bar,
        deferred_signals(terminate=run.saved is not None) as signalled,
    ):
        # Compiling first means that the time of the first chunk below is that of its steps.
        run.compile()
        bar.compiled()
        compiled, length = time.perf_counter(), 1
        try:
            while run.step < run.method.num_steps and not run.ended and not run.finished:
                began, first = time.perf_counter(), run.step
                run.advance(min(length, chunk_steps or length))
                if run.step == first:
                    break  # all replicas had finished at the end of the chunk before
                length = next_length(run.step - first, time.perf_counter() - began)
                checking.check_finite(run.record, run.step, run.model, run.method, run.saved)
                figures = run.record.figures()
                bar.update(run.step, figures)
                if run.stopper is not None and run.stopper.look(run.step, run.trace()):
                    run.ended = "early stopping"
                run.save(final=run.ended is not None or run.finished)
                seconds = time.perf_counter() - clock
                event = Event(run.step, run.method.num_steps, figures, seconds)
                answers = [callback(event) for callback in callbacks]  # all of them are called
                if any(map(_is_true, answers)):
                    run.ended = "callback"
                run.ended = signalled() or run.ended
                length = run.agree(length)
        except SourceError:
            # Nothing is lost: the run goes on from here when the source is mended. If other hosts are in the
            # middle of a chunk, it goes on from the last checkpoint.
            if run.alone:
                run.save(final=True)
            raise
        except KeyboardInterrupt:
            if not run.alone or any(leaf.is_deleted() for leaf in jax.tree.leaves(run.states)):
                raise  # in the middle of a chunk, whose initial states were donated and are gone
            run.ended = "interrupt"
    run.seconds = time.perf_counter() - compiled
    run.compile_seconds = compiled - clock
    if run.ended is not None:
        run.save(final=True)
    if run.ended == "terminated":
        end_by_sigterm()
    if run.ended == "interrupt" and not run.record.usable(run.step):
        raise KeyboardInterrupt(f"interrupted at step {run.step}, before the first draw")


def _is_true(answer: Any) -> bool:
    """Whether the answer of a callback is ``True``, of Python, NumPy or JAX, rather than something else."""
    if getattr(answer, "dtype", None) == np.bool_ and np.ndim(answer) == 0:
        return bool(answer)
    return answer is True


def finish(run: Run) -> Posterior:
    """The posterior, with the infos of the run."""
    if run.record.disk is not None:
        run.record.disk.finish()
    trace = run.trace()
    if run.stopper is not None:
        trace = run.stopper.best_trace(trace)
    posterior = run.method.posterior(computing.precise(run.model), trace)
    checking.check_posterior(posterior, run.step, run.model, run.method, run.saved)
    if "drop state" in run.method.can:
        run.release()
        trace = replace(trace, state=None)
    posterior = run.method.finish(posterior, trace)
    posterior = computing.plain(_in_units_of_y(posterior, run))
    info = {
        **run.record.history(run.step),
        "kept": run.record.kept_steps(run.step),
        "steps": run.step,
        **({} if run.data is None else {"num_rows": run.data.rows}),
        "seconds": run.seconds,
        "compile_seconds": run.compile_seconds,
        **({} if run.memory is None else {"memory": run.memory.figures()}),
        "ended": run.ended or "complete",
        **({} if run.unsuitable is None else {"data_warnings": run.unsuitable}),
        **({} if run.stopper is None else {"held_out_log_likelihood": run.stopper.history()}),
    }
    return replace(
        posterior,
        method=run.method,
        info={**info, **posterior.info},
        training=TrainingRows.of(run.data),
    )


def _in_units_of_y(posterior: Posterior, run: Run) -> Posterior:
    """The posterior with its evidence as a density of y, even if the model standardises its targets."""
    if not isinstance(run.model, Model) or run.model.frame.y_scaling is None:
        return posterior
    shift = -float(run.data.total) * run.model.frame.log_scale
    found = {name: getattr(posterior, name) for name in ("log_evidence", "elbo")}
    shifted = {k: None if v is None else v.shifted(shift) for k, v in found.items()}
    return replace(posterior, **shifted)
