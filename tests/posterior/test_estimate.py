"""An estimate is the pair of its value and its standard error, and knows to which side it errs."""

import copy
import json
import pickle

import numpy as np
import pytest

import credax as cx
from credax.model.networks import linear
from credax.posterior import Estimate
from credax.posterior.approximations import Draws

BOUND = Estimate(-12.314, 0.0413, "too low: a lower bound")


def test_it_is_the_pair_of_its_value_and_its_standard_error():
    value, standard_error = BOUND
    assert (value, standard_error) == BOUND == (-12.314, 0.0413)
    assert isinstance(BOUND, tuple)
    assert len(BOUND) == 2
    assert BOUND[0] == BOUND.value == value
    assert BOUND[1] == BOUND.standard_error == standard_error
    assert hash(BOUND) == hash((value, standard_error))
    assert {BOUND: 1}[value, standard_error] == 1
    assert json.loads(json.dumps(BOUND)) == [value, standard_error]
    np.testing.assert_array_equal(np.asarray(BOUND), [value, standard_error])


def test_to_which_side_it_errs_takes_no_part_in_comparisons():
    assert Estimate(1.0, 2.0, "unbiased") == Estimate(1.0, 2.0, "too low: a lower bound")
    assert Estimate(1, 2) < Estimate(2, 0)
    assert Estimate(1, 2).errs == "unknown"


@pytest.mark.parametrize("number", [np.float32(2), np.asarray(2.0), 2])
def test_its_parts_are_plain_numbers(number):
    made = Estimate(number, number)
    assert type(made.value) is type(made.standard_error) is float


@pytest.mark.parametrize(
    "made, text",
    [
        (BOUND, "-12.31 ± 0.04 (too low: a lower bound)"),
        (Estimate(-1234.5, 12.3, "unbiased"), "-1234 ± 12 (unbiased)"),
        (Estimate(3, 1.54), "3.0 ± 1.5 (unknown)"),
        (Estimate(-0.5, 0.00412), "-0.500 ± 0.004 (unknown)"),
        (Estimate(-12.314, 0, "exact"), "-12.314 ± 0 (exact)"),
        (Estimate(-12, float("nan")), "-12 ± nan (unknown)"),
        (Estimate(float("-inf"), float("inf")), "-inf ± inf (unknown)"),
        (Estimate(1, 1e-300), "1.000000000000 ± 0.000000000000 (unknown)"),
    ],
)
def test_it_shows_as_many_digits_as_its_standard_error_supports(made, text):
    assert repr(made) == str(made) == f"{made}" == text


def pickled(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_is_whole(again):
    same = again(BOUND)
    assert type(same) is Estimate
    assert same == BOUND
    assert same.errs == BOUND.errs


def test_it_cannot_be_changed():
    for name in ("value", "standard_error", "errs"):
        with pytest.raises(AttributeError):
            setattr(BOUND, name, 1.0)


def test_a_posterior_makes_estimates_of_plain_pairs():
    model = cx.Model(linear()).bind((np.zeros((3, 2)), np.zeros(3)))
    draws = Draws({"w": np.zeros((1, 1, 2))})
    posterior = cx.Posterior(model, draws, log_evidence=(-1.0, 0.5), elbo=BOUND)
    assert isinstance(posterior.log_evidence, Estimate)
    assert posterior.log_evidence == (-1.0, 0.5)
    assert posterior.elbo is BOUND
    assert cx.Posterior(model, draws).elbo is None
