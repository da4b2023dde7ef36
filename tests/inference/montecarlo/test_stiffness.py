"""The narrow directions that a low-rank mass matrix learns from gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.core.trees import Flat
from credax.inference.montecarlo.stiffness import (
    LARGEST,
    RANK,
    ROWS,
    Stiff,
    metric,
    none,
    rank_of,
    stiff,
)

SIZE = 60


def narrow(size=SIZE):
    """Two orthonormal directions."""
    rng = np.random.default_rng(0)
    return np.linalg.qr(rng.normal(size=(size, 2)))[0].T.astype(np.float32)


def gradients(curvatures, rows=ROWS):
    """Gradients of a normal density with curvature 1, and other curvatures along two directions."""
    white = np.random.default_rng(1).normal(size=(rows, SIZE))
    along = white @ narrow().T * (np.sqrt(curvatures) - 1)
    return jnp.asarray(white + along @ narrow(), jnp.float32)


found = jax.jit(partial(stiff, mean=jnp.zeros(SIZE), root=jnp.ones(SIZE), rank=4))


def test_narrow_directions_become_as_wide_as_the_others_may_be():
    """The error of an eigenvalue from n gradients is sqrt(2 / n) of it, here an eighth."""
    curvatures = np.array([900.0, 100.0])
    directions, factors = found(gradients(curvatures))
    np.testing.assert_allclose(np.abs(directions[:2] @ narrow().T), np.eye(2), atol=0.12)
    limit = (1 + np.sqrt(SIZE / ROWS)) ** 2
    np.testing.assert_allclose(curvatures * factors[:2], limit, rtol=4 / 8)
    np.testing.assert_array_equal(factors[2:], 1.0)
    np.testing.assert_array_equal(directions[2:], 0.0)


def test_no_direction_becomes_wider_than_the_first_that_is_left_out():
    rows = gradients(np.array([900.0, 100.0]))
    values = np.linalg.eigvalsh(np.asarray(rows.T @ rows) / ROWS)[::-1]
    directions, factors = stiff(rows, jnp.zeros(SIZE), jnp.ones(SIZE), 1)
    np.testing.assert_allclose(factors, values[1] / values[0], rtol=1e-3)
    assert directions.shape == (1, SIZE)


def test_noise_has_no_directions():
    """The largest eigenvalue of the covariance of so few gradients is 2.6, although all true ones are 1."""
    rows = gradients(np.ones(2))
    assert np.linalg.eigvalsh(np.cov(rows.T)).max() > 2.5
    np.testing.assert_array_equal(found(rows).factors, 1.0)


def test_rows_without_a_gradient_are_left_out():
    rows = gradients(np.array([900.0, 100.0]), 64)
    gaps = jnp.full((2 * len(rows), SIZE), jnp.nan).at[::2].set(rows)
    for one, other in zip(found(rows), found(gaps), strict=True):
        np.testing.assert_allclose(np.abs(one), np.abs(other), atol=1e-4)


def test_without_movement_there_are_no_directions():
    for rows in (jnp.zeros((ROWS, SIZE)), jnp.full((ROWS, SIZE), jnp.nan)):
        assert np.isfinite(found(rows).directions).all()
        np.testing.assert_array_equal(found(rows).factors, 1.0)


def test_the_metric_is_that_of_the_matrix():
    """Velocities are the inverse mass matrix times momenta, which have the mass matrix as their covariance."""
    root, directions = np.linspace(0.5, 2, SIZE, dtype=np.float32), narrow()
    factors = np.float32([0.01, 0.2])
    inverse = np.diag(root) @ (np.eye(SIZE) + (directions.T * (factors - 1)) @ directions)
    inverse = inverse @ np.diag(root)
    position = Flat.of(jnp.zeros(SIZE))
    whole = metric(jnp.asarray(root), Stiff(jnp.asarray(directions), jnp.asarray(factors)))
    with jax.numpy_dtype_promotion("standard"):
        momenta = jax.vmap(lambda key: whole.sample_momentum(key, position).vector)(
            jax.random.split(jax.random.key(0), 20_000)
        )
        one = Flat(momenta[0], position.structure, position.leaves)
        np.testing.assert_allclose(
            jax.grad(whole.kinetic_energy)(one).vector, inverse @ momenta[0], rtol=1e-3, atol=1e-3
        )
    # Whitened by the inverse mass matrix, all momenta are standard normal: entries of their covariance have
    # errors of at most sqrt(2 / n), here 0.01.
    white = np.linalg.cholesky(inverse).T @ np.cov(np.asarray(momenta, np.float64).T)
    white = white @ np.linalg.cholesky(inverse)
    np.testing.assert_allclose(white, np.eye(SIZE), atol=0.06)


def test_no_directions_for_very_many_weights():
    assert [rank_of(size) for size in (3, LARGEST, LARGEST + 1)] == [3, RANK, 0]
    assert none(jnp.zeros(5), 0).directions.shape == (0, 5)


def test_a_direction_across_all_weights_does_not_limit_the_step_size():
    """One direction of a normal density has a curvature of 2,500, and every weight has a part in it.

    The gradients have a variance of 126 and the weights one of 0.95, so in units of the diagonal the largest
    curvature is 217. The low rank reduces it to the limit of noise, below 2.5: a step nine times as long is
    stable.
    """
    size, curvature = 20, 2_500.0
    way = np.full(size, size**-0.5, np.float32)

    def log_density(w):
        return -0.5 * (jnp.sum(w**2) + (curvature - 1) * (way @ w) ** 2)

    model = cx.LogDensity(lambda key: jax.random.normal(key, (size,)), log_density)
    steps = {}
    for mass in ("diagonal", "low_rank"):
        method = cx.HMC(chains=2, num_warmup=300, num_draws=200, num_leapfrog=16, mass=mass)
        steps[mass] = cx.fit(model, None, method, progress=False).info["step_size"][:, -1]
    assert steps["low_rank"].min() > 3 * steps["diagonal"].max()
