"""Stein variational gradient descent: what is its own. Its answers are compared in ``test_answers.py``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.inference.ensembles.svgd import SVGD

X = np.random.default_rng(0).normal(size=(30, 2))
Y = X @ [1.0, -0.5] + 0.3 * np.random.default_rng(1).normal(size=30)
MODEL = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.3))


def direction_by_loops(w, gradient, h):
    """The equation, term by term; the gradient of the kernel by automatic differentiation."""

    def kernel(a, b):
        return jnp.exp(-jnp.sum((a - b) ** 2) / h)

    result = np.zeros_like(w)
    for i in range(len(w)):
        for j in range(len(w)):
            result[i] += kernel(w[j], w[i]) * gradient[j]
            result[i] += jax.grad(kernel)(jnp.asarray(w[j]), jnp.asarray(w[i]))
    return result / len(w)


@pytest.mark.parametrize("bandwidth", [None, 2.0])
def test_the_direction_is_that_of_the_equation(bandwidth):
    generator = np.random.default_rng(2)
    w, gradient = (generator.normal(size=(5, 3)).astype(np.float32) for _ in range(2))
    direction, h = SVGD(particles=5, bandwidth=bandwidth)._direction(
        jnp.asarray(w), jnp.asarray(gradient)
    )
    if bandwidth is None:
        squares = [np.sum((w[i] - w[j]) ** 2) for i in range(5) for j in range(i)]
        np.testing.assert_allclose(h, np.median(squares) / np.log(6), rtol=1e-5)
    np.testing.assert_allclose(
        direction, direction_by_loops(w, gradient, float(h)), rtol=1e-4, atol=1e-5
    )


def test_particles_from_one_start_are_set_apart():
    start = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=50), progress=False)
    posterior = cx.fit(MODEL, (X, Y), SVGD(particles=6, num_steps=300), start=start, progress=False)
    kernel = np.asarray(posterior.draws["layer_0"]["kernel"])
    assert kernel.shape == (1, 6, 2, 1)
    # Far more than the noise that set them apart: about as wide as the posterior, 0.3 / sqrt(30).
    assert np.all(kernel.std(1) > 0.02)


def test_particles_whose_init_ignores_its_key_are_set_apart():
    """The target is a standard normal distribution, whose spread the particles should find."""
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -0.5 * jnp.sum(w**2))
    svgd = SVGD(particles=20, num_steps=500, learning_rate=0.1)
    found = np.asarray(cx.fit(density, None, svgd, progress=False).draws)
    assert 0.5 < found.std(axis=(0, 1)).min() < 1.2


def test_one_particle_is_refused():
    with pytest.raises(
        ValueError, match=r"SVGD\(particles=...\) must be a whole number, at least 2"
    ):
        SVGD(particles=1)
