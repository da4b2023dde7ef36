"""A posterior that goes on learning: batch after batch, each posterior the prior of the next fit."""

import jax
import numpy as np
import pandas as pd
import pytest

import credax as cx

NOISE = 0.5
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 3))
Y = X @ [1.0, -2.0, 0.5] + 0.3 + NOISE * GENERATOR.normal(size=60)
MODEL = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(NOISE))
PARTS = np.split(np.arange(60), 3)


def exact(x, y):
    """Mean, covariance and log evidence of the linear model; the bias comes first, as in the tree's order."""
    rows = np.c_[np.ones(len(x)), x]
    covariance = np.linalg.inv(rows.T @ rows / NOISE**2 + np.eye(4))
    spread = rows @ rows.T + NOISE**2 * np.eye(len(x))
    evidence = -0.5 * (y @ np.linalg.solve(spread, y) + np.linalg.slogdet(2 * np.pi * spread)[1])
    return covariance @ rows.T @ y / NOISE**2, covariance, evidence


def stream(model, method, parts=PARTS, **options):
    """One fit after the other, each from the posterior of the one before."""
    posterior, found = None, []
    for part in parts:
        prior = None if posterior is None else posterior.as_prior(**options)
        posterior = cx.fit(model, (X[part], Y[part]), method, prior=prior, progress=False)
        found.append(posterior)
    return found


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_batch_after_batch_is_the_posterior_of_all_rows(x64):
    fits = stream(MODEL, cx.Laplace(structure="full", num_steps=1000, learning_rate=0.05))
    mean, covariance, evidence = exact(X, Y)
    np.testing.assert_allclose(flat(fits[-1].approximation.mean), mean, atol=1e-5)
    np.testing.assert_allclose(fits[-1].approximation.covariance(), covariance, rtol=1e-9)
    # p(D1) p(D2 | D1) p(D3 | D1, D2)
    np.testing.assert_allclose(sum(fit.log_evidence[0] for fit in fits), evidence, rtol=1e-9)


@pytest.mark.slow
def test_sampling_from_a_correlated_prior_is_sampling_from_the_posterior_of_all_rows(x64):
    first = stream(MODEL, cx.Laplace(structure="full", num_steps=1000, learning_rate=0.05))[:2][-1]
    nuts = cx.NUTS(chains=4, num_warmup=200, num_draws=500)
    rest = (X[PARTS[2]], Y[PARTS[2]])
    posterior = cx.fit(MODEL, rest, nuts, prior=first.as_prior(), progress=False)
    draws = np.concatenate(
        [leaf.reshape(2000, -1) for leaf in jax.tree.leaves(posterior.draws)], axis=1
    )
    mean, covariance, _ = exact(X, Y)
    # Chains of NUTS on a normal distribution have at least half as many effective draws as draws.
    z = (draws.mean(0) - mean) / np.sqrt(np.diag(covariance) / 1000)
    assert np.all(np.abs(z) < 4.5)
    ratio = np.linalg.solve(covariance, np.cov(draws.T))
    np.testing.assert_allclose(ratio, np.eye(4), atol=0.25)


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
def test_independent_weights_go_on_exactly(structure, x64):
    # With orthogonal columns the posterior factorises, so that these structures are exact as well.
    rows = np.kron(np.ones((16, 1)), np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]))
    y = rows @ [1.0, -0.5] + 0.2 + NOISE * np.random.default_rng(1).normal(size=64)
    method = cx.Laplace(structure=structure, num_steps=1000, learning_rate=0.05)
    posterior = None
    for part in np.split(np.arange(64), 4):
        prior = None if posterior is None else posterior.as_prior()
        posterior = cx.fit(MODEL, (rows[part], y[part]), method, prior=prior, progress=False)
    precision = 64 / NOISE**2 + 1
    mean = np.r_[np.sum(y), rows.T @ y] / NOISE**2 / precision
    handed = posterior.as_prior("diagonal").prior
    np.testing.assert_allclose(flat(handed.weights.tree), mean, atol=1e-5)
    np.testing.assert_allclose(flat(handed.scale.tree), precision**-0.5, rtol=1e-6)


@pytest.mark.slow
def test_a_mean_field_posterior_goes_on():
    rows = np.kron(np.ones((16, 1)), np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]]))
    y = rows @ [1.0, -0.5] + 0.2 + NOISE * np.random.default_rng(1).normal(size=64)
    method = cx.BayesByBackprop(num_steps=1500, learning_rate=0.02, kl_annealing=0)
    posterior = None
    for part in np.split(np.arange(64), 2):
        prior = None if posterior is None else posterior.as_prior()
        posterior = cx.fit(MODEL, (rows[part], y[part]), method, prior=prior, progress=False)
    precision = 64 / NOISE**2 + 1
    mean = np.r_[np.sum(y), rows.T @ y] / NOISE**2 / precision
    handed = posterior.as_prior().prior
    # An optimum, up to the noise of its last steps.
    np.testing.assert_allclose(flat(handed.weights.tree), mean, atol=0.3 * precision**-0.5)
    np.testing.assert_allclose(flat(handed.scale.tree), precision**-0.5, rtol=0.15)


