"""To eat or not to eat: regret on the mushrooms of Blundell et al. (2015), section 5.3.

python examples/bandits.py [--data agaricus-lepiota.data.gz] [--steps 4000] [--keys 2] [--out docs/pictures]

The data is the UCI file agaricus-lepiota.data, plain or compressed; without --data it is looked for as
mushroom/agaricus-lepiota.data.gz in the folder CREDAX_DATA. Without it, mushrooms are made up.
"""

import argparse
import os
from pathlib import Path

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


def made_up(rows: int = 2_000, features: int = 20, seed: int = 0) -> bandits.Bandit:
    """Mushrooms of binary features, poisonous by a rule that is not linear in them."""
    rng = np.random.default_rng(seed)
    x = rng.integers(2, size=(rows, features)).astype(float)
    hidden = np.maximum((2 * x - 1) @ rng.normal(size=(features, 8)), 0) @ rng.normal(size=8)
    rewards = np.zeros((rows, 2, 2))
    rewards[:, 1] = 5.0
    rewards[hidden > np.median(hidden), 1] = 5.0, -35.0
    return bandits.Bandit(x, rewards)


def find(path: Path | None) -> bandits.Bandit:
    """The mushrooms, or others and a word about it."""
    folder = os.environ.get("CREDAX_DATA")
    if path is None and folder is not None:
        path = Path(folder) / "mushroom" / "agaricus-lepiota.data.gz"
    if path is not None and path.exists():
        return bandits.mushrooms(path)
    print(f"No mushrooms at {path} (give --data or set CREDAX_DATA): these are made up.")
    return made_up()


def regrets(bandit: bandits.Bandit, options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The regret of each agent, a row a key."""
    model = cx.Model(
        cx.networks.mlp(options.hidden),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Gaussian(2.0),
    )
    shared = {"num_steps": options.steps, "updates": options.updates, "progress": False}
    result = {}
    for name, agent in AGENTS.items():
        plays = [bandits.play(bandit, model, key=k, **shared, **agent) for k in range(options.keys)]
        result[name] = np.array([play.regret for play in plays])
        pace = options.steps / np.mean([play.seconds for play in plays])
        print(f"{name}: regret {result[name][:, -1].mean():,.0f}, {pace:,.0f} steps a second")
    return result


def draw(curves: dict[str, np.ndarray], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=True):
        steps = np.arange(1, curve.shape[1] + 1)
        axes.plot(steps, curve.T, color=colour, linewidth=0.8, alpha=0.4)
        axes.plot(steps, curve.mean(0), color=colour, linewidth=2, label=name)
    axes.set(
        xlabel="mushrooms", ylabel="cumulative regret", xlim=(0, curve.shape[1]), ylim=(0, None)
    )
    axes.legend(frameon=False, loc="upper left")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main(arguments: list[str] | None = None) -> dict[str, np.ndarray]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--updates", type=int, default=4)
    parser.add_argument("--hidden", type=int, nargs="+", default=[100, 100])
    parser.add_argument("--keys", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    curves = regrets(find(options.data), options)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(curves, options.out / "bandits.png")
    return curves


if __name__ == "__main__":
    main()
