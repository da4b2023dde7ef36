"""The mushroom bandit of Blundell et al. (2015): the regret of Thompson sampling by several posteriors.

An agent meets a mushroom and eats it or not: an edible one is worth 5, a poisonous one -35 or 5 with equal
probability, and leaving it 0. The protocol is that of the paper: a network with two layers of 100 units whose
inputs are a mushroom and an action, a buffer of the last 4,096 rows, 64 minibatches of 64 rows after every
mushroom, two weight samples averaged for each action (one for ensembles), and the mean over five runs. The
greedy agents act by a point estimate, some of them at random with a probability of 1 % or 5 %. The agent by
``Laplace`` has a posterior of its last layer, which is fitted to the buffer after every 500 mushrooms.

Settings are compared in shorter runs with keys of their own (``--variant 3 --steps 10000 --keys 100``).

Run as ``python -m benchmarks bandit``, with ``--agents``, ``--steps``, ``--runs`` and ``--updates`` for a
part of it. Each run is stored as it ends, and what is stored is not played again. ``CREDAX_DATA`` is the
folder that contains ``mushroom/``.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import warnings
from typing import Any

import numpy as np

import credax as cx
from benchmarks.quality import page, store
from benchmarks.quality.data import folder
from credax.decisions import bandits

NAME, TRIALS = "bandit", "bandit_trials"
OWN_PAGE = page.PAGE
POINTS = 100
"""The number of points of a stored curve."""
TRIAL_KEYS = 100
"""Runs with keys from this one on are trials of settings, whose figures are not shown."""

_RISE = 4_096 * 64
"""The number of steps until the buffer is full. While the weight of the KL rises over them, each row counts as
much against the KL as a row of a full buffer; with the full weight and few rows, the KL switches units off."""


def falling(step: Any) -> Any:
    """A learning rate of 1e-3 that falls with the square of the number of mushrooms, to 1e-5 at last.

    With a constant rate, what was learned from rows that have left the buffer is soon lost again.
    """
    return 1e-5 + 1e-3 / (1 + (step / 64_000) ** 2)


_GREEDY = cx.MAP(learning_rate=1e-3)
_BAYES = cx.BayesByBackprop(learning_rate=1e-3, kl_annealing=_RISE)
PRIOR, NOISE = cx.priors.Normal(1.0), 2.0
"""Those of agents that name no others."""


def _mixture(first: float, second: float) -> Any:
    return cx.priors.ScaleMixture(pi=0.5, sigma1=math.exp(-first), sigma2=math.exp(-second))


def _bayes(prior: Any, noise: float, **changes: Any) -> dict[str, Any]:
    method = dataclasses.replace(_BAYES, **({"estimator": "local"} | changes))
    return {"method": method, "draws": 2, "prior": prior, "noise": noise}


AGENTS: dict[str, dict[str, Any]] = {
    "Bayes by Backprop": {
        **_bayes(_mixture(1, 6), 5.0, estimator="weight", learning_rate=falling),
        "count_forgotten": True,
    },
    "Bayes by Backprop, constant rate": _bayes(_mixture(1, 6), 5.0),
    "Bayes by Backprop, normal prior": {"method": _BAYES, "draws": 2},
    "IVON": {"method": cx.IVON(learning_rate=0.1, kl_annealing=0), "draws": 2},
    "DeepEnsemble": {"method": cx.DeepEnsemble(members=5, learning_rate=1e-3, random_prior=True)},
    "Laplace, last layer": {
        "method": cx.Laplace(structure="last_layer", batch_size=64, learning_rate=1e-3),
        "refit": 500,
    },
    "greedy": {"method": _GREEDY},
    "greedy, falling rate": {"method": cx.MAP(learning_rate=falling)},
    "1 % greedy": {"method": _GREEDY, "epsilon": 0.01},
    "5 % greedy": {"method": _GREEDY, "epsilon": 0.05},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "normal, noise 2": _bayes(PRIOR, 2.0),
    "normal, noise 0.5": _bayes(PRIOR, 0.5),
    "mixture 0 6, noise 5": _bayes(_mixture(0, 6), 5.0),
    "mixture 1 6, noise 0.5": _bayes(_mixture(1, 6), 0.5),
    "mixture 1 6, noise 2": _bayes(_mixture(1, 6), 2.0),
    "mixture 1 6, noise 5": _bayes(_mixture(1, 6), 5.0),
    "mixture 1 6, noise 10": _bayes(_mixture(1, 6), 10.0),
    "mixture 2 6, noise 5": _bayes(_mixture(2, 6), 5.0),
    "mixture 1 6, noise 5, rate 3e-4": _bayes(_mixture(1, 6), 5.0, learning_rate=3e-4),
    "mixture 1 6, noise 5, rate 3e-3": _bayes(_mixture(1, 6), 5.0, learning_rate=3e-3),
    "mixture 1 6, noise 5, sigma 0.1": _bayes(_mixture(1, 6), 5.0, initial_scale=0.1),
    "mixture 1 6, noise 5, cold": _bayes(_mixture(1, 6), 5.0, temperature=0.1),
    "mixture 1 6, noise 5, shared draws, all rows count": {
        **_bayes(_mixture(1, 6), 5.0, estimator="weight"),
        "count_forgotten": True,
    },
    "normal 0.05, noise 5": _bayes(cx.priors.Normal(0.05), 5.0),
    "greedy, rate 3e-4": {"method": cx.MAP(learning_rate=3e-4)},
    "greedy, prior 0.3, noise 5": {
        "method": _GREEDY,
        "prior": cx.priors.Normal(0.3),
        "noise": 5.0,
    },
}
"""Other settings of Bayes by Backprop and of the greedy agent, compared in runs with keys of their own: the
prior (of mixtures, the negative logarithms of the two standard deviations) and the noise of the rewards."""


def one(agent: str, steps: int, updates: int, run: int) -> dict[str, Any]:
    """The regret of one run, at evenly spaced steps, and the interactions per second."""
    bandit = bandits.mushrooms(folder("mushroom") / "agaricus-lepiota.data.gz")
    settings = {**(AGENTS | VARIANTS)[agent]}
    prior, noise = settings.pop("prior", PRIOR), settings.pop("noise", NOISE)
    model = cx.Model(cx.networks.mlp([100, 100]), prior, cx.likelihoods.Gaussian(noise))
    with warnings.catch_warnings(action="ignore", category=cx.PosteriorWarning):
        play = bandits.play(
            bandit,
            model,
            num_steps=steps,
            updates=updates,
            key=run,
            progress=False,
            **settings,
        )
    at = np.linspace(0, steps, POINTS + 1).astype(int)[1:]
    losses = np.diff(play.regret, prepend=0)[steps // 2 :]
    mistakes = {f"{loss:g}": int(np.sum(losses == loss)) for loss in np.unique(losses[losses > 0])}
    return {
        "final": float(play.regret[-1]),
        "mistakes in the second half, by loss": mistakes,
        "steps": at.tolist(),
        "regret": np.round(play.regret[at - 1], 1).tolist(),
        "steps_per_second": steps / play.seconds,
    }


def options(arguments: list[str]) -> dict[str, Any]:
    """The arguments of ``measure`` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bandit")
    parser.add_argument("--agents", nargs="+", choices=[*AGENTS, *VARIANTS], metavar="AGENT")
    parser.add_argument("--steps", type=int, default=50_000, help="mushrooms; by default 50,000")
    parser.add_argument("--runs", type=int, default=5, help="by default 5")
    parser.add_argument("--keys", nargs="+", type=int, help="of the runs; by default 0, 1, ...")
    parser.add_argument(
        "--variant", type=int, help=f"the number of another setting, of {len(VARIANTS)}; -1: show"
    )
    parser.add_argument("--updates", type=int, default=64, help="minibatches after each mushroom")
    return vars(parser.parse_args(arguments))


def measure(
    agents: Any = None,
    steps: int = 50_000,
    runs: int = 5,
    updates: int = 64,
    keys: Any = None,
    variant: int | None = None,
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    if variant == -1:
        _show()
        return store.figures(NAME)
    if variant is not None:
        agents = [list(VARIANTS)[variant]]
    for run in keys or range(runs):
        for agent in agents or AGENTS:
            name = NAME if run < TRIAL_KEYS else TRIALS
            place = (f"{steps} steps, {updates} updates", agent, str(run))
            store.cell(name, place, lambda: one(agent, steps, updates, run))  # noqa: B023
    return store.figures(NAME)


def _show() -> None:
    """Print the regret of the other settings, the lowest first."""
    for run, agents in store.figures(TRIALS).items():
        finals = {agent: [c["final"] for c in cells.values()] for agent, cells in agents.items()}
        for agent in sorted(finals, key=lambda agent: np.mean(finals[agent])):
            number = list(VARIANTS).index(agent) if agent in VARIANTS else None
            print(f"{run}, variant {number}, {agent}: {np.mean(finals[agent]):.0f} {finals[agent]}")


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
