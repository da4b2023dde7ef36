"""The low-rank Laplace approximation, against the whole Gauss-Newton matrix from explicit Jacobians."""

import jax
import numpy as np
import pytest
from small_networks import LIKELIHOODS, NETWORKS, explicit, problem

import credax as cx
from credax.inference.laplace import decrement, low_rank
from credax.posterior.approximations import normals
from credax.tracing import backward

# Most of these points are not modes, which the algebra does not need.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

PRIOR = 0.7


def at(model, rows, params, **settings):
    """Laplace at given parameters, which are passed as a start and therefore taken as the mode."""
    point = cx.approximations.Draws(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], params))
    data = np.asarray(rows.x), np.asarray(rows.y)
    start = cx.Posterior(model, point)
    return cx.fit(model, data, cx.Laplace(**settings), start=start, progress=False)


def whole(model, rows, params):
    """The Gauss-Newton matrix in units of the prior, and the covariance."""
    matrix = np.asarray(explicit(model, rows, params)[1], np.float64)
    return PRIOR**2 * matrix, np.linalg.inv(matrix + np.eye(len(matrix)) / PRIOR**2)


@pytest.mark.matrix
@pytest.mark.parametrize("network", NETWORKS)
def test_exact_with_as_many_vectors_as_weights(network, x64):
    model, rows, params = problem(network)
    matrix, covariance = whole(model, rows, params)
    posterior = at(model, rows, params, structure="low_rank", rank=len(matrix))
    got = posterior.approximation.covariance()
    np.testing.assert_allclose(got, covariance, rtol=1e-7, atol=1e-9)
    full = at(model, rows, params, structure="full")
    assert posterior.log_evidence[0] == pytest.approx(full.log_evidence[0], rel=1e-8)
    want = full.info["effective_parameters"]
    assert posterior.info["effective_parameters"] == pytest.approx(want, rel=1e-7)
    assert posterior.info["newton_decrement"] == pytest.approx(
        full.info["newton_decrement"], rel=1e-4
    )
    x = np.asarray(rows.x)
    predicted = [p.approximation.output_covariance(p.model, x) for p in (posterior, full)]
    np.testing.assert_allclose(*predicted, rtol=1e-6, atol=1e-10)


@pytest.mark.matrix
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_more_vectors_are_nearer(likelihood, x64):
    """The vectors are the largest eigenvectors: what is left out makes the posterior wider, never narrower."""
    model, rows, params = problem("mlp", likelihood)
    matrix, covariance = whole(model, rows, params)
    values = np.linalg.eigvalsh(matrix)[::-1]
    errors = []
    for rank in (1, 4, 10):
        posterior = at(model, rows, params, structure="low_rank", rank=rank)
        wider = posterior.approximation.covariance() - covariance
        assert np.linalg.eigvalsh(wider).min() > -1e-9
        shares = np.sort(posterior.approximation.shares)[::-1]
        np.testing.assert_allclose(shares, (values / (values + 1))[:rank], rtol=1e-3)
        errors.append(np.linalg.norm(wider))
    assert errors[0] > errors[1] > errors[2]
    # The best matrix of this rank leaves out the smaller eigenvalues.
    left = (PRIOR**2 * values / (values + 1))[10:]
    assert errors[2] == pytest.approx(np.linalg.norm(left), rel=1e-3)


@pytest.mark.slow
def test_rows_in_several_blocks(x64, monkeypatch):
    model, rows, params = problem("mlp", "gaussian")
    alone = at(model, rows, params, structure="low_rank", rank=5).approximation.covariance()
    monkeypatch.setattr(low_rank, "ROWS", 3)  # 7 rows: the last block repeats some
    low_rank.accumulate_low_rank.drop()
    blocks = at(model, rows, params, structure="low_rank", rank=5).approximation.covariance()
    low_rank.accumulate_low_rank.drop()
    np.testing.assert_allclose(blocks, alone, rtol=1e-8)


@pytest.mark.slow
def test_draws_have_the_covariance(x64):
    model, rows, params = problem("mlp", "gaussian")
    posterior = at(model, rows, params, structure="low_rank", rank=6)
    covariance, count = posterior.approximation.covariance(), 20_000
    draws = posterior.sample(0, count)
    flat = np.concatenate([leaf.reshape(count, -1) for leaf in jax.tree.leaves(draws)], axis=1)
    variances = np.diag(covariance)
    error = np.sqrt((covariance**2 + np.outer(variances, variances)) / count)
    assert np.max(np.abs(np.cov(flat.T) - covariance) / error) < 5


