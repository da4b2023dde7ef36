import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import credax as cx


def test_settings_inside_arguments_have_names():
    estimator = cx.BayesianRegressor(
        cx.MAP(num_steps=30),
        network=cx.networks.mlp([4]),
        prior=cx.priors.Normal(2.0),
        likelihood=cx.likelihoods.StudentT(scale=None),
    )
    found = estimator.get_params()
    assert found["method__num_steps"] == 30
    assert found["prior__scale"] == 2
    assert found["network__hidden"] == (4,)
    assert "likelihood__df" in found
    assert not any("__" in name for name in estimator.get_params(deep=False))
    changed = {"method__num_steps": 60, "prior__scale": 0.5, "network__hidden": (8, 8)}
    copy = clone(estimator).set_params(**changed)
    assert copy.method == cx.MAP(num_steps=60)
    assert copy.prior == cx.priors.Normal(0.5)
    assert copy.network == cx.networks.mlp([8, 8])
    assert {name: copy.get_params()[name] for name in changed} == changed
    assert estimator.method == cx.MAP(num_steps=30), "the estimator that was copied stays as it is"
    assert clone(copy).set_params(**copy.get_params()).get_params() == copy.get_params()


def test_a_named_method_gets_settings_and_a_new_one_comes_first():
    estimator = cx.BayesianRegressor("map").set_params(method__num_steps=7)
    assert estimator.method == cx.MAP(num_steps=7)
    estimator.set_params(method__members=3, method=cx.DeepEnsemble())
    assert estimator.method == cx.DeepEnsemble(members=3)


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"method__steps": 1}, "MAP has no setting 'steps'. Did you mean 'num_steps'"),
        ({"method__num_steps": 0}, r"MAP\(num_steps=...\) must be a whole number, at least 1"),
        ({"network__hidden": 1}, "network__hidden can be set only if network is given"),
        ({"method__num_steps__a": 1}, "method__num_steps__a can be set only if"),
        ({"prior__scale": 1, "widths": 2}, "Invalid parameter 'widths'"),
    ],
)
def test_settings_that_are_none_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        cx.BayesianRegressor(cx.MAP()).set_params(**settings)


def test_a_grid_search_over_the_settings_of_a_method():
    """More steps predict better; the search finds that, and fits with them."""
    x = np.random.default_rng(0).normal(size=(40, 2))
    y = x[:, 0] - x[:, 1]
    search = GridSearchCV(
        cx.BayesianRegressor(cx.MAP(), hidden=(8,)), {"method__num_steps": [1, 200]}, cv=2
    ).fit(x, y)
    assert search.best_params_ == {"method__num_steps": 200}
    assert search.best_estimator_.method == cx.MAP(num_steps=200)
    assert search.best_estimator_.posterior_.info["steps"] == 200
