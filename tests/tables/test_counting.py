import numpy as np
import pandas as pd
import pytest
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import check_sample_weight_equivalence_on_dense_data

import credax as cx
from credax.posterior import stacking_weights
from credax.tables.recommended import Candidate, Recommendation

QUICK = cx.MAP(num_steps=60)


def line(rows=60, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(3.0, 2.0, (rows, 2))
    return x, 5 * x[:, 0] - 2 * x[:, 1] + generator.normal(0.0, 1.0, rows)


def test_weights_are_those_of_weighted_least_squares():
    """With a wide prior, the most probable line minimises the weighted sum of squares."""
    x, y = line()
    y[:30] += 10 * x[:30, 0]  # two lines, of which the weights choose one
    weights = np.r_[np.full(30, 0.01), np.full(30, 3.0)]
    regressor = cx.BayesianRegressor(
        cx.MAP(num_steps=1_500, learning_rate=0.05),
        network=cx.networks.linear(),
        prior=cx.priors.Normal(100.0),
        likelihood=cx.likelihoods.Gaussian(1.0),
    ).fit(x, y, sample_weight=weights)
    design, root = np.c_[np.ones(60), x], np.sqrt(weights)
    best = np.linalg.lstsq(root[:, None] * design, root * y, rcond=None)[0]
    np.testing.assert_allclose(regressor.predict(x), design @ best, atol=0.05)


@pytest.mark.parametrize("kind", [cx.BayesianRegressor, cx.BayesianClassifier])
def test_a_weight_is_a_number_of_rows(x64, kind):
    """scikit-learn compares with rows that are repeated, to more digits than single precision has."""
    check_sample_weight_equivalence_on_dense_data(kind.__name__, kind(QUICK))


def test_rows_that_count_for_nothing_are_not_looked_at():
    x, y = line()
    x[::3, 1] = np.nan
    wild = np.r_[x, [[1e9, np.nan], [np.nan, -1e9]]]
    weights = np.r_[np.ones(60), 0, 0]
    regressor = cx.BayesianRegressor(QUICK).fit(wild, np.r_[y, 1e9, -1e9], sample_weight=weights)
    expected = cx.BayesianRegressor(QUICK).fit(x, y)
    np.testing.assert_array_equal(regressor.predict(x), expected.predict(x))
    assert regressor.inputs_ == expected.inputs_
    labels = np.r_[(y > np.median(y)).astype(int), 2, 2]
    classifier = cx.BayesianClassifier(QUICK).fit(wild, labels, sample_weight=weights)
    assert list(classifier.classes_) == [0, 1]
    frame = pd.DataFrame(x, columns=["a", "b"]).assign(kind=np.resize(["u", "v"], 60))
    half = np.resize([0.0, 0.0, 1.0, 1.0], 60)
    some = cx.BayesianRegressor(QUICK).fit(frame, y, sample_weight=half)
    expected = cx.BayesianRegressor(QUICK).fit(frame[half > 0], y[half > 0])
    np.testing.assert_array_equal(some.predict(frame), expected.predict(frame))


def test_one_weight_for_all_rows():
    x, y = line(20)
    one = cx.BayesianRegressor(QUICK).fit(x, y, sample_weight=1.0)
    np.testing.assert_array_equal(one.predict(x), cx.BayesianRegressor(QUICK).fit(x, y).predict(x))
    assert one.score(x, y, sample_weight=np.arange(20)) == one.score(x, y, np.arange(20) / 2)


@pytest.mark.parametrize(
    "weights, words",
    [
        (-np.ones(20), "Negative values in data passed to `sample_weight`"),
        (np.zeros(20), "sample_weight must be positive for at least one row"),
        (np.ones(19), "inconsistent numbers of samples"),
        (np.full(20, np.nan), "sample_weight contains NaN"),
        (np.ones((20, 2)), "Sample weights must be 1D"),
    ],
)
def test_weights_that_are_none_are_refused(weights, words):
    with pytest.raises(ValueError, match=words):
        cx.BayesianRegressor(QUICK).fit(*line(20), sample_weight=weights)


def test_class_weights_are_sample_weights():
    x, y = line()
    labels = np.where(y > np.quantile(y, 0.8), "high", "low")
    own = np.random.default_rng(1).uniform(0.5, 2.0, 60)
    given = {"high": 4.0, "low": 0.5}
    weighed = cx.BayesianClassifier(QUICK, class_weight=given).fit(x, labels, sample_weight=own)
    by_hand = own * np.where(labels == "high", 4.0, 0.5)
    expected = cx.BayesianClassifier(QUICK).fit(x, labels, sample_weight=by_hand)
    np.testing.assert_array_equal(weighed.predict_proba(x), expected.predict_proba(x))
    balanced = cx.BayesianClassifier(QUICK, class_weight="balanced").fit(x, labels)
    by_hand = compute_sample_weight("balanced", labels)
    expected = cx.BayesianClassifier(QUICK).fit(x, labels, sample_weight=by_hand)
    np.testing.assert_allclose(balanced.predict_proba(x), expected.predict_proba(x), rtol=1e-5)


def test_balanced_classes_are_equally_probable():
    """A classifier that sees nothing but a constant predicts the shares of the classes."""
    x, labels = np.zeros((90, 1)), np.repeat([0, 1, 2], [60, 20, 10])
    options = {"network": cx.networks.linear(), "prior": cx.priors.Normal(100.0)}
    method = cx.MAP(num_steps=600, learning_rate=0.05)
    plain = cx.BayesianClassifier(method, **options).fit(x, labels)
    np.testing.assert_allclose(plain.predict_proba(x[:1])[0], np.array([6, 2, 1]) / 9, atol=0.01)
    equal = cx.BayesianClassifier(method, **options, class_weight="balanced").fit(x, labels)
    np.testing.assert_allclose(equal.predict_proba(x[:1])[0], 1 / 3, atol=0.01)
    some = cx.BayesianClassifier(method, **options, class_weight={1: 3.0}).fit(x, labels)
    np.testing.assert_allclose(some.predict_proba(x[:1])[0], np.array([6, 6, 1]) / 13, atol=0.01)


@pytest.mark.parametrize(
    "given, words",
    [
        ("even", r"class_weight=...\) must be None, 'balanced', or a dictionary"),
        ({0: -1.0}, r"class_weight=...\) must be None, 'balanced', or a dictionary"),
        ({7: 1.0}, r"must have the classes of y, \[0, 1\]; got 7"),
    ],
)
def test_class_weights_that_are_none_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        cx.BayesianClassifier(QUICK, class_weight=given).fit(np.zeros((4, 1)), [0, 0, 1, 1])


# -- recommendations -----------------------------------------------------------------------------------


def test_stacking_weighs_the_rows():
    generator = np.random.default_rng(0)
    log_probs, counts = generator.normal(size=(3, 12)), generator.integers(0, 4, 12)
    expected = stacking_weights(np.repeat(log_probs, counts, axis=1))
    np.testing.assert_allclose(
        stacking_weights(log_probs, counts.astype(float)), expected, atol=1e-6
    )
    np.testing.assert_allclose(stacking_weights(log_probs, 0.1 * counts), expected, atol=1e-6)


def test_a_recommendation_is_fitted_and_stacked_with_the_weights():
    """One candidate suits half of the rows, and one the other half; the weights decide which is used."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(80, 1))
    calm = np.arange(80) % 2 == 0
    y = np.where(calm, x[:, 0] + 0.05 * generator.normal(size=80), generator.standard_t(1.5, 80))
    method = cx.CrossFitEnsemble(members=2, num_steps=200, learning_rate=0.05, snapshots=4)
    candidates = [
        Candidate(cx.networks.linear(), cx.priors.Normal(), likelihood, method, {})
        for likelihood in (cx.likelihoods.Gaussian(0.05), cx.likelihoods.StudentT(scale=1.0))
    ]
    recommendation = Recommendation(tuple(candidates), "regression", 60.0)
    found = {
        name: recommendation.fit(x, y, progress=False, weights=np.where(rows, 1.0, 0.0))
        for name, rows in (("calm", calm), ("wild", ~calm))
    }
    assert found["calm"].model.likelihood == candidates[0].likelihood
    assert found["wild"].model.likelihood == candidates[1].likelihood
    error = np.abs(found["calm"].predict(x).mean - x[:, 0])
    assert np.max(error) < 0.1
