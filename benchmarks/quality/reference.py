"""How far each method is from long HMC on UCI tables, against the gradients that it spent.

Networks with one hidden layer of 50 units on the first published split of four tables, with the same prior
and a noise scale that is learned, all by full-batch runs with the defaults of each method. The reference is
HMC with the last layer integrated out, which mixes where HMC over all weights does not. ``distance`` is the
Wasserstein-1 distance between the predictive distributions of a test row, in standard deviations of HMC's,
averaged over the test rows. ``spread`` is the median ratio of the epistemic standard deviations. The distance
of a second HMC run shows the Monte Carlo error of the reference. If the R-hat of the reference's predictions
is above 1.1, its own chains do not agree, and distances below that error mean nothing.

Run as ``python -m benchmarks reference``, with ``--tables`` and ``--methods`` for a part of it. Each cell is
stored as it is measured, and what is stored is not measured again. ``CREDAX_DATA`` is the folder that
contains ``uci/``.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.quality.data import TABLES, split

NAME, ANSWERS = "reference", "reference_answers"
OWN_PAGE = page.PAGE
LEVELS = (np.arange(50) + 0.5) / 50
"""The quantile levels at which predictive distributions are compared."""
LONG = cx.HMC(chains=4, num_warmup=1_000, num_draws=1_000, num_leapfrog=64, collapse=True)

CASES: dict[str, Any] = {
    "HMC": cx.HMC(),
    "NUTS": cx.NUTS(),
    "MCLMC": cx.MCLMC(),
    "MicrocanonicalEnsemble": cx.MicrocanonicalEnsemble(),
    "SGHMC": cx.SGHMC(),
    "MAP": cx.MAP(),
    "DeepEnsemble": cx.DeepEnsemble(),
    "Laplace": cx.Laplace(),
    "SWAG": cx.SWAG(),
    "BayesByBackprop": cx.BayesByBackprop(estimator="local"),
    "IVON": cx.IVON(),
    "MCDropout": cx.MCDropout(),
}


def fitted(method: Any, name: str, key: int) -> tuple[cx.Posterior, np.ndarray]:
    """The posterior of the first split of a table, and the test rows."""
    x, y, x_test, _ = split(name, 0)
    model = cx.Model(
        cx.networks.mlp([50]),
        cx.priors.FanInNormal(1.0),
        cx.likelihoods.Gaussian(None),
        standardise=True,
    )
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        return cx.fit(model, (x, y), method, key=key, progress=False), x_test


def answer(posterior: cx.Posterior, x: np.ndarray) -> dict[str, Any]:
    """The quantiles and standard deviations of the predictions."""
    found = posterior.predict(x)
    parts = {
        "quantiles": found.quantile(list(LEVELS)),
        "sd": found.std,
        "epistemic": np.sqrt(found.epistemic),
    }
    return {
        part: np.vectorize(lambda v: float(f"{v:.6g}"))(np.asarray(values, np.float64)).tolist()
        for part, values in parts.items()
    }


def truth(name: str) -> dict[str, Any]:
    """The answer of long HMC, with the R-hat of its predictions."""

    def measured():
        posterior, x = fitted(LONG, name, key=1_000)
        figures: Any = posterior.convergence(x).predictions
        r_hat = float(np.nanquantile(figures.r_hat, 0.99))
        return {"r_hat": r_hat, "gradients": gradients(posterior, LONG), **answer(posterior, x)}

    return store.cell(ANSWERS, (name,), measured)


def apart(found: dict[str, Any], true: dict[str, Any]) -> dict[str, float]:
    """How far one answer is from another."""
    a, b = ({k: np.asarray(v) for k, v in each.items()} for each in (found, true))
    distance = np.abs(a["quantiles"] - b["quantiles"]).mean(0) / b["sd"]
    return {
        "distance": float(distance.mean()),
        "spread": float(np.median(a["epistemic"] / b["epistemic"])),
        "width": float(np.median(a["sd"] / b["sd"])),
    }


def gradients(posterior: cx.Posterior, method: Any) -> float:
    """Gradients of the whole log joint, over all replicas."""
    info = posterior.info
    if "num_leapfrog" in info:
        return float(np.sum(info["num_leapfrog"]))
    each = 2 if isinstance(method, cx.MCLMC | cx.MicrocanonicalEnsemble) else 1
    return float(each * method.replicas * info["steps"])


def one(label: str, name: str) -> dict[str, float]:
    """The figures of a method on a table."""
    true = truth(name)
    began = time.perf_counter()
    posterior, x = fitted(CASES[label], name, key=0)
    seconds = time.perf_counter() - began
    spent = gradients(posterior, CASES[label])
    return apart(answer(posterior, x), true) | {"gradients": spent, "seconds": seconds}


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks reference")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES[:4], metavar="TABLE")
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    return vars(parser.parse_args(arguments))


def measure(tables: Any = TABLES[:4], methods: Any = None) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for name in tables:
        for label in methods or CASES:
            store.cell(NAME, (name, label), lambda: one(label, name))  # noqa: B023
    return store.figures(NAME)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
