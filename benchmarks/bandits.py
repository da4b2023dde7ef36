"""The mushroom bandit of Blundell et al. (2015): regret compared with the paper, and interactions per second.

The protocol is that of the paper: a network with two layers of 100 units whose inputs are a mushroom and an
action, a buffer of the last 4,096 rows, 64 minibatches of 64 rows after every mushroom, two weight samples
averaged for each action, and the mean over several runs. The paper's figures are read off its figure 6, to
about 3 %.

Run as ``python -m benchmarks bandits``. ``CREDAX_DATA`` is the folder that contains
``mushroom/agaricus-lepiota.data.gz``. ``BANDIT_STEPS``, ``BANDIT_UPDATES`` and ``BANDIT_RUNS`` shorten the
runs.
"""

import json
import os
from pathlib import Path

import numpy as np

import credax as cx
from credax.decisions import bandits

PAPER = {
    "bayes_by_backprop": {10_000: 3_800, 50_000: 5_700},
    "greedy": {10_000: 4_800, 50_000: 8_100},
}
AGENTS = {
    "bayes_by_backprop": {
        "method": cx.BayesByBackprop(learning_rate=2e-3, estimator="local"),
        "draws": 2,
    },
    "greedy": {"method": cx.MAP(learning_rate=1e-3)},
}


def measure(steps: int | None = None, updates: int | None = None, runs: int | None = None) -> dict:
    """The mean regret and its standard error after 10,000 and 50,000 mushrooms, and the paper's regret."""
    steps = steps or int(os.environ.get("BANDIT_STEPS", "50000"))
    updates = updates or int(os.environ.get("BANDIT_UPDATES", "64"))
    runs = runs or int(os.environ.get("BANDIT_RUNS", "5"))
    folder = Path(os.environ.get("CREDAX_DATA", "../shared/data"))
    bandit = bandits.mushrooms(folder / "mushroom" / "agaricus-lepiota.data.gz")
    model = cx.Model(
        cx.networks.mlp([100, 100]), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(2.0)
    )
    figures: dict = {"steps": steps, "updates": updates, "runs": runs}
    for name, agent in AGENTS.items():
        plays = [
            bandits.play(
                bandit, model, num_steps=steps, updates=updates, key=k, progress=False, **agent
            )
            for k in range(runs)
        ]
        figures[name] = _figures(plays, PAPER[name])
    # The speed of the loop itself, with so little learning that its cost is small.
    light = {"num_steps": min(steps, 10_000), "updates": 1, "batch_size": 16, "progress": False}
    for name, agent in AGENTS.items():
        play = bandits.play(bandit, model, **light, **agent)
        figures[name]["light_steps_per_second"] = light["num_steps"] / play.seconds
    return figures


def _figures(plays: list[bandits.Play], paper: dict[int, int]) -> dict:
    regrets = np.array([play.regret for play in plays])
    figures: dict = {}
    for at in sorted({*paper, regrets.shape[1]}):
        if at > regrets.shape[1]:
            continue
        values = regrets[:, at - 1]
        figures[f"regret_at_{at}"] = float(values.mean())
        if len(values) > 1:
            figures[f"regret_at_{at}_se"] = float(values.std(ddof=1) / np.sqrt(len(values)))
        if at in paper:
            figures[f"paper_at_{at}"] = paper[at]
    figures["steps_per_second"] = float(
        np.mean([regrets.shape[1] / play.seconds for play in plays])
    )
    return figures


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