def test_the_scales_of_the_first_fit_are_kept(x64):
    model = cx.Model(
        cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3), standardise=True
    )
    method = cx.Laplace(structure="full", num_steps=1000, learning_rate=0.05)
    x, y = 100 + 7 * X, 50 - 3 * Y
    first = cx.fit(model, (x[:20], y[:20]), method, progress=False)
    # Rows from elsewhere, whose own scales would be others.
    more = (x[20:] + 11, y[20:])
    second = cx.fit(model, more, method, prior=first.as_prior(), progress=False)
    assert second.model.frame == first.model.frame
    centre, scale = (np.array(getattr(first.model.frame.x_scaling, n)) for n in ("centre", "scale"))
    of_y = first.model.frame.y_scaling
    together = (np.r_[x[:20], more[0]] - centre) / scale, (y - of_y.centre[0]) / of_y.scale[0]
    plain = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3))
    wanted = cx.fit(plain, together, method, progress=False)
    np.testing.assert_allclose(
        flat(second.approximation.mean), flat(wanted.approximation.mean), atol=1e-5
    )
    np.testing.assert_allclose(
        second.approximation.covariance(), wanted.approximation.covariance(), rtol=1e-6
    )


def test_columns_are_taken_by_name():
    method = cx.Laplace(structure="full", num_steps=300, learning_rate=0.05)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    first = cx.fit(MODEL, (frame[:30], Y[:30]), method, progress=False)
    fits = [
        cx.fit(MODEL, (frame[30:][order], Y[30:]), method, prior=first.as_prior(), progress=False)
        for order in (["a", "b", "c"], ["c", "a", "b"])
    ]
    np.testing.assert_array_equal(*(flat(fit.approximation.mean) for fit in fits))
    with pytest.raises(ValueError, match=r"x must have the columns of the fit.*'c' missing"):
        cx.fit(MODEL, (frame[["a", "b"]], Y), method, prior=first.as_prior(), progress=False)


@pytest.mark.slow
def test_classes_that_new_rows_lack_are_kept():
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Categorical())
    labels = np.arange(60) % 3
    method = cx.Laplace(num_steps=200, learning_rate=0.05)
    first = cx.fit(model, (X, labels), method, progress=False)
    few = labels < 2
    second = cx.fit(model, (X[few], labels[few]), method, prior=first.as_prior(), progress=False)
    assert second.predict(X).probs.shape == (60, 3)


@pytest.mark.matrix
@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_a_learned_noise_scale_goes_on(structure):
    model = cx.Model(cx.networks.linear(), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(None))
    method = cx.Laplace(structure=structure, num_steps=800, learning_rate=0.05)
    generator = np.random.default_rng(2)
    x = generator.normal(size=(800, 3))
    y = x @ [1.0, -2.0, 0.5] + NOISE * generator.normal(size=800)
    posterior = None
    for part in np.split(np.arange(800), 4):
        prior = None if posterior is None else posterior.as_prior()
        posterior = cx.fit(model, (x[part], y[part]), method, prior=prior, progress=False)
    handed = posterior.as_prior().likelihood
    # The information of all rows about log sigma is 2 N, and that of its prior 1.
    np.testing.assert_allclose(flat(handed.scale.tree), (1 + 2 * 800) ** -0.5, rtol=1e-5)
    spread = (2 * 800) ** -0.5
    assert abs(flat(handed.weights.tree)[0] - np.log(NOISE)) < 4.5 * spread


def test_forgetting_widens_every_scale(x64):
    method = cx.Laplace(structure="full", num_steps=1000, learning_rate=0.05)
    posterior = stream(MODEL, method, PARTS[:1])[0]
    plain, wide = (posterior.as_prior(forget=forget).prior for forget in (0.0, 0.75))
    np.testing.assert_allclose(wide.factor.arrays[""], 2 * plain.factor.arrays[""])
    np.testing.assert_array_equal(flat(wide.weights.tree), flat(plain.weights.tree))


@pytest.mark.slow
def test_another_fit_of_the_same_shapes_compiles_nothing(compilations):
    method = cx.BayesByBackprop(num_steps=20, batch_size=10)
    network = cx.networks.mlp([8])
    model = cx.Model(network, likelihood=cx.likelihoods.Gaussian(None), standardise=True)
    posterior = stream(model, method)[-1]
    posterior.predict(X).mean  # noqa: B018
    with compilations() as count:
        more = cx.fit(model, (X[:20], Y[:20]), method, prior=posterior.as_prior(), progress=False)
        more.predict(X).mean  # noqa: B018
    assert count() == 0


