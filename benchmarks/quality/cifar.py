"""CIFAR-10 against Hamiltonian Monte Carlo: how far each method is from the posterior, and what it costs.

The reference are the predictions of Izmailov et al. (2021) for the 10,000 test images, from full-batch HMC on
512 TPU cores: a ResNet-20 with filter response normalisation and swish, the prior N(0, 1/5) on every weight,
and no augmentation. All methods have this network, this prior and the same number of epochs. ``agreement`` is
the share of images with the same most probable class, in per cent, and ``total_variation`` the mean over
images of half the absolute difference of the probabilities.

Run as ``python -m benchmarks cifar`` on an accelerator, with ``--epochs``, ``--methods``, ``--rows`` and
``--tests`` for a part of it. Each cell is stored as it is measured, and what is stored is not measured again.
With ``--trials EPOCHS``, SGHMC and IVON have the setting of a small grid with the highest log likelihood of a
tenth of the training images, in fits of so many epochs to the others; the reference has no part in it.
``--part 0/3`` makes only a third of these trials. With ``--keys 0 1 2``, one fit is made for each key, in turn,
and their predictions are averaged, as those of the components of a ``cx.StackedPosterior``; fits of single keys
may be made by several processes, before one averages them. ``CREDAX_DATA`` is the
folder that contains ``cifar10/``, whose images are decoded once, into the folder for temporary files.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import re
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
from benchmarks.quality.data import folder, held_out
from benchmarks.quality.mnist import with_steps

NAME, TRIALS, PARTS = "cifar", "cifar_trials", "cifar_parts"
OWN_PAGE = page.PAGE
BATCH, EPOCHS, TRAIN, TEST = 128, 40, 50_000, 10_000
WIDTHS, BLOCKS = (16, 32, 64), 3
CENTRE, SCALE = (0.49, 0.48, 0.44), 0.2
"""The units of the pixels in the reference."""
SAMPLES = 50
DRAWS, WARMUP = 200, 0.2
"""The draws of SGHMC, and the share of the steps before the first of them."""

CASES: dict[str, Any] = {
    "MAP": cx.MAP(batch_size=BATCH, learning_rate=3e-3),
    "DeepEnsemble": cx.DeepEnsemble(members=4, batch_size=BATCH, learning_rate=3e-3),
    "SWAG": cx.SWAG(batch_size=BATCH, learning_rate=3e-3),
    "IVON": cx.IVON(batch_size=BATCH),
    "BayesByBackprop": cx.BayesByBackprop(batch_size=BATCH, learning_rate=1e-3),
    "SGHMC": cx.SGHMC(batch_size=BATCH),
}


def grid(label: str) -> dict[str, Any]:
    """The settings among which one is chosen, the first of which are the defaults."""
    found = {}
    if label == "SGHMC":
        # The rate and friction of Wenzel et al., How good is the Bayes posterior ..., 2020, and nearby ones.
        for rate, friction in ((0.1, 0.02), (0.3, 0.02), (0.03, 0.02), (0.1, 0.1), (0.1, 0.005)):
            found[f"rate {rate:g}, friction {friction:g}"] = {
                "step_size": rate,
                "friction": friction,
                "preconditioner": None,
            }
        found["rate 0.1, friction 0.02, 4 cycles"] = {
            **found["rate 0.1, friction 0.02"],
            "cycles": 4,
        }
        found["rmsprop, friction 0.02"] = {"step_size": 0.02, "friction": 0.02}
    if label == "IVON":
        for rate, hessian in (
            (0.1, 1.0),
            (0.3, 0.3),
            (0.1, 0.3),
            (0.1, 0.1),
            (0.1, 0.03),
            (0.03, 0.1),
        ):
            setting = {"learning_rate": rate, "hessian_init": hessian}
            found[f"rate {rate:g}, h {hessian:g}"] = setting
        for hessian in (0.3, 0.1, 0.03):
            found[f"rate 0.1, h {hessian:g}, beta2 0.9999"] = {
                "learning_rate": 0.1,
                "hessian_init": hessian,
                "beta2": 0.9999,
            }
    case = CASES[label]
    found = {name: dataclasses.replace(case, **changes) for name, changes in found.items()}
    return {"defaults": case} | found


def with_length(method: Any, steps: int) -> Any:
    """The method with a number of minibatches; a chain keeps many draws, after a short warm-up."""
    if not isinstance(method, cx.SGHMC):
        return with_steps(method, steps)
    draws = min(DRAWS, max(4, steps // 4)) // 4 * 4
    if method.cycles:  # half of each cycle explores, and there is no other warm-up
        thin = max(1, steps // (2 * draws))
        return dataclasses.replace(method, chains=1, num_warmup=1, num_draws=draws, thin=thin)
    thin = max(1, round((1 - WARMUP) * steps / draws))
    warmup = max(1, steps - thin * draws)
    return dataclasses.replace(method, chains=1, num_warmup=warmup, num_draws=draws, thin=thin)


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
        beside = path.with_suffix(f".{os.getpid()}.npz")
        subprocess.run([sys.executable, str(decoder), str(beside)], check=True)
        beside.replace(path)
    with np.load(path) as stored:
        whole = {key: stored[key] for key in stored}
    for part in ("x_train", "x_test"):
        pixels = whole[part].astype(np.float32) / 255
        whole[part] = (pixels - np.asarray(CENTRE, np.float32)) / np.float32(SCALE)
    return whole


def fitted(method: Any, epochs: int, x: np.ndarray, y: np.ndarray, key: int = 0) -> cx.Posterior:
    """The posterior of the network of the reference."""
    model = cx.Model(
        resnet(), cx.priors.Normal(math.sqrt(1 / 5)), cx.likelihoods.Categorical(num_classes=10)
    )
    method = with_length(method, epochs * -(-len(y) // method.batch_size))
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        return cx.fit(model, (x, y), method, key=key, progress=False)


def predicted(posterior: cx.Posterior, x: np.ndarray) -> np.ndarray:
    """The probability of each class for each image."""
    kept = isinstance(posterior.approximation, cx.approximations.Draws)
    return posterior.predict(x, num_samples=None if kept else SAMPLES).probs


def trial(method: Any, epochs: int, rows: int) -> dict[str, Any]:
    """The scores of a setting on a tenth of the training images, which the fit does not see."""
    whole = data()
    x, y = whole["x_train"][:rows], whole["y_train"][:rows].astype(np.int32)
    out = held_out(rows, seed=0)
    try:
        posterior = fitted(method, epochs, x[~out], y[~out])
    except cx.CredaxError as error:
        return {"failed": f"{type(error).__name__}: {error}", "log_likelihood": -1e6}
    return scores(predicted(posterior, x[out]), y[out]) | {"seconds": posterior.info["seconds"]}


def of_key(method: Any, epochs: int, rows: int, tests: int, key: int, path: Path) -> dict[str, Any]:
    """The distance of one fit from the reference on the first test images; its predictions are written."""
    whole = data()
    x, y = whole["x_train"][:rows], whole["y_train"][:rows].astype(np.int32)
    posterior = fitted(method, epochs, x, y, key)
    probs = predicted(posterior, whole["x_test"][:tests])
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, probs.astype(np.float32))
    return compared(probs, whole, tests) | {
        "epochs": epochs * getattr(method, "members", 1),
        "seconds": posterior.info["seconds"],
        "device": jax.devices()[0].platform,
    }


def scores(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Error in per cent and mean log likelihood."""
    of_label = probs[np.arange(len(labels)), labels]
    return {
        "error": 100 * float(np.mean(probs.argmax(1) != labels)),
        "log_likelihood": float(np.mean(np.log(np.maximum(of_label, 1e-30)), dtype=np.float64)),
    }


