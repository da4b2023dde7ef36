"""The mushroom bandit of Blundell et al. (2015): the regret of Thompson sampling by several posteriors.

An agent meets a mushroom and eats it or not: an edible one is worth 5, a poisonous one -35 or 5 with equal
probability, and leaving it 0. The protocol is that of the paper: a network with two layers of 100 units whose
inputs are a mushroom and an action, a buffer of the last 4,096 rows, 64 minibatches of 64 rows after every
mushroom, two weight samples averaged for each action (one for ensembles), and the mean over five runs. The
greedy agents act by a point estimate, some of them at random with a probability of 1 % or 5 %. The agent by
``Laplace`` has a posterior of its last layer, which is fitted to the buffer after every 500 mushrooms.

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

_RISE = 4_096 * 64
"""The number of steps until the buffer is full. While the weight of the KL rises over them, each row counts as
much against the KL as a row of a full buffer; with the full weight and few rows, the KL switches units off."""
_GREEDY = cx.MAP(learning_rate=1e-3)
_BAYES = cx.BayesByBackprop(learning_rate=1e-3, kl_annealing=_RISE)
AGENTS: dict[str, dict[str, Any]] = {
    "Bayes by Backprop": {"method": _BAYES, "draws": 2},
    "IVON": {"method": cx.IVON(learning_rate=0.1, kl_annealing=0), "draws": 2},
    "DeepEnsemble": {"method": cx.DeepEnsemble(members=5, learning_rate=1e-3, random_prior=True)},
    "Laplace, last layer": {
        "method": cx.Laplace(structure="last_layer", batch_size=64, learning_rate=1e-3),
        "refit": 500,
    },
    "greedy": {"method": _GREEDY},
    "1 % greedy": {"method": _GREEDY, "epsilon": 0.01},
    "5 % greedy": {"method": _GREEDY, "epsilon": 0.05},
}
PRIOR, NOISE = cx.priors.Normal(1.0), 2.0
_LOCAL = dataclasses.replace(_BAYES, estimator="local")
VARIANTS: dict[str, dict[str, Any]] = {
    f"Bayes by Backprop, {name}": {"draws": 2, **changes}
    for name, changes in {
        "local": {"method": _LOCAL},
        "prior 0.3": {"method": _LOCAL, "prior": cx.priors.Normal(0.3)},
        "prior 0.1": {"method": _LOCAL, "prior": cx.priors.Normal(0.1)},
        "noise 10": {"method": _LOCAL, "noise": 10.0},
        "noise 0.5": {"method": _LOCAL, "noise": 0.5},
        "prior 0.3, noise 10": {
            "method": _LOCAL,
            "prior": cx.priors.Normal(0.3),
            "noise": 10.0,
        },
        "prior of the fan-in": {"method": _LOCAL, "prior": cx.priors.FanInNormal(2.0)},
        "mixture": {
            "method": _LOCAL,
            "prior": cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)),
        },
        "mixture, noise 0.5": {
            "method": _LOCAL,
            "prior": cx.priors.ScaleMixture(pi=0.5, sigma1=1.0, sigma2=math.exp(-6)),
            "noise": 0.5,
        },
        "rate 3e-4": {"method": dataclasses.replace(_LOCAL, learning_rate=3e-4)},
        "initial sigma 0.1": {"method": dataclasses.replace(_LOCAL, initial_scale=0.1)},
        "KL times 0.1": {"method": dataclasses.replace(_LOCAL, temperature=0.1)},
    }.items()
}
"""Other settings of Bayes by Backprop, which are compared in runs with keys of their own."""


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
    return {
        "final": float(play.regret[-1]),
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
    parser.add_argument("--updates", type=int, default=64, help="minibatches after each mushroom")
    return vars(parser.parse_args(arguments))


def measure(
    agents: Any = None, steps: int = 50_000, runs: int = 5, updates: int = 64, keys: Any = None
) -> dict:
    """The stored figures, after those that are missing have been measured and stored."""
    for run in keys or range(runs):
        for agent in agents or AGENTS:
            name = TRIALS if agent in VARIANTS else NAME
            place = (f"{steps} steps, {updates} updates", agent, str(run))
            store.cell(name, place, lambda: one(agent, steps, updates, run))  # noqa: B023
    return store.figures(NAME)


def write_page(figures: dict[str, Any]) -> None:
    """Draw the page again from all that is stored."""
    page.write()
