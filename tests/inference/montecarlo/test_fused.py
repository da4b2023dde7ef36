"""The kernels for many small chains, interpreted on the CPU, against the network as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.inference.montecarlo import fused
from credax.tracing.digest import program_digest


def problem(inputs=3, hidden=(5,), outputs=1, rows=70, scale=0.3, weights=None, **settings):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(rows, inputs))
    y = generator.normal(size=(rows,) if outputs == 1 else (rows, outputs))
    network = cx.networks.mlp(hidden, **{"activation": "tanh", **settings})
    return cx.Model(network, likelihood=cx.likelihoods.Gaussian(scale)).prepare((x, y), weights)


def gradients(model, rows, chains=3):
    start = getattr(model, "model", model)
    params = jax.vmap(start.init)(jax.random.split(cx.random.key(0), chains))
    batch = rows.everything()
    return jax.jit(jax.vmap(jax.value_and_grad(lambda p: model.log_joint(p, batch))))(params)


@pytest.mark.parametrize(
    "sizes",
    [(3, (5,), 1, 300), (20, (50,), 2, 64), (1, (16,), 3, 1)],
    ids=["one output", "two outputs", "one row"],
)
@pytest.mark.parametrize("activation", [*fused.SLOPES])
@pytest.mark.matrix
def test_the_gradient_is_that_of_the_network(activation, sizes):
    inputs, hidden, outputs, rows = sizes
    model, data = problem(inputs, hidden, outputs, rows, activation=activation)
    want, found = gradients(model, data), gradients(fused.with_kernels(model), data)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # noqa: E731
    jax.tree.map(close, found, want)


@pytest.mark.parametrize("scale", [None, 0.3])
def test_noise_may_be_learned_and_rows_may_have_weights(scale):
    weights = np.random.default_rng(1).integers(0, 3, 70)
    model, data = problem(scale=scale, weights=weights)
    assert isinstance(fused.with_kernels(model), fused.OfSquares)
    want, found = gradients(model, data), gradients(fused.with_kernels(model), data)
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)  # noqa: E731
    jax.tree.map(close, found, want)


def test_the_derivative_for_the_inputs_is_that_of_the_network():
    model, data = problem(outputs=2)
    params = model.init(cx.random.key(0))
    of = lambda model: jax.grad(lambda x: jnp.sum(model.network.apply(params, x)))(data.x)  # noqa: E731
    np.testing.assert_allclose(of(fused.with_kernels(model)), of(model), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "settings, replicas",
    [
        ({"hidden": (5, 5)}, 100),
        ({"hidden": (65,)}, 100),
        ({"inputs": 32}, 100),
        ({"outputs": 9}, 100),
        ({"activation": "gelu"}, 100),
        ({"dropout": 0.1}, 100),
        ({}, 2),
    ],
    ids=str,
)
def test_other_networks_stay_as_they_are(settings, replicas, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "_works", lambda: True)
    model, data = problem(**settings)
    assert fused.fused(model, data.everything(), replicas) is model
    small, data = problem()
    assert isinstance(fused.fused(small, data.everything(), 100), fused.OfSquares)
    small, data = problem(outputs=2)
    assert isinstance(fused.fused(small, data.everything(), 100).network, fused.Fused)


def test_kernels_are_not_divided_among_devices(monkeypatch):
    model, data = problem()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    monkeypatch.setattr(fused, "_works", lambda: True)
    assert fused.fused(model, data.everything(), 100) is model
    seen = []

    def on_device(x):
        seen.append(fused.fused(model, data.everything(), 100) is not model)
        return x

    mesh = jax.sharding.Mesh(jax.devices()[:1], ("replica",))
    spec = jax.sharding.PartitionSpec("replica")
    jax.eval_shape(jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec), jnp.ones(2))
    assert seen == [True]


def test_the_kernels_agree_at_the_first_use_even_while_a_program_is_traced():
    fused._works.cache_clear()
    seen = []
    jax.eval_shape(jax.jit(lambda x: seen.append(fused._works()) or x), jnp.ones(2))
    assert seen == [True]


def test_without_a_gpu_or_kernels_the_model_stays_as_it_is(monkeypatch):
    model, data = problem()
    assert fused.fused(model, data.everything(), 100) is model
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(fused, "_agrees", lambda: 1 / 0)
    fused._works.cache_clear()
    assert fused.fused(model, data.everything(), 100) is model
    fused._works.cache_clear()


@pytest.mark.slow
def test_hmc_takes_the_same_steps(monkeypatch):
    """With the kernels as without, up to rounding; and the digest of its program is the same twice."""
    model, data = problem()
    x, y = np.asarray(data.x), np.asarray(data.y)
    method = cx.HMC(
        chains=2, num_warmup=0, num_draws=3, step_size=0.02, mass="unit", num_leapfrog=5
    )
    want = cx.fit(model, (x, y), method, progress=False).draws
    asked = []

    def always(model, batch, replicas):
        asked.append(replicas)
        return fused.with_kernels(model)

    monkeypatch.setattr("credax.inference.montecarlo.hamiltonian.fused", always)
    other = cx.HMC(
        chains=2, num_warmup=0, num_draws=3, step_size=0.02, mass="unit", num_leapfrog=5, thin=1
    )
    jax.clear_caches()
    found = cx.fit(model, (x, y), other, progress=False).draws
    assert set(asked) == {2}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), found, want)
    of = lambda p: fused.with_kernels(model).log_joint(p, data.everything())  # noqa: E731
    params = model.init(cx.random.key(0))
    first, second = (program_digest(jax.make_jaxpr(jax.grad(of))(params)) for _ in range(2))
    assert first == second
