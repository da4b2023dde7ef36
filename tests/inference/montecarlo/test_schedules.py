"""Step sizes that change: the weighted moments of the draws against their exact recursion, and cycles."""

import jax.numpy as jnp
import numpy as np
import pytest
from langevin_targets import (
    CHAINS,
    LOCATION,
    QUICK,
    ROWS,
    exact,
    fit,
    rows,
    sgld_covariance,
    z_scores,
)

import credax as cx
from credax.inference.montecarlo.langevin import SGHMC, SGLD
from credax.inference.montecarlo.schedules import exploring


def weighted(posterior, values):
    """The weighted mean of (chain, draw, ...) over draws, for each chain."""
    weights = np.exp(np.asarray(posterior.log_weights, np.float64))
    weights /= weights.sum(1, keepdims=True)
    return np.einsum("ct,ct...->c...", weights, values)


def halving(step):
    return 0.3 * 0.5 ** (step // 400)


SCHEDULES = {
    "decay": (
        SGLD,
        {"step_size": 0.3, "decay": 0.5},
        lambda t: 0.3 * (1 + np.maximum(t - 40, 0) / 40) ** -0.5,
    ),
    "function": (SGLD, {"step_size": halving}, halving),
    "cycles": (
        SGLD,
        {"step_size": 0.3, "cycles": 5, "exploration": 0.75},
        lambda t: 0.15 * (1 + np.cos(np.pi * (np.maximum(t - 40, 0) % 640) / 640)),
    ),
}


@pytest.mark.parametrize(
    "name", ["decay", pytest.param("function", marks=pytest.mark.slow), "cycles"]
)
def test_draws_are_weighted_by_their_step_sizes(name):
    """The weighted moments agree with their expectation, from the recursion of the moments."""
    x, y = rows()
    mean, precision = exact(y)
    cls, settings, sizes = SCHEDULES[name]
    method = cls(**{**QUICK, "num_warmup": 40, "thin": 4, **settings})
    steps = np.arange(method.num_steps)
    assert method.num_steps == 40 + (5 * 640 if name == "cycles" else 800)
    noisy = (steps < 40) | ((steps - 40) % 640 >= 480) if name == "cycles" else steps >= 0
    first, second = (
        -mean,
        mean**2,
    )  # the moments of the deviation from the mean; chains start at zero
    moments = []
    for size, noise in zip(sizes(steps) / ROWS, noisy, strict=True):
        factor = 1 - size * precision / 2
        first, second = factor * first, factor**2 * second + size * noise
        moments.append([first, second])
    kept = np.arange(43, method.num_steps, 4)
    kept = kept[noisy[kept]]
    moments = np.array(moments)[kept]
    expected = np.average(moments, axis=0, weights=sizes(kept))
    assert np.any(np.abs(moments.mean(0)[1] / expected[1] - 1) > 0.05), (
        "the weights are there to be seen"
    )

    posterior = fit(LOCATION, (x, y), method)
    assert posterior.draws.shape == (CHAINS, 200, 3)
    np.testing.assert_allclose(
        posterior.log_weights,
        np.broadcast_to(np.log(sizes(kept)), (CHAINS, 200)),
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(posterior.info["step_size"][0], sizes(steps), rtol=1e-4, atol=1e-6)
    centred = np.asarray(posterior.draws, np.float64) - mean
    z = [z_scores(weighted(posterior, centred**power), expected[power - 1]) for power in (1, 2)]
    assert np.abs(z).max() < 4, z


def test_decreasing_steps_converge():
    """By the same recursion, the bias of the weighted variance falls with the number of steps."""
    precision, biases = exact(rows()[1])[1], []
    for draws in (1_000, 4_000, 16_000):
        method = SGLD(step_size=0.3, decay=1 / 3, num_warmup=100, num_draws=draws, thin=1)
        sizes = 0.3 * (1 + np.arange(draws) / 100) ** (-1 / 3)
        assert method.num_steps == 100 + draws
        second, total = np.diag(sgld_covariance(precision, 0.3 / ROWS)), 0.0
        for size in sizes / ROWS:
            second = (1 - size * precision / 2) ** 2 * second + size
            total = total + size * second
        biases.append(np.max(total / np.sum(sizes / ROWS) * precision - 1))
    assert biases[0] > biases[1] > biases[2] > 0
    assert biases[2] < 0.55 * biases[0]


def one(key):
    return jnp.ones(1)


def bell(params, x):
    """Even in w, so that the posterior has two modes, and bounded, so that no step is too long."""
    return jnp.broadcast_to(jnp.exp(-0.5 * params**2), (x.shape[0], 1))


@pytest.mark.slow
def test_cycles_find_both_modes():
    y = np.random.default_rng(0).normal(size=20)
    y = np.exp(-0.5) + 0.1 * (y - y.mean())
    data = np.arange(20)[:, None] / 20, y
    network = cx.networks.from_function(one, bell)
    model = cx.Model(network, cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.1))
    chains, cycles = 64, 10
    settings = {
        "chains": chains,
        "num_warmup": 100,
        "num_draws": 100,
        "preconditioner": None,
        "batch_size": 2,
    }
    constant = fit(model, data, SGLD(step_size=0.005, **settings))
    assert np.all(constant.draws > 0), "a chain with short steps stays in the mode where it began"
    posterior = fit(model, data, SGLD(step_size=0.2, cycles=cycles, **settings))
    draws = posterior.draws.reshape(chains, cycles, -1)
    positive = draws[:, :, -1] > 0
    # The draws of a cycle are all in the same mode, near one or minus one.
    assert np.all((draws > 0) == positive[..., None])
    assert np.all(np.abs(np.abs(draws) - 1) < 0.7)
    # By symmetry both modes are equally likely, in each cycle independently of the one before.
    for share, tosses in (
        (positive.mean(), chains * cycles),
        (np.mean(positive[:, 1:] != positive[:, :-1]), chains * (cycles - 1)),
    ):
        assert abs(share - 0.5) < 4 * np.sqrt(0.25 / tosses)


@pytest.mark.parametrize("exploration", [0.1, 0.5, 0.8])
@pytest.mark.parametrize("cycles", [1, 3, 60])
def test_cycles_leave_as_many_draws_as_asked_for(cycles, exploration):
    method = SGHMC(num_warmup=7, num_draws=60, thin=3, cycles=cycles, exploration=exploration)
    length, rest = divmod(method.num_steps - 7, cycles)
    assert rest == 0
    kept = 7 + 3 * np.arange(1, (method.num_steps - 7) // 3 + 1) - 1
    assert np.sum(~exploring(method, kept)) == 60
    noisy = ~exploring(method, np.arange(method.num_steps))
    assert noisy[:7].all()
    explored = 1 - noisy[7:].reshape(cycles, length).mean(1)
    draws = 60 // cycles
    assert np.all(explored == explored[0])
    assert abs(explored[0] - exploration) < 0.5 / draws or explored[0] == 1 / (draws + 1)


@pytest.mark.slow
def test_a_run_cut_short_before_its_first_draw_has_its_last_state():
    method = SGLD(chains=2, num_warmup=0, num_draws=4, thin=2, cycles=1, exploration=0.9)
    stop = lambda event: event.step >= 10  # noqa: E731
    posterior = fit(LOCATION, rows(), method, callbacks=[stop], chunk_steps=1)
    assert posterior.info["ended"] == "callback"
    assert posterior.draws.shape == (2, 1, 3)
