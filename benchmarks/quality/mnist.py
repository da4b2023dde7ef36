"""MNIST as in Blundell et al. (2015): errors, log likelihoods, calibration, pruning, and other images.

Networks of two hidden layers of 400, 800 or 1,200 units, the first 50,000 images (the paper keeps the other
10,000 to choose settings), pixels divided by 126, minibatches of 128. Every method has the same number of
epochs (members of ensembles too). The figures are the error and the log likelihood on the 10,000 test images,
the expected calibration error, and how well entropy and mutual information tell the test images from those of
Fashion-MNIST and KMNIST (area under the ROC curve). Of the posterior with the mixture prior, the weights with
the lowest signal-to-noise ratios are removed, as in the paper's table 2.

With ``--trials EPOCHS``, mixture priors, dropout and IVON have the setting of a small grid that has the lowest
error in fits of so many epochs, on the last 10,000 images of the training file, which no fit sees; with
``--part 0/3``, only a third of these trials are made, so that three processes can share them.

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

NAME, TRIALS = "mnist", "mnist_trials"
OWN_PAGE = page.PAGE
TRAIN, BATCH, MEMBERS = 50_000, 128, 5
OTHERS = ("fashion-mnist", "kmnist")
SAMPLES = 100
"""Posterior samples per prediction of methods that do not keep a fixed number of draws."""
CHOSEN_ON = 10_000
"""The last images of the training file, on which settings are chosen."""
MIXTURE = "BayesByBackprop, mixture prior"


@dataclass(frozen=True)
class Case:
    """A method with its prior; ``dropout`` is that of the network, ``paper`` the row of the paper's table."""

    method: Any
    prior: Any
    dropout: float = 0.0
    paper: str | None = None

    def but(self, prior: Any = None, dropout: float | None = None, **settings: Any) -> Case:
        """The same case with other settings of the method, another prior or another rate of dropout."""
        return dataclasses.replace(
            self,
            method=dataclasses.replace(self.method, **settings),
            prior=prior or self.prior,
            dropout=self.dropout if dropout is None else dropout,
        )


def _mixture(first: float, second: float, share: float = 0.5) -> Any:
    """The prior of the paper, which gives the negative logarithms of the two standard deviations."""
    return cx.priors.ScaleMixture(pi=share, sigma1=math.exp(-first), sigma2=math.exp(-second))


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
        _mixture(0, 6),
        paper="Bayes by Backprop, mixture prior",
    ),
    "IVON": Case(cx.IVON(batch_size=BATCH), _NORMAL),
    "SWAG": Case(cx.SWAG(**_SHARES), _NORMAL),
    "DeepEnsemble": Case(cx.DeepEnsemble(members=MEMBERS, **_SHARES), _NORMAL),
    "Laplace": Case(cx.Laplace(**_SHARES), _NORMAL),
    "SGHMC": Case(cx.SGHMC(batch_size=BATCH), _NORMAL),
}


def grid(label: str) -> dict[str, Case]:
    """The settings among which one is chosen, the first of which are the defaults of the case."""
    case, found = CASES[label], {}
    if label == MIXTURE:
        narrow = _mixture(2, 7)
        found = {
            "-log sigma1 = 1": case.but(_mixture(1, 6)),
            "-log sigma1 = 2": case.but(_mixture(2, 6)),
            "-log sigma1 = 2, -log sigma2 = 7": case.but(narrow),
            "-log sigma1 = 2, pi = 1/4": case.but(_mixture(2, 6, 0.25)),
            "-log sigma1 = 2, pi = 3/4": case.but(_mixture(2, 6, 0.75)),
            "KL weights of the paper": case.but(kl_weights="blundell"),
            "KL weights of the paper, -log sigma1 = 2": case.but(narrow, kl_weights="blundell"),
            "full weight of the KL from the start": case.but(kl_annealing=0),
            "initial sigma 0.05, -log sigma1 = 2": case.but(narrow, initial_scale=0.05),
            "learning rate 3e-3, -log sigma1 = 2": case.but(narrow, learning_rate=3e-3),
            "learning rate 3e-4, -log sigma1 = 2": case.but(narrow, learning_rate=3e-4),
            "two samples, -log sigma1 = 2": case.but(narrow, samples=2),
        }
    if label == "MCDropout":
        wide, wider = cx.priors.Normal(0.4), cx.priors.Normal(1.0)
        found = {
            "prior 0.4": case.but(wide),
            "prior 1": case.but(wider),
            "rate 0.3, prior 1": case.but(wider, 0.3),
            "inputs too, rate 0.2, prior 0.4": case.but(wide, 0.0, rate=0.2),
            "inputs too, rate 0.2, prior 1": case.but(wider, 0.0, rate=0.2),
            "inputs too, rate 0.3, prior 1": case.but(wider, 0.0, rate=0.3),
        }
    if label == "IVON":
        found = {
            "rate 0.1": case.but(learning_rate=0.1),
            "rate 0.03": case.but(learning_rate=0.03),
            "h 0.3": case.but(hessian_init=0.3),
            "rate 0.1, h 0.3": case.but(learning_rate=0.1, hessian_init=0.3),
            "rate 0.1, h 0.1": case.but(learning_rate=0.1, hessian_init=0.1),
            "rate 0.03, h 0.1": case.but(learning_rate=0.03, hessian_init=0.1),
            "rate 0.1, h 0.1, prior 0.05": case.but(
                cx.priors.Normal(0.05), learning_rate=0.1, hessian_init=0.1
            ),
        }
    return {"defaults": case} | found


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


