"""The digest of a program knows every other number in it, and no address, name or order of a process."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from credax.tracing.digest import program_digest

X = jnp.linspace(-1.0, 1.0, 5)


def digest(function, *arguments):
    return program_digest(jax.make_jaxpr(function)(*arguments))


def scaled(factor):
    return lambda x: x * factor


def rescaled(factor):
    def another_name(x):
        return x * factor

    return another_name


def test_equal_programs_have_equal_digests():
    assert digest(scaled(2.0), X) == digest(scaled(2.0), X) == digest(rescaled(2.0), X)
    assert digest(jax.jit(scaled(2.0)), X) == digest(jax.jit(rescaled(2.0)), X)


def stepper(optimiser):
    def step(x):
        with jax.numpy_dtype_promotion("standard"):
            updates, _ = optimiser.update(jax.grad(jnp.sum)(x), optimiser.init(x), x)
        return optax.apply_updates(x, updates)

    return step


def looped(steps, factor=1.0):
    return lambda x: jax.lax.fori_loop(0, steps, lambda i, y: jnp.sin(factor * y), x)


def called(function):
    shape = jax.ShapeDtypeStruct(X.shape, X.dtype)
    return lambda x: jax.pure_callback(function, shape, x)


def keyed(seed):
    key = jax.random.key(seed)
    return lambda x: x + jax.random.normal(key, x.shape)


@pytest.mark.parametrize(
    "one, other",
    [
        (scaled(2.0), scaled(np.nextafter(np.float32(2.0), np.float32(3.0)))),
        (scaled(np.arange(5.0, dtype=np.float32)), scaled(np.arange(5.0, dtype=np.float32)[::-1])),
        (scaled(jnp.ones(5)), scaled(jnp.ones(5).at[3].set(1.5))),
        (jnp.sin, jnp.cos),
        (lambda x: x - x[0], lambda x: x[0] - x),
        (lambda x: x[:3], lambda x: x[1:4]),
        (jax.jit(jnp.tanh), jax.jit(jax.nn.softplus)),
        (jax.nn.relu, jax.nn.silu),
        (jax.grad(lambda x: jnp.sum(jax.nn.relu(x))), jax.grad(lambda x: jnp.sum(jax.nn.gelu(x)))),
        (looped(3), looped(4)),
        (looped(3), looped(3, 2.0)),
        (stepper(optax.sgd(1e-3)), stepper(optax.sgd(1e-1))),
        (stepper(optax.adam(1e-3)), stepper(optax.adam(1e-3, b1=0.8))),
        (
            stepper(optax.sgd(optax.cosine_decay_schedule(0.1, 10))),
            stepper(optax.sgd(optax.cosine_decay_schedule(0.1, 20))),
        ),
        (keyed(0), keyed(1)),
        (called(lambda x: x + 1), called(lambda x: x + 2)),
        (called(scaled(np.float32(2))), called(scaled(np.float32(3)))),
    ],
)
def test_other_arithmetic_has_another_digest(one, other):
    assert digest(one, X) == digest(one, X)
    assert digest(one, X) != digest(other, X)


def test_shapes_and_types_count():
    assert digest(jnp.sin, X) != digest(jnp.sin, X[1:])
    assert digest(jnp.sin, X) != digest(jnp.sin, X.astype(jnp.bfloat16))


SCRIPT = """
    import jax, numpy as np, credax as cx
    from credax.fit import program
    from credax.tracing.digest import program_digest
    x = np.linspace(-1, 1, 12)[:, None]
    model = cx.Model(cx.networks.mlp([3]), likelihood=cx.likelihoods.Gaussian(None))
    for method in (cx.MAP(), cx.NUTS(), cx.BayesByBackprop(), cx.MCDropout(), cx.SMC()):
        bound, data = model.prepare((x, x[:, 0]))
        rest = jax.random.key(0), data, None
        keys, states = program.begin(method, bound, None, *rest)
        found = program.traced(method, bound, *rest, states, keys)
        print(type(method).__name__, program_digest(*found))
"""


@pytest.mark.slow
def test_another_process_finds_the_same_digests():
    found = [
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert found[0] == found[1]
    assert len({line.split()[1] for line in found[0].splitlines()}) == 5
