"""The evidence with learned noise, against numerical integration over the parameters of the noise."""

import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

import credax as cx
from credax.inference.laplace import Laplace
from credax.inference.laplace.evidence import log_integral

SETTINGS = {"num_steps": 2_000, "learning_rate": 0.03}


def fit(model, data, method):
    return cx.fit(model, data, method, progress=False)


def rows(count, features, targets, seed):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, features))
    y = x @ generator.normal(size=(features, targets)) + 0.4 * generator.normal(
        size=(count, targets)
    )
    return x, y


def along_eigenvectors(x, y):
    """The eigenvalues of the prior covariance of the rows under unit normal weights, and y along them."""
    design = np.column_stack([x, np.ones(len(x))])
    values, vectors = np.linalg.eigh(design @ design.T)
    return np.maximum(values, 0), vectors.T @ y


def exact_gaussian(x, y):
    """log p(y) of each target, by a trapezoidal sum over log sigma; their sum, since they are independent."""
    values, along = along_eigenvectors(x, y)
    grid = np.linspace(-5, 3, 2_001)
    variance = np.exp(2 * grid)[:, None] + values
    total = 0.0
    for target in along.T:
        each = stats.norm.logpdf(target, 0, np.sqrt(variance)).sum(1) + stats.norm.logpdf(grid)
        total += logsumexp(each) + np.log(grid[1] - grid[0])
    return total


def exact_correlated(x, y):
    """log p(y) for two targets, by a sum over the three entries of the Cholesky factor of the noise."""
    values, along = along_eigenvectors(x, y)
    first, second = np.linspace(-2.2, 0.6, 57), np.linspace(-2.2, 0.6, 57)
    lower = np.linspace(-0.8, 0.8, 57)
    a, b, c = np.meshgrid(first, second, lower, indexing="ij")
    log_density = sum(stats.norm.logpdf(each) for each in (a, b, c))
    for value, (u, v) in zip(values, along, strict=True):
        v11, v12, v22 = np.exp(2 * a) + value, np.exp(a) * c, c**2 + np.exp(2 * b) + value
        determinant = v11 * v22 - v12**2
        square = (v22 * u**2 - 2 * v12 * u * v + v11 * v**2) / determinant
        log_density = log_density - 0.5 * (square + np.log(determinant)) - np.log(2 * np.pi)
    edges = np.concatenate([np.moveaxis(log_density, k, 0)[[0, -1]].ravel() for k in range(3)])
    assert edges.max() < log_density.max() - 7, "the box must hold the integrand"
    step = (first[1] - first[0]) * (second[1] - second[0]) * (lower[1] - lower[0])
    return logsumexp(log_density) + np.log(step)


@pytest.mark.parametrize("choice", ["marginal", "mode"])
def test_the_noise_is_integrated_out(choice):
    """Whether or not the noise is at the maximum of its marginal likelihood."""
    x, y = rows(30, 12, 1, seed=0)
    model = cx.Model(cx.networks.linear())
    posterior = fit(model, (x, y[:, 0]), Laplace("full", noise=choice, **SETTINGS))
    assert posterior.log_evidence[0] == pytest.approx(exact_gaussian(x, y), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_correlated_noise_is_compared_with_independent_noise(seed):
    """The targets are independent, so the correlation that is learned in vain must cost what it costs."""
    x, y = rows(40, 3, 2, seed)
    models = {
        "independent": cx.Model(cx.networks.linear()),
        "correlated": cx.Model(
            cx.networks.linear(), likelihood=cx.likelihoods.MultivariateGaussian()
        ),
    }
    found = cx.select(models, (x, y))
    assert found.best.posterior.method == Laplace("full")
    got = {each.name: each.value for each in found.candidates}
    want = {"independent": exact_gaussian(x, y), "correlated": exact_correlated(x, y)}
    for name in models:
        assert got[name] == pytest.approx(want[name], abs=0.1)
    assert found.best.name == max(want, key=lambda name: want[name])


@pytest.mark.slow
def test_many_learned_parameters_are_counted_by_their_information():
    """With more parameters than finite differences are taken for."""
    x, y = rows(40, 3, 8, seed=5)
    posterior = fit(cx.Model(cx.networks.linear()), (x, y), Laplace("full", **SETTINGS))
    assert posterior.log_evidence[0] == pytest.approx(exact_gaussian(x, y), abs=0.25)


# -- the integral itself -------------------------------------------------------------------------------------


def test_the_integral_of_a_normal_density_is_exact_from_anywhere():
    covariance = np.array([[2.0, 0.6, 0.1], [0.6, 0.5, -0.2], [0.1, -0.2, 0.3]])
    normal = stats.multivariate_normal([1.0, -2.0, 0.5], covariance)
    scales = np.diag([1.0, 1.0, 0.2])
    found = log_integral(lambda t: normal.logpdf(t) + 3.0, np.array([-4.0, 0.0, 0.0]), scales)
    assert found == pytest.approx(3.0, abs=1e-8)


@pytest.mark.parametrize("start", [-0.3, 0.0, 1.5])
def test_the_integral_of_a_skewed_density(start):
    """log of a chi-squared variable with ten degrees of freedom, which is what a log variance is like."""
    log_density = lambda t: float(stats.chi2(10).logpdf(10 * np.exp(t[0])) + t[0] + np.log(10))  # noqa: E731
    found = log_integral(log_density, np.array([start]), np.array([[0.3]]))
    assert found == pytest.approx(0.0, abs=0.05)
