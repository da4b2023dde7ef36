"""Pruning: signal-to-noise ratios, the weights that are removed, and every kind of pruned posterior."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import credax as cx
from credax.decisions.pruning import prune, pruning_curve, signal_to_noise
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import Categorical, FullRank, LowRank, MeanField
from credax.posterior.approximations.masks import Seeds
from credax.posterior.approximations.mixtures import GaussianMixture
from credax.posterior.approximations.normals import FullNormal, KroneckerNormal

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(20, 3)), RNG.normal(size=20)
LINEAR = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.5)).bind((X, Y))
NETWORK = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(None)).bind((X, Y))


def random_like(tree, *leading, seed=0, scale=1.0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: scale * rng.normal(size=(*leading, *leaf.shape)).astype(leaf.dtype), tree
    )


def shapes(model):
    return jax.eval_shape(model.init, jax.random.key(0))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def mean_field(model=NETWORK, seed=0):
    return MeanField(
        random_like(shapes(model), seed=seed),
        random_like(shapes(model), seed=seed + 1),
    )


def of_every_kind():
    like = shapes(NETWORK)
    size = sum(leaf.size for leaf in jax.tree.leaves(like))
    leaves = len(jax.tree.leaves(like))
    factor = np.random.default_rng(3).normal(size=(size, size)).astype(np.float32)
    empty = jax.tree.map(lambda leaf: np.zeros((0, 0), leaf.dtype), like)
    scale = jax.tree.map(np.abs, random_like(like, seed=5))
    mixture = (
        random_like(like, 3),
        jax.tree.map(np.abs, random_like(like, 3, seed=1)),
        random_like(like, 3, 2, seed=2),
    )
    return {
        "MeanField": mean_field(),
        "LowRank": LowRank(*(random_like(like, seed=s) for s in (0, 1)), random_like(like, 2)),
        "FullRank": FullRank(random_like(like), jnp.asarray(factor)),
        "Draws": Draws(random_like(like, 2, 6), (), np.log(RNG.uniform(0.1, 1, (2, 6)))),
        "GaussianMixture": GaussianMixture(*mixture),
        "FullNormal": FullNormal(random_like(like), factor, (True,) * leaves, False),
        "KroneckerNormal": KroneckerNormal(
            random_like(like), empty, empty, scale, ((),) * leaves, False
        ),
    }


KINDS = of_every_kind()


def network_of(params):
    return params["network"]


# -- signal-to-noise ratios ------------------------------------------------------------------------


def test_of_a_mean_field_by_hand():
    like = shapes(LINEAR)
    mean = jax.tree.map(lambda leaf: np.full(leaf.shape, -3.0, leaf.dtype), like)
    rho = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.0, leaf.dtype), like)
    found = signal_to_noise(cx.Posterior(LINEAR, MeanField(mean, rho)))
    assert jax.tree.structure(found) == jax.tree.structure(like)
    np.testing.assert_allclose(flat(found), 3 / np.log(2), rtol=1e-6)


def test_of_draws_by_hand_with_their_weights():
    values = np.array([1.0, 2.0, 6.0], np.float32)
    params = jax.tree.map(
        lambda leaf: np.broadcast_to(
            values.reshape(1, 3, *(1,) * leaf.ndim), (1, 3, *leaf.shape)
        ).copy(),
        shapes(LINEAR),
    )
    plain = signal_to_noise(cx.Posterior(LINEAR, Draws(params)))
    np.testing.assert_allclose(flat(plain), values.mean() / values.std(), rtol=1e-6)
    weights = np.array([0.5, 0.3, 0.2])
    weighted = Draws(params, (), 7 + np.log(weights)[None])
    mean = weights @ values
    sd = np.sqrt(weights @ (values - mean) ** 2)
    found = signal_to_noise(cx.Posterior(LINEAR, weighted))
    np.testing.assert_allclose(flat(found), mean / sd, rtol=1e-6)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_of_every_kind_against_draws(kind):
    approximation = KINDS[kind]
    found = flat(signal_to_noise(cx.Posterior(NETWORK, approximation)))
    drawn = approximation.sample(cx.random.key(0), 20_000).params
    draws = _wide(network_of(drawn))
    expected = np.abs(draws.mean(0)) / draws.std(0)
    # The standard error of the ratio m/s of n normal draws is sqrt((1 + (m/s)^2 / 2) / n).
    error = np.sqrt((1 + expected**2) / 20_000)
    assert np.all(np.abs(found - expected) < 5 * error)


def _wide(tree):
    return np.concatenate(
        [np.reshape(leaf, (len(leaf), -1)) for leaf in jax.tree.leaves(tree)], axis=1
    )


def test_certain_weights_have_no_noise_or_no_signal():
    like = shapes(LINEAR)
    mean = {"layer_0": {"bias": np.ones(1), "kernel": np.array([[0.0], [2.0], [1.0]])}}
    rho = jax.tree.map(lambda leaf: np.full(leaf.shape, -np.inf), like)
    rho["layer_0"]["kernel"][2] = 0
    found = signal_to_noise(cx.Posterior(LINEAR, MeanField(mean, rho)))
    assert found["layer_0"]["bias"] == np.inf
    np.testing.assert_allclose(found["layer_0"]["kernel"][:, 0], [0, np.inf, 1 / np.log(2)], 1e-6)


# -- which weights are removed ---------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "kind, fraction", [*((kind, 0.4) for kind in KINDS), ("MeanField", 0.0), ("Draws", 1.0)]
)
def test_the_weakest_share_is_zero_in_every_draw_and_the_rest_as_before(kind, fraction):
    posterior = cx.Posterior(NETWORK, KINDS[kind], log_evidence=(1.0, 0.1), elbo=(0.0, 0.1))
    pruned = prune(posterior, fraction)
    assert type(pruned.approximation) is type(posterior.approximation)
    assert pruned.log_evidence is None
    assert pruned.elbo is None
    ratio = flat(signal_to_noise(posterior))
    count = round(fraction * len(ratio))
    weak = np.zeros(len(ratio), bool)
    weak[np.argsort(ratio, kind="stable")[:count]] = True
    before, after = (p.sample(3, 50) for p in (posterior, pruned))
    was, now = _wide(network_of(before)), _wide(network_of(after))
    assert np.all(now[:, weak] == 0)
    np.testing.assert_array_equal(now[:, ~weak], was[:, ~weak])
    assert np.all(now[:, ~weak] != 0)
    jax.tree.map(np.testing.assert_array_equal, after["likelihood"], before["likelihood"])
    if fraction == 0.4:
        predictive = pruned.predict(X)
        assert np.all(np.isfinite(predictive.mean))
        assert np.all(predictive.variance > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pruned_posterior_survives_saving(tmp_path, kind):
    pruned = prune(cx.Posterior(NETWORK, KINDS[kind]), 0.5)
    pruned.save(tmp_path / "it")
    stored, given = cx.load(tmp_path / "it").approximation, pruned.approximation
    assert type(stored) is type(given)
    for item in dataclasses.fields(given):
        a, b = (getattr(each, item.name) for each in (stored, given))
        jax.tree.map(np.testing.assert_array_equal, a, b)


def test_pruning_twice_removes_no_more_than_the_larger_share():
    posterior = cx.Posterior(NETWORK, mean_field())
    once, twice = prune(posterior, 0.6), prune(prune(posterior, 0.3), 0.6)
    jax.tree.map(np.testing.assert_array_equal, once.sample(0, 2), twice.sample(0, 2))


@pytest.mark.slow
def test_discrete_weights():
    prior = cx.priors.Discrete([-1, 0, 2])
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(0.5)).bind((X, Y))
    logits = random_like(shapes(model), 3)
    posterior = cx.Posterior(model, Categorical(logits, ((-1.0, 0.0, 2.0),) * 2))
    pruned = prune(posterior, 0.5)
    ratio = flat(signal_to_noise(posterior))
    drawn = _wide(pruned.sample(0, 100))
    assert np.all(drawn[:, np.argsort(ratio)[:2]] == 0)
    assert np.any(drawn[:, np.argsort(ratio)[2:]] != 0, axis=0).all()
    approximation = pruned.approximation
    assert isinstance(approximation, Categorical)
    assert np.isfinite(approximation.entropy())
    assert np.isfinite(approximation.log_prob(jax.tree.map(lambda a: a[0], pruned.sample(0, 1))))
    never = cx.Posterior(model, Categorical(logits, ((-1.0, 1.0, 2.0),) * 2))
    with pytest.raises(ValueError, match=r"values \(-1.0, 1.0, 2.0\), which do not include 0"):
        prune(never, 0.5)


def test_predictions_stay_where_the_removed_weights_were_zero_already():
    approximation = mean_field()
    params = shapes(NETWORK)["network"]
    dead = jax.tree.map(lambda leaf: RNG.uniform(size=leaf.shape) < 0.5, params)
    count = int(flat(dead).sum())
    mean, rho = dict(approximation.mean), dict(approximation.rho)
    mean["network"] = jax.tree.map(lambda d, a: np.where(d, 0, a), dead, mean["network"])
    rho["network"] = jax.tree.map(lambda d, a: np.where(d, -np.inf, a), dead, rho["network"])
    posterior = cx.Posterior(NETWORK, MeanField(mean, rho))
    pruned = prune(posterior, count / flat(dead).size)
    before, after = posterior.predict(X), pruned.predict(X)
    np.testing.assert_array_equal(before.mean, after.mean)
    np.testing.assert_array_equal(before.variance, after.variance)


@pytest.mark.slow
def test_inputs_that_do_not_matter_go_first():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(200, 8))
    y = x[:, :3] @ [2.0, -2.0, 1.5] + 0.1 * rng.normal(size=200)
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(0.1))
    method = cx.BayesByBackprop(num_steps=1500, learning_rate=0.03)
    posterior = cx.fit(model, (x, y), method, progress=False)
    kernel = prune(posterior, 6 / 9).sample(0, 1)["layer_0"]["kernel"][0, :, 0]
    assert np.all(kernel[3:] == 0)
    assert np.all(kernel[:3] != 0)
    curve = pruning_curve(posterior, x, y, [0, 3 / 9, 6 / 9, 7 / 9, 8 / 9, 1])
    np.testing.assert_array_equal(curve.weights, [9, 6, 3, 2, 1, 0])
    rmse = [scores.rmse for scores in curve.scores]
    assert rmse[2] < 1.1 * rmse[0]  # only useless weights are removed so far
    assert np.all(np.diff(rmse[2:]) > 0.1)  # then useful ones
    lines = repr(curve).splitlines()
    assert lines[0].startswith("removed  weights left  log likelihood")
    assert lines[3].split()[:2] == ["66.7%", "3"]
    assert curve._repr_html_().count("<tr>") == 7
    assert rmse[-1] == pytest.approx(np.sqrt(np.mean(y**2)), rel=1e-5)


# -- weights without variance ----------------------------------------------------------------------


@pytest.mark.parametrize("double", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_mean_field_with_certain_weights_has_no_nan(double, request):
    if double:
        request.getfixturevalue("x64")
    dtype = np.dtype(jnp.result_type(float))
    mean, rho = np.array([0.0, 1.0, -2.0], dtype), np.array([-np.inf, 0.5, -np.inf], dtype)
    family = MeanField({"a": mean}, {"a": rho})
    drawn = np.asarray(family.sample(cx.random.key(0), 100).params["a"])
    np.testing.assert_array_equal(drawn[:, [0, 2]], np.tile([0.0, -2.0], (100, 1)))
    assert np.ptp(drawn[:, 1]) > 1
    assert family.entropy() == -np.inf
    sigma = np.log1p(np.exp(0.5))
    inside = family.log_prob({"a": jnp.array([0.0, 0.3, -2.0], dtype)})
    assert inside == pytest.approx(norm.logpdf(0.3, 1, sigma), rel=1e-5)
    assert family.log_prob({"a": jnp.array([0.1, 0.3, -2.0], dtype)}) == -np.inf
    gradient = jax.grad(lambda q: q.log_prob({"a": jnp.array([0.0, 0.3, -2.0], dtype)}))(family)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    through = jax.grad(lambda q: jnp.sum(q.draw(cx.random.key(1))["a"]))(family)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(through))


@pytest.mark.slow
def test_a_fit_can_start_from_a_pruned_posterior():
    pruned = prune(cx.Posterior(NETWORK, mean_field()), 0.5)
    posterior = cx.fit(
        NETWORK, (X, Y), cx.BayesByBackprop(num_steps=2), start=pruned, progress=False
    )
    assert np.all(np.isfinite(posterior.predict(X).mean))


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [-0.1, 1.1, np.nan])
def test_fractions_are_shares(fraction):
    posterior = cx.Posterior(NETWORK, mean_field())
    with pytest.raises(ValueError, match=r"prune\(fraction=...\) must be (a number )?from 0 to 1"):
        prune(posterior, fraction)
    with pytest.raises(ValueError, match=r"pruning_curve\(fractions=...\) must be"):
        pruning_curve(posterior, X, Y, [0.5, fraction])


def test_what_cannot_be_pruned_says_why():
    posterior = cx.Posterior(NETWORK, mean_field())
    with pytest.raises(TypeError, match=r"prune\(fraction=...\) must be a number from 0 to 1"):
        prune(posterior, "half")
    with pytest.raises(ValueError, match=r"pruning_curve\(fractions=...\) must be one or more"):
        pruning_curve(posterior, X, Y, [])
    with pytest.raises(ValueError, match=r"pruning_curve\(fractions=...\) must be one or more"):
        pruning_curve(posterior, X, Y, 0.5)
    with pytest.raises(TypeError, match=r"prune\(posterior=...\) must be a cx.Posterior"):
        prune(posterior.approximation, 0.5)
    point = Draws(random_like(shapes(NETWORK), 1, 1))
    with pytest.raises(ValueError, match="Draws, is a single draw, whose weights have no spread"):
        prune(cx.Posterior(NETWORK, point), 0.5)
    with pytest.raises(ValueError, match="Seeds, does not give each weight a variance"):
        prune(cx.Posterior(NETWORK, Seeds(random_like(shapes(NETWORK)), ((), ()))), 0.5)
    mixing = KINDS["KroneckerNormal"]
    turned = jax.tree.map(lambda _: np.eye(2, dtype=np.float32), mixing.mean)
    with pytest.raises(ValueError, match=r'weights; use Laplace\(structure="diagonal"\)'):
        prune(cx.Posterior(NETWORK, dataclasses.replace(mixing, inputs=turned)), 0.5)
    density = cx.LogDensity(lambda key: {"a": jnp.zeros(2)}, lambda p: -jnp.sum(p["a"] ** 2))
    with pytest.raises(TypeError, match="this posterior is of a LogDensity"):
        signal_to_noise(cx.Posterior(density, Draws({"a": np.zeros((1, 3, 2))})))
