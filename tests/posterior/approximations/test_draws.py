"""Which draws are chosen and how often, and from which draws another run starts."""

import jax
import numpy as np
import pytest

from credax.core import random
from credax.core.typing import Draw
from credax.posterior.approximations import Draws


def numbered(replicas, draws, log_weights=None):
    """Draws whose entries are the number of the draw: a scalar, a matrix and a network state."""
    number = np.arange(replicas * draws, dtype=np.float32).reshape(replicas, draws)
    matrix = number[..., None, None] + np.array([[0, 0.25, 0.5], [0.75, 1, 1.25]], np.float32)
    return Draws({"number": number, "matrix": matrix}, {"state": 10 * number}, log_weights)


def check(draw, numbers):
    """Check that every leaf belongs to the draws with these numbers."""
    numbers = np.asarray(numbers, np.float32)
    assert isinstance(draw, Draw)
    np.testing.assert_array_equal(draw.params["number"], numbers)
    np.testing.assert_array_equal(draw.params["matrix"][:, 0, 1], numbers + 0.25)
    assert draw.params["matrix"].shape == (len(numbers), 2, 3)
    np.testing.assert_array_equal(draw.state["state"], 10 * numbers)


def numbers_of(samples):
    return samples.take(0, samples.count).params["number"].astype(int)


KEYS = [random.key(seed) for seed in range(400)]
WEIGHTS = np.log(np.array([[0.5, 0.1, 0.2], [0.05, 0.15, 1e-300]]))
PROBABILITIES = np.exp(WEIGHTS).ravel() / np.exp(WEIGHTS).sum()


def within(count, of, probability):
    """Check that a count is within four standard errors of its expectation, which is binomial."""
    error = np.sqrt(probability * (1 - probability) * of)
    assert np.all(np.abs(count - of * probability) <= 4 * error + 1e-9), (count, of * probability)


def test_shape():
    assert numbered(2, 3).shape == (2, 3)


# -- samples: what a prediction averages over ------------------------------------------------------


@pytest.mark.parametrize("count", [None, 6, 7, 1000])
def test_all_draws_once_and_alike(count):
    samples = numbered(2, 3).samples(KEYS[0], count)
    assert samples.count == 6
    np.testing.assert_allclose(samples.log_weights, np.log(1 / 6))
    check(samples.take(0, 6), range(6))


@pytest.mark.parametrize("count", [None, 6, 7, 1000])
def test_all_draws_once_with_their_weights(count):
    samples = numbered(2, 3, WEIGHTS + 123.0).samples(KEYS[0], count)
    assert samples.count == 6
    np.testing.assert_allclose(np.exp(samples.log_weights), PROBABILITIES, rtol=1e-10)
    check(samples.take(0, 6), range(6))


def test_pieces_and_what_is_beyond_the_last():
    samples = numbered(2, 3).samples(KEYS[0], None)
    check(samples.take(2, 4), [2, 3])
    check(samples.take(4, 8), [4, 5, 5, 5])


def test_fewer_draws_are_different_ones():
    seen = np.zeros(6)
    for key in KEYS:
        samples = numbered(2, 3).samples(key, 4)
        numbers = numbers_of(samples)
        assert samples.count == 4
        assert len(set(numbers)) == 4
        np.testing.assert_allclose(samples.log_weights, np.log(1 / 4))
        check(samples.take(0, 4), numbers)
        seen[numbers] += 1
    within(seen, len(KEYS), 4 / 6)


def test_fewer_weighted_draws_are_resampled_and_weigh_the_same():
    draws, seen = numbered(2, 3, WEIGHTS), np.zeros(6)
    for key in KEYS:
        samples = draws.samples(key, 5)
        assert samples.count == 5
        np.testing.assert_allclose(samples.log_weights, np.log(1 / 5))
        np.add.at(seen, numbers_of(samples), 1)
    within(seen, 5 * len(KEYS), PROBABILITIES)


def test_the_key_decides():
    draws = numbered(10, 10)
    first, again, second = (numbers_of(draws.samples(KEYS[i], 20)) for i in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, second)


# -- sample: independent draws ---------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_drawn_anew_by_weight(weighted):
    draws = numbered(2, 3, WEIGHTS if weighted else None)
    draw = draws.sample(KEYS[0], 20_000)
    numbers = draw.params["number"].astype(int)
    check(draw, numbers)
    probability = PROBABILITIES if weighted else np.full(6, 1 / 6)
    within(np.bincount(numbers, minlength=6), 20_000, probability)
    # Consecutive draws are independent.
    both = np.bincount(6 * numbers[::2] + numbers[1::2], minlength=36).reshape(6, 6)
    within(both, 10_000, np.outer(probability, probability))


def test_more_than_there_are():
    assert numbered(1, 2).sample(KEYS[0], 7).params["number"].shape == (7,)


@pytest.mark.parametrize(
    "log_weights",
    [
        [[-np.inf, 0.0, -np.inf, 0.0, -np.inf]],
        [[-2000.0, 0.0, -2000.0, 0.0, -3000.0]],
        [[-1e300, 1e5, -np.inf, 1e5, -np.inf]],
    ],
)
def test_draws_of_no_weight_never_come(log_weights):
    draws = numbered(1, 5, np.array(log_weights))
    numbers = draws.sample(KEYS[0], 5000).params["number"].astype(int)
    assert set(numbers) == {1, 3}
    within(np.sum(numbers == 1), 5000, 0.5)
    for key in KEYS[:20]:
        assert set(numbers_of(draws.samples(key, 4))) <= {1, 3}
    weights = np.exp(draws.samples(KEYS[0], None).log_weights)
    np.testing.assert_allclose(weights, [0, 0.5, 0, 0.5, 0])


@pytest.mark.parametrize("uniform, expected", [(0.0, 1), (1 - 2**-24, 3)])
def test_the_ends_of_the_unit_interval_pick_no_draw_without_weight(monkeypatch, uniform, expected):
    draws = numbered(1, 5, np.array([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]]))
    monkeypatch.setattr(jax.random, "uniform", lambda key, shape: np.full(shape, uniform))
    check(draws.sample(KEYS[0], 3), [expected] * 3)


def test_one_draw():
    draws = numbered(1, 1)
    check(draws.sample(KEYS[0], 3), [0, 0, 0])
    assert draws.samples(KEYS[0], None).log_weights == [0.0]


# -- starts ----------------------------------------------------------------------------------------


def test_each_replica_goes_on_from_its_own_last_draw():
    check(numbered(3, 4).starts(KEYS[0], 3), [3, 7, 11])


@pytest.mark.parametrize("replicas", [2, 4])
def test_other_numbers_of_replicas_start_anywhere(replicas):
    seen = np.zeros(6)
    for key in KEYS:
        draw = numbered(3, 2).starts(key, replicas)
        numbers = draw.params["number"].astype(int)
        check(draw, numbers)
        np.add.at(seen, numbers, 1)
    within(seen, replicas * len(KEYS), 1 / 6)


def test_weighted_draws_start_by_their_weights():
    draws, seen = numbered(2, 3, WEIGHTS), np.zeros(6)
    for key in KEYS:
        np.add.at(seen, draws.starts(key, 2).params["number"].astype(int), 1)
    within(seen, 2 * len(KEYS), PROBABILITIES)


def test_device_arrays_will_do():
    draws = Draws(jax.numpy.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(draws.starts(KEYS[0], 2).params, [2, 5])
    assert draws.samples(KEYS[0], 2).take(0, 2).params.shape == (2,)
