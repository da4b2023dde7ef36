"""The doctor judges the predictions for given rows."""

import jax
import numpy as np
import pytest
from doctor_cases import posterior, predicting

import credax as cx
from credax.posterior.approximations import Draws

# -- predictions at given rows ---------------------------------------------------------------------


def test_members_that_predict_alike_are_told():
    """The weights of the members differ only in the output at a row that is not among those given."""
    outputs = np.ones((3, 20, 1))
    outputs[:, -1] = np.arange(3)[:, None]
    found, x = predicting(cx.likelihoods.Gaussian(1.0), np.zeros(20), outputs)
    assert found.diagnose() == ()
    (told,) = found.diagnose(x[:10])
    assert told.what.startswith(
        "The 3 members make the same predictions: their disagreement is 0.0e+00"
    )
    assert told.value == 0
    assert found.diagnose(x) == ()  # the members differ at that row


@pytest.mark.parametrize("scale, inside", [(0.3, "Only"), (3.0, "")])
def test_intervals_that_hold_too_few_or_too_many_are_told(scale, inside):
    y = np.random.default_rng(1).normal(size=500)
    found, x = predicting(cx.likelihoods.Gaussian(scale), y, np.zeros((1, 500, 1)))
    assert found.diagnose(x) == ()
    (told,) = found.diagnose(x, y)
    share = np.mean(np.abs(y) <= 1.6449 * scale)
    assert told.value == pytest.approx(share)
    assert told.what.startswith(
        f"{inside}{' ' if inside else ''}{100 * share:.3g} % of the 500 targets"
    )
    assert told.what.endswith("too narrow." if scale < 1 else "too wide.")
    assert "posterior.calibrate" in told.advice


def test_a_scale_that_is_learned_is_not_advised_again():
    y = np.random.default_rng(1).normal(size=500)
    given, x = predicting(cx.likelihoods.Gaussian(0.3), y, np.zeros((1, 500, 1)))
    assert "Learn the noise scale (scale=None), or recalibrate" in str(given.diagnose(x, y))
    model = cx.Model(given.model.network).bind((x, y))
    wanted = jax.eval_shape(lambda: model.init(jax.random.key(0)))["likelihood"]
    learned = {
        name: np.full((1, 1, *leaf.shape), np.log(0.3), np.float32) for name, leaf in wanted.items()
    }
    found = cx.Posterior(model, Draws({"network": given.draws, "likelihood": learned}))
    (told,) = found.diagnose(x, y)
    assert told.what.endswith("too narrow.")
    assert told.advice.startswith("Recalibrate the intervals on held-out rows")


def test_predictions_that_explain_less_than_a_line_are_told_first():
    x = np.arange(100)[:, None]
    y = 0.02 * x[:, 0] + 0.1 * np.random.default_rng(1).normal(size=100)
    found, x = predicting(cx.likelihoods.Gaussian(0.1), y, np.full((1, 100, 1), y.mean()))
    told = found.diagnose(x, y)
    assert told[0].what.startswith(
        "The predictions explain 0 % of the variance of the targets in 100 new"
    )
    assert 0.975 < np.corrcoef(x[:, 0], y)[0, 1] ** 2 < 0.985
    assert told[0].what.endswith("a straight line explains 98 %.")
    assert [finding.kind for finding in told] == ["predictions"] * 2


def test_intervals_that_hold_what_they_should_are_no_finding():
    y = np.random.default_rng(1).normal(size=500)
    found, x = predicting(cx.likelihoods.Gaussian(1.0), y, np.zeros((1, 500, 1)))
    assert found.diagnose(x, y) == ()
    few, x = predicting(cx.likelihoods.Gaussian(0.6), y[:10], np.zeros((1, 10, 1)))
    assert few.diagnose(x, y[:10]) == ()  # ten rows are too few


@pytest.mark.slow
def test_zeros_that_a_count_must_hold_are_no_finding():
    y = np.random.default_rng(2).poisson(0.05, 300).astype(float)
    found, x = predicting(cx.likelihoods.Poisson(), y, np.full((1, 300, 1), np.log(0.05)))
    assert np.mean(y <= 0) > 0.92
    assert found.diagnose(x, y) == ()


@pytest.mark.parametrize(
    "factor, word", [(5.0, "overconfident"), (0.1, "underconfident"), (1.0, None)]
)
def test_probabilities_that_are_not_frequencies_are_told(factor, word):
    rng = np.random.default_rng(3)
    logits = rng.normal(size=2000)
    y = (rng.uniform(size=2000) < 1 / (1 + np.exp(-2 * logits))).astype(int)
    found, x = predicting(cx.likelihoods.Bernoulli(), y, 2 * factor * logits[None, :, None])
    told = found.diagnose(x, y)
    if word is None:
        assert told == ()
    else:
        assert f"The class probabilities are {word}" in told[0].what
        scores = found.evaluate(x, y)
        assert told[0].value == pytest.approx(scores.sharpness - scores.accuracy)


def test_targets_need_their_rows():
    with pytest.raises(ValueError, match=r"diagnose\(x=...\) must be given if y is given"):
        posterior().diagnose(y=np.zeros(3))
