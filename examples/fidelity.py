"""How near the predictions of quick methods are to those of a long Hamiltonian run.

python examples/fidelity.py [--steps 3000] [--draws 1000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import numpy as np

import credax as cx


def measure(steps: int, draws: int) -> dict[str, object]:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 20), rng.uniform(1, 3, 20)])[:, None]
    y = np.sin(x[:, 0]) + 0.2 * rng.normal(size=40)
    model = cx.Model(
        cx.networks.mlp([8], activation="tanh"),
        cx.priors.Normal(1.0),
        cx.likelihoods.Gaussian(0.2),
    )
    reference = cx.fit(
        model, (x, y), cx.HMC(num_warmup=draws, num_draws=draws, chains=4), progress=False
    )
    methods = {
        "MAP": cx.MAP(num_steps=steps),
        "deep ensemble": cx.DeepEnsemble(members=5, num_steps=steps),
        "Bayes by Backprop": cx.BayesByBackprop(num_steps=steps, samples=4),
        "Laplace": cx.Laplace(structure="full", num_steps=steps),
    }
    new = np.linspace(-4, 4, 81)[:, None]
    return {
        name: cx.compare_posteriors(cx.fit(model, (x, y), method, progress=False), reference, new)
        for name, method in methods.items()
    }


def draw(found: dict[str, object], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    new = np.linspace(-4, 4, 81)
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for low in (-3, 1):
        axes.axvspan(low, low + 2, color="#eeeeee", linewidth=0)
    colours = ("#c8502d", "#e0a030", "#7d9fd3", "#1f3b73")
    for (name, fidelity), colour in zip(found.items(), colours, strict=True):
        axes.plot(new, fidelity.each["total_variation"], color=colour, label=name)
    axes.set(xlabel="x (grey: where the rows of the fit are)", ylabel="total variation to HMC")
    axes.set(ylim=(0, None), xlim=(-4, 4))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> dict[str, object]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    found = measure(options.steps, options.draws)
    options.out.mkdir(parents=True, exist_ok=True)
    draw(found, options.out / "fidelity.png")
    for name, fidelity in found.items():
        print(f"\n{name}\n{fidelity}")
    return found


if __name__ == "__main__":
    main()
