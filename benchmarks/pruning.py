"""Pruning on MNIST, table 2 of Blundell et al. (2015): the test error as 2.4 million weights are removed.

The network has two layers of 1,200 units and a scale-mixture prior, and is trained on the first 50,000 rows
with minibatches of 128 and pixels divided by 126. The weights with the lowest signal-to-noise ratio are
removed without refitting. Test errors, in percent, are those of the network at the posterior mean (``mean``)
and of the average over posterior samples (``draws``). ``file`` is the size of the saved posterior, without
the record of the run, as a fraction of the size of the full posterior.

Run as ``python -m benchmarks pruning``. ``CREDAX_DATA`` is the folder that contains
``mnist/train-images-idx3-ubyte.gz`` and the other files of MNIST. ``PRUNING_EPOCHS``, ``PRUNING_UNITS`` and
``PRUNING_ROWS`` shorten the run.
"""

import dataclasses
import json
import math
import os
import tempfile
from pathlib import Path

import jax
import numpy as np

import credax as cx
from benchmarks.quality.data import idx
from credax.decisions.pruning import prune

PAPER = {0.0: 1.24, 0.5: 1.24, 0.75: 1.24, 0.95: 1.29, 0.98: 1.39}
"""The paper's test error in percent, by the fraction of weights removed."""
TRAIN = 50_000
"""Training rows; the paper uses the last 10,000 of the 60,000 rows to choose its settings."""


def mnist(folder: Path, rows: int = TRAIN) -> tuple[tuple, tuple]:
    """Training and test rows, ``(x, y)`` each; pixels divided by 126, as in the paper."""
    parts = []
    for kind in ("train", "t10k"):
        images, labels = (
            idx(folder / f"{kind}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1")
        )
        x = images.reshape(len(images), -1).astype(np.float32) / 126
        parts.append((x[:rows], labels[:rows].astype(np.int32)))
    return parts[0], parts[1]


def measure(epochs: int | None = None, units: int | None = None, rows: int | None = None) -> dict:
    """Errors and file size for each fraction in the paper's table, and the paper's error."""
    epochs = epochs or int(os.environ.get("PRUNING_EPOCHS", "600"))
    units = units or int(os.environ.get("PRUNING_UNITS", "1200"))
    rows = rows or int(os.environ.get("PRUNING_ROWS", TRAIN))
    train, test = mnist(Path(os.environ.get("CREDAX_DATA", "../shared/data")) / "mnist", rows)
    model = cx.Model(
        cx.networks.mlp([units, units]),
        prior=cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)),
        likelihood=cx.likelihoods.Categorical(num_classes=10),
    )
    method = cx.BayesByBackprop(
        num_steps=epochs * -(-len(train[0]) // 128),
        batch_size=128,
        learning_rate=1e-3,
        estimator="local",
    )
    posterior = cx.fit(model, train, method)
    figures: dict = {"epochs": epochs, "units": units, "rows": len(train[0])}
    figures["fit_seconds"] = posterior.info["seconds"]
    whole = _bytes(posterior)
    for fraction, paper in PAPER.items():
        pruned = prune(posterior, fraction)
        figures[f"{100 * fraction:.0f}_percent_removed"] = {
            "mean": _error(at_mean(pruned), test),
            "draws": _error(pruned, test),
            "paper": paper,
            "file": _bytes(pruned) / whole,
        }
    return figures


def at_mean(posterior: cx.Posterior) -> cx.Posterior:
    """The single network whose weights are the posterior means."""
    mean = posterior.approximation.mean  # pyright: ignore[reportAttributeAccessIssue]
    params = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], mean)
    return cx.Posterior(posterior.model, cx.approximations.Draws(params))


def _error(posterior: cx.Posterior, test: tuple) -> float:
    x, y = test
    return 100 * float(np.mean(posterior.predict(x).label != y))


def _bytes(posterior: cx.Posterior) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.credax"
        dataclasses.replace(posterior, info={}).save(path)
        return path.stat().st_size


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
