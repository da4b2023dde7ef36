"""Callbacks that write the figures of a run to TensorBoard or MLflow while it goes on.

``cx.fit(..., callbacks=[TensorBoardLogger("runs/first")])``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from credax.fit import Event


class TensorBoardLogger:
    """Writes each figure as a scalar.

    Args:
      folder: where TensorBoard looks (``tensorboard --logdir``).
    """

    def __init__(self, folder: str | Path):
        try:
            from tensorboard.summary import Writer
        except ImportError as error:
            raise ImportError(
                "TensorBoardLogger needs tensorboard: pip install 'credax[tensorboard]'."
            ) from error
        self._writer = Writer(str(folder))

    def __call__(self, event: Event) -> None:
        """The figures after a chunk."""
        for name, value in event.figures.items():
            self._writer.add_scalar(name, value, event.step)
        self._writer.flush()


class MLflowLogger:
    """Writes each figure as a metric of MLflow's active run, which is begun where there is none.

    Args:
      prefix: put before each name.
    """

    def __init__(self, prefix: str = ""):
        try:
            import mlflow
        except ImportError as error:
            raise ImportError("MLflowLogger needs mlflow: pip install 'credax[mlflow]'.") from error
        self._mlflow: Any = mlflow
        self._prefix = prefix

    def __call__(self, event: Event) -> None:
        """The figures after a chunk."""
        figures = {f"{self._prefix}{name}": value for name, value in event.figures.items()}
        self._mlflow.log_metrics(figures, step=event.step)
