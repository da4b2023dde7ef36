"""Requests that wait are put together and predicted at once, in a thread of their own."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from credax.cli.serve.limits import Limits, Refused
from credax.core.errors import CredaxError
from credax.tables.runs import Run

if TYPE_CHECKING:
    import pandas as pd


class Answer(NamedTuple):
    """The predictions of a request."""

    columns: dict[str, np.ndarray]
    notes: list[str]


@dataclass(eq=False)
class Job:
    """A request that waits for its answer."""

    table: pd.DataFrame
    level: float
    answer: asyncio.Future = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class Batcher:
    """Predicts the rows of all waiting requests at once.

    While one batch is computed, new requests wait; so the more requests there are, the larger the batches.
    All requests of a batch have the same level.

    Args:
      run: the run that predicts.
      limits: the largest number of rows in a batch, among others.
      on_batch: called with the number of requests and rows of each batch.
    """

    def __init__(self, run: Run, limits: Limits, on_batch: Callable[[int, int], None]):
        self._run, self._limits, self._on_batch = run, limits, on_batch
        self._waiting: deque[Job] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predict")
        self._loop = asyncio.create_task(self._serve())

    async def predict(self, table: pd.DataFrame, level: float) -> Answer:
        """The predictions of some rows."""
        job = Job(table, level)
        self._waiting.append(job)
        self._arrived.set()
        return await job.answer  # a request that is given up cancels the future

    async def close(self) -> None:
        """Stop; requests that still wait are refused."""
        self._loop.cancel()
        for job in self._waiting:
            job.answer.cancel()
        await asyncio.to_thread(self._thread.shutdown)

    async def _serve(self) -> None:
        while True:
            await self._arrived.wait()
            batch = self._next_batch()
            if not batch:
                self._arrived.clear()
                continue
            loop = asyncio.get_running_loop()
            try:
                found = await loop.run_in_executor(self._thread, predict_all, self._run, batch)
            except Exception:  # noqa: BLE001  (a defect must not end the server)
                found = [Refused(500, "The server failed to predict these rows.")] * len(batch)
            self._on_batch(len(batch), sum(len(job.table) for job in batch))
            for job, answer in zip(batch, found, strict=True):
                if job.answer.done():
                    continue
                if isinstance(answer, Refused):
                    job.answer.set_exception(answer)
                else:
                    job.answer.set_result(answer)

    def _next_batch(self) -> list[Job]:
        """The longest waiting requests, as many as a batch holds; those that were given up are left out."""
        batch: list[Job] = []
        rows, rest = 0, deque()
        while self._waiting:
            job = self._waiting.popleft()
            if job.answer.done():
                continue
            fits = not batch or rows + len(job.table) <= self._limits.max_rows
            if fits and (not batch or job.level == batch[0].level):
                batch.append(job)
                rows += len(job.table)
            else:
                rest.append(job)
        self._waiting = rest
        return batch


def predict_all(run: Run, batch: list[Job]) -> list[Answer | Refused]:
    """The answer to each request; those with rows that the preprocessing refuses are refused."""
    inputs = _encoded_together(run, batch) or [_encoded(run, job) for job in batch]
    good = [found[0] for found in inputs if not isinstance(found, Refused)]
    columns = run.predict_inputs(np.concatenate(good), batch[0].level) if good else {}
    answers, begin = [], 0
    for found in inputs:
        if isinstance(found, Refused):
            answers.append(found)
            continue
        x, notes = found
        here = slice(begin, begin + len(x))
        begin += len(x)
        answers.append(Answer({name: values[here] for name, values in columns.items()}, notes))
    return answers


Encoded = tuple[np.ndarray, list[str]]
"""Rows as the network takes them, and the remarks about them."""


def _encoded_together(run: Run, batch: list[Job]) -> list[Encoded | Refused] | None:
    """The rows of all requests, preprocessed at once, which takes less time than one by one.

    ``None`` if there is anything to remark about them, or if their columns are of different types: then each
    request must be preprocessed on its own, as ``credax predict`` would do it.
    """
    import pandas as pd

    tables = [job.table for job in batch]
    if len(tables) == 1 or any(not t.dtypes.equals(tables[0].dtypes) for t in tables[1:]):
        return None
    whole = pd.concat(tables, ignore_index=True)
    try:
        if run.preprocessor.remarks(whole):
            return None
        x = run.preprocessor.encode(whole)
    except (CredaxError, ValueError, TypeError):
        return None
    ends = np.cumsum([len(table) for table in tables])
    return [(part, []) for part in np.split(x, ends[:-1])]


def _encoded(run: Run, job: Job) -> Encoded | Refused:
    try:
        return run.preprocessor.encode(job.table), run.preprocessor.remarks(job.table)
    except (CredaxError, ValueError, TypeError) as error:
        return Refused(422, str(error))
