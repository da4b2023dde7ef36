"""MNIST as in Blundell et al. (2015): errors, log likelihoods, calibration, pruning, and other images.

Networks of two hidden layers of 400, 800 or 1,200 units, the first 50,000 images (the paper keeps the other
10,000 to choose settings), pixels divided by 126, minibatches of 128. Every method has the same number of
epochs (members of ensembles too). The figures are the error and the log likelihood on the 10,000 test images,
the expected calibration error, and how well entropy and mutual information tell the test images from those of
Fashion-MNIST and KMNIST (area under the ROC curve). Of the posterior with the mixture prior, the weights with
the lowest signal-to-noise ratios are removed, as in the paper's table 2.

Run as ``python -m benchmarks mnist``, with ``--units``, ``--epochs``, ``--methods`` and ``--rows`` for a part
of it; on a GPU if JAX finds one. 600 epochs, as in the paper, are for a GPU. Each cell is stored as it is
measured, and what is stored is not measured again. ``CREDAX_DATA`` is the folder that contains ``mnist/``,
``fashion-mnist/`` and ``kmnist/``.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import credax as cx
from benchmarks.pruning import at_mean
from benchmarks.quality import page, published, store
from benchmarks.quality.data import images
from credax.decisions.pruning import prune
from credax.diagnostics.calibration import detection

NAME = "mnist"
OWN_PAGE = page.PAGE
TRAIN, BATCH, MEMBERS = 50_000, 128, 5
OTHERS = ("fashion-mnist", "kmnist")
SAMPLES = 20
"""Posterior samples per prediction of methods that do not keep a fixed number of draws."""
MIXTURE = "BayesByBackprop, mixture prior"


@dataclass(frozen=True)
class Case:
    """A method with its prior; ``dropout`` is that of the network, ``paper`` the row of the paper's table."""

    method: Any
    prior: Any
    dropout: float = 0.0
    paper: str | None = None


_NORMAL = cx.priors.Normal(math.exp(-2))
_SHARES = {"learning_rate": 1e-3, "batch_size": BATCH}
CASES: dict[str, Case] = {
    "MAP": Case(cx.MAP(**_SHARES), _NORMAL, paper="SGD"),
    "MCDropout": Case(cx.MCDropout(**_SHARES), _NORMAL, 0.5, "SGD + dropout"),
    "BayesByBackprop, Gaussian prior": Case(
        cx.BayesByBackprop(estimator="local", **_SHARES),
        _NORMAL,
        paper="Bayes by Backprop, Gaussian prior",
    ),
    MIXTURE: Case(
        cx.BayesByBackprop(estimator="local", **_SHARES),
        cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)),
        paper="Bayes by Backprop, mixture prior",
    ),
    "IVON": Case(cx.IVON(batch_size=BATCH), _NORMAL),
    "SWAG": Case(cx.SWAG(**_SHARES), _NORMAL),
    "DeepEnsemble": Case(cx.DeepEnsemble(members=MEMBERS, **_SHARES), _NORMAL),
    "Laplace": Case(cx.Laplace(**_SHARES), _NORMAL),
    "SGHMC": Case(cx.SGHMC(batch_size=BATCH), _NORMAL),
}


def with_steps(method: Any, steps: int) -> Any:
    """The method with a number of minibatches; of those with two stages, the first has half of them."""
    names = {field.name for field in dataclasses.fields(method)}
    if "num_draws" in names:
        draws = 50
        thin = max(1, steps // 2 // draws)
        warmup = max(1, steps - thin * draws)
        return dataclasses.replace(method, chains=1, num_warmup=warmup, num_draws=draws, thin=thin)
    if "num_warmup" in names:
        return dataclasses.replace(method, num_warmup=steps // 2, num_steps=steps)
    return dataclasses.replace(method, num_steps=steps)


def one(label: str, units: int, epochs: int, rows: int) -> dict[str, Any]:
    """The figures of a method on networks with two layers of ``units`` units."""
    case = CASES[label]
    x, y = (part[:rows] for part in images("mnist", "train"))
    inside, y_test = images("mnist", "t10k")
    model = cx.Model(
        cx.networks.mlp([units, units], dropout=case.dropout),
        case.prior,
        cx.likelihoods.Categorical(num_classes=10),
    )
    method = with_steps(case.method, epochs * -(-rows // BATCH))
    began = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        posterior = cx.fit(model, (x, y), method, key=0, progress=False)
    seconds = time.perf_counter() - began
    samples = None if isinstance(posterior.approximation, cx.approximations.Draws) else SAMPLES
    found, outside = judged(posterior, inside, y_test, samples), {}
    for name in OTHERS:
        other = posterior.predict(images(name, "t10k")[0], num_samples=samples)
        outside[name] = {
            kind: detection(values, getattr(other, kind))[0]
            for kind, values in found["uncertainty"].items()
            if kind == "entropy" or method.kind != "point"  # a point knows of no mutual information
        }
    figures = {**found["scores"], "auroc": outside, "seconds": seconds}
    if label == MIXTURE:
        figures["pruning"] = pruned(posterior, inside, y_test)
    return figures | {"device": jax.devices()[0].platform}


def judged(posterior: cx.Posterior, x: np.ndarray, y: np.ndarray, samples: int | None) -> dict:
    """Error in per cent, mean log likelihood and calibration error; and the uncertainty of each image."""
    predictive = posterior.predict(x, num_samples=samples)
    confidence, right = predictive.probs.max(1), predictive.label == y
    edges = np.linspace(0, 1, 16)[1:-1]
    bins = np.searchsorted(edges, confidence, side="left")
    gaps = [np.sum((right - confidence)[bins == b]) for b in range(len(edges) + 1)]
    return {
        "scores": {
            "error": 100 * float(np.mean(~right)),
            "log_likelihood": float(np.mean(predictive.log_prob(y), dtype=np.float64)),
            "calibration_error": float(np.sum(np.abs(gaps)) / len(y)),
        },
        "uncertainty": {
            "entropy": predictive.entropy,
            "mutual_information": predictive.mutual_information,
        },
    }


def pruned(posterior: cx.Posterior, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The error in per cent at the posterior mean, for each share of removed weights in the paper's table."""
    errors = {}
    for share in published.PRUNING:
        left = at_mean(prune(posterior, share))
        errors[str(share)] = 100 * float(np.mean(left.predict(x).label != y))
    return errors


# -- all cells --------------------------------------------------------------------------------------


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks mnist")
    parser.add_argument("--units", nargs="+", type=int, default=[400, 800, 1200])
    parser.add_argument("--epochs", type=int, default=600, help="by default 600, as in the paper")
    parser.add_argument(
        "--rows", type=int, default=TRAIN, help="training images; by default 50,000"
    )
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    return vars(parser.parse_args(arguments))


def measure(units: Any = (400,), epochs: int = 600, rows: int = TRAIN, methods: Any = None) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for width in units:
        for label in methods or CASES:
            keys = (f"{width} units, {epochs} epochs, {rows} rows", label)
            store.cell(NAME, keys, lambda: one(label, width, epochs, rows))  # noqa: B023
    return store.figures(NAME)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
