import numpy as np
import pandas as pd
import pytest

import credax as cx

NOISE = 0.4
LAPLACE = cx.Laplace(structure="full", num_steps=400, learning_rate=0.05)


def line(rows=40, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(3.0, 2.0, (rows, 2))
    return x, 5 * x[:, 0] - 2 * x[:, 1] + generator.normal(0.0, 2.0, rows)


def by_hand(x, y, first, new, weights=None):
    """The predictive mean and standard deviation of Bayesian linear regression, in closed form.

    The units are those of the first rows, the prior is standard normal, and the noise is known.
    """
    centre, scale = x[:first].mean(0), x[:first].std(0)
    design = lambda rows: np.c_[(rows - centre) / scale, np.ones(len(rows))]  # noqa: E731
    target = (y - y[:first].mean()) / y[:first].std()
    counts = np.ones(len(x)) if weights is None else weights
    precision = np.eye(3) + (design(x).T * counts) @ design(x) / NOISE**2
    covariance = np.linalg.inv(precision)
    mean = covariance @ (design(x).T * counts) @ target / NOISE**2
    variance = np.sum(design(new) @ covariance * design(new), axis=1) + NOISE**2
    return y[:first].mean() + y[:first].std() * design(new) @ mean, y[:first].std() * variance**0.5


def regressor(method=LAPLACE):
    likelihood = cx.likelihoods.Gaussian(NOISE)
    return cx.BayesianRegressor(method, network=cx.networks.linear(), likelihood=likelihood)


def test_rows_in_parts_give_the_posterior_of_all_rows():
    x, y = line()
    found = regressor()
    for part in (slice(0, 15), slice(15, 18), slice(18, 40)):
        found.partial_fit(x[part], y[part])
    new = line(seed=1)[0]
    mean, std = by_hand(x, y, 15, new)
    np.testing.assert_allclose(found.predict(new), mean, atol=2e-3 * y.std())
    np.testing.assert_allclose(found.predict(new, return_std=True)[1], std, rtol=2e-3)


def test_rows_in_parts_have_weights():
    x, y = line()
    weights = np.random.default_rng(2).uniform(0.0, 3.0, 40)
    weights[:15], weights[20] = 1.0, 0.0
    found = regressor().fit(x[:15], y[:15])
    found.partial_fit(x[15:], y[15:], sample_weight=weights[15:])
    mean, std = by_hand(x, y, 15, x, weights)
    np.testing.assert_allclose(found.predict(x), mean, atol=2e-3 * y.std())
    np.testing.assert_allclose(found.predict(x, return_std=True)[1], std, rtol=2e-3)


@pytest.mark.slow
def test_the_first_rows_decide_how_columns_are_read():
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan] * 10, "kind": ["u", "v", "v"] * 10})
    y = np.arange(30.0)
    found = regressor().partial_fit(table, y)
    features = found.inputs_.features
    found.partial_fit(table[:4], y[:4])
    assert found.inputs_.features == features
    with pytest.warns(cx.DataWarning, match="has not seen 'w' in column 'kind'"):
        found.partial_fit(table[:4].assign(kind="w"), y[:4])
    with pytest.raises(ValueError, match="Feature names"):
        found.partial_fit(table[["kind", "a"]], y)


def test_classes_in_parts():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 2))
    y = np.array(["a", "b", "c"])[np.digitize(x[:, 0], [-0.5, 0.5])]
    found = cx.BayesianClassifier(LAPLACE, network=cx.networks.linear())
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        found.partial_fit(x, y)
    early = x[:, 0] < 0.5
    found.partial_fit(x[early][:20], y[early][:20], classes=["c", "b", "a"])
    assert list(found.classes_) == ["a", "b", "c"]
    before = found.score(x, y)
    found.partial_fit(x, y)
    assert found.score(x, y) > max(before, 0.8)
    with pytest.raises(ValueError, match=r"y must hold the classes \['a', 'b', 'c'\]; got .*'d'"):
        found.partial_fit(x[:2], ["a", "d"])
    with pytest.raises(ValueError, match="classes must be those of the first call"):
        found.partial_fit(x, y, classes=["a", "b"])
    with pytest.raises(ValueError, match="does not know all rows"):
        found.set_params(class_weight="balanced").partial_fit(x, y)


def test_a_point_and_a_recommendation_cannot_go_on():
    x, y = line()
    found = regressor(cx.MAP(num_steps=20)).fit(x, y)
    for method in (found.method, "map"):
        with pytest.raises(AttributeError) as caught:
            found.set_params(method=method).partial_fit(x, y)
        assert "needs a method that says how sure it is" in str(caught.value.__cause__)
    found.set_params(method="laplace")
    with pytest.raises(ValueError, match="needs a method that says how sure it is"):
        found.partial_fit(x, y)
    posterior = found.posterior_
    found.posterior_ = cx.StackedPosterior((posterior, posterior), (0.5, 0.5))
    with pytest.raises(ValueError, match="needs the posterior of one model"):
        found.partial_fit(x, y)
