"""Networks of five libraries: the time of a step in ``cx.fit``, and in a plain loop of their own library.

The networks are small: two ResNets on images of 16 x 16 (Flax NNX, with batch normalisation, and Flax Linen), a
convolutional network (Equinox), an LSTM (Keras) and a transformer (PyTorch) on 24 tokens. Each plain loop
trains the same network by Adam on batches of 64 rows, as the documentation of its library does: a jitted step
that is called from Python, ``keras.Model.fit``, or eager PyTorch (with one thread, since several wait for each
other on a busy machine). "MAP over plain" is the median over pairs of runs that alternate. The others are
compared with MAP in the same way, an ensemble of four with all of its members. "compile" is the time in seconds
that the first fit took to compile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import credax as cx

ROWS, BATCH, CLASSES, TOKENS, LENGTH = 512, 64, 10, 50, 24
METHODS: dict[str, Callable[[int], Any]] = {
    "MAP": lambda steps: cx.MAP(num_steps=steps, batch_size=BATCH, learning_rate=1e-3),
    "DeepEnsemble of 4": lambda steps: cx.DeepEnsemble(
        4, steps, batch_size=BATCH, learning_rate=1e-3
    ),
    "BayesByBackprop": lambda steps: cx.BayesByBackprop(
        num_steps=steps, batch_size=BATCH, learning_rate=1e-3
    ),
    "IVON": lambda steps: cx.IVON(num_steps=steps, batch_size=BATCH),
    # With a given learning rate, since a search for it would take longer than so few steps.
    "SWAG": lambda steps: cx.SWAG(
        num_steps=steps, num_warmup=steps // 2, thin=2, batch_size=BATCH, sgd_learning_rate=1e-3
    ),
}


class Case(NamedTuple):
    """A network, its data, and the plain loop of its library."""

    network: Any
    data: tuple[np.ndarray, np.ndarray]
    plain: Callable[[int], Any]  # trains for some steps


def options(arguments: list[str]) -> dict:
    parser = argparse.ArgumentParser(prog="python -m benchmarks networks")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--out", help="a file for the figures so far")
    return vars(parser.parse_args(arguments))


def measure(
    cases: list[str] | None = None,
    steps: int = 20,
    repeats: int = 3,
    methods: list[str] | None = None,
    out: str | None = None,
) -> dict:
    """The ratios and the seconds of compiling for each network, or what ended its measurement."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    chosen = {name: METHODS[name] for name in dict.fromkeys(["MAP", *(methods or METHODS)])}
    figures = {}
    for name in cases or CASES:
        try:
            figures[name] = _measured(CASES[name](), chosen, steps, repeats)
        except Exception as error:  # noqa: BLE001 - such as a library that is not installed
            figures[name] = f"{type(error).__name__}: {str(error)[:300]}"
        print(name, figures[name], flush=True)
        if out is not None:
            Path(out).write_text(json.dumps(figures, indent=2) + "\n")
    return figures


def _measured(case: Case, methods: dict[str, Any], steps: int, repeats: int) -> dict[str, Any]:
    case.plain(2)
    first = {name: _fit(case, make(steps)) for name, make in methods.items()}
    compiling = {name: info["compile_seconds"] for name, info in first.items()}
    plain, ratios = [], {name: [] for name in methods}
    for _ in range(repeats):
        began = time.perf_counter()
        case.plain(steps)
        plain.append((time.perf_counter() - began) / steps)
        each = {name: _seconds(case, make(steps)) for name, make in methods.items()}
        ratios["MAP"].append(each["MAP"] / plain[-1])
        for name in list(methods)[1:]:
            ratios[name].append(each[name] / each["MAP"])
    median = {name: round(statistics.median(values), 2) for name, values in ratios.items()}
    return {
        "plain loop, milliseconds per step": round(1e3 * statistics.median(plain), 2),
        "MAP over plain": median.pop("MAP"),
        "over MAP": median,
        "compile": {name: round(seconds, 1) for name, seconds in compiling.items()},
    }


def _seconds(case: Case, method: Any) -> float:
    info = _fit(case, method)
    return info["seconds"] / info["steps"]


def _fit(case: Case, method: Any) -> Any:
    model = cx.Model(case.network, likelihood=cx.likelihoods.Categorical(CLASSES))
    return cx.fit(model, case.data, method, progress=False).info


def _images(channels_first: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 16, 16, 3)).astype(np.float32)
    return x.transpose(0, 3, 1, 2).copy() if channels_first else x, rng.integers(CLASSES, size=ROWS)


def _sentences() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(TOKENS, size=(ROWS, LENGTH)), rng.integers(CLASSES, size=ROWS)


def _batches(data: tuple[np.ndarray, np.ndarray], steps: int) -> Iterator[tuple[Any, Any]]:
    order = np.random.default_rng(1).permutation(ROWS)
    for step in range(steps):
        rows = order[step * BATCH % ROWS : step * BATCH % ROWS + BATCH]
        yield data[0][rows], data[1][rows]


def _cross_entropy(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y).mean()


# -- one function for each library -----------------------------------------------------------------


