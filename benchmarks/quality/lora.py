"""Low-rank adaptation with few labels: a network trained on digits learns clothes from 500 images.

A network with two hidden layers of 128 units is trained on MNIST. ``cx.networks.lora`` then adapts it to
Fashion-MNIST, with 500 labelled images. All methods see the same images and choose their settings by one
rule: of a grid of prior scales and numbers of steps, those with the highest log likelihood of a fifth of the
500 images, which was left out; then they are fitted to all 500. The grid is the same for all methods except
those whose name says ``more scales``. What else a method is given stands in ``CASES``. The figures are the
log loss, the error and the expected calibration error on the 10,000 test images. No setting of a cell is
chosen by them; the range of the grid was set after trials with other labelled images, the first of which
(rank 4, 400 images) were scored on the test images, those of the scale 2 on other training images. Each key
has its own 500 images, its own division and its own initial factors.

Run as ``python -m benchmarks lora``, with ``--methods`` and ``--keys`` for a part of it. Each cell is stored
as it is measured, and what is stored is not measured again; ``--again METHOD`` measures one method anew.
``CREDAX_DATA`` is the folder that contains ``mnist/`` and ``fashion-mnist/``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import time
import warnings
from typing import Any

import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.quality.data import Split, images
from benchmarks.quality.mnist import SAMPLES, judged

NAME = "lora"
OWN_PAGE = page.PAGE
TRAINED_ON, ADAPTED_TO = "mnist", "fashion-mnist"
UNITS, RANK, PATTERN = 128, 2, "*"
ROWS, HELD_OUT = 500, 100
SCALES, STEPS = (1.0, 3.0), (300, 1_000)
"""The grid: the scale of the normal prior of the factors, and the number of steps."""
MORE_SCALES = (1.0, 2.0, 3.0)
"""The scales of the methods whose name says so."""
POINT = "MAP"
"""The point estimate with which the others are compared."""

CASES: dict[str, Any] = {
    POINT: cx.MAP(),
    "Laplace": cx.Laplace(),
    # With the default, 1, the mean hardly moves in so few steps. Chosen in a trial with other training images.
    "IVON": cx.IVON(hessian_init=0.1),
    "BayesByBackprop": cx.BayesByBackprop(estimator="local"),
    "DeepEnsemble": cx.DeepEnsemble(),
    "MAP, more scales": cx.MAP(),
    "IVON, more scales": cx.IVON(hessian_init=0.1),
    "DeepEnsemble, more scales": cx.DeepEnsemble(),
}
LIKELIHOOD = cx.likelihoods.Categorical(num_classes=10)


@functools.cache
def pretrained(steps: int = 1_500) -> Any:
    """The network and its weights after some epochs of digits."""
    x, y = images(TRAINED_ON, "train")
    network = cx.networks.mlp([UNITS, UNITS]).build(x.shape[1:], 10)
    model = cx.Model(network, cx.priors.Normal(0.1), LIKELIHOOD)
    method = cx.MAP(num_steps=steps, batch_size=128, learning_rate=1e-3)
    return network, cx.fit(model, (x, y), method, key=0, progress=False)


def rows(key: int) -> tuple[Split, np.ndarray]:
    """The labelled images of a key with the test images, and which of the former are held out."""
    x, y = images(ADAPTED_TO, "train")
    order = np.random.default_rng(key).permutation(len(y))[:ROWS]
    out = np.arange(len(order)) < HELD_OUT
    return Split(x[order], y[order], *images(ADAPTED_TO, "t10k")), out


def fitted(label: str, scale: float, steps: int, x: np.ndarray, y: np.ndarray, key: int) -> Any:
    """The posterior of the factors by a method with a setting."""
    network, weights = pretrained()
    adapted = cx.networks.lora(network, RANK, PATTERN, weights=weights)
    model = cx.Model(adapted, cx.priors.Normal(scale), LIKELIHOOD)
    method = dataclasses.replace(CASES[label], num_steps=steps)
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        return cx.fit(model, (x, y), method, key=key, progress=False)


def scores(posterior: cx.Posterior, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Log loss per image, error in per cent and calibration error."""
    samples = None if isinstance(posterior.approximation, cx.approximations.Draws) else SAMPLES
    found = judged(posterior, x, y, samples)["scores"]
    return {"log_loss": -found.pop("log_likelihood"), **found}


def one(label: str, key: int, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """The figures of a method with the images of a key.

    Args:
      label: the method.
      key: the key.
      before: the figures for a part of the grid, of which nothing is measured again.
    """
    began, before = time.perf_counter(), before or {}
    (x, y, x_test, y_test), out = rows(key)
    tried = {}
    for scale, steps in settings(label):
        known = before.get("held_out", {}).get(name_of(scale, steps))
        if known is None:
            posterior = fitted(label, scale, steps, x[~out], y[~out], key)
            known = scores(posterior, x[out], y[out])["log_loss"]
        tried[scale, steps] = known
    scale, steps = min(tried, key=lambda setting: tried[setting])
    found = {**before, "setting": {"scale": scale, "steps": steps}}
    if before.get("setting") != found["setting"]:
        found |= scores(fitted(label, scale, steps, x, y, key), x_test, y_test)
    return {
        **found,
        "held_out": {name_of(*setting): value for setting, value in tried.items()},
        "seconds": before.get("seconds", 0) + time.perf_counter() - began,
    }


def settings(label: str) -> list[tuple[float, int]]:
    """The grid of a method: scales with numbers of steps."""
    return list(itertools.product(MORE_SCALES if "more scales" in label else SCALES, STEPS))


def name_of(scale: float, steps: int) -> str:
    """The name of a setting in the stored figures."""
    return f"scale {scale:g}, {steps} steps"


# -- all cells --------------------------------------------------------------------------------------


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks lora")
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    parser.add_argument("--keys", type=int, default=3, help="how many; by default 3")
    parser.add_argument("--again", choices=list(CASES), metavar="METHOD", help="measure it anew")
    return vars(parser.parse_args(arguments))


def measure(methods: Any = None, keys: int = 3, again: str | None = None) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    if again:
        store.forget(NAME, lambda path: path[0] != again, depth=2)
    for key in range(1, keys + 1):
        for label in methods or CASES:
            before = store.figures(NAME).get(label, {}).get(str(key), {})
            if set(before.get("held_out", {})) != {name_of(*each) for each in settings(label)}:
                found = one(label, key, before)
                store.put(NAME, (label, str(key)), found)
                print(label, key, store.shown(found), flush=True)
    return store.figures(NAME)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
