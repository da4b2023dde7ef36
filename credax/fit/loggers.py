"""Callbacks that write the figures of a run to TensorBoard or MLflow during the run.

``cx.fit(..., callbacks=[TensorBoardLogger("runs/first")])``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from credax.fit import Event


class TensorBoardLogger:
    """A callback that writes each figure as a TensorBoard scalar.

    Args:
      folder: the log directory, which TensorBoard reads (``tensorboard --logdir``).
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
        """Write the figures of a chunk."""
        for name, value in event.figures.items():
            self._writer.add_scalar(name, value, event.step)
        self._writer.flush()


class MLflowLogger:
    """A callback that writes each figure as a metric of MLflow's active run.

    If no run is active, MLflow starts one.

    Args:
      prefix: the text before the name of each metric.
    """

    def __init__(self, prefix: str = ""):
        try:
            import mlflow
        except ImportError as error:
            raise ImportError("MLflowLogger needs mlflow: pip install 'credax[mlflow]'.") from error
        self._mlflow: Any = mlflow
        self._prefix = prefix

    def __call__(self, event: Event) -> None:
        """Write the figures of a chunk."""
        figures = {f"{self._prefix}{name}": value for name, value in event.figures.items()}
        self._mlflow.log_metrics(figures, step=event.step)
