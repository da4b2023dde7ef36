"""The UCI tables of the papers: every practical method on the published splits, and on splits with a gap.

One hidden layer of 50 units (100 for protein), as Hernandez-Lobato & Adams (2015) and all columns that are
compared. Each method has one setting that is chosen from a small grid, the scale of the prior or the rate of
dropout: the setting with the highest log likelihood of a tenth of the training rows that was left out; then
it is fitted to all training rows. Test rows are seen once, at the end. Everything else is the default of the
method, with all rows in every step on tables of up to 2,000 rows and with minibatches of 128 rows beyond, at
least 40 epochs.

Of the rows named *wider choice*, more is chosen by the same held-out rows, one thing after the other: for
dropout whether the rate is 0.001; whether the noise is the same for all rows or predicted for each; whether a
fit has four times as many steps; and, if the noise is the same for all rows, by which factor it is multiplied
after the fit. Such a row begins with the choice that is stored for the method without it. *Noise chosen* is
the one of the two rows of ``DeepEnsemble`` whose best setting predicts the held-out rows better, on each split.

On the splits of Foong et al. (2019) the middle third of a column is left out of the training rows. There, the
epistemic standard deviation must be larger in the gap than at training rows that were held out at random;
``ratio`` is the ratio of its root mean squares.

Run as ``python -m benchmarks uci``, with ``--tables``, ``--methods``, ``--splits`` and ``--gaps`` for a part
of it. Each cell is stored as it is measured, and what is stored is not measured again; ``--again METHOD``
measures one method anew, and ``--part 2/10`` is the part of one of ten processes.
``CREDAX_DATA`` is the folder that contains ``uci/``.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.quality.data import TABLES, held_out, split, table
from benchmarks.quality.goals import NOISE_CHOSEN, WIDER

NAME = "uci"
OWN_PAGE = page.PAGE
LEVEL = 0.9
FEW_ROWS, BATCH, EPOCHS, LONGER = 2_000, 128, 40, 4
SCALES = (0.3, 1.0, 3.0)
"""The grid of the scale of the prior: a weight's standard deviation, times the square root of its fan-in."""
FACTORS = (0.5, 0.7, 1.4)
"""Those of the noise that are tried in a wider choice."""


