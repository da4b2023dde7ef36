"""Microcanonical ensembles in credax and in bde (Sommer et al., 2025), on the CPU, on the same rows.

Speed: 10 members of a network with two or four hidden layers of 16 units (four in bde's paper), 1,500 rows
and 1,000 draws per member. The time is that of a whole call, including compilation. Each library takes the
number of steps with which its quality is measured: bde those of its paper (50,000 of warm-up, then 10,000 of
which every tenth is kept), credax its default (12,000, then 4,000). The two alternate, each time in a new
process, and the medians are compared.

Quality: test log likelihood and RMSE on UCI tables with the same numbers of steps, in the units of the
target. Both libraries use a predicted noise scale, relu, a standard normal prior, and x and y standardised by
the training rows. The figures are means over three seeds, since the seed and a few test rows change the
result of a split as much as the choice of the library. The standard error of the difference is computed over
the splits.

bde needs ``sklearn-contrib-bde`` and is run by the interpreter named by ``BDE_PYTHON``. Run the benchmark as
``python -m benchmarks microcanonical_peers``. ``CREDAX_DATA`` is the folder that contains ``uci/``.
``BDE_STEPS`` gives the numbers of steps of bde on the tables as ``warmup,steps``, by default 50000,10000 as
in its paper. ``python -m benchmarks.microcanonical_peers lengths`` shows the effect of the number of steps of
credax.
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
"""Splits that were not used to choose the defaults of credax, which was done on splits 0, 1 and 8 to 12."""
MEMBERS, ROWS = 10, 1_500
HIDDEN = (16, 16)
PAPER = (50_000, 10_000)
"""Steps of warm-up and of sampling in bde's paper."""
DRAWS, THIN = 1_000, 4
"""Draws per member, and the thinning of credax; bde keeps every tenth step."""
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
    """Seconds of a whole call, including compilation; for credax also of a second call."""
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
    """Test log likelihood and RMSE on each split of each table."""
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
    """The mean log likelihood and RMSE over the runs, in the units of the target."""
    log_likelihoods = [log_likelihood(run["mean"], run["scale"], truth) for run in runs]
    errors = [np.sqrt(np.mean((run["mean"].mean(0) - truth) ** 2)) for run in runs]
    return {
        "log likelihood": float(np.mean(log_likelihoods) - np.log(scale)),
        "RMSE": float(scale * np.mean(errors)),
    }


def compared(figures: dict, table: str, splits) -> dict:
    """The mean log likelihoods over the splits, their difference and its standard error."""
    runs = [figures[f"{table}, split {split}"] for split in splits]
    here, there = np.array([[each["log likelihood"] for each in run.values()] for run in runs]).T
    error = np.std(here - there, ddof=1) / np.sqrt(len(splits))
    means = {name: float(np.mean(each)) for name, each in zip(runs[0], (here, there), strict=True)}
    difference = float(np.mean(here - there))
    return {**means, "difference": difference, "its standard error": float(error)}


def standardised(table: str, split: int):
    """Standardised training rows and test rows, and the scale of the target."""
    data = np.load(Path(os.environ.get("CREDAX_DATA", "../shared/data")) / "uci" / f"{table}.npz")
    test = data["test_mask"][split]
    x, y = data["x"], data["y"]
    centre, scale = x[~test].mean(0), x[~test].std(0)
    x = ((x - centre) / np.where(scale > 0, scale, 1)).astype(np.float32)
    centre, scale = float(y[~test].mean()), float(y[~test].std())
    y = ((y - centre) / scale).astype(np.float32)
    return x[~test], y[~test], x[test], y[test].astype(np.float64), scale


def log_likelihood(mean: np.ndarray, scale: np.ndarray, y: np.ndarray) -> float:
    """The mean over rows of the log of the mean density over draws, for arrays (draw, row)."""
    from scipy.special import logsumexp
    from scipy.stats import norm

    each = norm.logpdf(y, mean.astype(np.float64), scale.astype(np.float64))
    return float(np.mean(logsumexp(each, axis=0) - np.log(len(each))))


LENGTHS = {
    "750 + 2,250 + 2,000": {"num_warmup": 3_000, "thin": 20},
    "3,000 + 9,000 + 4,000, all weights": {"collapse": False},
    "3,000 + 9,000 + 4,000": {},
}
"""Settings by a label that gives the numbers of steps of training, tuning and sampling."""


def lengths(tables=TABLES, splits=(0, 1)) -> dict:
    """Test log likelihood for different numbers of steps, by which the defaults were chosen."""
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
    """The predicted mean and scale of every draw of bde at the inputs ``at``, and the seconds of the call."""
    found = apart("bde", x, y, at, hidden, warmup=warmup, steps=steps, seed=seed)
    return {**found, "seconds": float(found["seconds"])}


def credax(x, y, at, hidden=HIDDEN, seed=0, **settings) -> dict:
    """The same for credax, in this process."""
    import jax

    import credax as cx

    likelihood = cx.likelihoods.Heteroscedastic()
    model = cx.Model(cx.networks.mlp(hidden), cx.priors.Normal(1.0), likelihood)
    method = cx.MicrocanonicalEnsemble(members=MEMBERS, **settings)
    began = time.perf_counter()
    posterior = cx.fit(model, (x, y), method, key=seed, progress=False)
    seconds = time.perf_counter() - began
    outputs = posterior.predict(at).outputs
    mean, scale = jax.vmap(lambda out: likelihood.location_scale(out, None))(outputs)
    figures = {"mean": np.asarray(mean)[..., 0], "scale": np.asarray(scale)[..., 0]}
    return {**figures, "seconds": seconds}


def apart(library: str, x, y, at, hidden, **settings) -> dict:
    """The result of a library in a separate process, with as many devices as cores."""
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
    """The program of the separate process for credax: two calls."""
    with np.load(f"{folder}/in.npz") as given:
        given = dict(given)
    x, y, at, hidden = (given.pop(name) for name in ("x", "y", "at", "hidden"))
    settings = {name: int(value) for name, value in given.items()}
    calls = [credax(x, y, at, tuple(hidden.tolist()), **settings) for _ in range(2)]
    np.savez(f"{folder}/out.npz", **{**calls[0], "seconds": [call["seconds"] for call in calls]})


def _bde(folder: str) -> None:
    """The program of the separate process for bde: the settings of its paper except the numbers of steps."""
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
