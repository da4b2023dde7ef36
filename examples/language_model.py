"""A small language model that knows how sure it is.

A transformer of the GPT kind reads sentences of a small grammar, one character after the other, and predicts
the next character. There are few sentences, so the single best weights (MAP) learn some of them by heart, and
are too sure of the next character of new ones. An ensemble of the same transformer, and the variational
posterior of IVON, which trains one of them, are judged on the same held-out sentences: by the negative log
likelihood of a character (in nats, lower is better) and by the expected calibration error.

    python examples/language_model.py [--sentences 150] [--steps 800] [--members 4] [--out docs/pictures]
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import credax as cx

NOUNS = ["cat", "dog", "owl", "fox", "hen", "ant", "bee", "cow"]
VERBS = ["sees", "likes", "hears", "feeds", "finds"]
ADJECTIVES = ["old", "red", "shy", "big", "calm"]
LENGTH, WIDTH, HEADS, LAYERS = 32, 32, 2, 2


def sentences(count: int, seed: int) -> list[str]:
    """Random sentences such as ``the shy fox feeds a cow.``; some adjectives and articles are left out."""
    generator = np.random.default_rng(seed)

    def phrase() -> str:
        words = [generator.choice(["the", "a", "one"])]
        words += [generator.choice(ADJECTIVES)] * (generator.random() < 0.4)
        return " ".join([*words, generator.choice(NOUNS)])

    return [f"{phrase()} {generator.choice(VERBS)} {phrase()}."[:LENGTH] for _ in range(count)]


LETTERS = sorted(set("".join([*NOUNS, *VERBS, *ADJECTIVES, "the a one ."])))


def encode(lines: list[str]) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Inputs, targets and the mask of the characters: each character is predicted from those before it."""
    number = {letter: i + 1 for i, letter in enumerate(LETTERS)}  # 0 begins a sentence
    tokens = np.zeros((len(lines), LENGTH + 1), np.int32)
    seen = np.zeros((len(lines), LENGTH), bool)
    for row, line in enumerate(lines):
        tokens[row, 1 : len(line) + 1] = [number[letter] for letter in line]
        seen[row, : len(line)] = True
    inputs = {"tokens": tokens[:, :-1], "seen": seen}
    return inputs, np.where(seen, tokens[:, 1:] - 1, -1), seen


def init(key):
    """The weights of a transformer: embeddings, and attention and two dense layers in each block."""
    normal = lambda key, *shape: jax.random.normal(key, shape) / np.sqrt(shape[0])  # noqa: E731
    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))
    params = {
        "token": 0.3 * jax.random.normal(next(keys), (len(LETTERS) + 1, WIDTH)),
        "place": 0.3 * jax.random.normal(next(keys), (LENGTH, WIDTH)),
        "last": normal(next(keys), WIDTH, len(LETTERS)),
    }
    for layer in range(LAYERS):
        params[f"block_{layer}"] = {
            "attend": normal(next(keys), WIDTH, 3 * WIDTH),
            "mix": normal(next(keys), WIDTH, WIDTH),
            "widen": normal(next(keys), WIDTH, 4 * WIDTH),
            "narrow": normal(next(keys), 4 * WIDTH, WIDTH),
        }
    return params


def normalised(x):
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def apply(params, x):
    """The logits of the next character at each position, ``(rows, positions, letters)``."""
    h = params["token"][x["tokens"]] + params["place"]
    rows, length, _ = h.shape
    earlier = jnp.tril(jnp.ones((length, length), bool))
    for layer in range(LAYERS):
        block = params[f"block_{layer}"]
        parts = jnp.split(normalised(h) @ block["attend"], 3, axis=-1)
        q, k, v = (part.reshape(rows, length, HEADS, -1).swapaxes(1, 2) for part in parts)
        scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[-1]).astype(q.dtype)
        attention = jax.nn.softmax(jnp.where(earlier, scores, -1e9), axis=-1)
        h = h + (attention @ v).swapaxes(1, 2).reshape(rows, length, -1) @ block["mix"]
        h = h + jax.nn.gelu(normalised(h) @ block["widen"]) @ block["narrow"]
    return normalised(h) @ params["last"]


def main(arguments: list[str] | None = None) -> dict[str, tuple[float, float]]:
    parser = argparse.ArgumentParser(description="A language model that knows how sure it is.")
    parser.add_argument("--sentences", type=int, default=150)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("docs/pictures"))
    options = parser.parse_args(arguments)

    x, y, seen = encode(sentences(options.sentences, seed=0))
    new_x, new_y, new_seen = encode(sentences(300, seed=1))
    model = cx.Model(
        cx.networks.from_function(init, apply),
        prior=cx.priors.Normal(1.0),
        likelihood=cx.likelihoods.Categorical(num_classes=len(LETTERS)),
    )
    common = {"num_steps": options.steps, "batch_size": min(32, options.sentences)}
    methods = {
        "MAP": cx.MAP(learning_rate=3e-3, **common),
        "IVON": cx.IVON(**common),
        "DeepEnsemble": cx.DeepEnsemble(members=options.members, learning_rate=3e-3, **common),
    }
    found, reliability = {}, {}
    for name, method in methods.items():
        posterior = cx.fit(model, (x, y), method, weights=seen, progress=False)
        scores = posterior.evaluate(new_x, new_y, weights=new_seen)
        found[name] = -float(scores.log_likelihood), float(scores.ece)
        probs = posterior.predict(new_x).probs[new_seen]
        reliability[name] = probs.max(-1), probs.argmax(-1) == new_y[new_seen]
        print(f"{name:<13} NLL {-scores.log_likelihood:.3f}  ECE {float(scores.ece):.3f}")

    draw(reliability, options.out)
    return found


def draw(reliability: dict[str, tuple[np.ndarray, np.ndarray]], out: Path) -> None:
    """How often the most probable character is right, against its probability."""
    figure, axes = plt.subplots(figsize=(4.5, 4))
    edges = np.linspace(0, 1, 9)
    for name, (confidence, right) in reliability.items():
        bins = np.digitize(confidence, edges[1:-1])
        used = [b for b in range(8) if np.sum(bins == b) >= 10]
        mean = [confidence[bins == b].mean() for b in used]
        axes.plot(mean, [right[bins == b].mean() for b in used], "o-", label=name)
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    axes.set(xlabel="probability of the most probable character", ylabel="how often it is right")
    axes.legend(frameon=False)
    figure.tight_layout()
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "language_model.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
