"""What is recommended for which table, and that what is fitted is the stack of the candidates."""

import numpy as np
import pytest
from scipy.special import logsumexp

import credax as cx
from credax.tables import recommended
from credax.tables.recommended import Candidate, Recommendation, fit_recommended, recommend

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
Y = X[:, 0] + 0.1 * RNG.normal(size=200)


@pytest.mark.parametrize(
    "y, task",
    [
        (Y, "regression"),
        (Y > 0, "classification"),
        (np.where(Y > 0, "yes", "no"), "classification"),
        ((Y > 0).astype(int), "classification"),
        (np.round(10 * Y).astype(int), "regression"),
        (np.round(Y), "regression"),
    ],
)
def test_the_task_follows_from_the_targets(y, task):
    assert recommend(X, y).task == task


def test_every_part_has_a_reason():
    found = recommend(X, Y)
    assert set(found.reasons) == {"network", "prior", "likelihood", "method"}
    assert all(
        reason.endswith(".") for each in found.candidates for reason in each.reasons.values()
    )
    text = str(found)
    assert "candidate 1" in text
    assert "have not seen" in text
    assert isinstance(found.model, cx.Model)
    assert found._repr_html_().count("<tr>") == 1 + 4 * len(found.candidates)


def test_grades_are_taken_to_be_rounded():
    grades = np.clip(np.round(2 * Y), -3, 3)
    likelihood = recommend(X, grades, task="regression").likelihood
    assert likelihood.rounding == pytest.approx(1 / grades.std())
    assert recommend(X, Y).likelihood.rounding is None


def test_many_columns_get_narrow_embeddings():
    wide = RNG.normal(size=(100, 10_000))
    network = recommend(wide, wide[:, 0]).network
    assert network.bins * network.embedding <= 8


def test_a_large_table_has_one_candidate():
    x = RNG.normal(size=(20_000, 4))
    assert len(recommend(x, x[:, 0]).candidates) == 1


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"budget": 1}, r"recommend\(budget=...\) must be at least 5 seconds"),
        ({"budget": "long"}, r"recommend\(budget=...\) must be a number of seconds"),
        ({"task": "ranking"}, r"recommend\(task=...\)"),
    ],
)
def test_bad_arguments_are_named(arguments, match):
    with pytest.raises((ValueError, TypeError), match=match):
        recommend(X, Y, **arguments)


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match=r"needs at least 4 rows.*Choose a method"):
        recommend(X[:3], Y[:3])


def test_rows_must_agree():
    with pytest.raises(ValueError, match="same number of rows; got 200 and 3"):
        recommend(X, Y[:3])


def short(likelihood, steps=100):
    method = cx.CrossFitEnsemble(members=2, num_steps=steps, folds=4, snapshots=5)
    reasons = dict.fromkeys(("network", "prior", "likelihood", "method"), "Short.")
    return Candidate(cx.networks.mlp([8]), cx.priors.Normal(), likelihood, method, reasons)


def test_candidates_are_weighted_by_unseen_rows():
    heavy = X[:, 0] + 0.3 * RNG.standard_t(2, size=200)
    given = [short(cx.likelihoods.StudentT(4.0, None)), short(cx.likelihoods.Gaussian(0.3))]
    found = fit_recommended(
        Recommendation(tuple(given), "regression", 30), (X, heavy), progress=False
    )
    assert isinstance(found, cx.StackedPosterior)
    assert sum(found.weights) == pytest.approx(1)
    each = np.stack([part.info["held_out_log_prob"] for part in found.components])
    together = logsumexp(each, axis=0, b=np.array(found.weights)[:, None]).mean()
    assert together > each.mean(1).max()
    for share in np.linspace(0, 1, 21):  # no other weights are better
        other = logsumexp(each, axis=0, b=np.array([[share], [1 - share]])).mean()
        assert together > other - 1e-6


@pytest.mark.slow
def test_a_candidate_without_weight_is_left_out():
    given = [short(cx.likelihoods.Gaussian(0.3), 300), short(cx.likelihoods.Gaussian(20.0), 300)]
    found = fit_recommended(Recommendation(tuple(given), "regression", 30), (X, Y), progress=False)
    assert isinstance(found, cx.Posterior)
    assert found.model.likelihood.scale == 0.3


def test_a_candidate_that_fails_does_not_reach_the_user(monkeypatch):
    fit = recommended.fit

    def failing(model, *arguments, **named):
        if isinstance(model.likelihood, cx.likelihoods.StudentT):
            raise cx.DivergedError("it diverged")
        return fit(model, *arguments, **named)

    monkeypatch.setattr(recommended, "fit", failing)
    bad, good = short(cx.likelihoods.StudentT(4.0, None)), short(cx.likelihoods.Gaussian(0.3))
    with pytest.warns(
        cx.DataWarning, match="CrossFitEnsemble is left out of the result: it diverged"
    ):
        found = fit_recommended(
            Recommendation((bad, good), "regression", 30), (X, Y), progress=False
        )
    assert isinstance(found, cx.Posterior)
    only = Recommendation((bad,), "regression", 30)
    with pytest.warns(cx.DataWarning), pytest.raises(cx.DivergedError):
        fit_recommended(only, (X, Y), progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("noise, coverage", [("normal", 0.05), ("growing", 0.06), ("skewed", 0.06)])
def test_intervals_of_the_default_cover_what_they_say(noise, coverage):
    rng = np.random.default_rng(3)
    x = rng.uniform(-1, 1, size=(1_500, 2))
    draws = {
        "normal": 0.2 * rng.normal(size=1_500),
        "growing": 0.3 * (1.1 + x[:, 0]) * rng.normal(size=1_500),
        "skewed": 0.2 * rng.exponential(size=1_500),
    }
    y = np.sin(3 * x[:, 0]) + x[:, 1] ** 2 + draws[noise]
    regressor = cx.BayesianRegressor(budget=15).fit(x[:1_000], y[:1_000])
    lower, upper = regressor.predict_interval(x[1_000:])
    found = np.mean((lower <= y[1_000:]) & (y[1_000:] <= upper))
    assert abs(found - 0.9) < coverage  # the standard error of 500 rows is 0.013
    assert -regressor.predict_distribution(x[1_000:]).log_prob(y[1_000:]).min() < 100


@pytest.mark.slow
def test_the_default_of_classes_is_not_too_sure():
    rng = np.random.default_rng(4)
    x = rng.normal(size=(1_200, 6))
    p = 1 / (1 + np.exp(3.0 - 1.5 * x[:, 0]))
    y = (rng.random(1_200) < p).astype(int)
    classifier = cx.BayesianClassifier(budget=12).fit(x[:800], y[:800])
    truth, probs = p[800:], classifier.predict_proba(x[800:])[:, 1]
    ideal = -np.mean(truth * np.log(truth) + (1 - truth) * np.log(1 - truth))
    found = -np.mean(truth * np.log(probs) + (1 - truth) * np.log(1 - probs))
    constant = -np.mean(
        y[800:] * np.log(y[:800].mean()) + (1 - y[800:]) * np.log(1 - y[:800].mean())
    )
    assert ideal < found < ideal + 0.25 * (constant - ideal)
