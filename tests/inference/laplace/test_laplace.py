"""The Laplace approximation against exact posteriors, and its predictions against draws."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar
from small_networks import LIKELIHOODS, NETWORKS, explicit, problem

import credax as cx
from credax.core.trees import tree_paths
from credax.inference.laplace import Laplace, decrement

# Most of these points are not modes, which the algebra does not need.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

NOISE, PRIOR = 0.3, 2.0


def data(rows=40, features=3, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, features))
    return x, x @ np.array([1.0, -1.0, 0.5])[:features] + NOISE * generator.normal(size=rows)


def line(bias=True, prior=None):
    prior = cx.priors.Normal(PRIOR) if prior is None else prior
    network = cx.networks.linear() if bias else cx.networks.from_function(_slopes, _product)
    return cx.Model(network, prior, cx.likelihoods.Gaussian(NOISE))


def _slopes(key):
    return jnp.zeros((3, 1), jnp.result_type(float))


def _product(params, x):
    return x @ params


def fit(model, rows, method, **arguments):
    return cx.fit(model, rows, method, progress=False, **arguments)


def at(model, rows, params, **settings):
    """Laplace at given parameters, which are passed as a start and therefore taken as the mode."""
    point = cx.approximations.Draws(jax.tree.map(lambda leaf: np.asarray(leaf)[None, None], params))
    start = cx.Posterior(model, point)
    return fit(model, rows, Laplace(**settings), start=start)


def exact_line(x, y, prior=PRIOR, bias=True):
    """The mean, covariance and log evidence of Bayesian linear regression, with the bias first."""
    x = np.column_stack([np.ones(len(x)), x]) if bias else x
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(x.shape[1]) / prior**2)
    mean = covariance @ x.T @ y / NOISE**2
    marginal = prior**2 * x @ x.T + NOISE**2 * np.eye(len(x))
    return mean, covariance, stats.multivariate_normal(np.zeros(len(x)), marginal).logpdf(y)


def at_exact_mode(structure="full", bias=True, **settings):
    x, y = data()
    mean, _, _ = exact_line(x, y, bias=bias)
    params = {"layer_0": {"bias": mean[:1], "kernel": mean[1:, None]}} if bias else mean[:, None]
    return at(line(bias), (x, y), params, structure=structure, **settings)


# -- a linear model, for which the approximation is exact --------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize(
    "structure, kind", [("full", "ggn"), ("full", "hessian"), ("last_layer", "ggn")]
)
def test_linear_regression_is_exact(structure, kind, x64):
    x, y = data()
    mean, covariance, log_evidence = exact_line(x, y)
    posterior = at_exact_mode(structure, curvature=kind)
    np.testing.assert_allclose(posterior.approximation.covariance(), covariance, rtol=1e-9)
    assert posterior.log_evidence == (pytest.approx(log_evidence, rel=1e-10), 0.0)
    assert posterior.info["newton_decrement"] < 1e-18
    assert posterior.info["steps"] == 0

    new = np.random.default_rng(1).normal(size=(6, 3))
    design = np.column_stack([np.ones(6), new])
    spread = np.einsum("ri,ij,rj->r", design, covariance, design)
    predictive = posterior.predict(new)
    normal = stats.norm(design @ mean, np.sqrt(spread + NOISE**2))
    np.testing.assert_allclose(predictive.mean, design @ mean, rtol=1e-10)
    np.testing.assert_allclose(predictive.epistemic, spread, rtol=1e-9)
    np.testing.assert_allclose(predictive.aleatoric, NOISE**2, rtol=1e-12)
    np.testing.assert_allclose(predictive.log_prob(np.zeros(6)), normal.logpdf(0), rtol=1e-10)
    levels = np.array([[0.05, 0.3], [0.5, 0.999]])
    want = normal.ppf(levels[..., None])
    np.testing.assert_allclose(predictive.quantile(levels), want, rtol=1e-9)
    np.testing.assert_allclose(predictive.interval(0.9)[1], normal.ppf(0.95), rtol=1e-9)
    drawn = predictive.sample(0, 4000)
    assert stats.kstest((drawn[:, 2] - normal.mean()[2]) / normal.std()[2], "norm").pvalue > 1e-4
    # All rows use the same draws of the weights, so they are correlated as in the posterior.
    joint = design @ covariance @ design.T + NOISE**2 * np.eye(6)
    np.testing.assert_allclose(np.cov(drawn.T), joint, atol=6 * joint.max() / math.sqrt(4000))


@pytest.mark.slow
def test_draws_have_the_covariance(x64):
    covariance = exact_line(*data())[1]
    draws = at_exact_mode().sample(0, 20_000)
    flat = np.concatenate([draws["layer_0"]["bias"], draws["layer_0"]["kernel"][..., 0]], axis=1)
    error = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / 20_000)
    assert np.all(np.abs(np.cov(flat.T) - covariance) < 4.5 * error)


def test_training_finds_the_mode(x64):
    x, y = data()
    mean, _, log_evidence = exact_line(x, y)
    posterior = fit(line(), (x, y), Laplace("full", num_steps=3000))
    found = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(posterior.approximation.mean)])
    np.testing.assert_allclose(found, mean, atol=1e-3)
    # Half the Newton decrement is the distance of the log joint from its maximum.
    below = log_evidence - posterior.log_evidence[0]
    assert below == pytest.approx(posterior.info["newton_decrement"] / 2, rel=1e-6)
    assert posterior.info["steps"] == 3000
    assert not posterior.diagnose()


@pytest.mark.matrix
@pytest.mark.parametrize("targets", [1, 3])
def test_kronecker_is_exact_for_one_linear_layer(targets, x64):
    x, y = data()
    y = y if targets == 1 else np.column_stack([y, -y, y**2])
    init = lambda key: {"w": jnp.full((3, targets), 0.1)}  # noqa: E731
    network = cx.networks.from_function(init, lambda params, x: x @ params["w"])
    model = cx.Model(network, cx.priors.FanInNormal(0.7), cx.likelihoods.Gaussian(NOISE))
    full, kronecker = (
        at(model, (x, y), init(None), structure=structure) for structure in ("full", "kronecker")
    )
    new = x[:5] + 0.1
    for field in ("mean", "epistemic", "variance"):
        got, want = (getattr(p.predict(new), field) for p in (kronecker, full))
        np.testing.assert_allclose(got, want, rtol=1e-9)
    y_new = np.zeros_like(y[:5])
    np.testing.assert_allclose(
        kronecker.predict(new).log_prob(y_new), full.predict(new).log_prob(y_new)
    )
    assert kronecker.log_evidence[0] == pytest.approx(full.log_evidence[0], rel=1e-10)
    assert kronecker.info["newton_decrement"] == pytest.approx(full.info["newton_decrement"])


def test_kronecker_is_exact_with_fewer_rows_than_inputs(x64):
    """The input factor then has a low rank, and all other directions keep the prior."""
    generator = np.random.default_rng(4)
    x, y = generator.normal(size=(6, 9)), generator.normal(size=(6, 2))
    init = lambda key: {"w": jnp.full((9, 2), 0.1)}  # noqa: E731
    network = cx.networks.from_function(init, lambda params, x: x @ params["w"])
    model = cx.Model(network, cx.priors.Normal(PRIOR), cx.likelihoods.Gaussian(NOISE))
    kronecker = at(model, (x, y), init(None), structure="kronecker")
    assert kronecker.approximation.inputs["w"].shape == (9, 6)
    each = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(9) / PRIOR**2)
    new = np.vstack([x[:2], generator.normal(size=(3, 9))])
    want = np.einsum("ri,ij,rj->r", new, each, new)
    np.testing.assert_allclose(kronecker.predict(new).epistemic, want[:, None] * [1, 1], rtol=1e-8)
    full = at(model, (x, y), init(None), structure="full")
    assert kronecker.log_evidence[0] == pytest.approx(full.log_evidence[0], rel=1e-10)
    for name in ("free_parameters", "effective_parameters", "newton_decrement"):
        assert kronecker.info[name] == pytest.approx(full.info[name], rel=1e-5)
    draws = np.asarray(kronecker.sample(0, 20_000)["w"])[..., 1]
    variances = np.diag(each)
    error = np.sqrt((each**2 + np.outer(variances, variances)) / len(draws))
    assert np.all(np.abs(np.cov(draws.T) - each) < 4.8 * error)


@pytest.mark.slow
def test_a_prior_much_wider_than_the_data_is_said():
    """Hundreds of inputs with weights of unit variance: a new row could have almost any target."""
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(20, 400)), generator.normal(size=20)
    findings = {}
    for scale in (1.0, 0.05):
        model = line(prior=cx.priors.Normal(scale))
        posterior = fit(model, (x, y), Laplace(num_steps=1_000))
        marginal = scale**2 * (x @ x.T + 1) + NOISE**2 * np.eye(20)
        variance = 1 / np.diag(np.linalg.inv(marginal))  # of each target, given all others
        want = math.sqrt(variance.mean()) / y.std()
        assert posterior.info["left_out_std"] == pytest.approx(want, rel=1e-3)
        findings[scale] = [f for f in posterior.diagnose() if "The prior is much wider" in f.what]
    assert len(findings[1.0]) == 1
    assert not findings[0.05]


@pytest.mark.slow
def test_correlated_noise_has_a_closed_form_too(x64):
    x, y = data()
    y = np.column_stack([y, -y])
    covariance = np.array([[0.2, 0.1], [0.1, 0.3]])
    init = lambda key: jnp.full((3, 2), 0.1)  # noqa: E731
    network = cx.networks.from_function(init, lambda w, x: x @ w)
    model = cx.Model(network, cx.priors.Normal(), cx.likelihoods.MultivariateGaussian(covariance))
    posterior = at(model, (x, y), init(None), structure="full")
    precision = np.kron(x.T @ x, np.linalg.inv(covariance)) + np.eye(6)
    np.testing.assert_allclose(
        posterior.approximation.covariance(), np.linalg.inv(precision), rtol=1e-9
    )
    jacobian = np.kron(x[:1], np.eye(2))
    total = jacobian @ np.linalg.inv(precision) @ jacobian.T + covariance
    predictive = posterior.predict(x[:1])
    want = stats.multivariate_normal(x[0] @ np.full((3, 2), 0.1), total).logpdf(y[0])
    np.testing.assert_allclose(predictive.log_prob(y[:1]), want, rtol=1e-9)
    np.testing.assert_allclose(predictive.variance[0], np.diag(total), rtol=1e-9)


# -- predictions -------------------------------------------------------------------------------------


@cache
def fitted(
    structure="kronecker", likelihood="categorical", predictive="linearised", dtype="float32"
):
    assert dtype == jnp.result_type(float)
    generator = np.random.default_rng(5)
    x = generator.normal(size=(60, 2))
    signal = np.sin(x[:, 0]) + x[:, 1]
    y = np.digitize(signal, [-0.7, 0.7]) if likelihood == "categorical" else signal
    scale = cx.likelihoods.Gaussian(scale=None)
    model = cx.Model(
        cx.networks.mlp([5], activation="tanh"),
        cx.priors.Normal(1.0),
        LIKELIHOODS["categorical"] if likelihood == "categorical" else scale,
    )
    return fit(model, (x, y), Laplace(structure, predictive=predictive, learning_rate=0.03))


NEW = np.random.default_rng(6).normal(size=(9, 2))


def explicit_outputs(posterior):
    """The outputs at the mode, and their changes in the linear expansion for draws of the weights."""
    approximation = posterior.approximation
    network = lambda params: params.get("network", params)  # noqa: E731
    flat, unravel = jax.flatten_util.ravel_pytree(network(approximation.mean))
    apply = lambda w: posterior.model.network.apply(unravel(w), jnp.asarray(NEW, flat.dtype))  # noqa: E731
    draws = network(posterior.sample(8, 50_000))
    stacked = np.concatenate(
        [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(draws)], axis=1
    )
    change = np.einsum("rcw,sw->src", jax.jit(jax.jacfwd(apply))(flat), stacked - np.asarray(flat))
    return np.asarray(apply(flat)), change


@pytest.mark.slow
@pytest.mark.parametrize(
    "structure, likelihood",
    [
        ("kronecker", "categorical"),
        pytest.param("diagonal", "categorical", marks=pytest.mark.slow),
        pytest.param("full", "categorical", marks=pytest.mark.slow),
        pytest.param("kronecker", "gaussian", marks=pytest.mark.slow),
        pytest.param("last_layer", "categorical", marks=pytest.mark.slow),
        pytest.param("full", "gaussian", marks=pytest.mark.slow),
    ],
)
def test_the_covariance_of_outputs_against_draws(structure, likelihood):
    posterior = fitted(structure, likelihood)
    covariance = posterior.approximation.output_covariance(posterior.model, np.float32(NEW))
    _, change = explicit_outputs(posterior)
    got = np.einsum("src,srd->rcd", change, change) / len(change)
    variances = np.einsum("rcc->rc", covariance)
    error = np.sqrt(
        (np.asarray(covariance) ** 2 + variances[:, :, None] * variances[:, None]) / len(change)
    )
    assert np.all(np.abs(got - covariance) < 4.8 * error)


@pytest.mark.slow
def test_linearised_classes_against_their_own_monte_carlo():
    posterior = fitted()
    outputs, change = explicit_outputs(posterior)
    probs = np.asarray(jax.nn.softmax(outputs + change, axis=-1))
    predictive = posterior.predict(NEW, num_samples=4000)
    error = probs.std(0) * math.sqrt(1 / 4000 + 1 / len(probs))
    assert np.all(np.abs(predictive.probs - probs.mean(0)) < 4.8 * error)
    fourth = np.mean((probs - probs.mean(0)) ** 4, axis=0)
    error = np.sqrt((fourth - probs.var(0) ** 2) / 4000)
    assert np.all(np.abs(predictive.epistemic - probs.var(0)) < 4.8 * error)


@pytest.mark.slow
def test_linearised_regression_is_normal_around_the_mode():
    posterior = fitted(likelihood="gaussian")
    predictive = posterior.predict(NEW)
    outputs, _ = explicit_outputs(posterior)
    np.testing.assert_allclose(predictive.mean, outputs[:, 0], rtol=1e-5)
    scale = np.exp(posterior.approximation.mean["likelihood"]["log_scale"])
    np.testing.assert_allclose(predictive.aleatoric, scale[0] ** 2, rtol=1e-5)
    normal = stats.norm(predictive.mean, predictive.std)
    np.testing.assert_allclose(predictive.log_prob(np.zeros(9)), normal.logpdf(0), rtol=1e-4)
    np.testing.assert_allclose(predictive.quantile(0.2), normal.ppf(0.2), rtol=1e-4, atol=1e-5)
    # The parameters of the likelihood stay at the mode.
    assert np.ptp(posterior.sample(0, 5)["likelihood"]["log_scale"]) == 0
    many = posterior.predict(NEW, num_samples=4000)
    error = predictive.epistemic * math.sqrt(2 / 4000)
    assert np.all(np.abs(many.epistemic - predictive.epistemic) < 4.8 * error)


@pytest.mark.slow
def test_sampled_predictions_are_those_of_the_network():
    posterior = fitted(predictive="sampled")
    samples = posterior.sample(0, 3)
    linearised = fitted().predict(NEW, num_samples=3).outputs
    sampled = posterior.predict(NEW, num_samples=3).outputs
    want = [
        posterior.model.network.apply(jax.tree.map(lambda a, i=i: a[i], samples), np.float32(NEW))
        for i in range(3)
    ]
    np.testing.assert_allclose(sampled, np.stack(want), rtol=1e-4, atol=1e-5)
    assert np.abs(sampled - linearised).max() > 0.1


# -- the prior's precision ----------------------------------------------------------------------------


@pytest.mark.slow
def test_marginal_likelihood_finds_the_best_prior(x64):
    """Scaling the prior and updating the mode until convergence gives the empirical Bayes estimate."""
    x, y = data()
    x = x[:, :2]
    mean, prior = np.zeros(3), PRIOR
    for _ in range(60):
        mean = exact_line(x, y, prior)[0]
        params = {"layer_0": {"bias": mean[:1], "kernel": mean[1:, None]}}
        model = line(prior=cx.priors.Normal(prior))
        posterior = at(
            model, (x, y), params, structure="full", prior_precision="marginal_likelihood"
        )
        factor = posterior.info["prior_scale_factor"]
        prior *= factor
        if abs(math.log(factor)) < 1e-7:
            break
    loss = lambda log_prior: -exact_line(x, y, math.exp(log_prior))[2]  # noqa: E731
    best = minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10})
    assert prior == pytest.approx(math.exp(best.x), rel=1e-4)
    assert posterior.log_evidence[0] == pytest.approx(-best.fun, rel=1e-8)


@pytest.mark.slow
def test_the_evidence_counts_the_scaled_prior(x64):
    x, y = data()
    plain = at_exact_mode()
    scaled = at_exact_mode(prior_precision="marginal_likelihood")
    factor = scaled.info["prior_scale_factor"]
    assert scaled.log_evidence[0] > plain.log_evidence[0]
    design = np.column_stack([np.ones(len(x)), x])
    mean, _, _ = exact_line(x, y)
    precision = design.T @ design / NOISE**2 + np.eye(4) / (factor * PRIOR) ** 2
    np.testing.assert_allclose(
        scaled.approximation.covariance(), np.linalg.inv(precision), rtol=1e-8
    )
    log_joint = stats.norm(design @ mean, NOISE).logpdf(y).sum()
    log_joint += stats.norm(0, factor * PRIOR).logpdf(mean).sum()
    want = log_joint + 2 * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    assert scaled.log_evidence[0] == pytest.approx(want, rel=1e-10)


@pytest.mark.slow
def test_layers_with_priors_of_their_own(x64):
    priors = {"layer_0/kernel": cx.priors.Normal(0.1, loc=0.3), "*": cx.priors.Normal(3.0)}
    model, rows, params = problem("mlp")
    model = cx.Model(NETWORKS["mlp"], priors, LIKELIHOODS["categorical"])
    raw = (np.asarray(rows.x), np.asarray(rows.y))
    posterior = at(model, raw, params, structure="full")
    bound = model.bind(raw)
    _, ggn = explicit(bound, rows, params)
    names = tree_paths(params)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    scales = np.repeat([0.1 if name == "layer_0/kernel" else 3.0 for name in names], sizes)
    precision = ggn + np.diag(scales**-2)
    np.testing.assert_allclose(
        posterior.approximation.covariance() @ precision, np.eye(len(scales)), atol=1e-8
    )
    gradient = jax.flatten_util.ravel_pytree(
        jax.grad(lambda p: bound.log_prior(p) + bound.full_log_likelihood(p, rows))(params)
    )[0]
    gradient = np.asarray(gradient)
    want = gradient @ np.linalg.solve(precision, gradient)
    assert posterior.info["newton_decrement"] == pytest.approx(want, rel=1e-8)
    assert posterior.info["gradient_norm"] == pytest.approx(np.linalg.norm(gradient))
    log_joint = float(bound.log_prior(params) + bound.full_log_likelihood(params, rows))
    volume = 0.5 * len(scales) * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    assert posterior.log_evidence[0] == pytest.approx(log_joint + volume, rel=1e-9)


@pytest.mark.slow
def test_another_prior_counts_by_its_curvature_at_the_mode(x64):
    x, y = data()
    prior = cx.priors.StudentT(5.0, 2.0)
    mean = exact_line(x, y)[0]
    params = {"layer_0": {"bias": mean[:1], "kernel": mean[1:, None]}}
    posterior = at(line(prior=prior), (x, y), params, structure="full")
    design = np.column_stack([np.ones(len(x)), x])
    log_density = lambda w: stats.t(5, scale=2.0).logpdf(w)  # noqa: E731
    step = 1e-4
    bend = (2 * log_density(mean) - log_density(mean + step) - log_density(mean - step)) / step**2
    precision = design.T @ design / NOISE**2 + np.diag(bend)
    np.testing.assert_allclose(
        posterior.approximation.covariance(), np.linalg.inv(precision), rtol=1e-6
    )
    far = jax.tree.map(lambda leaf: leaf + 20, params)
    with pytest.raises(ValueError, match="concave at the mode; it is not for 4 weights"):
        at(line(prior=prior), (x, y), far, structure="full")


# -- saving, compiling, precision and starts ------------------------------------------------------------


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    for structure, predictive in (
        ("full", "linearised"),
        ("kronecker", "linearised"),
        ("kronecker", "sampled"),
    ):
        posterior = fitted(structure, predictive=predictive)
        posterior.save(tmp_path / "posterior.credax")
        loaded = cx.load(tmp_path / "posterior.credax")
        assert loaded.approximation.linearised == (predictive == "linearised")
        assert loaded.log_evidence == posterior.log_evidence
        for field in ("mean", "epistemic"):
            want = getattr(posterior.predict(NEW), field)
            np.testing.assert_array_equal(getattr(loaded.predict(NEW), field), want)


def test_a_second_fit_compiles_nothing(compilations):
    fitted()
    settings = {"num_steps": 5}
    model = line()
    fit(model, data(), Laplace(**settings)).predict(data()[0]).interval()
    with compilations() as count:
        posterior = fit(model, data(seed=3), Laplace(**settings), key=4)
        posterior.predict(data()[0]).interval()
        assert count() == 0


@pytest.mark.slow
def test_single_precision_agrees_with_double():
    single = at_exact_mode("kronecker")
    with jax.enable_x64(True):
        double = at_exact_mode("kronecker")
        want = double.predict(NEW[:, [0, 1, 0]])
        assert want.epistemic.dtype == np.float64
    got = single.predict(NEW[:, [0, 1, 0]])
    assert got.epistemic.dtype == np.float32
    np.testing.assert_allclose(got.epistemic, want.epistemic, rtol=1e-4)
    assert single.log_evidence[0] == pytest.approx(double.log_evidence[0], rel=1e-4)


def test_starts():
    posterior = fitted()
    one = posterior.approximation.starts(cx.random.key(0), 1)
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[0], b),
        one.params,
        posterior.approximation.mean,
    )
    several = jax.tree.leaves(posterior.approximation.starts(cx.random.key(0), 3).params)[0]
    assert np.all(np.std(several, axis=0) > 0)


# -- bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"structure": "block"}, r"Laplace\(structure=...\) must be one of 'kronecker', .*'block'"),
        ({"curvature": "exact"}, r"Laplace\(curvature=...\) must be one of 'ggn'"),
        ({"predictive": "mc"}, r"Laplace\(predictive=...\) must be one of 'linearised'"),
        (
            {"prior_precision": 2.0},
            r"Laplace\(prior_precision=...\) must be one of None, 'marginal_",
        ),
        ({"curvature": "hessian"}, r'"ggn" or "fisher" for structure="kronecker"'),
        ({"num_steps": 0}, r"Laplace\(num_steps=...\) must be a whole number, at least 1"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Laplace(**settings)


def test_what_it_cannot_do_is_refused_before_the_first_step(monkeypatch):
    def refused(message, prior, network=None, **settings):
        network = network or cx.networks.linear()
        model = cx.Model(network, prior, cx.likelihoods.Gaussian(1.0))
        with pytest.raises(ValueError, match=message):
            Laplace(**settings).check(*model.prepare(data()))

    normal, heavy = cx.priors.Normal(), cx.priors.StudentT()
    refused("needs gradients", cx.priors.Discrete([-1, 1]))
    refused(r"needs a Gaussian prior .*StudentT", heavy)
    refused(
        "needs a Gaussian prior", heavy, structure="full", prior_precision="marginal_likelihood"
    )
    refused(
        "needs a prior with a curved log density; got Laplace",
        cx.priors.Laplace(),
        structure="full",
    )
    wide = cx.networks.mlp([4000])
    message = r"a matrix of all 20,001 weights, 1\.5 GiB; the limit is 1 GiB.*kronecker"
    refused(message, normal, wide, structure="full")
    refused(message, normal, wide, structure="diagonal", curvature="hessian")
    scalar = cx.networks.from_function(
        lambda key: jnp.ones(()), lambda w, x: jnp.tanh(w * x[:, :1])
    )
    refused("found no layer", normal, scalar, structure="last_layer")
    with pytest.raises(
        TypeError, match="Laplace needs a Model with a likelihood; got a LogDensity"
    ):
        Laplace().check(cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2)), None)


def test_a_point_that_is_no_mode_is_said(x64):
    x, y = data()
    with pytest.warns(
        cx.PosteriorWarning, match=r"standard deviations per weight away from the mode"
    ):
        posterior = fit(line(), (x, y), Laplace("full", num_steps=1))
    [finding] = [finding for finding in posterior.diagnose() if finding.kind == "run"]
    assert finding.grave
    assert finding.value == posterior.info["newton_decrement"] / 4
    assert f"norm {posterior.info['gradient_norm']:.2g}" in finding.what


@pytest.mark.parametrize("structure", ["diagonal", "kronecker"])
@pytest.mark.parametrize("most", [4096, 16])  # rows from which the direction is computed
def test_the_distance_from_the_mode_counts_correlations(structure, most, x64, monkeypatch):
    """The columns are nearly equal, and the point is far along the differences of their weights."""
    monkeypatch.setattr(decrement, "ROWS", most)
    generator = np.random.default_rng(0)
    count = (
        41 if most > 100 else 43
    )  # another shape, so that the program is compiled with the other number of rows
    x = generator.normal(size=(count, 1)) + 0.05 * generator.normal(size=(count, 3))
    y = x @ np.array([1.0, -1.0, 0.5]) + NOISE * generator.normal(size=count)
    mean, covariance, _ = exact_line(x, y)
    values, vectors = np.linalg.eigh(covariance)
    off = mean + 2 * math.sqrt(len(mean)) * np.sqrt(values[-1]) * vectors[:, -1]
    params = {"layer_0": {"bias": off[:1], "kernel": off[1:, None]}}
    posterior = at(line(), (x, y), params, structure=structure)
    found = posterior.info["newton_decrement"]
    if most > count:
        assert found == pytest.approx(4 * len(mean), rel=1e-5)
    else:
        assert 0.5 * 4 * len(mean) < found <= 4 * len(mean) * (1 + 1e-9)
    assert any("away from the mode" in finding.what for finding in posterior.diagnose())


def test_a_saddle_is_refused(x64):
    _, rows, params = problem("mlp")
    settings = {"structure": "full", "curvature": "hessian"}
    wide = cx.Model(NETWORKS["mlp"], cx.priors.Normal(100.0), LIKELIHOODS["categorical"])
    with pytest.raises(
        ValueError, match=r"no mode: the log joint is not concave .* curvature='ggn'"
    ):
        at(wide, (np.asarray(rows.x), np.asarray(rows.y)), params, **settings)


@pytest.mark.slow
def test_a_curvature_that_overflows_is_refused():
    x, y = data()
    model = line(prior=cx.priors.Normal(1e25))
    with pytest.raises(cx.DivergedError, match="curvature that is not finite"):
        at(model, (x, y), jax.tree.map(np.zeros_like, at_exact_mode().approximation.mean))
