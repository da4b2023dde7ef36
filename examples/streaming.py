"""Streaming: a posterior that goes on learning from a table that drifts.

Rows arrive in batches, and the relation between the columns turns a little between two of them. After each
batch the model is updated from its last posterior, with and without forgetting, or fitted again: to all rows so
far, or to the last batch alone. Each is judged by the batch that comes next.

    python examples/streaming.py [--batches 12] [--rows 200] [--steps 1000] [--forget 0.5] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import credax as cx


def make_batch(number: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows of one batch; the direction that matters turns by 0.15 radians from batch to batch."""
    rng = np.random.default_rng(number)
    x, angle = rng.normal(size=(rows, 4)), 0.15 * number
    along = x[:, 0] * np.cos(angle) + x[:, 1] * np.sin(angle)
    mean = 1.5 * np.sin(along) + np.cos(angle) * x[:, 2]
    return x, mean + 0.2 * rng.normal(size=rows)


def main(arguments: list[str] | None = None) -> dict:
    parser = argparse.ArgumentParser(description="A posterior that goes on learning.")
    parser.add_argument("--batches", type=int, default=12)
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--steps", type=int, default=1_000, help="of a fit from the beginning")
    parser.add_argument("--forget", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)
    batches = [make_batch(number, options.rows) for number in range(options.batches)]

    model = cx.Model(
        cx.networks.mlp([16]), likelihood=cx.likelihoods.Gaussian(scale=None), standardise=True
    )
    whole = cx.Laplace(structure="full", num_steps=options.steps)
    update = cx.Laplace(structure="full", num_steps=max(1, options.steps // 5))

    def refit(_, number):
        rows = tuple(np.concatenate(parts) for parts in zip(*batches[: number + 1], strict=True))
        return cx.fit(model, rows, whole, progress=False)

    def refit_last(_, number):
        return cx.fit(model, batches[number], whole, progress=False)

    def going_on(forget):
        def step(posterior, number):
            prior = posterior.as_prior(forget=forget)
            return cx.fit(model, batches[number], update, prior=prior, progress=False)

        return step

    ways = {
        "refitted to all rows": refit,
        "refitted to the last batch": refit_last,
        "updated": going_on(0.0),
        f"updated, forgetting {options.forget:g}": going_on(options.forget),
    }
    first = cx.fit(model, batches[0], whole, progress=False)
    results = {name: stream(first, step, batches) for name, step in ways.items()}
    for name, (scores, seconds) in results.items():
        print(f"{name}: log density {np.mean(scores):.3f} a row, {seconds:.2f} s of steps")

    options.out.mkdir(parents=True, exist_ok=True)
    draw(results, options.out / "streaming.png")
    return results


def stream(posterior, step, batches) -> tuple[list[float], float]:
    """The log density of each next batch, and the time of all steps, compilation left out."""
    scores, seconds = [], 0.0
    for number in range(1, len(batches) - 1):
        posterior = step(posterior, number)
        seconds += posterior.info["seconds"]
        x, y = batches[number + 1]
        scores.append(float(np.mean(posterior.predict(x).log_prob(y))))
    return scores, seconds


def draw(results: dict, path: Path) -> None:
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for name, (scores, seconds) in results.items():
        axis.plot(
            np.arange(2, len(scores) + 2), scores, marker="o", label=f"{name} ({seconds:.1f} s)"
        )
    axis.set(xlabel="batch", ylabel="log density a row, before it is learned")
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
