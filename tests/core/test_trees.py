"""A pytree as one vector: the way there and back, and its derivatives on every kind of device."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from credax.core.trees import Flat

TREE = {"a": jnp.arange(3.0), "b": jnp.linspace(-1.0, 1.0, 4).reshape(2, 2)}


def log_density(flat: Flat) -> jax.Array:
    leaves = flat.tree
    return jnp.sum(leaves["a"] ** 3) + jnp.sum(jnp.sin(leaves["b"]))


def test_there_and_back():
    for name, leaf in Flat.of(TREE).tree.items():
        np.testing.assert_array_equal(leaf, TREE[name])


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
def test_derivatives(monkeypatch, backend):
    # The program of an accelerator keeps the leaves of a gradient apart, which the CPU can run as well.
    monkeypatch.setattr("jax.default_backend", lambda: backend)
    flat = Flat.of(TREE)
    exact = np.concatenate([3 * np.asarray(TREE["a"]) ** 2, np.cos(np.ravel(TREE["b"]))])
    np.testing.assert_allclose(jax.jit(jax.grad(log_density))(flat).vector, exact, rtol=1e-6)
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), flat)
    of_each = jax.jit(jax.vmap(jax.grad(log_density)))(batch).vector
    np.testing.assert_allclose(of_each, np.stack([exact, exact]), rtol=1e-6)
    hessian = jax.hessian(lambda v: log_density(Flat(v, flat.structure, flat.leaves)))(flat.vector)
    second = np.concatenate([6 * np.asarray(TREE["a"]), -np.sin(np.ravel(TREE["b"]))])
    np.testing.assert_allclose(hessian, np.diag(second), atol=1e-6)
    program = str(jax.make_jaxpr(jax.grad(log_density))(flat))
    assert ("optimization_barrier" in program) == (backend == "gpu")
