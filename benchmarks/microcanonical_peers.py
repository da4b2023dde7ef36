"""Microcanonical ensembles here and in bde (Sommer et al., 2025), on the CPU, on the same rows.

Two questions. Speed: 10 members of a network with two or four hidden layers of 16 units (four: bde's paper)
on 1,500 rows, 1,000 draws each; the time of a whole call, compiling included, each library with the steps that
its quality is measured with (bde's paper: 50,000 of warm-up, then 10,000 of which every tenth is kept; here the
default: 12,000, then 4,000). The two take turns, each time in a new process, and the medians are compared.
Quality: test log likelihood and RMSE on UCI tables with the same settings, in the units of the target, both
with a predicted scale, relu, a standard normal prior, and x and y standardised by the training rows; means over
three seeds of each, since a few test rows and the seed move a split by as much as the libraries differ. The
standard error of the difference is that over the splits. bde is run by the interpreter that ``BDE_PYTHON``
names; it needs ``sklearn-contrib-bde``.

Run as ``python -m benchmarks microcanonical_peers``. ``CREDAX_DATA`` is the folder with ``uci/``; ``BDE_STEPS``
is ``warmup,steps`` of bde on the tables, by default its paper's 50000,10000. ``python -m
benchmarks.microcanonical_peers lengths`` shows what more steps give.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

TABLES = ("yacht", "energy", "concrete")
SPLITS = (2, 3, 4, 5, 6, 7)
"""The defaults here were chosen on splits 0, 1 and 8 to 12."""
MEMBERS, ROWS = 10, 1_500
HIDDEN = (16, 16)
PAPER = (50_000, 10_000)
"""Steps of warm-up and of sampling in bde's paper."""
DRAWS, THIN = 1_000, 4
"""Of a member: there every tenth step, here every fourth."""
ROUNDS = 3
SEEDS = (0, 1, 2)


def measure() -> dict:
    import credax as cx

    cx.use_cores()
    networks = {"two hidden layers": HIDDEN, "four hidden layers": 2 * HIDDEN}
    speeds = {name: speed(hidden) for name, hidden in networks.items()}
    return {"speed": speeds, "quality": quality()}


# -- speed ------------------------------------------------------------------------------------------


