import dataclasses
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import credax as cx

QUICK = cx.MAP(num_steps=150)


def line(rows=60, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(3.0, 10.0, (rows, 2))
    return x, 100 + 5 * x[:, 0] - 2 * x[:, 1] + generator.normal(0.0, 8.0, rows)


ROUNDED = {
    "check_sample_weight_equivalence_on_dense_data": "asks for more digits than single precision has; "
    "tests/tables/test_counting.py runs it in double precision",
}


DOUBLE = {"check_methods_subset_invariance"}
"""Checks that compare rows predicted together and one by one, to the seventh digit."""


@pytest.mark.slow
@parametrize_with_checks(
    [cx.BayesianRegressor(QUICK), cx.BayesianClassifier(cx.MAP(num_steps=300))],
    expected_failed_checks=lambda estimator: ROUNDED,
)
def test_the_checks_of_scikit_learn(estimator, check, request):
    if check.func.__name__ in DOUBLE:
        request.getfixturevalue("x64")
    check(estimator)


def test_a_regressor_is_on_the_scale_of_the_table():
    x, y = line()
    regressor = cx.BayesianRegressor(
        cx.HMC(chains=2, num_warmup=150, num_draws=100), network=cx.networks.linear()
    )
    mean, std = regressor.fit(x, y).predict(x, return_std=True)
    design = np.c_[np.ones(len(x)), x]
    best, squares = np.linalg.lstsq(design, y, rcond=None)[:2]
    # The prior is wide, so that the mean is nearly that of least squares, and the std that of the noise.
    np.testing.assert_allclose(mean, design @ best, atol=0.1 * np.std(y))
    noise = np.sqrt(squares[0] / (len(y) - 3))
    np.testing.assert_allclose(std, noise, rtol=0.25)
    lower, upper = regressor.predict_interval(x, 0.9)
    assert np.all((lower < mean) & (mean < upper))
    np.testing.assert_allclose(upper - lower, 2 * 1.645 * std, rtol=0.1)
    drawn = regressor.sample(x, 2_000, random_state=1)
    assert drawn.shape == (2_000, 60)
    np.testing.assert_allclose(drawn.mean(0), mean, atol=5 * std.max() / np.sqrt(2_000))
    # The density of y is that of the standardised target, divided by the scale.
    predictive = regressor.predict_distribution(x)
    model = regressor.posterior_.model.of_standard_data()
    scaled = dataclasses.replace(regressor.posterior_, model=model)
    scaled = scaled.predict((x - x.mean(0)) / x.std(0))
    expected = scaled.log_prob((y - y.mean()) / y.std()) - np.log(y.std())
    np.testing.assert_allclose(predictive.log_prob(y), expected, rtol=1e-5)
    np.testing.assert_allclose(predictive.cdf(predictive.quantile(0.3)), 0.3, atol=1e-3)
    np.testing.assert_allclose(predictive.epistemic + predictive.aleatoric, std**2, rtol=1e-4)


def test_several_targets():
    x, y = line()
    y = np.c_[y, -3 * y + 1]
    regressor = cx.BayesianRegressor(QUICK).fit(x, y)
    mean, std = regressor.predict(x, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert regressor.predict_distribution(x).log_prob(y).shape == (60,)


def test_a_classifier_has_the_labels_of_the_table():
    x, y = load_iris(return_X_y=True)
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    classifier = cx.BayesianClassifier(cx.MAP(num_steps=500)).fit(x, labels)
    probs = classifier.predict_proba(x)
    assert probs.shape == (150, 3)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_array_equal(classifier.predict(x), classifier.classes_[probs.argmax(1)])
    assert classifier.score(x, labels) > 0.9
    assert set(classifier.sample(x[:4], 20).ravel()) <= set(labels)
    assert classifier.predict_distribution(x).entropy.shape == (150,)


@pytest.mark.slow
def test_pipelines_searches_and_calibration():
    x, y = line(40)
    pipeline = make_pipeline(StandardScaler(), cx.BayesianRegressor(QUICK))
    assert len(cross_val_score(pipeline, x, y, cv=2)) == 2
    search = GridSearchCV(cx.BayesianRegressor(QUICK), {"hidden": [(4,), (8,)]}, cv=2).fit(x, y)
    assert search.best_params_["hidden"] in [(4,), (8,)]
    labels = (y > np.median(y)).astype(int)
    calibrated = CalibratedClassifierCV(cx.BayesianClassifier(QUICK), cv=2).fit(x, labels)
    assert calibrated.predict_proba(x).shape == (40, 2)


def test_settings():
    x, y = line(30)
    estimator = cx.BayesianRegressor("map", hidden=(3,), random_state=4)
    assert clone(estimator).get_params() == estimator.get_params()
    assert "BayesianRegressor" in estimator._repr_html_()
    with pytest.raises(
        ValueError, match=r"BayesianRegressor\(method=...\) must be one of .*'nuts'"
    ):
        cx.BayesianRegressor("nut").fit(x, y)
    fitted = cx.BayesianRegressor(QUICK).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    other = cx.BayesianRegressor(QUICK, random_state=1).fit(x, y)
    assert not np.array_equal(other.predict(x), fitted.predict(x))


def test_one_class_is_refused():
    with pytest.raises(ValueError, match="at least two classes"):
        cx.BayesianClassifier(QUICK).fit(np.zeros((4, 1)), np.zeros(4, int))


def test_a_constant_column_says_nothing_about_new_rows():
    x, y = line()
    constant = np.c_[x, np.full(60, 0.1)]
    regressor = cx.BayesianRegressor(QUICK).fit(constant, y)
    moved = np.c_[x, np.full(60, 0.101)]
    np.testing.assert_allclose(regressor.predict(moved), regressor.predict(constant), rtol=1e-2)


def test_a_constant_target_is_predicted():
    regressor = cx.BayesianRegressor(QUICK).fit(line()[0], np.full(60, 0.1))
    mean, std = regressor.predict(line(seed=1)[0], return_std=True)
    np.testing.assert_allclose(mean, 0.1, atol=0.5)
    assert std.max() < 2


def test_one_wrong_number_does_not_spoil_the_other_rows():
    x, y = line(rows=200)
    true = 100 + 5 * x[:, 0] - 2 * x[:, 1]
    method = cx.MAP(num_steps=1_500)
    wrong = x.copy()
    wrong[17, 0] = 1e6
    mean = cx.BayesianRegressor(method).fit(wrong, y).predict(x)
    assert np.sqrt(np.mean((mean - true)[18:] ** 2)) < 0.3 * y.std()
    y[17] = 1e8
    with pytest.warns(cx.DataWarning, match=r"1 of 200 rows: 1e\+08 in row 17\. .* Student's t"):
        regressor = cx.BayesianRegressor(method).fit(x, y)
    assert np.sqrt(np.mean((regressor.predict(x) - true)[18:] ** 2)) < 0.3 * true.std()


def test_counts_are_not_scaled():
    """Poisson counts have no units: the targets stay whole, and predictions are counts."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, size=(200, 1))
    y = generator.poisson(np.exp(2 + x[:, 0])).astype(float)
    regressor = cx.BayesianRegressor(cx.MAP(num_steps=500), likelihood=cx.likelihoods.Poisson())
    regressor.fit(100 * x, y)
    assert regressor.posterior_.model.frame.y_scaling is None
    assert regressor.posterior_.model.frame.x_scaling is not None
    truth = np.exp(2 + x[:, 0])
    assert np.mean(np.abs(regressor.predict(100 * x) / truth - 1)) < 0.15
    lower, upper = regressor.predict_interval(100 * x)
    np.testing.assert_array_equal([lower % 1, upper % 1], np.zeros((2, 200)))


def test_a_warm_start_goes_on_where_the_last_fit_ended():
    x, y = line()
    still = cx.MAP(num_steps=1, learning_rate=1e-8)
    regressor = cx.BayesianRegressor(QUICK, warm_start=True).fit(x, y)
    found = regressor.predict(x)
    # Steps of no length leave the weights where they begin.
    again = regressor.set_params(method=still).fit(x, y)
    np.testing.assert_allclose(again.predict(x), found, rtol=1e-4)
    cold = regressor.set_params(warm_start=False).fit(x, y)
    assert not np.allclose(cold.predict(x), found, rtol=0.1)
    with pytest.raises(ValueError, match=r"fit\(start=...\) must have the parameters of the model"):
        regressor.set_params(warm_start=True, hidden=(3,)).fit(x, y)


def test_a_recommendation_has_no_warm_start():
    with pytest.raises(ValueError, match=r"warm_start=...\) must be False if nothing is chosen"):
        cx.BayesianRegressor(warm_start=True).fit(*line())
    with pytest.raises(TypeError, match=r"warm_start=...\) must be True or False"):
        cx.BayesianRegressor(QUICK, warm_start="yes").fit(*line())


def test_a_regressor_refuses_classes():
    with pytest.raises(ValueError, match="must be numbers; got 'a'"):
        cx.BayesianRegressor("map").fit(np.zeros((4, 1)), list("abab"))