@pytest.mark.matrix
@pytest.mark.parametrize("structure", ["full", "kronecker", "diagonal"])
def test_a_posterior_with_such_a_prior_is_saved(structure, tmp_path):
    model = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(None))
    method = cx.Laplace(structure=structure, num_steps=400, learning_rate=0.05)
    second = stream(model, method, PARTS[:2])[-1]
    second.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    assert loaded.model == second.model
    rest = (X[PARTS[2]], Y[PARTS[2]])
    fits = [
        cx.fit(model, rest, method, prior=each.as_prior(), progress=False)
        for each in (second, loaded)
    ]
    np.testing.assert_array_equal(*(fit.predict(X).mean for fit in fits))


# -- bad input -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def first():
    return stream(
        MODEL, cx.Laplace(structure="full", num_steps=400, learning_rate=0.05), PARTS[:1]
    )[0]


def test_a_point_needs_a_scale():
    point = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=10), progress=False)
    with pytest.raises(ValueError, match=r"says nothing about 4 of 4 weights.*as_prior\(scale"):
        point.as_prior()
    prior = point.as_prior(scale=0.3).prior
    np.testing.assert_allclose(flat(prior.scale.tree), 0.3, rtol=1e-6)


@pytest.mark.parametrize(
    "options, error",
    [
        (
            {"structure": "fulll"},
            r"as_prior\(structure=...\) must be one of None, 'diagonal'.*'fulll'",
        ),
        (
            {"structure": "kronecker"},
            r"must be one of 'diagonal', 'full'; got 'kronecker' for a FullN",
        ),
        ({"forget": 1.0}, r"as_prior\(forget=...\) must be at least 0 and below 1; got 1.0"),
        ({"forget": -0.1}, r"as_prior\(forget=...\) must be at least 0"),
        ({"scale": 0.0}, r"as_prior\(scale=...\) must be positive"),
        ({"rank": 0}, r"as_prior\(rank=...\) must be a whole number, at least 1; got 0"),
    ],
)
def test_bad_options_are_refused(options, error, first):
    with pytest.raises(ValueError, match=error):
        first.as_prior(**options)


def test_a_prior_that_does_not_fit_is_refused(first):
    handed = first.as_prior()
    point = cx.MAP(num_steps=5)
    with pytest.raises(ValueError, match=r"x must have shape \(rows, 3\), as in the fit"):
        cx.fit(MODEL, (X[:, :2], Y), point, prior=handed, progress=False)
    wide = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Gaussian(NOISE))
    with pytest.raises(ValueError, match=r"FullCovariance\(weights=...\) must h"):
        cx.fit(wide, (X, Y), point, prior=handed, progress=False)
    other = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.StudentT())
    with pytest.raises(ValueError, match=r"likelihood=...\) must be of the kind of the fit"):
        cx.fit(other, (X, Y), point, prior=handed, progress=False)
    scaled = cx.Model(cx.networks.linear(), likelihood=cx.likelihoods.Gaussian(), standardise=True)
    with pytest.raises(ValueError, match=r"standardise=...\) must be False, as in the fit"):
        cx.fit(scaled, (X, Y), point, prior=handed, progress=False)
    with pytest.raises(
        TypeError, match=r"fit\(prior=...\) must be a prior.*posterior.as_prior\(\) for new rows"
    ):
        cx.fit(MODEL, (X, Y), point, prior=3, progress=False)
    with pytest.raises(ValueError, match=r"weights are independent is needed.*FullCovariance"):
        cx.fit(MODEL, (X, Y), cx.IVON(num_steps=5), prior=handed, progress=False)
    with pytest.raises(
        ValueError, match=r"Laplace\(structure='diagonal'\) needs a prior under which"
    ):
        cx.fit(MODEL, (X, Y), cx.Laplace(structure="diagonal"), prior=handed, progress=False)


def test_a_prior_around_a_posterior_says_what_to_use():
    posterior = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=5), progress=False)
    with pytest.raises(TypeError, match=r"Around\(weights=...\) must be a pytree.*as_prior\(\)"):
        cx.priors.Around(posterior)


def test_a_prior_of_fit_replaces_that_of_the_model():
    narrow = cx.priors.Normal(0.01)
    posterior = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=5), prior=narrow, progress=False)
    assert posterior.model.prior == narrow


def test_a_log_density_has_no_prior_to_hand_on():
    density = cx.LogDensity(lambda key: np.zeros(2, np.float32), lambda w: -(w @ w) / 2)
    chains = cx.fit(density, None, cx.HMC(chains=1, num_warmup=5, num_draws=5), progress=False)
    with pytest.raises(TypeError, match="as_prior needs the posterior of a Model"):
        chains.as_prior()
