"""CIFAR-10 against Hamiltonian Monte Carlo: how far each method is from the posterior, and what it costs.

The reference are the predictions of Izmailov et al. (2021) for the 10,000 test images, from full-batch HMC on
512 TPU cores: a ResNet-20 with filter response normalisation and swish, the prior N(0, 1/5) on every weight,
and no augmentation. All methods have this network, this prior and the same number of epochs. ``agreement`` is
the share of images with the same most probable class, in per cent, and ``total_variation`` the mean over
images of half the absolute difference of the probabilities.

Run as ``python -m benchmarks cifar`` on an accelerator, with ``--epochs``, ``--methods``, ``--rows`` and
``--tests`` for a part of it. Each cell is stored as it is measured, and what is stored is not measured again.
``CREDAX_DATA`` is the folder that contains ``cifar10/``, whose images are decoded once, into the folder for
temporary files.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.quality.data import folder
from benchmarks.quality.mnist import with_steps

NAME = "cifar"
OWN_PAGE = page.PAGE
BATCH, EPOCHS, TRAIN, TEST = 128, 40, 50_000, 10_000
WIDTHS, BLOCKS = (16, 32, 64), 3
CENTRE, SCALE = (0.49, 0.48, 0.44), 0.2
"""The units of the pixels in the reference."""
SAMPLES = 20

CASES: dict[str, Any] = {
    "MAP": cx.MAP(batch_size=BATCH, learning_rate=3e-3),
    "DeepEnsemble": cx.DeepEnsemble(members=4, batch_size=BATCH, learning_rate=3e-3),
    "SWAG": cx.SWAG(batch_size=BATCH, learning_rate=3e-3),
    "IVON": cx.IVON(batch_size=BATCH),
    "BayesByBackprop": cx.BayesByBackprop(batch_size=BATCH, learning_rate=1e-3),
    "SGHMC": cx.SGHMC(batch_size=BATCH),
}


# -- the network ------------------------------------------------------------------------------------


def resnet() -> Any:
    """ResNet-20 with filter response normalisation (Singh & Krishnan, 2020) and swish."""
    return cx.networks.from_function(_init, _apply)


def _shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each weight; names end in what the weight is."""
    shapes: dict[str, tuple[int, ...]] = {}

    def layer(name: str, size: int, before: int, after: int, norm: bool = True) -> None:
        shapes[f"{name}/kernel"] = (size, size, before, after)
        if norm:
            shapes[f"{name}/gamma"] = shapes[f"{name}/beta"] = (after,)

    layer("first", 3, 3, WIDTHS[0])
    before = WIDTHS[0]
    for stage, width in enumerate(WIDTHS):
        for block in range(BLOCKS):
            name = f"block_{stage}{block}"
            layer(f"{name}/one", 3, before, width)
            layer(f"{name}/two", 3, width, width)
            if before != width:
                layer(f"{name}/across", 1, before, width, norm=False)
            before = width
    return shapes | {"last/kernel": (before, 10), "last/bias": (10,)}


def _init(key: Any) -> dict[str, Any]:
    params = {}
    for number, (name, shape) in enumerate(_shapes().items()):
        if name.endswith("kernel"):
            scale = math.sqrt(2 / math.prod(shape[:-1]))
            params[name] = scale * jax.random.normal(jax.random.fold_in(key, number), shape)
        else:
            params[name] = jnp.full(shape, 1.0 if name.endswith("gamma") else 0.0, jnp.float32)
    return params


def _apply(params: dict[str, Any], x: Any) -> Any:
    def convolve(name, x, stride=1):
        axes = ("NHWC", "HWIO", "NHWC")
        kernel = params[f"{name}/kernel"]
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=axes
        )

    def normalised(name, x, stride=1):
        x = convolve(name, x, stride)
        square = jnp.mean(x**2, axis=(1, 2), keepdims=True)
        unit = x * jax.lax.rsqrt(square + jnp.asarray(1e-6, x.dtype))
        return params[f"{name}/gamma"] * unit + params[f"{name}/beta"]

    x = jax.nn.swish(normalised("first", x))
    for stage in range(len(WIDTHS)):
        for block in range(BLOCKS):
            name = f"block_{stage}{block}"
            stride = 2 if stage and not block else 1
            inner = jax.nn.swish(normalised(f"{name}/one", x, stride))
            inner = normalised(f"{name}/two", inner)
            across = f"{name}/across"
            x = convolve(across, x, stride) if f"{across}/kernel" in params else x
            x = jax.nn.swish(x + inner)
    return jnp.mean(x, axis=(1, 2)) @ params["last/kernel"] + params["last/bias"]


# -- the cells --------------------------------------------------------------------------------------


def data() -> dict[str, np.ndarray]:
    """The images in the units of the reference, the labels, and the predictions of HMC."""
    decoder = folder("cifar10") / "decode.py"
    path = Path(tempfile.gettempdir()) / "credax-cifar10.npz"
    if not path.exists():
        beside = path.with_suffix(".new.npz")
        subprocess.run([sys.executable, str(decoder), str(beside)], check=True)
        beside.replace(path)
    with np.load(path) as stored:
        whole = {key: stored[key] for key in stored}
    for part in ("x_train", "x_test"):
        pixels = whole[part].astype(np.float32) / 255
        whole[part] = (pixels - np.asarray(CENTRE, np.float32)) / np.float32(SCALE)
    return whole


def one(label: str, epochs: int, rows: int, tests: int) -> dict[str, Any]:
    """The distance of a method from the reference on the first test images."""
    whole = data()
    x, y = whole["x_train"][:rows], whole["y_train"][:rows].astype(np.int32)
    model = cx.Model(
        resnet(), cx.priors.Normal(math.sqrt(1 / 5)), cx.likelihoods.Categorical(num_classes=10)
    )
    method = with_steps(CASES[label], epochs * -(-rows // BATCH))
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        posterior = cx.fit(model, (x, y), method, key=0, progress=False)
    samples = None if isinstance(posterior.approximation, cx.approximations.Draws) else SAMPLES
    predictive = posterior.predict(whole["x_test"][:tests], num_samples=samples)
    labels = whole["y_test"][:tests].astype(np.int32)
    figures = distance(predictive.probs, whole["hmc_test_probs"][:tests])
    members = getattr(CASES[label], "members", 1)
    return figures | {
        "error": 100 * float(np.mean(predictive.label != labels)),
        "log_likelihood": float(np.mean(predictive.log_prob(labels), dtype=np.float64)),
        "epochs": epochs * members,
        "seconds": posterior.info["seconds"],
        "device": jax.devices()[0].platform,
    }


def distance(probs: np.ndarray, reference: np.ndarray) -> dict[str, float]:
    """Agreement in per cent, and total variation."""
    return {
        "agreement": 100 * float(np.mean(probs.argmax(1) == reference.argmax(1))),
        "total_variation": float(np.mean(0.5 * np.abs(probs - reference).sum(1))),
    }


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cifar")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of each member; by default 40")
    parser.add_argument("--rows", type=int, default=TRAIN, help="training images")
    parser.add_argument("--tests", type=int, default=TEST, help="test images")
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    return vars(parser.parse_args(arguments))


def measure(
    epochs: int = EPOCHS, rows: int = TRAIN, tests: int = TEST, methods: Any = None
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for label in methods or CASES:
        keys = (f"{epochs} epochs, {rows} rows, {tests} tests", label)
        store.cell(NAME, keys, lambda: one(label, epochs, rows, tests))  # noqa: B023
    return store.figures(NAME)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
