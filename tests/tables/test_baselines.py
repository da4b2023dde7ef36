import numpy as np
import pytest
from scipy import integrate, stats

from credax.tables.baselines import Classes, Normals, baselines, fit_baseline


def test_normal_predictions():
    found = Normals(np.array([1.0, -2.0]), np.array([0.5, 3.0]))
    y = np.array([1.7, -4.0])
    np.testing.assert_allclose(found.log_prob(y), stats.norm.logpdf(y, found.mean, found.std))
    np.testing.assert_allclose(found.cdf(found.quantile([0.1, 0.8])[1]), 0.8)
    assert found.quantile(np.array([0.1, 0.5, 0.9])).shape == (3, 2)
    for row in range(2):
        # CRPS is the integral of the squared difference of the distribution functions.
        below = lambda t, row=row: stats.norm.cdf(t, found.mean[row], found.std[row]) ** 2  # noqa: E731
        above = lambda t, row=row: stats.norm.sf(t, found.mean[row], found.std[row]) ** 2  # noqa: E731
        area = integrate.quad(below, -60, y[row])[0] + integrate.quad(above, y[row], 60)[0]
        assert found.crps(y)[row] == pytest.approx(area, rel=1e-6)


def test_the_noise_of_a_linear_model_is_that_of_rows_left_out():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(400, 2))
    y = 3 * x[:, 0] - x[:, 1] + generator.normal(0.0, 0.5, 400)
    found = fit_baseline(baselines("regression")["linear model"], x, y, 0)(x)
    design = np.c_[np.ones(400), x]
    best, squares = np.linalg.lstsq(design, y, rcond=None)[:2]
    np.testing.assert_allclose(found.mean, design @ best, atol=0.02)
    # An error on a row left out has the variance of the noise times 1 + 3 / 400, on average.
    expected = np.sqrt(squares[0] / 397 * (1 + 3 / 400))
    np.testing.assert_allclose(found.std, expected, rtol=0.02)


@pytest.mark.parametrize("name", ["linear model", "boosting"])
def test_classes_that_no_fitted_row_has_are_possible(name):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(120, 2))
    y = 2 * (x[:, 0] > 0).astype(int)  # classes 0 and 2 of three
    make = next(each for key, each in baselines("classification").items() if key.startswith(name))
    found = fit_baseline(make, x, y, 3)(x)
    assert isinstance(found, Classes)
    np.testing.assert_allclose(found.probs.sum(1), 1)
    assert np.all(found.probs > 0)
    assert np.mean(found.probs.argmax(1) == y) > 0.95
    np.testing.assert_allclose(found.log_prob(y), np.log(found.probs[np.arange(120), y]))


def test_boosting_follows_steps_that_a_line_cannot():
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(600, 1))
    y = np.floor(4 * x[:, 0]) % 2 + generator.normal(0.0, 0.1, 600)
    errors = {
        name: np.mean((fit_baseline(make, x[:400], y[:400], 0)(x[400:]).mean - y[400:]) ** 2)
        for name, make in baselines("regression").items()
    }
    line, trees = errors.values()
    # The steps have variance 1/4, of which a line explains nothing.
    assert line > 0.2
    assert trees < 0.1
