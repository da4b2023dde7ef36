import sys

import numpy as np
import pytest

import credax as cx
from credax.fit.loggers import MLflowLogger, TensorBoardLogger

X = np.linspace(-1, 1, 20)[:, None]


def fit(logger):
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.5))
    return cx.fit(
        model,
        (X, X[:, 0]),
        cx.MAP(num_steps=40),
        callbacks=[logger],
        chunk_steps=10,
        progress=False,
    )


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    posterior = fit(TensorBoardLogger(tmp_path))
    found = EventAccumulator(str(tmp_path)).Reload()
    tags = found.Tags()
    assert "log_joint" in [*tags["scalars"], *tags["tensors"]]
    steps = [event.step for event in found.Tensors("log_joint")]
    assert steps[-1] == posterior.info["steps"]


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need more packages
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    with mlflow.start_run() as run:
        posterior = fit(MLflowLogger("first/"))
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "first/log_joint")
    assert history[-1].step == posterior.info["steps"]


@pytest.mark.parametrize(
    "logger, package", [(TensorBoardLogger, "tensorboard"), (MLflowLogger, "mlflow")]
)
def test_a_missing_package_is_named(logger, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setitem(sys.modules, f"{package}.summary", None)
    with pytest.raises(ImportError, match=rf"pip install 'credax\[{package}\]'"):
        logger("x")
