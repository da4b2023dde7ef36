"""Fidelity: how close the predictions of fast methods are to those of a long Hamiltonian Monte Carlo run.

python examples/fidelity.py [--steps 3000] [--draws 1000] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx


def make_data() -> tuple[np.ndarray, np.ndarray]:
    """A noisy sine with a gap in the middle: 20 rows below -1 and 20 rows above 1."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-3, -1, 20), rng.uniform(1, 3, 20)])[:, None]
    return x, np.sin(x[:, 0]) + 0.2 * rng.normal(size=40)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description="Fast methods compared with HMC.")
    parser.add_argument("--steps", type=int, default=3_000)
    parser.add_argument("--draws", type=int, default=1_000)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    data = make_data()
    model = cx.Model(
        cx.networks.mlp([8], activation="tanh"),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Gaussian(0.2),
    )

    # The reference: HMC is exact in the limit of many draws.
    hmc = cx.HMC(chains=4, num_warmup=options.draws, num_draws=options.draws)
    reference = cx.fit(model, data, hmc, progress=False)

    # The methods to be judged, and their distances to the reference at 81 inputs.
    methods = {
        "MAP": cx.MAP(num_steps=options.steps),
        "deep ensemble": cx.DeepEnsemble(members=5, num_steps=options.steps),
        "Bayes by Backprop": cx.BayesByBackprop(num_steps=options.steps, samples=4),
        "Laplace": cx.Laplace(structure="full", num_steps=options.steps),
    }
    inputs = np.linspace(-4, 4, 81)
    found = {}
    for name, method in methods.items():
        posterior = cx.fit(model, data, method, progress=False)
        found[name] = cx.compare_posteriors(posterior, reference, inputs[:, None])
        print(f"\n{name}\n{found[name]}")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(inputs, found, options.out / "fidelity.png")
    return found


def draw(inputs: np.ndarray, found: dict, path: Path) -> None:
    figure, axes = plt.subplots(figsize=(8, 3.4), layout="constrained")
    for low in (-3, 1):
        axes.axvspan(low, low + 2, color="#eeeeee", linewidth=0)
    colours = ("#c8502d", "#e0a030", "#7d9fd3", "#1f3b73")
    for (name, fidelity), colour in zip(found.items(), colours, strict=True):
        axes.plot(inputs, fidelity.each["total_variation"], color=colour, label=name)
    axes.set(xlabel="x (grey: the training data)", ylabel="total variation to HMC")
    axes.set(ylim=(0, None), xlim=(-4, 4))
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