# -- the methods ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A method and its grid.

    Attributes:
      grid: the settings among which one is chosen.
      model: prior and likelihood of a setting.
      method: the method of a setting.
      largest: the most rows of the tables on which it runs.
      further: the settings that a wider choice adds to the grid.
    """

    grid: tuple[float, ...]
    model: Callable[[float], tuple[Any, Any]]
    method: Callable[[float], cx.inference.Method]
    largest: float = np.inf
    further: tuple[float, ...] = ()


class Choice(NamedTuple):
    """What is chosen by held-out rows."""

    setting: float
    each_row: bool = False  # whether the noise is predicted for each row
    longer: int = 1  # the factor of the number of steps
    noise: float = 1.0  # the factor of the noise after the fit

    def __str__(self) -> str:
        each = ", noise of rows" if self.each_row else ""
        longer = f", {self.longer} x steps" if self.longer != 1 else ""
        noise = f", {self.noise} x noise" if self.noise != 1 else ""
        return f"{self.setting}{each}{longer}{noise}"


def _fan_in(scale: float) -> tuple[Any, Any]:
    return cx.priors.FanInNormal(scale), cx.likelihoods.Gaussian(None)


def _of_scale(method: cx.inference.Method, largest: float = np.inf, grid=SCALES) -> Case:
    return Case(grid, _fan_in, lambda _: method, largest)


CASES: dict[str, Case] = {
    "MAP": _of_scale(cx.MAP()),
    "MCDropout": Case(
        (0.005, 0.01, 0.05, 0.1),
        lambda _: _fan_in(1.0),
        lambda rate: cx.MCDropout(rate=rate),
        further=(0.001,),
    ),
    "MCDropout, default": _of_scale(cx.MCDropout(), grid=(1.0,)),
    "BayesByBackprop": _of_scale(cx.BayesByBackprop(estimator="local")),
    "IVON": _of_scale(cx.IVON()),
    "DeepEnsemble": _of_scale(cx.DeepEnsemble()),
    "DeepEnsemble, noise of rows": Case(
        SCALES,
        lambda scale: (cx.priors.FanInNormal(scale), cx.likelihoods.Heteroscedastic()),
        lambda _: cx.DeepEnsemble(),
    ),
    "CrossFitEnsemble, noise of rows": Case(
        (1.0,),
        lambda scale: (cx.priors.FanInNormal(scale), cx.likelihoods.Heteroscedastic()),
        lambda _: cx.CrossFitEnsemble(),
    ),
    "SWAG": _of_scale(cx.SWAG()),
    "Laplace": _of_scale(cx.Laplace()),
    "SGHMC": _of_scale(cx.SGHMC(), FEW_ROWS),
    "MicrocanonicalEnsemble": _of_scale(cx.MicrocanonicalEnsemble()),
    "HMC": _of_scale(cx.HMC(), FEW_ROWS, grid=(1.0, 3.0)),
}
for _label in ("BayesByBackprop", "MCDropout", "DeepEnsemble"):
    CASES[_label + WIDER] = CASES[_label]
CASES["DeepEnsemble" + NOISE_CHOSEN] = CASES["DeepEnsemble"]


def fitted(case: Case, choice: Choice, x: np.ndarray, y: np.ndarray, units: int) -> cx.Posterior:
    """The posterior of a method with a setting."""
    prior, likelihood = case.model(choice.setting)
    if choice.each_row:
        likelihood = cx.likelihoods.Heteroscedastic()
    model = cx.Model(cx.networks.mlp([units]), prior, likelihood, standardise=True)
    method: Any = case.method(choice.setting)
    if len(y) > FEW_ROWS and any(f.name == "batch_size" for f in dataclasses.fields(method)):
        steps = max(method.num_steps, EPOCHS * (len(y) // BATCH))
        method = dataclasses.replace(method, batch_size=BATCH, num_steps=steps)
    if choice.longer != 1:
        method = dataclasses.replace(method, num_steps=choice.longer * method.num_steps)
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        posterior = cx.fit(model, (x, y), method, key=0, progress=False)
    return posterior if choice.noise == 1 else with_noise(posterior, choice.noise)


def with_noise(posterior: cx.Posterior, factor: float) -> cx.Posterior:
    """The posterior with its learned noise, one scale for all rows, multiplied by a factor."""
    approximation: Any = posterior.approximation
    name = "mean" if hasattr(approximation, "rho") else "params"
    params = getattr(approximation, name)
    scale = params["likelihood"]["log_scale"]
    moved = {"log_scale": scale + np.asarray(np.log(factor), scale.dtype)}
    changed = {name: {**params, "likelihood": {**params["likelihood"], **moved}}}
    return dataclasses.replace(
        posterior, approximation=dataclasses.replace(approximation, **changed)
    )


def scores(posterior: cx.Posterior, x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """RMSE and mean log likelihood in the units of y, and the coverage of the central 90 % intervals."""
    found = posterior.predict(x)
    lower, upper = found.interval(LEVEL)
    return {
        "log_likelihood": float(np.mean(found.log_prob(y), dtype=np.float64)),
        "rmse": float(np.sqrt(np.mean((np.asarray(found.mean, np.float64) - y) ** 2))),
        "coverage": float(np.mean((lower <= y) & (y <= upper))),
    }


def _units(name: str) -> int:
    return 100 if name.startswith("protein") else 50


def chosen(case: Case, name: str, x, y, out) -> tuple[float, dict[str, float], Any]:
    """The setting with the best held-out log likelihood, that of each setting, and the best posterior."""
    tried, best = {}, None
    for setting in case.grid:
        posterior = fitted(case, Choice(setting), x[~out], y[~out], _units(name))
        value = scores(posterior, x[out], y[out])["log_likelihood"]
        tried[str(setting)] = value
        if best is None or value > best[0]:
            best = value, setting, posterior
    assert best is not None
    return best[1], tried, best[2]


def on_split(label: str, name: str, number: int) -> dict[str, Any]:
    """The figures of a method on a published split."""
    if label.endswith(WIDER):
        return _wider(label.removesuffix(WIDER), name, number)
    if label.endswith(NOISE_CHOSEN):
        return _noise_chosen(label.removesuffix(NOISE_CHOSEN), name, number)
    case, began = CASES[label], time.perf_counter()
    x, y, x_test, y_test = split(name, number)
    setting, tried = case.grid[0], {}
    if len(case.grid) > 1:
        setting, tried, _ = chosen(case, name, x, y, held_out(len(y), number))
    posterior = fitted(case, Choice(setting), x, y, _units(name))
    seconds = time.perf_counter() - began
    return {**scores(posterior, x_test, y_test), "setting": setting, "held_out": tried} | {
        "seconds": seconds
    }


def _stored(label: str, name: str, number: int) -> dict[str, Any]:
    """The figures of a method on a split, which are measured if they are missing."""
    keys = ("splits", name, label, str(number))
    return store.cell(NAME, keys, lambda: _attempt(on_split, label, name, number))


def _noise_chosen(label: str, name: str, number: int) -> dict[str, Any]:
    """The figures with one noise or with a noise for each row, whichever is better on the held-out rows."""
    found = {
        kind: _stored(label + end, name, number)
        for kind, end in (("one noise", ""), ("noise of rows", ", noise of rows"))
    }
    found = {kind: cell for kind, cell in found.items() if "failed" not in cell}
    if not found:
        return {"failed": "with one noise, and with a noise for each row"}
    held = {kind: max(cell["held_out"].values()) for kind, cell in found.items()}
    kind = max(held, key=lambda kind: held[kind])
    return found[kind] | {"setting": f"{found[kind]['setting']}, {kind}", "held_out": held}


def _wider(label: str, name: str, number: int) -> dict[str, Any]:
    """The same, with more that is chosen, one thing after the other."""
    before = _stored(label, name, number)
    if "failed" in before:
        return before
    case, began = CASES[label], time.perf_counter()
    x, y, x_test, y_test = split(name, number)
    out, tried = held_out(len(y), number), dict(before["held_out"])
    first = best = Choice(before["setting"])
    held: dict[Choice, cx.Posterior] = {}

    def consider(other: Choice, posterior: cx.Posterior | None = None) -> None:
        nonlocal best
        try:
            posterior = posterior or fitted(case, other, x[~out], y[~out], _units(name))
        except cx.DivergedError:
            return  # it cannot be chosen
        held[other] = posterior
        tried[str(other)] = scores(posterior, x[out], y[out])["log_likelihood"]
        if tried[str(other)] > tried[str(best)]:
            best = other

    for setting in case.further:
        consider(best._replace(setting=setting))
    consider(best._replace(each_row=True))
    consider(best._replace(longer=LONGER))
    if not best.each_row:
        usual = best
        fit = held.get(usual) or fitted(case, usual, x[~out], y[~out], _units(name))
        for factor in FACTORS:
            consider(usual._replace(noise=factor), with_noise(fit, factor))
    found = {key: before[key] for key in ("log_likelihood", "rmse", "coverage")}
    if best != first:
        found = scores(fitted(case, best, x, y, _units(name)), x_test, y_test)
    seconds = before["seconds"] + time.perf_counter() - began
    return found | {"setting": str(best), "held_out": tried, "seconds": seconds}


def on_gap(label: str, name: str, column: int) -> dict[str, Any]:
    """The figures of a method where the middle third of a column was left out."""
    case = CASES[label]
    x, y, x_gap, y_gap = split(name, column, "gap_mask")
    out = held_out(len(y), column)
    setting, _, posterior = chosen(case, name, x, y, out)
    inside, gap = (
        float(np.sqrt(np.mean(posterior.predict(rows).epistemic))) for rows in (x[out], x_gap)
    )
    ratio = gap / inside if inside > 0 else float("nan")
    found = {"ratio": ratio, "setting": setting}
    return found | {"in the gap": scores(posterior, x_gap, y_gap)}


# -- all cells --------------------------------------------------------------------------------------


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks uci")
    parser.add_argument("--tables", nargs="+", choices=TABLES, metavar="TABLE", default=TABLES)
    parser.add_argument("--methods", nargs="+", choices=list(CASES), metavar="METHOD")
    parser.add_argument("--splits", type=int, default=20, help="how many; by default all 20")
    parser.add_argument("--gaps", type=int, default=0, help="how many columns; by default none")
    parser.add_argument(
        "--part", default="0/1", help="of these cells, e.g. 2/10: the part of one of ten processes"
    )
    parser.add_argument("--again", choices=list(CASES), metavar="METHOD", help="measure it anew")
    return vars(parser.parse_args(arguments))


def measure(
    tables: Any = TABLES,
    methods: Any = None,
    splits: int = 20,
    gaps: int = 0,
    again: str | None = None,
    part: str = "0/1",
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    if again:
        store.forget(NAME, lambda keys: keys[2] != again or keys[1] not in tables, depth=4)
    this, parts = map(int, part.split("/"))
    for kind, name, label, number in list(_cells(tables, methods, splits, gaps))[this::parts]:
        measure = on_split if kind == "splits" else on_gap
        keys = (kind, name, label, str(number))
        store.cell(NAME, keys, lambda: _attempt(measure, label, name, number))  # noqa: B023
    return store.figures(NAME)


def _cells(tables: Any, methods: Any, splits: int, gaps: int) -> Iterator[tuple]:
    """The kind, table, method and number of each cell; first the first split of every table, and so on."""
    stored = {name: table(name) for name in tables}
    for kind, mask, most in (("splits", "test_mask", splits), ("gaps", "gap_mask", gaps)):
        for number in range(most):
            for name, whole in stored.items():
                if number >= len(whole[mask]):
                    continue
                for label in methods or CASES:
                    if len(whole["y"]) <= CASES[label].largest:
                        yield kind, name, label, number


def _attempt(function: Any, *arguments: Any) -> dict[str, Any]:
    """The figures, or why there are none."""
    try:
        return function(*arguments)
    except (cx.CredaxError, ArithmeticError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