def compared(probs: np.ndarray, whole: dict[str, np.ndarray], tests: int) -> dict[str, float]:
    """The distance of predictions from the reference, and their scores."""
    labels = whole["y_test"][:tests].astype(np.int32)
    return distance(probs, whole["hmc_test_probs"][:tests]) | scores(probs, labels)


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
    parser.add_argument("--batch", type=int, default=BATCH, help="rows per step; by default 128")
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    parser.add_argument("--keys", nargs="+", type=int, default=[0], help="one fit for each")
    parser.add_argument("--setting", default="defaults", help="the name of one of the grid")
    parser.add_argument("--trials", type=int, default=0, help="epochs of the trials")
    parser.add_argument("--part", default="", help="only trials, and of them a part, e.g. 1/3")
    parser.add_argument("--only", nargs="+", default=[], metavar="SETTING", help="of the trials")
    return vars(parser.parse_args(arguments))


def measure(
    epochs: int = EPOCHS,
    rows: int = TRAIN,
    tests: int = TEST,
    batch: int = BATCH,
    methods: Any = None,
    keys: Any = (0,),
    setting: str = "defaults",
    trials: int = 0,
    part: str = "",
    only: Any = (),
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for label in methods or CASES:
        name = choose(label, trials, rows, batch, part, only) if trials else setting
        if not part:
            average(label, name, epochs, rows, tests, batch, keys)
    return store.figures(NAME)


def choose(label: str, epochs: int, rows: int, batch: int, part: str = "", only: Any = ()) -> str:
    """The setting with the highest log likelihood of held-out training images in short trials."""
    this, parts = map(int, part.split("/")) if part else (0, 1)
    names = [name for name in grid(label) if not only or name in only]
    run, found = f"{epochs} epochs, {rows} rows, batches of {batch}", {}
    for name in names[this::parts]:
        method = dataclasses.replace(grid(label)[name], batch_size=batch)
        cell = store.cell(TRIALS, (run, label, name), lambda: trial(method, epochs, rows))  # noqa: B023
        found[name] = cell["log_likelihood"]
    return max(found, key=found.__getitem__, default="defaults")


def average(
    label: str, setting: str, epochs: int, rows: int, tests: int, batch: int, keys: Any
) -> None:
    """Store the figures of the mean of the predictions of several fits, each with a key of its own."""
    run = f"{epochs} epochs, {rows} rows, {tests} tests"
    name = label if setting == "defaults" else f"{label}, {setting}"
    name += "" if batch == BATCH else f", batches of {batch}"
    method = dataclasses.replace(grid(label)[setting], batch_size=batch)
    found, paths = [], []
    for key in keys:
        path = (
            store.RESULTS
            / PARTS
            / (re.sub(r"[^a-z0-9.]+", "_", f"{run} {name} {key}".lower()) + ".npy")
        )
        measure = lambda: of_key(method, epochs, rows, tests, key, path)  # noqa: B023, E731
        found.append(store.cell(PARTS, (run, name, str(key)), measure))
        paths.append(path)
    if len(keys) == 1:
        store.cell(
            NAME, (run, name if keys[0] == 0 else f"{name}, key {keys[0]}"), lambda: found[0]
        )
        return

    def mean() -> dict[str, Any]:
        probs = np.mean([np.load(path) for path in paths], axis=0)
        total = {each: sum(one[each] for one in found) for each in ("epochs", "seconds")}
        return compared(probs, data(), tests) | total | {"device": found[0]["device"]}

    store.cell(NAME, (run, f"{name}, mean of {len(keys)}"), mean)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
