"""Contextual bandits: to eat a mushroom or to leave it (Blundell et al., 2015, section 5.3).

Three agents learn which mushrooms are edible from the rewards of their own actions. Thompson sampling
explores by acting on samples from the posterior; the greedy agent acts on a point estimate; the
epsilon-greedy agent also takes a random action 5 % of the time. The figure shows their cumulative regret.

    python examples/bandits.py [--data agaricus-lepiota.data.gz] [--steps 4000] [--keys 2] [--out docs/pictures]

The data is the UCI file agaricus-lepiota.data, plain or compressed. Without --data, it is looked for as
mushroom/agaricus-lepiota.data.gz in the folder named by the environment variable CREDAX_DATA. If it is not
found, artificial mushrooms are used.
"""

import argparse
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx
from credax.decisions import bandits

AGENTS = {
    "Thompson sampling, Bayes by Backprop": {
        "method": cx.BayesByBackprop(learning_rate=2e-3, estimator="local"),
        "draws": 2,
    },
    "greedy": {"method": cx.MAP(learning_rate=1e-3)},
    "5 % greedy": {"method": cx.MAP(learning_rate=1e-3), "epsilon": 0.05},
}
COLOURS = ("#1f3b73", "#c0504d", "#e0a33a")


def artificial_mushrooms(rows: int = 2_000, features: int = 20, seed: int = 0) -> bandits.Bandit:
    """Mushrooms with binary features, half of them poisonous by a nonlinear rule."""
    rng = np.random.default_rng(seed)
    x = rng.integers(2, size=(rows, features)).astype(float)
    hidden = np.maximum((2 * x - 1) @ rng.normal(size=(features, 8)), 0) @ rng.normal(size=8)
    poisonous = hidden > np.median(hidden)
    # The possible rewards of each action, (mushrooms, actions, values): leaving gives 0. Eating gives 5 if the
    # mushroom is edible, and 5 or -35 with equal probability if it is poisonous.
    rewards = np.zeros((rows, 2, 2))
    rewards[:, 1] = 5.0
    rewards[poisonous, 1] = 5.0, -35.0
    return bandits.Bandit(x, rewards)


def load_bandit(path: Path | None) -> bandits.Bandit:
    """The UCI mushrooms if the file is found, else artificial ones."""
    folder = os.environ.get("CREDAX_DATA")
    if path is None and folder is not None:
        path = Path(folder) / "mushroom" / "agaricus-lepiota.data.gz"
    if path is not None and path.exists():
        return bandits.mushrooms(path)
    print(f"No mushrooms at {path} (give --data or set CREDAX_DATA): these are artificial.")
    return artificial_mushrooms()


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(description="Bandit agents on mushrooms.")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100, 100])
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    # The model predicts the reward of an action in a context; the inputs are both of them together.
    bandit = load_bandit(options.data)
    model = cx.Model(
        cx.networks.mlp(options.hidden),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Gaussian(2.0),
    )

    # Each agent plays once for every key: the regret has one row per key, one column per mushroom.
    regrets = {}
    settings = {"num_steps": options.steps, "updates": options.updates, "progress": False}
    for name, agent in AGENTS.items():
        plays = [
            bandits.play(bandit, model, key=key, **settings, **agent) for key in range(options.keys)
        ]
        regrets[name] = np.array([play.regret for play in plays])
        pace = options.steps / np.mean([play.seconds for play in plays])
        print(f"{name}: regret {regrets[name][:, -1].mean():,.0f}, {pace:,.0f} steps per second")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(regrets, options.out / "bandits.png")
    return regrets


def draw(regrets: dict[str, np.ndarray], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for (name, regret), colour in zip(regrets.items(), COLOURS, strict=True):
        mushrooms = np.arange(1, regret.shape[1] + 1)
        axes.plot(mushrooms, regret.T, color=colour, linewidth=0.8, alpha=0.4)
        axes.plot(mushrooms, regret.mean(0), color=colour, linewidth=2, label=name)
    axes.set(xlabel="mushrooms", ylabel="cumulative regret", xlim=(0, None), ylim=(0, None))
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