def fitted(case: Case, units: int, epochs: int, x: np.ndarray, y: np.ndarray) -> tuple:
    """The posterior of a network with two layers of ``units`` units, and the seconds of the fit."""
    model = cx.Model(
        cx.networks.mlp([units, units], dropout=case.dropout),
        case.prior,
        cx.likelihoods.Categorical(num_classes=10),
    )
    method = with_steps(case.method, epochs * -(-len(y) // BATCH))
    began = time.perf_counter()
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        posterior = cx.fit(model, (x, y), method, key=0, progress=False)
    return posterior, time.perf_counter() - began


def trial(case: Case, units: int, epochs: int, rows: int) -> dict[str, Any]:
    """The scores of a setting on images of the training file that no fit has seen."""
    x, y = images("mnist", "train")
    try:
        posterior, seconds = fitted(case, units, epochs, x[:rows], y[:rows])
    except cx.CredaxError as error:
        return {"failed": f"{type(error).__name__}: {error}", "error": 100.0}
    x, y = x[-CHOSEN_ON:], y[-CHOSEN_ON:]
    return judged(posterior, x, y, _samples(posterior))["scores"] | {"seconds": seconds}


def one(label: str, units: int, epochs: int, rows: int, chosen: str = "defaults") -> dict[str, Any]:
    """The figures of a method with one of the settings of its grid."""
    case = grid(label)[chosen]
    x, y = (part[:rows] for part in images("mnist", "train"))
    inside, y_test = images("mnist", "t10k")
    posterior, seconds = fitted(case, units, epochs, x, y)
    samples = _samples(posterior)
    found, outside = judged(posterior, inside, y_test, samples), {}
    for name in OTHERS:
        other = posterior.predict(images(name, "t10k")[0], num_samples=samples)
        outside[name] = {
            kind: detection(values, getattr(other, kind))[0]
            for kind, values in found["uncertainty"].items()
            if kind == "entropy" or case.method.kind != "point"  # a point has no mutual information
        }
    figures = {**found["scores"], "auroc": outside, "seconds": seconds, "setting": chosen}
    if label == MIXTURE:
        figures["pruning"] = pruned(posterior, inside, y_test)
    return figures | {"device": jax.devices()[0].platform}


def _samples(posterior: cx.Posterior) -> int | None:
    kept = isinstance(posterior.approximation, cx.approximations.Draws)
    return None if kept else SAMPLES


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
    parser.add_argument(
        "--trials", type=int, default=0, help="epochs of the trials that choose settings"
    )
    parser.add_argument(
        "--part", default="", help="only trials, and of them a part, e.g. 1/3 (0/3, 1/3, 2/3)"
    )
    return vars(parser.parse_args(arguments))


def measure(
    units: Any = (400,),
    epochs: int = 600,
    rows: int = TRAIN,
    methods: Any = None,
    trials: int = 0,
    part: str = "",
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for width in units:
        for label in methods or CASES:
            chosen = choose(label, width, trials, rows, part) if trials else "defaults"
            if part:
                continue
            keys = (f"{width} units, {epochs} epochs, {rows} rows", label)
            store.cell(NAME, keys, lambda: one(label, width, epochs, rows, chosen))  # noqa: B023
    return store.figures(NAME)


def choose(label: str, units: int, epochs: int, rows: int, part: str = "") -> str:
    """The setting with the lowest error in short trials on images for validation."""
    this, parts = map(int, part.split("/")) if part else (0, 1)
    run, errors = f"{units} units, {epochs} epochs, {rows} rows", {}
    for number, (name, case) in enumerate(grid(label).items()):
        if number % parts == this:
            keys = (run, label, name)
            found = store.cell(TRIALS, keys, lambda: trial(case, units, epochs, rows))  # noqa: B023
            errors[name] = found["error"]
    return min(errors, key=errors.__getitem__)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
