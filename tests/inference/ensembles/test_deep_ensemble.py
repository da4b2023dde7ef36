"""Deep ensembles: their moments, and members that differ in rows, prior, targets and inputs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import credax as cx
from credax.core import random
from credax.fit import program
from credax.inference.ensembles.deep_ensemble import DeepEnsemble
from credax.model.likelihoods import Gaussian
from credax.model.networks import linear, mlp
from credax.posterior.approximations import Draws

GENERATOR = np.random.default_rng(2)
ROWS = 30
X = GENERATOR.normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.02] + 0.7 + 0.3 * GENERATOR.normal(size=ROWS)
DESIGN = np.column_stack([X, np.ones(ROWS)])  # the last column is the bias
POINT = {"num_steps": 3_000, "learning_rate": 0.03}
LINE = cx.Model(linear(), cx.priors.Normal(0.8, 0.5), Gaussian(0.4))


def fit(model, method, key=0, data=(X, Y), **arguments):
    return cx.fit(model, data, method, key=key, progress=False, **arguments)


def coefficients(posterior, replica=0):
    """Weights and bias of a linear model with one target."""
    layer = posterior.draws["layer_0"]
    return np.append(layer["kernel"][replica, 0, :, 0], layer["bias"][replica, 0])


# -- the members and their moments ----------------------------------------------------------------------

ENSEMBLE = DeepEnsemble(members=4, num_steps=300)


@pytest.fixture(scope="module")
def ensemble():
    return fit(
        cx.Model(mlp([5], activation="tanh"), cx.priors.Normal(1.0), Gaussian(0.3)), ENSEMBLE
    )


def test_moments_of_an_ensemble_are_the_formula(ensemble):
    """The mean and the variance of the members' outputs; the variance is divided by S, not by S - 1."""
    new = np.random.default_rng(5).normal(size=(8, 3))
    outputs = []
    for s in range(4):
        layers = [
            {
                name: np.float64(ensemble.draws[f"layer_{i}"][name][s, 0])
                for name in ("kernel", "bias")
            }
            for i in range(2)
        ]
        hidden = np.tanh(new @ layers[0]["kernel"] + layers[0]["bias"])
        outputs.append((hidden @ layers[1]["kernel"] + layers[1]["bias"])[:, 0])
    mean = sum(outputs) / 4
    variance = sum((f - mean) ** 2 for f in outputs) / 4
    predictive = ensemble.predict(new)
    np.testing.assert_allclose(predictive.mean, mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(predictive.epistemic, variance, rtol=1e-3, atol=1e-7)
    np.testing.assert_allclose(predictive.variance, variance + 0.09, rtol=1e-3)
    np.testing.assert_allclose(predictive.outputs[..., 0], outputs, rtol=1e-4, atol=1e-5)


def test_members_differ(ensemble):
    kernels = ensemble.draws["layer_0"]["kernel"]
    assert kernels.shape == (4, 1, 3, 5)
    for s in range(4):
        for t in range(s):
            assert not np.allclose(kernels[s], kernels[t], atol=0.01)
    assert "members" not in str(ensemble.diagnose())


def test_members_of_a_convex_problem_agree_and_the_doctor_says_so():
    model = cx.Model(linear(), cx.priors.Normal(1.0), Gaussian(0.3))
    posterior = fit(model, DeepEnsemble(members=3, **POINT))
    np.testing.assert_allclose(coefficients(posterior, 0), coefficients(posterior, 2), atol=1e-4)
    assert "members ended at the same weights" in str(posterior.diagnose())


def test_a_member_is_a_map_run_from_its_own_start(x64):
    model = cx.Model(mlp([5], activation="tanh"), cx.priors.Normal(1.0), Gaussian(0.3))
    begin = fit(model, DeepEnsemble(members=3, num_steps=1, learning_rate=1e-12))
    together = fit(model, DeepEnsemble(members=3, num_steps=100), start=begin)
    for s in range(3):
        member = jax.tree.map(lambda leaf, s=s: leaf[s : s + 1], begin.draws)
        only = cx.Posterior(begin.model, Draws(member))
        alone = fit(model, cx.MAP(num_steps=100), start=only)
        for got, want in zip(
            jax.tree.leaves(together.draws), jax.tree.leaves(alone.draws), strict=True
        ):
            np.testing.assert_allclose(got[s], want[0], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(
            together.info["log_joint"][s], alone.info["log_joint"][0], rtol=1e-9
        )


def test_members_see_their_own_minibatches(x64):
    model = cx.Model(linear(), cx.priors.Normal(1.0), Gaussian(0.3))
    begin = fit(model, cx.MAP(num_steps=1, learning_rate=1e-12))
    posterior = fit(model, DeepEnsemble(members=3, num_steps=5, batch_size=4), start=begin)
    first = posterior.info["log_joint"][:, 0]
    assert len(set(first.tolist())) == 3


@pytest.mark.slow
def test_groups_of_members_are_the_members_together(monkeypatch, x64):
    """Groups give the same members with less memory, since only one group's activations are needed."""
    model = cx.Model(mlp([32]), likelihood=Gaussian(0.3))
    x = np.random.default_rng(1).normal(size=(2_000, 3))
    rooms, advance = {}, program._advance

    def watched(method, *args):
        if method not in rooms:
            compiled = advance.lower(method, *args).compile()
            rooms[method] = compiled.memory_analysis().temp_size_in_bytes
        return advance(method, *args)

    watched.lower = advance.lower
    monkeypatch.setattr(program, "_advance", watched)
    # Five members in groups of two: the last one is alone.
    methods = [DeepEnsemble(5, num_steps=8, members_at_once=at_once) for at_once in (None, 2)]
    together, grouped = (fit(model, method, data=(x, x[:, 0])) for method in methods)
    same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)  # noqa: E731
    jax.tree.map(same, together.draws, grouped.draws)
    same(together.info["log_joint"], grouped.info["log_joint"])
    assert rooms[methods[0]] > 1.5 * rooms[methods[1]]


@pytest.mark.slow
def test_the_noise_of_each_row_is_learned():
    """A network that predicts mean and scale finds the noise of the data as the aleatoric variance."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (600, 1))
    scale = 0.1 + 0.4 * (x[:, 0] > 0)
    y = np.sin(2 * x[:, 0]) + scale * generator.normal(size=600)
    model = cx.Model(mlp([16], activation="tanh"), likelihood=cx.likelihoods.Heteroscedastic())
    posterior = fit(model, DeepEnsemble(members=3, num_steps=1_500), data=(x, y))
    new = np.array([[-0.7], [-0.4], [0.4], [0.7]])
    predictive = posterior.predict(new)
    noise = np.sqrt(predictive.aleatoric)
    np.testing.assert_allclose(noise, [0.1, 0.1, 0.5, 0.5], rtol=0.25)
    # The moments of the mixture of the members' Gaussians, as in the paper.
    mean, raw = np.moveaxis(np.float64(predictive.outputs), -1, 0)
    variance = (model.likelihood.min_scale + np.logaddexp(0, raw)) ** 2
    np.testing.assert_allclose(predictive.mean, mean.mean(0), rtol=1e-4, atol=1e-6)
    total = np.mean(variance + mean**2, 0) - mean.mean(0) ** 2
    np.testing.assert_allclose(predictive.variance, total, rtol=1e-3)


# -- different rows for each member -----------------------------------------------------------------------


def batches(method, member, steps, model=LINE, data=(X, Y)):
    """The rows and targets of a member in the first ``steps`` steps of a run with key 0."""
    bound, arrays = model.prepare(data)
    run_key = jax.random.split(random.key(0), 4)[0]
    key = jax.random.split(jax.random.split(run_key, method.members)[member])[0]
    each = [method.batch(key, bound, arrays, jnp.int32(step)) for step in range(steps)]
    return np.concatenate([b.x for b in each]), np.concatenate([b.y for b in each]), each


def how_often(x):
    """How often each row of X occurs in ``x``."""
    distance = np.abs(np.asarray(x)[:, None] - X).sum(-1)
    assert distance.min(1).max() < 1e-5
    return np.bincount(distance.argmin(1), minlength=ROWS)


def ridge(counts, y=Y, centre=0.5):
    precision = (DESIGN.T * counts) @ DESIGN / 0.16 + np.eye(4) / 0.64
    return np.linalg.solve(precision, (DESIGN.T * counts) @ y / 0.16 + centre / 0.64)


def test_bootstrap_members_are_the_optima_of_their_resamples(x64):
    method = DeepEnsemble(3, bootstrap=True, **POINT)
    posterior = fit(LINE, method)
    seen = []
    for s in range(3):
        x, y, _ = batches(method, s, 1)
        counts = how_often(x)
        assert counts.sum() == ROWS
        np.testing.assert_array_equal(np.sort(y), np.sort(np.repeat(Y, counts)))
        np.testing.assert_allclose(coefficients(posterior, s), ridge(counts), atol=1e-7)
        seen.append(tuple(counts))
    assert len(set(seen)) == 3


@pytest.mark.slow
def test_a_resample_is_the_same_in_every_epoch_and_drawn_with_replacement():
    method = DeepEnsemble(400, bootstrap=True, batch_size=6)
    _, _, each = batches(method, 0, 10)
    epochs = [how_often(np.concatenate([b.x for b in each[i : i + 5]])) for i in (0, 5)]
    np.testing.assert_array_equal(*epochs)
    assert not np.array_equal(each[0].x, each[5].x), "the order must differ"
    assert float(each[0].scale) == ROWS / 6
    bound, arrays = LINE.prepare((X, Y))
    whole = DeepEnsemble(400, bootstrap=True)
    step = jnp.int32(0)
    one = jax.jit(jax.vmap(lambda key: whole.batch(key, bound, arrays, step).x))
    drawn = np.asarray(one(jax.random.split(random.key(3), 400)))
    counts = np.array([how_often(x) for x in drawn])
    # A bootstrap sample leaves out each row with probability (1 - 1/N)^N.
    absent = np.mean(counts == 0, 1)
    error = absent.std() / 20
    assert abs(absent.mean() - (1 - 1 / ROWS) ** ROWS) < 4 * error
    assert np.abs(counts.mean(0) - 1).max() < 4.5 * np.sqrt((1 - 1 / ROWS) / 400)


@pytest.mark.slow
def test_bootstrap_in_minibatches_ends_at_the_same_optima(x64):
    method = DeepEnsemble(2, 6_000, 6, 0.01, bootstrap=True)
    posterior = fit(LINE, method)
    for s in range(2):
        counts = how_often(batches(method, s, 5)[0])
        np.testing.assert_allclose(coefficients(posterior, s), ridge(counts), atol=0.02)


# -- different priors and targets for each member -----------------------------------------------------------


def z_scores(values, truth):
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.ravel((values.mean(0) - truth) / error)


@pytest.mark.slow
def test_members_of_a_linear_model_are_exact_draws_of_its_posterior():
    r"""Because :math:`A^{-1} (X' (y + \epsilon) / \sigma^2 + w_0 / s^2)` has covariance :math:`A^{-1}`."""
    members = 4_000
    method = DeepEnsemble(members, 1_500, learning_rate=0.05, random_prior=True, noisy_targets=True)
    layer = fit(LINE, method).draws["layer_0"]
    draws = np.column_stack([layer["kernel"][:, 0, :, 0], layer["bias"][:, 0]]).astype(np.float64)
    precision = DESIGN.T @ DESIGN / 0.16 + np.eye(4) / 0.64
    mean, covariance = ridge(np.ones(ROWS)), np.linalg.inv(precision)
    centred = draws - mean
    outer = np.einsum("ni,nj->nij", centred, centred)
    z = np.concatenate([z_scores(centred, 0.0), z_scores(outer, covariance)])
    assert np.abs(z).max() < 4, z
    assert np.max(np.diag(outer.std(0)) / np.diag(covariance)) / np.sqrt(members) < 0.03


def test_without_data_a_random_prior_leaves_the_prior():
    """The weight of a column of zeros is a draw from the prior, scaled around the prior mean."""
    x = np.column_stack([X, np.zeros(ROWS)])
    method = DeepEnsemble(500, 800, learning_rate=0.05, random_prior=0.5)
    kernel = fit(LINE, method, data=(x, Y)).draws["layer_0"]["kernel"][:, 0, :, 0]
    silent = np.float64(kernel[:, 3]) - 0.5
    assert abs(z_scores(silent, 0.0)[0]) < 4
    assert abs(z_scores(silent**2, (0.5 * 0.8) ** 2)[0]) < 4


def test_noise_of_the_targets_stays_with_its_row():
    method = DeepEnsemble(2, batch_size=6, noisy_targets=True)
    x, y, _ = batches(method, 0, 10)
    order = np.abs(x[:, None] - X).sum(-1).argmin(1)
    noise = y - Y[order]
    for row in range(ROWS):
        assert np.ptp(noise[order == row]) < 1e-6
    assert 0.25 < noise.std() < 0.55
    other = batches(method, 1, 5)
    assert not np.isin(np.round(y, 4), np.round(other[1], 4)).any()


@pytest.mark.slow
def test_a_random_prior_with_a_learned_scale_and_a_hidden_layer():
    model = cx.Model(mlp([8], activation="tanh"))
    posterior = fit(model, DeepEnsemble(4, 300, 10, random_prior=True, bootstrap=True))
    assert posterior.draws["likelihood"]["log_scale"].shape[:2] == (4, 1)
    near, far = posterior.predict(X).epistemic, posterior.predict(20 * X).epistemic
    assert far.mean() > 3 * near.mean()


# -- adversarial training -----------------------------------------------------------------------------------


def test_a_step_against_an_adversary_is_the_formula(x64):
    """The objective averages over the inputs and inputs moved against their gradient by 2 % of the range."""
    begin = fit(LINE, DeepEnsemble(2, num_steps=1, learning_rate=1e-12))
    rate = optax.constant_schedule(0.1)
    method = DeepEnsemble(2, num_steps=1, learning_rate=rate, optimiser="sgd", adversarial=0.02)
    after = fit(LINE, method, start=begin)
    for s in range(2):
        w = coefficients(begin, s)
        residual = Y - DESIGN @ w
        moved = X - 0.02 * np.ptp(X, axis=0) * np.sign(residual[:, None] * w[:3])
        gradient, joint = -(w - 0.5) / 0.64, -0.5 * np.sum((w - 0.5) ** 2) / 0.64
        for inputs in (X, moved):
            design = np.column_stack([inputs, np.ones(ROWS)])
            error = Y - design @ w
            assert np.all(np.abs(error) >= np.abs(residual) - 1e-12)
            gradient = gradient + 0.5 * design.T @ error / 0.16
            joint -= 0.5 * 0.5 * np.sum(error**2) / 0.16
        np.testing.assert_allclose(coefficients(after, s), w + 0.1 * gradient / ROWS, rtol=1e-9)
        constant = ROWS * np.log(0.4) + 4 * np.log(0.8) + 0.5 * (ROWS + 4) * np.log(2 * np.pi)
        assert after.info["log_joint"][s, 0] == pytest.approx(joint - constant, rel=1e-9)


# -- refusals -------------------------------------------------------------------------------------------------


def half(params, x):
    return params[x[:, 0]]


TABLE = cx.networks.from_function(lambda key: jnp.zeros((ROWS, 1)), half)
DENSITY = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -0.5 * jnp.sum(w**2))


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"members": 1}, ValueError, r"\(members=...\) must be at least 2, .* cx.MAP\); got 1"),
        ({"members": 0}, ValueError, r"\(members=...\) must be .*; got 0"),
        ({"bootstrap": 2}, TypeError, r"\(bootstrap=...\) must be True or False; got 2"),
        ({"random_prior": -1}, ValueError, r"\(random_prior=...\) must be True, .*; got -1"),
        ({"random_prior": "a"}, TypeError, r"\(random_prior=...\) must be True, .*; got 'a'"),
        ({"adversarial": 0.0}, ValueError, r"\(adversarial=...\) must be positive; got 0"),
        ({"members_at_once": 0}, ValueError, r"\(members_at_once=...\) must be .*; got 0"),
    ],
)
def test_refused_settings(settings, error, message):
    with pytest.raises(error, match="DeepEnsemble" + message):
        DeepEnsemble(**settings)


@pytest.mark.parametrize(
    "model, data, settings, message",
    [
        (
            DENSITY,
            None,
            {"bootstrap": True},
            r"\(bootstrap=...\) must be left out for a LogDensity",
        ),
        (
            cx.Model(linear(), cx.priors.Laplace(1.0)),
            (X, Y),
            {"random_prior": True},
            r"\(random_prior=...\) must be False unless the prior is Gaussian, which Laplace",
        ),
        (
            cx.Model(linear()),
            (X, Y),
            {"noisy_targets": True},
            r"\(noisy_targets=...\) must be False unless the likelihood is a Gaussian of given",
        ),
        (
            cx.Model(TABLE),
            (np.arange(ROWS)[:, None], Y),
            {"adversarial": 0.01},
            r"\(adversarial=...\) must be None where x holds int32",
        ),
    ],
)
def test_refused_models(model, data, settings, message):
    with pytest.raises(ValueError, match="DeepEnsemble" + message):
        fit(model, DeepEnsemble(**settings), data=data)


class Pretrained(cx.networks.Network):
    pretrained = True


def test_members_of_a_pretrained_network_must_differ():
    network = Pretrained(lambda key: jnp.ones((1, 1)), lambda w, x: x @ w)
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0))
    data = np.ones((8, 1)), np.ones(8)
    with pytest.raises(ValueError, match="pretrained weights and see the same rows"):
        cx.fit(model, data, cx.DeepEnsemble(members=2, num_steps=2), progress=False)
    method = cx.DeepEnsemble(members=2, num_steps=2, bootstrap=True)
    method.check(*model.prepare(data))