def speed(hidden=HIDDEN) -> dict:
    """Seconds of a whole call, compiling included; here also of a second one."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 8)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.3 * generator.normal(size=ROWS)).astype(
        np.float32
    )
    rounds = []
    for _ in range(ROUNDS):
        here = apart("credax", x, y, x[:10], hidden, num_draws=DRAWS, thin=THIN)["seconds"]
        there = bde(x, y, x[:10], *PAPER, hidden)["seconds"]
        first, second = (float(seconds) for seconds in here)
        rounds.append({"credax": first, "credax, second call": second, "bde": there})
    median = {name: float(np.median([each[name] for each in rounds])) for name in rounds[0]}
    return {
        "seconds": {f"round {number}": each for number, each in enumerate(rounds, 1)},
        "bde over credax": median["bde"] / median["credax"],
        "bde over the second call of credax": median["bde"] / median["credax, second call"],
    }


# -- quality ----------------------------------------------------------------------------------------


def quality(tables=TABLES, splits=SPLITS) -> dict:
    """Test log likelihood and RMSE."""
    steps = os.environ.get("BDE_STEPS")
    warmup, sampling = (int(part) for part in steps.split(",")) if steps else PAPER
    libraries = {
        "credax": lambda *rows, seed: credax(*rows, seed=seed, num_draws=DRAWS, thin=THIN),
        f"bde, {warmup} + {sampling} steps": lambda *rows, seed: bde(
            *rows, warmup, sampling, seed=seed
        ),
    }
    figures = {}
    for table in tables:
        for split in splits:
            x, y, at, truth, scale = standardised(table, split)
            figures[f"{table}, split {split}"] = {
                name: scores([run(x, y, at, seed=seed) for seed in SEEDS], truth, scale)
                for name, run in libraries.items()
            }
        figures[f"{table}, mean of the log likelihood"] = compared(figures, table, splits)
    return figures


def scores(runs: list[dict], truth: np.ndarray, scale: float) -> dict:
    """Means over the runs, in the units of the target."""
    log_likelihoods = [log_likelihood(run["mean"], run["scale"], truth) for run in runs]
    errors = [np.sqrt(np.mean((run["mean"].mean(0) - truth) ** 2)) for run in runs]
    return {
        "log likelihood": float(np.mean(log_likelihoods) - np.log(scale)),
        "RMSE": float(scale * np.mean(errors)),
    }


def compared(figures: dict, table: str, splits) -> dict:
    """Means over the splits, and how far they are apart."""
    runs = [figures[f"{table}, split {split}"] for split in splits]
    here, there = np.array([[each["log likelihood"] for each in run.values()] for run in runs]).T
    error = np.std(here - there, ddof=1) / np.sqrt(len(splits))
    means = {name: float(np.mean(each)) for name, each in zip(runs[0], (here, there), strict=True)}
    difference = float(np.mean(here - there))
    return {**means, "difference": difference, "its standard error": float(error)}


def standardised(table: str, split: int):
    """Training rows, test rows, and the scale of the target."""
    data = np.load(Path(os.environ.get("CREDAX_DATA", "../shared/data")) / "uci" / f"{table}.npz")
    test = data["test_mask"][split]
    x, y = data["x"], data["y"]
    centre, scale = x[~test].mean(0), x[~test].std(0)
    x = ((x - centre) / np.where(scale > 0, scale, 1)).astype(np.float32)
    centre, scale = float(y[~test].mean()), float(y[~test].std())
    y = ((y - centre) / scale).astype(np.float32)
    return x[~test], y[~test], x[test], y[test].astype(np.float64), scale


def log_likelihood(mean: np.ndarray, scale: np.ndarray, y: np.ndarray) -> float:
    """The mean over rows of the log of the mean density over draws, (draw, row), in double precision."""
    from scipy.special import logsumexp
    from scipy.stats import norm

    each = norm.logpdf(y, mean.astype(np.float64), scale.astype(np.float64))
    return float(np.mean(logsumexp(each, axis=0) - np.log(len(each))))


LENGTHS = {
    "750 + 2,250 + 2,000": {"num_warmup": 3_000, "thin": 20},
    "3,000 + 9,000 + 4,000, all weights": {"collapse": False},
    "3,000 + 9,000 + 4,000": {},
}
"""Steps of training, of tuning and of drawing."""


def lengths(tables=TABLES, splits=(0, 1)) -> dict:
    """Test log likelihood after different numbers of steps, which the defaults were chosen by."""
    figures: dict = {name: {} for name in LENGTHS}
    for table in tables:
        for split in splits:
            x, y, at, truth, scale = standardised(table, split)
            for name, settings in LENGTHS.items():
                run = credax(x, y, at, **settings)
                found = log_likelihood(run["mean"], run["scale"], truth) - np.log(scale)
                figures[name][f"{table}, split {split}"] = found
    return figures


# -- the two libraries --------------------------------------------------------------------------------


def bde(x, y, at, warmup: int, steps: int, hidden=HIDDEN, seed=0) -> dict:
    """Mean and scale of every draw of bde at some inputs, and the seconds of the call."""
    found = apart("bde", x, y, at, hidden, warmup=warmup, steps=steps, seed=seed)
    return {**found, "seconds": float(found["seconds"])}


def credax(x, y, at, hidden=HIDDEN, seed=0, **settings) -> dict:
    """The same here, in this process."""
    import jax

    import credax as cx
    from credax.inference.montecarlo.microcanonical_ensemble import MicrocanonicalEnsemble

    likelihood = cx.likelihoods.Heteroscedastic()
    model = cx.Model(cx.networks.mlp(hidden), cx.priors.Normal(1.0), likelihood)
    method = MicrocanonicalEnsemble(members=MEMBERS, **settings)
    began = time.perf_counter()
    posterior = cx.fit(model, (x, y), method, key=seed, progress=False)
    seconds = time.perf_counter() - began
    outputs = posterior.predict(at).outputs
    mean, scale = jax.vmap(lambda out: likelihood.location_scale(out, None))(outputs)
    figures = {"mean": np.asarray(mean)[..., 0], "scale": np.asarray(scale)[..., 0]}
    return {**figures, "seconds": seconds}


def apart(library: str, x, y, at, hidden, **settings) -> dict:
    """What a library finds in a process of its own, with as many devices as cores."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/in.npz", x=x, y=y, at=at, hidden=hidden, **settings)
        python = (
            os.environ.get("BDE_PYTHON", sys.executable) if library == "bde" else sys.executable
        )
        cores = len(os.sched_getaffinity(0))
        flags = f"--xla_force_host_platform_device_count={cores}"
        quiet = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "TQDM_DISABLE": "1"}
        environment = {**os.environ, **quiet}
        subprocess.run([python, __file__, library, folder], check=True, env=environment)
        with np.load(f"{folder}/out.npz") as found:
            return dict(found)


def _credax(folder: str) -> None:
    """In a process of ours: two calls."""
    with np.load(f"{folder}/in.npz") as given:
        given = dict(given)
    x, y, at, hidden = (given.pop(name) for name in ("x", "y", "at", "hidden"))
    settings = {name: int(value) for name, value in given.items()}
    calls = [credax(x, y, at, tuple(hidden.tolist()), **settings) for _ in range(2)]
    np.savez(f"{folder}/out.npz", **{**calls[0], "seconds": [call["seconds"] for call in calls]})


def _bde(folder: str) -> None:
    """In bde's process: the settings of its paper, but for the numbers of steps."""
    import jax
    from bde import BdeRegressor

    given = np.load(f"{folder}/in.npz")
    regressor = BdeRegressor(
        n_members=MEMBERS,
        seed=int(given["seed"]),
        hidden_layers=given["hidden"].tolist(),
        epochs=1_000,
        patience=25,
        validation_split=0.15,
        lr=1e-3,
        warmup_steps=int(given["warmup"]),
        n_samples=int(given["steps"]),
        n_thinning=max(1, int(given["steps"]) // DRAWS),
    )
    began = time.perf_counter()
    regressor.fit(given["x"], given["y"])
    jax.block_until_ready(regressor.positions_eT_)
    seconds = time.perf_counter() - began
    raw = np.asarray(regressor.predict(given["at"], raw=True))  # (member, draw, row, 2)
    raw = raw.reshape(-1, *raw.shape[-2:])
    scale = np.logaddexp(0, raw[..., 1]) + 1e-6
    np.savez(f"{folder}/out.npz", mean=raw[..., 0], scale=scale, seconds=seconds)


if __name__ == "__main__":
    if sys.argv[1:2] == ["bde"]:
        _bde(sys.argv[2])
    elif sys.argv[1:2] == ["credax"]:
        _credax(sys.argv[2])
    elif sys.argv[1:2] == ["lengths"]:
        print(json.dumps(lengths(), indent=2))
    else:
        print(json.dumps(measure(), indent=2))
