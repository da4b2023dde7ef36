"""Early stopping: which rows are held out, when they are evaluated, and when the run ends."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core import random
from credax.core.typing import Draw
from credax.fit.stopping import EarlyStopping
from credax.inference import Method
from credax.posterior.approximations import Draws


def constant_init(key):
    return jnp.zeros(())


def constant_apply(params, x):
    return jnp.full((x.shape[0], 1), params)


MODEL = cx.Model(
    cx.networks.from_function(constant_init, constant_apply), likelihood=cx.likelihoods.Gaussian(1)
)


class Info(NamedTuple):
    at: jax.Array


@dataclass(frozen=True)
class March(Method):
    """A method whose weight grows by one per step, so that the prediction after n steps is n."""

    num_steps: int = 60
    keeps: bool = False
    num_warmup: int = 0

    kind = "point"
    needs = frozenset()

    def init(self, key, model, data):
        return model.init(key)

    def step(self, key, state, model, batch, step):
        return state + 1, Info(state)

    def keep(self, state):
        return Draw(state) if self.keeps else None

    def posterior(self, model, trace):
        if trace.draws is None:
            return cx.Posterior(model, Draws(np.asarray(trace.state)[:, None]))
        return cx.Posterior(model, Draws(trace.draws.params))


X, Y = np.zeros((20, 1)), np.zeros(20)


def march_to(target, *, every=1, patience=5, method=March(), **more):
    """A fit whose validation targets are ``target``, so that the score is best at that step."""
    validation = np.zeros((3, 1)), np.full(3, float(target))
    stopping = EarlyStopping(validation, every=every, patience=patience)
    return cx.fit(MODEL, (X, Y), method, early_stopping=stopping, progress=False, **more)


@pytest.mark.parametrize("chunk_steps", [None, 1, 4])
@pytest.mark.parametrize(
    "target, every, patience, stops",
    [(10, 1, 5, 15), (10, 1, 1, 11), (10, 5, 2, 20), (12, 5, 2, 20), (13, 5, 1, 20), (0, 7, 1, 14)],
)
def test_stops_after_so_many_looks_without_a_new_best(target, every, patience, stops, chunk_steps):
    posterior = march_to(target, every=every, patience=patience, chunk_steps=chunk_steps)
    assert posterior.info["ended"] == "early stopping"
    assert posterior.info["steps"] == stops
    steps, scores = posterior.info["held_out_log_likelihood"].T
    np.testing.assert_array_equal(steps, np.arange(every, stops + 1, every))
    expected = -0.5 * (steps - target) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(scores, expected, rtol=1e-6)
    assert posterior.draws == steps[np.argmax(scores)]


def test_runs_to_the_end_while_the_score_rises():
    posterior = march_to(1000, every=7, method=March(60))
    assert posterior.info["ended"] == "complete"
    assert posterior.info["steps"] == 60
    # The last step is evaluated too, although 60 is not a multiple of 7.
    np.testing.assert_array_equal(
        posterior.info["held_out_log_likelihood"][:, 0], [*range(7, 60, 7), 60]
    )
    assert posterior.draws == 60


def test_the_best_state_comes_back_also_from_a_run_that_ends_before_patience_does():
    posterior = march_to(50, patience=100, method=March(60))
    assert posterior.info["ended"] == "complete"
    assert posterior.draws == 50


def test_with_draws_the_draws_so_far_are_scored():
    posterior = march_to(6, patience=3, method=March(60, keeps=True, num_warmup=4))
    steps, scores = posterior.info["held_out_log_likelihood"].T
    # Before the first draw there is nothing to evaluate.
    assert steps[0] == 5
    last = int(steps[-1])
    for step, score in zip(steps, scores, strict=True):
        draws = np.arange(5, step + 1)
        density = np.exp(-0.5 * (6 - draws) ** 2) / np.sqrt(2 * np.pi)
        assert score == pytest.approx(np.log(density.mean()), rel=1e-5)
    np.testing.assert_array_equal(posterior.draws, [np.arange(5, last + 1)])
    assert len(scores) - 1 - np.argmax(scores) == 3


# -- which rows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("share, out", [(0.1, 2), (0.25, 5), (0.5, 10)])
def test_a_fraction_of_the_rows_is_held_out(share, out):
    x, y = np.arange(20.0)[:, None], np.arange(20.0)
    train, stopping = EarlyStopping(fraction=share).held_out(random.key(0), (x, y))
    held = stopping.validation
    assert held is not None
    for part in (train, held):
        np.testing.assert_array_equal(part[0][:, 0], part[1])
    assert len(held[1]) == out
    assert sorted([*train[1], *held[1]]) == list(range(20))
    other = EarlyStopping(fraction=share).held_out(random.key(1), (x, y))[1].validation
    assert other is not None
    assert not np.array_equal(held[1], other[1])


def test_each_row_is_held_out_as_often_as_any_other():
    seen = np.zeros(20)
    for seed in range(200):
        held = (
            EarlyStopping(fraction=0.25)
            .held_out(random.key(seed), (X, np.arange(20)))[1]
            .validation
        )
        assert held is not None
        seen[held[1]] += 1
    assert np.all(np.abs(seen - 50) < 4 * np.sqrt(200 * 0.25 * 0.75))


def test_data_frames_are_cut_by_rows():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame({"a": np.arange(20.0)}, index=np.arange(20)[::-1])
    y = pandas.Series(np.arange(20.0), index=x.index)
    (train_x, train_y), stopping = EarlyStopping(fraction=0.2).held_out(random.key(0), (x, y))
    assert len(train_x) == 16
    assert stopping.validation is not None
    for left, right in ((train_x, train_y), stopping.validation):
        np.testing.assert_array_equal(np.asarray(left)[:, 0], np.asarray(right))


def test_held_out_rows_are_not_trained_on():
    seen = []

    class Spy(EarlyStopping):
        def held_out(self, key, data):
            result = super().held_out(key, data)
            seen.append((result[0], result[1].validation))
            return result

    x, y = np.arange(20.0)[:, None], np.arange(20.0)
    method = cx.MaximumLikelihood(num_steps=800, learning_rate=0.5)
    posterior = cx.fit(MODEL, (x, y), method, early_stopping=Spy(every=800), progress=False)
    (train, held), *_ = seen
    assert len(held[1]) == 2
    assert posterior.draws.item() == pytest.approx(train[1].mean(), rel=1e-3)
    assert train[1].mean() != pytest.approx(y.mean(), rel=1e-2)


def test_true_holds_out_a_tenth():
    posterior = cx.fit(MODEL, (X, Y), March(100), early_stopping=True, progress=False)
    np.testing.assert_array_equal(posterior.info["held_out_log_likelihood"][:, 0], [100])
    plain = cx.fit(MODEL, (X, Y), March(100), early_stopping=False, progress=False)
    assert "held_out_log_likelihood" not in plain.info


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"fraction": 0.0}, r"EarlyStopping\(fraction=...\) must be between 0 and 1"),
        ({"fraction": 1}, r"EarlyStopping\(fraction=...\) must be between 0 and 1"),
        ({"every": 0}, r"EarlyStopping\(every=...\) must be a whole number, at least 1"),
        ({"patience": 0}, r"EarlyStopping\(patience=...\) must be a whole number, at least 1"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**settings)


@pytest.mark.parametrize("rows, share", [(4, 0.1), (2, 0.9), (1, 0.5)])
def test_too_few_rows_are_refused(rows, share):
    stopping = EarlyStopping(fraction=share)
    with pytest.raises(ValueError, match=r"early_stopping needs rows to hold out: .* rows is"):
        cx.fit(MODEL, (X[:rows], Y[:rows]), March(), early_stopping=stopping, progress=False)


@pytest.mark.parametrize(
    "validation",
    [
        (np.zeros((3, 2)), np.zeros(3)),
        (np.zeros((3, 1)), np.zeros(4)),
        (np.zeros((3, 1)), np.full(3, np.nan)),
    ],
)
def test_held_out_rows_unlike_those_of_the_fit_are_refused(validation, compilations):
    with (
        compilations() as count,
        pytest.raises(ValueError, match=r"EarlyStopping\(validation=...\)"),
    ):
        cx.fit(MODEL, (X, Y), March(), early_stopping=EarlyStopping(validation), progress=False)
    assert count() <= 3  # only the programs for keys, not the run


def test_a_density_has_no_rows():
    density = cx.LogDensity(constant_init, lambda params: -(params**2))
    with pytest.raises((TypeError, ValueError), match="early_stopping"):
        cx.fit(density, None, March(), early_stopping=True, progress=False)
