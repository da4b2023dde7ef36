"""The ten targets: their densities and the moments that are said to be exact, computed in another way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.samplers import judged
from benchmarks.targets import eight_schools, logistic_regression, targets

SMALL = {target.name: target for target in targets()}


def test_there_are_ten():
    assert len(SMALL) == 10
    for target in SMALL.values():
        start = target.density.init(jax.random.key(0))
        assert start.shape == (target.size,)
        assert jnp.isfinite(target.log_density(start))
        shape = target.functions(np.zeros((2, 3, target.size))).shape
        assert shape == (2, 3, len(target.means)) == (2, 3, len(target.scales))


@pytest.mark.parametrize("name", ["banana", "two modes"])
def test_moments_in_two_dimensions_by_adaptive_quadrature(name):
    target = SMALL[name]
    density = jax.jit(lambda a, b: jnp.exp(target.log_density(jnp.stack([a, b]))))
    side = np.linspace(-8, 8, 801) if name == "two modes" else np.linspace(-6, 6, 801)
    other = side if name == "two modes" else np.linspace(-3, 30, 2401)
    a, b = np.meshgrid(side, other, indexing="ij")
    mass = np.asarray(jax.vmap(jax.vmap(density))(np.float32(a), np.float32(b)), np.float64)
    values = target.functions(np.stack([a, b], -1))
    weights = (mass / mass.sum())[..., None]
    means = (weights * values).sum((0, 1))
    np.testing.assert_allclose(means, target.means, atol=2e-4)
    np.testing.assert_allclose(
        np.sqrt((weights * (values - means) ** 2).sum((0, 1))), target.scales, rtol=1e-3
    )


def test_the_quadratures_have_converged():
    for coarse, fine in (
        (logistic_regression(nodes=20), logistic_regression()),
        (eight_schools(points=301), eight_schools()),
    ):
        np.testing.assert_allclose(coarse.means, fine.means, atol=2e-3)
        np.testing.assert_allclose(coarse.scales, fine.scales, rtol=2e-3)


def test_unknown_noise_by_integrating_the_weights_out():
    """Given the noise the weights are normal, so that its density is an integral in closed form."""
    target = SMALL["unknown noise"]
    slope = lambda w, v: jax.grad(lambda w: target.log_density(jnp.append(w, v)))(w)  # noqa: E731
    zero = jnp.zeros(3)
    hessian = -np.asarray(jax.jacobian(slope)(zero, 0.0), np.float64)
    centre = np.linalg.solve(hessian, np.asarray(slope(zero, 0.0), np.float64))
    np.testing.assert_allclose(centre, target.means[:3], rtol=1e-4)

    v = np.linspace(-4, 3, 2_001)
    top = jax.vmap(lambda v: target.log_density(jnp.append(jnp.float32(centre), v)))(np.float32(v))
    mass = np.exp(np.asarray(top, np.float64) - np.max(top) + 1.5 * v)
    mean = np.sum(v * mass) / np.sum(mass)
    square = np.sum((v - mean) ** 2 * mass) / np.sum(mass)
    assert mean == pytest.approx(target.means[3], abs=1e-3)
    assert square**0.5 == pytest.approx(target.scales[3], rel=1e-3)


def test_independent_draws_are_judged_right_and_moved_ones_wrong():
    target = SMALL["normal"]
    draws = np.random.default_rng(0).normal(size=(4, 1_000, target.size))
    figures = judged(target, draws, seconds=2.0, gradients=8_000)
    assert figures["largest |z|"] < 4.5
    assert figures["ESS per second"] == pytest.approx(2_000, rel=0.15)
    assert figures["ESS per 1,000 gradients"] == pytest.approx(500, rel=0.15)
    assert judged(target, draws + 0.15, 1.0, 1.0)["largest |z|"] > 6