@pytest.mark.slow
def test_a_learned_noise_and_a_scaled_prior(x64):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(30, 2))
    y = np.sin(x[:, 0]) + 0.3 * generator.normal(size=30)
    model = cx.Model(cx.networks.mlp([3], activation="tanh"), cx.priors.Normal(2.0))
    settings = {"num_steps": 300, "prior_precision": "marginal_likelihood"}
    full, low = (
        cx.fit(model, (x, y), cx.Laplace(**settings, **structure), progress=False)
        for structure in ({"structure": "full"}, {"structure": "low_rank", "rank": 13})
    )
    assert low.log_evidence[0] == pytest.approx(full.log_evidence[0], abs=1e-4)
    factor = full.info["prior_scale_factor"]
    assert low.info["prior_scale_factor"] == pytest.approx(factor, rel=1e-4)
    np.testing.assert_allclose(low.predict(x).epistemic, full.predict(x).epistemic, rtol=1e-4)


def test_single_precision_and_files(tmp_path, compilations):
    model, rows, params = problem("mlp", "gaussian")
    posterior = at(model, rows, params, structure="low_rank", rank=4)
    assert posterior.approximation.vectors.dtype == np.float32
    assert "rank 4" in repr(posterior.approximation)
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    x = np.asarray(rows.x)
    np.testing.assert_array_equal(loaded.predict(x).std, posterior.predict(x).std)
    with compilations() as count:
        at(model, rows, params, structure="low_rank", rank=4).predict(x)
    assert count() == 0


def test_refused():
    with pytest.raises(ValueError, match=r'"ggn" or "fisher" for structure="low_rank"'):
        cx.Laplace(structure="low_rank", curvature="hessian")
    with pytest.raises(ValueError, match=r"Laplace\(rank=...\) must be a whole number, at least 1"):
        cx.Laplace(structure="low_rank", rank=0)


def _temporary(program, *given):
    return program.lower(*given).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("what", ["low rank", "decrement"])
def test_rows_take_turns_where_they_save_much(what, x64, monkeypatch):
    """What a pass saves for the pass backwards may not grow with the rows, as in a large transformer."""
    model = cx.Model(
        cx.networks.mlp([16] * 8, activation="tanh"), likelihood=LIKELIHOODS["poisson"]
    )
    rng = np.random.default_rng(0)
    model, rows = model.prepare((rng.normal(size=(2_000, 3)), rng.poisson(1.0, (2_000, 2))))
    params = model.init(cx.random.key(0))
    scales = [np.ones(()) for _ in jax.tree.leaves(params)]
    if what == "low rank":
        scale = np.ones(sum(leaf.size for leaf in jax.tree.leaves(params)))
        program, more = low_rank.accumulate_low_rank, (params, (), rows, scale)
        given = (model, "ggn", 2, *more)
        value = lambda sums: (sums.joint.values, sums.log_likelihood)  # noqa: E731
    else:
        program, given = decrement.newton_decrement, (model, params, (), rows, scales)
        value = lambda found: found  # noqa: E731
    program.drop()
    size, want = _temporary(program, *given), value(program(*given))
    monkeypatch.setattr(backward, "SAVED_BYTES", 40_000)  # far less than all rows save
    program.drop()
    small, found = _temporary(program, *given), value(program(*given))
    program.drop()
    assert small < 0.5 * size
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3), found, want)


def test_a_network_is_never_called_without_rows(x64):
    """A network may have sizes that it can tell only where there are rows."""

    def init(key):
        return {"kernel": 0.3 * jax.random.normal(key, (4, 2))}

    def apply(params, x):
        assert len(x) > 0
        return x.reshape(len(x), -1) @ params["kernel"]

    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 2, 2))
    model = cx.Model(cx.networks.from_function(init, apply), likelihood=LIKELIHOODS["poisson"])
    bound, rows = model.prepare((x, rng.poisson(1.0, (8, 2))))
    params = bound.init(cx.random.key(0))
    whole = bound.full_log_likelihood(params, rows)
    for block in (1, 3, 4, 8, 9):
        np.testing.assert_allclose(bound.full_log_likelihood(params, rows, (), block), whole)


def test_predictions_of_many_outputs_need_no_jacobian():
    """The Jacobian of a row is outputs times weights; the prediction needs a few vectors of the weights."""
    outputs, rank = 40, 3
    network = cx.networks.mlp([64, 64, 64])
    x = np.random.default_rng(0).normal(size=(1, 3)).astype(np.float32)
    likelihood = cx.likelihoods.Categorical(outputs)
    model = cx.Model(network, likelihood=likelihood).bind((x, np.zeros(1, int)))
    params = model.init(jax.random.key(0))
    weights = sum(leaf.size for leaf in jax.tree.leaves(params))
    normal = normals.LowRankNormal(
        params,
        np.zeros((weights, rank), np.float32),
        np.zeros(rank, np.float32),
        np.ones(weights, np.float32),
        (True,) * len(jax.tree.leaves(params)),
        True,
    )
    compiled = normals._covariances.lower(model, normal, x).compile()
    needed = compiled.memory_analysis().temp_size_in_bytes
    assert needed < 0.3 * 4 * outputs * weights
