"""Cross-fitted ensembles: who sees which rows, when training stops, and what is said of unseen rows."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.typing import Draw
from credax.inference import folds
from credax.inference.ensembles import averaging, stretching, wandering
from credax.model.data import ArrayData
from credax.posterior.approximations import Draws

ROWS = 83
X = np.random.default_rng(0).normal(size=(ROWS, 3))
Y = X[:, 0] + 0.5 * np.random.default_rng(1).normal(size=ROWS)
MODEL = cx.Model(cx.networks.mlp([20]), likelihood=cx.likelihoods.Gaussian(0.5))


def fit(y=Y, **settings):
    settings = {"members": 4, "num_steps": 200, "snapshots": 10} | settings
    return cx.fit(MODEL, (X, y), cx.CrossFitEnsemble(**settings), progress=False)


def test_folds_divide_the_rows():
    out = folds.held_out_rows(ROWS, 4)
    assert out.shape == (4, 20)
    assert len(np.unique(out)) == 80
    data = ArrayData(jnp.arange(ROWS), jnp.arange(ROWS))
    for fold in range(4):
        inside = np.asarray(folds.held_out(data, jnp.int32(fold), 4).x)
        np.testing.assert_array_equal(inside, out[fold])
        outside = np.asarray(folds.training_rows(ROWS, jnp.int32(fold), 4))
        assert sorted([*inside, *outside]) == list(range(ROWS))


def test_batches_visit_the_rows_outside_the_fold_once_per_epoch():
    data, key = ArrayData(jnp.arange(ROWS), jnp.arange(ROWS)), jax.random.key(0)
    seen = [folds.batch(data, jnp.int32(1), 4, key, jnp.int32(step), 21) for step in range(3)]
    rows = np.concatenate([batch.x for batch in seen])
    assert len(np.unique(rows)) == 63
    assert not set(rows) & set(folds.held_out_rows(ROWS, 4)[1])
    assert seen[0].scale == pytest.approx(63 / 21)


def test_a_member_does_not_depend_on_the_targets_that_it_leaves_out():
    out = folds.held_out_rows(ROWS, 4)[2]
    changed = Y.copy()
    changed[out] += 5
    # Without early stopping, which looks at these targets: one snapshot at the end.
    before, after = fit(snapshots=1), fit(changed, snapshots=1)
    weights = lambda p, s: np.concatenate([np.ravel(a[s]) for a in jax.tree.leaves(p.draws)])  # noqa: E731
    np.testing.assert_array_equal(weights(before, 2), weights(after, 2))
    assert not np.array_equal(weights(before, 1), weights(after, 1))


def test_log_densities_of_unseen_rows():
    posterior = fit()
    rows, found = posterior.info["held_out_rows"], posterior.info["held_out_log_prob"]
    assert rows.shape == found.shape == (80,)
    members = posterior.predict(X).log_probs(Y)
    fold = {row: s for s, out in enumerate(folds.held_out_rows(ROWS, 4)) for row in out}
    wanted = [members[fold[row], row] for row in rows]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_snapshot_is_the_best_on_unseen_rows():
    posterior = fit(num_steps=1_000, learning_rate=0.03, prior_functions=False, average=False)
    history = posterior.info["held_out"][:, 99::100].mean(0)
    assert (
        posterior.info["best_snapshot"] == np.argmax(history) + 1 < 10
    )  # the members overfit later
    assert posterior.info["held_out_log_prob"].mean() == pytest.approx(history.max(), abs=1e-4)


LINE = cx.networks.from_function(
    lambda key: {"slope": jnp.zeros(3)}, lambda params, x: (x @ params["slope"])[:, None]
)


def taken(slopes, best):
    """The weights that are taken of members with these snapshots, ``(members, snapshots, 3)``."""
    model, data = cx.Model(LINE, likelihood=cx.likelihoods.Gaussian(0.5)).prepare((X, Y))
    draws = Draw({"slope": np.float32(slopes)}, ())
    alone = averaging.averaged(draws, best, best + 1, best)
    known = averaging.scores(model, alone, data, 4)
    found, width = averaging.best_average(model, draws, data, 4, best, known)
    return found.params["slope"][:, 0], width, averaging.scores(model, found, data, 4) - known


def test_weights_that_move_around_a_better_place_are_averaged():
    truth = np.array([1.0, 0, 0])
    moving = truth + 0.5 * np.random.default_rng(1).normal(size=(4, 20, 3))
    found, width, gain = taken(moving, best=10)
    assert width in averaging.WIDTHS
    assert gain.mean() > 0.05
    assert np.abs(found - truth).mean() < 0.6 * np.abs(moving[:, 10] - truth).mean()


def test_weights_that_move_away_are_not_averaged():
    away = np.array([1.0, 0, 0]) + np.abs(np.arange(20) - 10.0)[:, None] * [0, 0.2, 0.2]
    found, width, gain = taken(np.tile(away, (4, 1, 1)), best=10)
    assert width == 1
    np.testing.assert_array_equal(found, np.tile([1, 0, 0], (4, 1)))
    np.testing.assert_array_equal(gain, 0)


def test_integers_and_states_are_not_averaged():
    draws = Draw({"weight": np.arange(12.0).reshape(2, 6)}, {"count": np.arange(12).reshape(2, 6)})
    found = averaging.averaged(draws, 1, 4, 3)
    np.testing.assert_array_equal(found.params["weight"], [[2], [8]])
    np.testing.assert_array_equal(found.state["count"], [[3], [9]])


SEEN = np.concatenate([np.linspace(-3, -1, 40), np.linspace(1, 3, 40)])
SINE = np.sin(SEEN) + 0.1 * np.random.default_rng(2).normal(size=80)


@cache
def sine(**settings):
    model = cx.Model(
        cx.networks.tabular([16], bins=8), likelihood=cx.likelihoods.Gaussian(0.1), standardise="x"
    )
    settings = {"members": 4, "num_steps": 150, "learning_rate": 0.02} | settings
    return cx.fit(model, (SEEN[:, None], SINE), cx.CrossFitEnsemble(**settings), progress=False)


@pytest.mark.slow
def test_members_differ_where_there_are_no_data():
    spread = lambda *x: np.sqrt(np.mean(sine().predict(np.array(x)[:, None]).epistemic))  # noqa: E731
    inside = spread(*SEEN)
    assert spread(-0.3, 0, 0.3) > 5 * inside  # in the gap
    assert spread(-6, -5, 5, 6) > 10 * inside  # outside


@pytest.mark.slow
def test_random_functions_change_nothing_inside_the_data():
    with_them, without = sine(), sine(prior_functions=False)
    x = np.concatenate([np.linspace(-2.8, -1.2, 50), np.linspace(1.2, 2.8, 50)])[:, None]
    one, other = with_them.predict(x), without.predict(x)
    np.testing.assert_allclose(one.mean, other.mean, atol=1e-4)  # the functions add up to zero
    assert one.log_prob(np.sin(x[:, 0])).mean() == pytest.approx(
        other.log_prob(np.sin(x[:, 0])).mean(), abs=0.01
    )
    held_out = [p.info["held_out_log_prob"].mean() for p in (with_them, without)]
    assert held_out[0] == pytest.approx(held_out[1], abs=0.02)


def test_random_functions_are_saved_and_not_handed_on(tmp_path):
    found, x = sine(), np.array([[-5.0], [0.0], [2.0]])
    found.save(tmp_path / "it")
    read = cx.load(tmp_path / "it")
    np.testing.assert_array_equal(read.predict(x).mean, found.predict(x).mean)
    np.testing.assert_array_equal(read.predict(x).epistemic, found.predict(x).epistemic)
    method, data = cx.CrossFitEnsemble(4, 5), (SEEN[:, None], SINE)
    model = cx.Model(
        cx.networks.tabular([16], bins=8), likelihood=cx.likelihoods.Gaussian(0.1), standardise="x"
    )
    again = cx.fit(model, data, method, start=read, progress=False)
    assert np.all(again.predict(x).epistemic[:2] > 0)


def sizes(x, places, weights=None):
    """The standard deviation of the random functions at some places."""
    rng = np.random.default_rng(0)
    cosines, kernel = wandering._cosines(rng, rng.permutation(x)[:, None], weights, 0.01, False)
    return np.linalg.norm(cosines.at(np.array(places)[:, None]) @ kernel, axis=1)


@pytest.mark.slow
def test_random_functions_are_small_at_the_rows_and_of_unit_size_far_away():
    found = sizes(SEEN, [-2, 0, 2, -30, 30])
    assert np.all(found[[0, 2]] < 0.03)
    assert found[1] > 0.2
    np.testing.assert_allclose(found[3:], 1, atol=0.1)
    np.testing.assert_allclose(sizes(1e3 * SEEN, [0, -30e3]), found[[1, 3]], rtol=1e-6)


@pytest.mark.slow
def test_rows_without_weight_do_not_hold_the_functions_down():
    x, places = np.concatenate([SEEN, np.linspace(-1, 1, 40)]), [0.0, 2.0]
    order = np.random.default_rng(0).permutation(x)
    assert sizes(x, places)[0] < 0.1
    assert sizes(x, places, (np.abs(order) >= 1).astype(float))[0] > 0.2


WAVES = cx.networks.from_function(
    lambda key: {"place": jnp.zeros(2), "raw": jnp.zeros(())},
    lambda params, x: jnp.stack(
        [jnp.full(len(x), each) for each in (20.0, -20.0)]
        + [0.5**0.5 * jnp.cos(params["place"][0] * x[:, 0] + params["place"][1]) + 0.5]
        + [jnp.zeros(len(x)), jnp.full(len(x), params["raw"]), jnp.zeros(len(x))],
        axis=1,
    ),
)
"""A normal density around a wave: an error of a quarter of the variance that is planted in each member."""


def planted(members, noise, rows, scale=1.0):
    rng = np.random.default_rng(4)
    x, y = rng.uniform(-9, 9, size=(rows, 1)), np.sqrt(noise) * rng.normal(size=rows)
    model = cx.Model(WAVES, likelihood=cx.likelihoods.MixtureDensity(2)).bind((x, y))
    place = np.stack([rng.uniform(5, 9, members), rng.uniform(0, 6.28, members)], -1)
    raw = np.full(members, np.log(np.expm1(scale - 0.01)))
    params = {"place": place[:, None], "raw": raw[:, None]}
    return cx.Posterior(model, Draws(jax.tree.map(np.float32, params))), x, y


@pytest.mark.slow
def test_the_density_is_as_wide_as_the_errors_of_all_members_together():
    posterior, x, y = planted(8, 0.75, 8_000)
    data = ArrayData(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    single, together = stretching.factors(posterior, data, 8)
    assert single == pytest.approx(
        1, abs=0.03
    )  # the errors of a member are 0.75 of noise and 0.25 of its own
    assert together == pytest.approx(0.75, abs=0.03)  # 0.75 + 0.25 / 8 is c^2 + 0.25 (1 - 1 / 8)

    def covered(found):
        lower, upper = found.predict(x).interval(0.9)
        return np.mean((lower <= y) & (y <= upper))

    assert covered(posterior) > 0.92
    assert covered(stretching.with_stretch(posterior, together)) == pytest.approx(0.9, abs=0.01)


def test_members_that_agree_need_what_each_of_them_needs():
    posterior, x, y = planted(4, 1.0, 2_000, scale=2.0)
    same = jax.tree.map(lambda leaf: np.repeat(leaf[:1], 4, axis=0), posterior.approximation.params)
    y = y + np.asarray(posterior.predict(x).means[0, :, 0])
    data = ArrayData(jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
    found = stretching.factors(cx.Posterior(posterior.model, Draws(same)), data, 4)
    np.testing.assert_allclose(found, 0.5, rtol=0.04)


@pytest.mark.slow
def test_the_width_of_a_mixture_density_is_judged_by_unseen_rows():
    model = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.MixtureDensity(2))
    each = [
        cx.fit(model, (X, Y), cx.CrossFitEnsemble(4, 60, calibrate=given), progress=False)
        for given in (False, True)
    ]
    before, after = (found.info["held_out_log_prob"].mean() for found in each)
    assert after > before
    assert each[1].model.likelihood.stretch == each[1].info["stretch"] != 1
    assert each[0].model.likelihood.stretch == 1


def test_densities_are_in_the_units_of_y():
    model = cx.Model(MODEL.network, likelihood=MODEL.likelihood, standardise=True)
    method = cx.CrossFitEnsemble(members=4, num_steps=50)
    one, ten = (cx.fit(model, (X, c * Y), method, progress=False) for c in (1, 10))
    found = [p.info["held_out_log_prob"] for p in (one, ten)]
    np.testing.assert_allclose(found[0] - found[1], np.log(10), atol=1e-3)


@pytest.mark.slow
def test_chains_can_leave_out_folds_too():
    method = cx.MicrocanonicalEnsemble(
        members=2, num_warmup=200, num_draws=5, thin=10, folds=4, collapse=True
    )
    model = cx.Model(cx.networks.mlp([8]), likelihood=cx.likelihoods.Gaussian(None))
    out = folds.held_out_rows(ROWS, 4)[1]
    changed = Y.copy()
    changed[out] += 5
    one, other = (cx.fit(model, (X, y), method, progress=False) for y in (Y, changed))
    for a, b in zip(*(jax.tree.leaves(p.draws) for p in (one, other)), strict=True):
        np.testing.assert_array_equal(a[1], b[1])
    assert one.info["held_out_log_prob"].shape == (40,)


@pytest.mark.parametrize(
    "settings, named",
    [
        ({"members": 1}, "members"),
        ({"members": 50}, "members"),
        ({"folds": 60}, "folds"),
        ({"batch_size": 70}, "batch_size"),
    ],
)
def test_what_does_not_fit_the_rows_is_refused(settings, named):
    with pytest.raises(ValueError, match=rf"CrossFitEnsemble\({named}=...\)"):
        fit(**settings)
