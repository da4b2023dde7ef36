"""How the cost of a fit grows: with the rows, the weights, the replicas and the draws.

Each curve varies one size and holds the others. ``slope`` is that of the logarithm of the time against the
logarithm of the size, by least squares over the larger half of the sizes, and ``theory`` is what counting
operations gives: a step on all rows costs as much per row and per weight, replicas on one device as much each;
keeping draws costs a step nothing that grows with their number, and a prediction averages over each of them.
Small sizes cost more than the line says, because a step has a fixed cost. Times are processor time, which a
busy machine hardly changes, without compilation: medians of fits that alternate between the sizes. Run as
``python -m benchmarks growth``.

![Time against size, on logarithmic axes, with the slope that theory gives](pictures/growth.png)
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import credax as cx

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "growth.png"


class Curve(NamedTuple):
    """One curve: what is varied, its sizes, a function that times one size, and the slope of theory."""

    axis: str
    timed: str
    sizes: tuple[int, ...]
    timer: Callable[[int], Callable[[], float]]
    theory: float


def _model(width: int = 64) -> cx.Model:
    network = cx.networks.mlp([width, width], activation="tanh")
    return cx.Model(network, likelihood=cx.likelihoods.Gaussian(0.5))


def _table(rows: int, features: int = 16) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((rows, features), np.float32)
    return x, x[:, 0] + 0.5 * generator.standard_normal(rows, np.float32)


def _step(model: cx.Model, data: Any, method: Any) -> Callable[[], float]:
    """The milliseconds of processor time of a step of a fit, between its first and its last chunk."""

    def timed() -> float:
        seen: list[tuple[int, float]] = []
        note = lambda event: seen.append((event.step, time.process_time()))  # noqa: E731
        cx.fit(
            model, data, method, progress=False, callbacks=note, chunk_steps=method.num_steps // 4
        )
        (first, began), (last, ended) = seen[0], seen[-1]
        return 1e3 * (ended - began) / (last - first)

    return timed


def _with_rows(rows: int) -> Callable[[], float]:
    return _step(_model(), _table(rows), cx.MAP(num_steps=max(16, 100_000 // rows)))


def _with_weights(width: int) -> Callable[[], float]:
    steps = max(16, 2_000_000 // width**2)
    return _step(_model(width), _table(256), cx.MAP(num_steps=steps, batch_size=128))


def _with_replicas(members: int) -> Callable[[], float]:
    method = cx.DeepEnsemble(members, num_steps=40, batch_size=256)
    return _step(_model(128), _table(512), method)


def _with_kept(draws: int) -> Callable[[], float]:
    method = cx.SGLD(chains=2, num_warmup=10, num_draws=draws, batch_size=64)
    return _step(_model(32), _table(512), method)


def _with_averaged(draws: int) -> Callable[[], float]:
    method = cx.SGLD(chains=1, num_warmup=10, num_draws=draws, batch_size=64)
    x, _ = data = _table(2048)
    posterior = cx.fit(_model(), data, method, progress=False)

    def timed() -> float:
        began = time.process_time()
        posterior.predict(x).mean  # noqa: B018
        return 1e3 * (time.process_time() - began)

    return timed


CURVES = {
    "rows": Curve("rows", "a step on all rows", (1_024, 4_096, 16_384), _with_rows, 1.0),
    "weights": Curve("width", "a step", (128, 256, 512, 1_024), _with_weights, 2.0),
    "replicas": Curve("members", "a step of all", (2, 4, 8, 16), _with_replicas, 1.0),
    "draws kept": Curve("draws", "a step", (250, 1_000, 2_000), _with_kept, 0.0),
    "draws averaged": Curve("draws", "a prediction", (64, 256, 1_024), _with_averaged, 1.0),
}


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks growth")
    parser.add_argument("--curves", nargs="*", default=list(CURVES), choices=list(CURVES))
    parser.add_argument("--repeats", type=int, default=3)
    return vars(parser.parse_args(arguments))


def measure(curves: list[str] | None = None, repeats: int = 3) -> dict:
    """The milliseconds at each size of each curve, and the slope."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", cx.PosteriorWarning)
        for name in curves or CURVES:
            curve = CURVES[name]
            timers = {size: curve.timer(size) for size in curve.sizes}
            times: dict[int, list[float]] = {size: [] for size in curve.sizes}
            for timer in timers.values():
                timer()  # which compiles
            for _ in range(repeats):
                for size, timer in timers.items():
                    times[size].append(timer())
            medians = {size: statistics.median(values) for size, values in times.items()}
            found[name] = {
                "slope": slope(medians),
                "theory": curve.theory,
                **{f"ms_with_{size}_{curve.axis}": value for size, value in medians.items()},
            }
            print(name, found[name], flush=True)
    draw(found)
    return found


def slope(medians: dict[int, float]) -> float:
    """The slope of log time against log size over the larger half of the sizes.

    >>> round(slope({1: 5.0, 2: 5.0, 4: 4.0, 8: 8.0, 16: 16.0}), 6)
    1.0
    """
    larger = sorted(medians)[len(medians) // 2 :]
    return float(np.polyfit(np.log(larger), np.log([medians[size] for size in larger]), 1)[0])


def draw(found: dict[str, Any]) -> None:
    """One picture with a panel for each curve; the dashed line has the slope of theory."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(
        1, len(found), figsize=(3.2 * len(found), 3), layout="constrained"
    )
    for panel, (name, figures) in zip(np.atleast_1d(panels), found.items(), strict=True):
        curve = CURVES[name]
        sizes = np.array(curve.sizes, float)
        times = np.array([figures[f"ms_with_{size}_{curve.axis}"] for size in curve.sizes])
        panel.loglog(sizes, times, "o-")
        panel.loglog(sizes, times[-1] * (sizes / sizes[-1]) ** curve.theory, "--", color="grey")
        panel.set_title(
            f"{name}: slope {figures['slope']:.2f}, theory {curve.theory:g}", fontsize=9
        )
        panel.set_xlabel(curve.axis)
        panel.set_ylabel(f"ms for {curve.timed}")
        low, high = times.min(), times.max()
        panel.set_ylim(low / 3, high * 3)
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