def flax_nnx() -> Case:
    """A ResNet with batch normalisation."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width, rngs):
            self.first = nnx.Conv(width, width, (3, 3), rngs=rngs)
            self.second = nnx.Conv(width, width, (3, 3), rngs=rngs)
            self.norms = nnx.List([nnx.BatchNorm(width, rngs=rngs) for _ in range(2)])

        def __call__(self, x):
            z = nnx.relu(self.norms[0](self.first(x)))
            return nnx.relu(x + self.norms[1](self.second(z)))

    class ResNet(nnx.Module):
        def __init__(self, rngs):
            self.stem = nnx.Conv(3, 16, (3, 3), rngs=rngs)
            self.early = Block(16, rngs)
            self.down = nnx.Conv(16, 32, (3, 3), strides=2, rngs=rngs)
            self.late = Block(32, rngs)
            self.head = nnx.Linear(32, CLASSES, rngs=rngs)

        def __call__(self, x):
            return self.head(self.late(self.down(self.early(self.stem(x)))).mean((1, 2)))

    data, module = _images(), ResNet(nnx.Rngs(0))
    optimiser = nnx.Optimizer(module, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(module, optimiser, x, y):
        gradient = nnx.grad(lambda module: _cross_entropy(module(x), y))(module)
        optimiser.update(module, gradient)

    def plain(steps):
        for x, y in _batches(data, steps):
            step(module, optimiser, x, y)
        jax.block_until_ready(nnx.state(module, nnx.Param))

    return Case(cx.networks.from_flax(ResNet), data, plain)


def flax_linen() -> Case:
    """A ResNet with group normalisation."""
    from flax import linen

    class Block(linen.Module):
        width: int

        @linen.compact
        def __call__(self, x):
            z = linen.relu(linen.GroupNorm(4)(linen.Conv(self.width, (3, 3))(x)))
            return linen.relu(x + linen.GroupNorm(4)(linen.Conv(self.width, (3, 3))(z)))

    class ResNet(linen.Module):
        @linen.compact
        def __call__(self, x):
            x = Block(16)(linen.Conv(16, (3, 3))(x))
            x = Block(32)(linen.Conv(32, (3, 3), strides=2)(x))
            return linen.Dense(CLASSES)(x.mean((1, 2)))

    data, module = _images(), ResNet()
    params = module.init(jax.random.key(0), jnp.zeros((1, *data[0].shape[1:])))
    loss = lambda params, x, y: _cross_entropy(module.apply(params, x), y)  # noqa: E731
    return Case(cx.networks.from_flax(module), data, _optax_loop(loss, params, data))


def equinox() -> Case:
    """A convolutional network."""
    import equinox as eqx

    class CNN(eqx.Module):
        convolutions: list
        head: eqx.nn.Linear

        def __init__(self, key):
            keys = jax.random.split(key, 4)
            sizes = [(3, 16, 1), (16, 32, 2), (32, 32, 1)]
            self.convolutions = [
                eqx.nn.Conv2d(a, b, 3, stride=stride, padding=1, key=k)
                for (a, b, stride), k in zip(sizes, keys, strict=False)
            ]
            self.head = eqx.nn.Linear(32, CLASSES, key=keys[3])

        def __call__(self, x):
            for convolution in self.convolutions:
                x = jax.nn.relu(convolution(x))
            return self.head(x.mean((1, 2)))

    data = _images(channels_first=True)
    weights, rest = eqx.partition(CNN(jax.random.key(0)), eqx.is_array)

    def loss(weights, x, y):
        return _cross_entropy(jax.vmap(eqx.combine(weights, rest))(x), y)

    return Case(cx.networks.from_equinox(CNN), data, _optax_loop(loss, weights, data))


def _optax_loop(loss: Callable, params: Any, data: Any) -> Callable[[int], Any]:
    optimiser = optax.adam(1e-3)
    state = optimiser.init(params)

    @jax.jit
    def step(params, state, x, y):
        updates, state = optimiser.update(jax.grad(loss)(params, x, y), state)
        return optax.apply_updates(params, updates), state

    def plain(steps):
        after = params, state
        for x, y in _batches(data, steps):
            after = step(*after, x, y)
        jax.block_until_ready(after)

    return plain


def keras() -> Case:
    """An LSTM."""
    import keras

    keras.utils.set_random_seed(0)
    data, layers = _sentences(), keras.layers
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            layers.Embedding(TOKENS, 32),
            layers.LSTM(32),
            layers.Dense(CLASSES),
        ]
    )
    network = cx.networks.from_keras(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=loss)

    def plain(steps):
        rows = zip(*_batches(data, steps), strict=True)
        x, y = (np.concatenate(part) for part in rows)
        model.fit(x, y, batch_size=BATCH, epochs=1, verbose=0)

    return Case(network, data, plain)


def torch() -> Case:
    """A transformer of two layers."""
    import torch

    class Transformer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(TOKENS, 32)
            layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
            self.encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = torch.nn.Linear(32, CLASSES)

        def forward(self, x):
            return self.head(self.encoder(self.embedding(x)).mean(1))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    data, module = _sentences(), Transformer()
    network = cx.networks.from_torch(module)
    optimiser = torch.optim.Adam(module.parameters(), 1e-3)

    def plain(steps):
        for x, y in _batches(data, steps):
            optimiser.zero_grad(set_to_none=True)
            outputs = module(torch.from_numpy(x))
            torch.nn.functional.cross_entropy(outputs, torch.from_numpy(y)).backward()
            optimiser.step()

    return Case(network, data, plain)


CASES: dict[str, Callable[[], Case]] = {
    "ResNet, Flax NNX": flax_nnx,
    "ResNet, Flax Linen": flax_linen,
    "CNN, Equinox": equinox,
    "LSTM, Keras": keras,
    "transformer, PyTorch": torch,
}
