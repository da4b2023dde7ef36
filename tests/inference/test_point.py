"""Point estimates against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import optimize

import credax as cx
from credax.inference.optimiser import make_optimiser
from credax.model.likelihoods import Gaussian
from credax.model.networks import linear

GENERATOR = np.random.default_rng(2)
ROWS = 30
X = GENERATOR.normal(size=(ROWS, 3))
Y = X @ [1.0, -2.0, 0.02] + 0.7 + 0.3 * GENERATOR.normal(size=ROWS)
DESIGN = np.column_stack([X, np.ones(ROWS)])  # the last column is the bias
POINT = {"num_steps": 3_000, "learning_rate": 0.03}


def fit(model, method, key=0, data=(X, Y), **arguments):
    return cx.fit(model, data, method, key=key, progress=False, **arguments)


def coefficients(posterior, replica=0):
    """Weights and bias of a linear model with one target."""
    params, _ = posterior.model.split(posterior.draws)
    layer = params["layer_0"]
    return np.append(layer["kernel"][replica, 0, :, 0], layer["bias"][replica, 0])


# -- closed forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scale, prior_scale, loc", [(0.3, 1.0, 0.0), (1.0, 0.2, 0.0), (0.5, 0.5, 1.0)]
)
def test_map_is_ridge_regression(scale, prior_scale, loc, x64):
    """The bias has the prior of the weights, so it is regularised too."""
    model = cx.Model(linear(), cx.priors.Normal(prior_scale, loc), Gaussian(scale))
    posterior = fit(model, cx.MAP(**POINT))
    precision = DESIGN.T @ DESIGN / scale**2 + np.eye(4) / prior_scale**2
    ridge = np.linalg.solve(precision, DESIGN.T @ Y / scale**2 + loc / prior_scale**2)
    np.testing.assert_allclose(coefficients(posterior), ridge, atol=1e-9)
    predictive = posterior.predict(X)
    np.testing.assert_allclose(predictive.mean, DESIGN @ ridge, atol=1e-8)
    np.testing.assert_array_equal(predictive.epistemic, 0)
    np.testing.assert_allclose(predictive.aleatoric, scale**2, rtol=1e-14)


def test_map_of_several_targets_is_one_ridge_regression_each(x64):
    targets = np.column_stack([Y, -2 * Y + X[:, 0]])
    model = cx.Model(linear(), cx.priors.Normal(0.5), Gaussian((0.3, 1.0)))
    posterior = fit(model, cx.MAP(**POINT), data=(X, targets))
    layer = posterior.draws["layer_0"]
    for j, scale in enumerate((0.3, 1.0)):
        precision = DESIGN.T @ DESIGN / scale**2 + np.eye(4) / 0.5**2
        ridge = np.linalg.solve(precision, DESIGN.T @ targets[:, j] / scale**2)
        got = np.append(layer["kernel"][0, 0, :, j], layer["bias"][0, 0, j])
        np.testing.assert_allclose(got, ridge, atol=1e-9)


def test_maximum_likelihood_is_least_squares(x64):
    model = cx.Model(linear(), cx.priors.Normal(0.01), Gaussian(0.3))
    posterior = fit(model, cx.MaximumLikelihood(**POINT))
    squares = np.linalg.lstsq(DESIGN, Y, rcond=None)[0]
    np.testing.assert_allclose(coefficients(posterior), squares, atol=1e-9)
    residual = Y - DESIGN @ squares
    log_likelihood = -0.5 * np.sum(residual**2) / 0.09 - ROWS * np.log(0.3 * np.sqrt(2 * np.pi))
    assert posterior.info["log_likelihood"][0, -1] == pytest.approx(log_likelihood, rel=1e-12)
    shrunk = fit(model, cx.MAP(num_steps=1000))
    assert np.linalg.norm(coefficients(shrunk)) < 0.5 * np.linalg.norm(squares)


def test_minibatches_find_the_same_optimum(x64):
    model = cx.Model(linear(), cx.priors.Normal(1.0), Gaussian(0.3))
    posterior = fit(model, cx.MAP(num_steps=6_000, batch_size=7, learning_rate=0.01))
    ridge = np.linalg.solve(DESIGN.T @ DESIGN / 0.09 + np.eye(4), DESIGN.T @ Y / 0.09)
    np.testing.assert_allclose(coefficients(posterior), ridge, atol=3e-3)


def test_map_with_a_laplace_prior_meets_the_conditions_of_the_lasso(x64):
    """Zero is in the subgradient.

    The gradient of the log likelihood is the sign of a weight divided by the prior scale or, for a weight that
    is zero, any number in between.
    """
    scale, width = 0.3, 0.02
    model = cx.Model(linear(), cx.priors.Laplace(width), Gaussian(scale))
    w = coefficients(fit(model, cx.MAP(**POINT)))
    gradient = DESIGN.T @ (Y - DESIGN @ w) / scale**2
    zero = np.abs(w) < 1e-3
    assert zero.tolist() == [False, False, True, False]
    np.testing.assert_allclose(gradient[~zero], np.sign(w[~zero]) / width, rtol=1e-2)
    assert np.all(np.abs(gradient[zero]) < 1 / width)


def test_map_of_a_logistic_regression(x64):
    labels = (Y > 0.5).astype(int)
    model = cx.Model(linear(), cx.priors.Normal(1.5), cx.likelihoods.Bernoulli())
    posterior = fit(model, cx.MAP(**POINT), data=(X, labels))

    def loss(w):
        signed = (2 * labels - 1) * (DESIGN @ w)
        return np.sum(np.logaddexp(0, -signed)) + 0.5 * np.sum(w**2) / 1.5**2

    best = optimize.minimize(loss, np.zeros(4), method="BFGS", options={"gtol": 1e-8}).x
    np.testing.assert_allclose(coefficients(posterior), best, atol=1e-6)


# -- the learned noise scale ------------------------------------------------------------------------


def test_learned_noise_by_maximum_likelihood_is_the_root_mean_square_residual(x64):
    posterior = fit(cx.Model(linear()), cx.MaximumLikelihood(**POINT))
    squares = np.linalg.lstsq(DESIGN, Y, rcond=None)[0]
    np.testing.assert_allclose(coefficients(posterior), squares, atol=1e-7)
    log_scale = posterior.draws["likelihood"]["log_scale"][0, 0, 0]
    residual = Y - DESIGN @ squares
    assert np.exp(log_scale) == pytest.approx(np.sqrt(np.mean(residual**2)), rel=1e-7)
    np.testing.assert_allclose(posterior.predict(X).aleatoric, np.mean(residual**2), rtol=1e-6)


def test_learned_noise_by_map_is_stationary(x64):
    """d/ds of sum(r^2) exp(-2 s) / 2 + N s + (s - m)^2 / (2 v^2) is zero, as is the gradient of the weights."""
    likelihood = Gaussian(None, cx.priors.Normal(0.5, -2.0))
    posterior = fit(cx.Model(linear(), cx.priors.Normal(0.8), likelihood), cx.MAP(**POINT))
    w, s = coefficients(posterior), posterior.draws["likelihood"]["log_scale"][0, 0, 0]
    squares = np.sum((Y - DESIGN @ w) ** 2)
    assert squares * np.exp(-2 * s) - ROWS - (s + 2.0) / 0.5**2 == pytest.approx(0, abs=1e-5)
    gradient = DESIGN.T @ (Y - DESIGN @ w) * np.exp(-2 * s) - w / 0.8**2
    np.testing.assert_allclose(gradient, 0, atol=1e-5)


# -- the optimiser ----------------------------------------------------------------------------------


def test_a_step_of_gradient_descent_is_the_formula(x64):
    """The learning rate multiplies the gradient per row, so it does not depend on the size of the data."""
    model = cx.Model(linear(), cx.priors.Normal(1.0), Gaussian(1.0))
    start = fit(model, cx.MAP(num_steps=1, learning_rate=1e-12))
    method = cx.MAP(num_steps=1, learning_rate=optax.constant_schedule(0.1), optimiser="sgd")
    one = fit(model, method, start=start)
    w = coefficients(start)
    step = 0.1 * (DESIGN.T @ (Y - DESIGN @ w) - w) / ROWS
    np.testing.assert_allclose(coefficients(one), w + step, rtol=1e-10)
    joint = -0.5 * (np.sum((Y - DESIGN @ w) ** 2) + np.sum(w**2)) - 0.5 * 34 * np.log(2 * np.pi)
    assert one.info["log_joint"][0, 0] == pytest.approx(joint, rel=1e-10)


def test_a_number_decays_along_a_cosine():
    rates = []
    for rate in (1e-2, optax.constant_schedule(1e-2)):
        transformation = make_optimiser(cx.MAP(10, learning_rate=rate, optimiser="sgd"))
        with jax.numpy_dtype_promotion("standard"):
            state, steps = transformation.init(jnp.ones(())), []
            for _ in range(10):
                update, state = transformation.update(jnp.ones(()), state)
                steps.append(-float(update))
        rates.append(steps)
    cosine = 1e-2 * (1 + np.cos(np.pi * np.arange(10) / 10)) / 2
    np.testing.assert_allclose(rates[0], cosine, rtol=1e-5)
    np.testing.assert_allclose(rates[1], 1e-2, rtol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw", "rmsprop", optax.adam(0.01)])
def test_optimisers_by_name_and_as_transformations(optimiser):
    model = cx.Model(linear(), cx.priors.Normal(1.0), Gaussian(0.5))
    history = fit(model, cx.MAP(num_steps=200, optimiser=optimiser)).info["log_joint"][0]
    assert history[-1] > history[0]


@pytest.mark.parametrize(
    "settings, error, message",
    [
        ({"optimiser": "adma"}, ValueError, r"\(optimiser=...\) must be the name .*; got 'adma'"),
        ({"optimiser": 3}, ValueError, r"\(optimiser=...\) must be the name .*; got 3"),
        ({"learning_rate": 0}, ValueError, r"\(learning_rate=...\) must be positive; got 0"),
        ({"learning_rate": -0.1}, ValueError, r"\(learning_rate=...\) must be positive; got -0.1"),
        ({"learning_rate": "a"}, TypeError, r"\(learning_rate=...\) must be .*; got 'a'"),
        ({"learning_rate": np.nan}, ValueError, r"\(learning_rate=...\) must be .*; got nan"),
    ],
)
@pytest.mark.parametrize("cls", [cx.MAP, cx.MaximumLikelihood, cx.DeepEnsemble])
def test_refused_settings(cls, settings, error, message):
    with pytest.raises(error, match=cls.__name__ + message):
        cls(**settings)


def test_weakly_typed_weights_compile_no_more_than_others(compilations):
    def programs(weight):
        network = cx.networks.from_function(lambda key: weight, lambda w, x: x[:, :1] * w)
        model = cx.Model(network, likelihood=Gaussian(0.3))
        with compilations() as count:
            posterior = fit(model, cx.MAP(num_steps=5), chunk_steps=2)
        assert posterior.draws.dtype == jnp.result_type(float)
        return count()

    programs(jnp.ones((), jnp.result_type(float)))  # compiles the programs that all fits share
    strong, weak = programs(jnp.ones((), jnp.result_type(float))), programs(1.0)
    assert strong == weak
