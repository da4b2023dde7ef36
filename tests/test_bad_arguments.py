"""Wrong arguments of the public functions are refused in words: the argument, what is allowed, what came."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

X = np.random.default_rng(0).normal(size=(20, 2))
Y = X[:, 0]
NETWORK = cx.networks.mlp([3])
MODEL = cx.Model(NETWORK, likelihood=cx.likelihoods.Gaussian(0.1))
QUICK = cx.MAP(num_steps=3)


@functools.cache
def posterior():
    return cx.fit(MODEL, (X, Y), QUICK, progress=False)


def fit(model=MODEL, data=(X, Y), method=QUICK, **settings):
    return cx.fit(model, data, method, **{"progress": False, **settings})


def init(key):
    return {"w": jax.random.normal(key, (2, 1), jnp.float32)}


def apply(params, x):
    return x @ params["w"]


def own(init=init, apply=apply):
    return fit(cx.Model(cx.networks.from_function(init, apply)))


def decided(params, x):
    return x @ params["w"] if x.sum() > 0 else -x @ params["w"]


def density(init, log_joint):
    return fit(cx.LogDensity(init, log_joint), None)


def regressor(**settings):
    return cx.BayesianRegressor(**{"method": QUICK, **settings}).fit(X, Y)


LISTS = "must be an array, a data frame or nested lists of numbers; got"
# What is called, the error, and a part of its message.
CASES = {
    "fit": {
        "callbacks=5": (lambda: fit(callbacks=5), TypeError, "functions of an Event; got 5"),
        "callbacks=[5]": (lambda: fit(callbacks=[5]), TypeError, "functions of an Event; got 5"),
        "progress='no'": (
            lambda: fit(progress="no"),
            TypeError,
            "fit(progress=...) must be True or",
        ),
        "progress=1": (lambda: fit(progress=1), TypeError, "True or False; got 1"),
        "key=None": (lambda: fit(key=None), TypeError, "key must be an int or a JAX key; got None"),
        "start=method": (lambda: fit(start=QUICK), TypeError, "fit(start=...) must be a posterior"),
    },
    "data": {
        "x=None": (lambda: fit(data=(None, Y)), TypeError, f"x {LISTS} None"),
        "x=generator": (lambda: fit(data=((i for i in X), Y)), TypeError, f"x {LISTS} generator"),
        "x=set": (lambda: fit(data=({1, 2}, Y)), TypeError, f"x {LISTS} set"),
        "x=dict": (lambda: fit(data=({"a": 1}, Y)), ValueError, "must have rows; got a single"),
        "y=None": (lambda: fit(data=(X, None)), TypeError, f"y {LISTS} None"),
        "predict None": (lambda: posterior().predict(None), TypeError, f"x {LISTS} None"),
        "log_prob None": (lambda: posterior().predict(X).log_prob(None), TypeError, f"y {LISTS}"),
    },
    "networks": {
        "activation=np.tanh": (
            lambda: cx.networks.mlp([3], activation=np.tanh),
            TypeError,
            "mlp(activation=...) must compute with jax.numpy",
        ),
        "activation that cuts": (
            lambda: cx.networks.cnn(activation=lambda x: x[:1]),
            ValueError,
            "cnn(activation=...) must be a function that keeps the shape of an array, here (2, 3)",
        ),
        "hidden=50": (lambda: cx.networks.mlp(50), TypeError, "widths, e.g. [50, 50]; got 50"),
        "subset": (
            lambda: cx.networks.subset(NETWORK, bayesian=3),
            TypeError,
            "subset(bayesian=...) must be one or more path patterns; got 3",
        ),
        "NumPy in apply": (
            lambda: own(apply=lambda p, x: np.tanh(x) @ p["w"]),
            TypeError,
            "from_function: apply(params, x) must compute with jax.numpy",
        ),
        "a decision in apply": (
            lambda: own(apply=decided),
            TypeError,
            "It was given arrays of shapes {'w': (2, 1)} and an array of shape (3, 2)",
        ),
        "swapped functions": (
            lambda: own(apply, init),
            TypeError,
            "from_function takes init(key) first and apply(params, x) second",
        ),
        "init without a key": (
            lambda: own(init=lambda: 3),
            TypeError,
            "from_function: init(key) failed with TypeError",
        ),
        "apply with another name": (
            lambda: own(apply=lambda p, x: x @ p["v"]),
            ValueError,
            "from_function: apply(params, x) failed with KeyError: 'v'",
        ),
        "apply that mixes rows and columns": (
            lambda: own(apply=lambda p, x: x.T @ p["w"]),
            TypeError,
            "from_function: apply(params, x) failed with TypeError",
        ),
    },
    "densities": {
        "NumPy in log_joint": (
            lambda: density(lambda key: jnp.zeros(2), lambda p: float(np.sum(np.array(p)))),
            TypeError,
            "LogDensity: log_joint(params) must compute with jax.numpy",
        ),
        "swapped functions": (
            lambda: density(lambda p: -jnp.sum(p**2), lambda key: jax.random.normal(key, (2,))),
            TypeError,
            "LogDensity takes init(key) first and log_joint(params) second",
        ),
    },
    "priors and likelihoods": {
        "Gaussian('0.1')": (lambda: cx.likelihoods.Gaussian("0.1"), TypeError, "got '0.1'"),
        "Around('a')": (
            lambda: cx.priors.Around("a"),
            TypeError,
            "Around(weights=...) must be a pytree of arrays of numbers; got 'a'",
        ),
        "standardise=1": (
            lambda: cx.Model(NETWORK, standardise=1),
            TypeError,
            "Model(standardise=...) must be True, False, 'x' or 'y'; got 1",
        ),
    },
    "predictions": {
        "quantile('a')": (
            lambda: posterior().predict(X).quantile("a"),
            TypeError,
            "quantile(q=...) must be between 0 and 1, both excluded; got 'a'",
        ),
        "cdf('a')": (lambda: posterior().predict(X).cdf("a"), TypeError, "cdf(t=...) must be"),
        "compare_posteriors": (
            lambda: cx.compare_posteriors(posterior(), 3, X),
            TypeError,
            "must be two posteriors; got 3",
        ),
        "select(model)": (
            lambda: cx.select(MODEL, (X, Y)),
            TypeError,
            "select(models=...) must be a mapping or a sequence of models",
        ),
    },
    "files": {
        "save(3)": (lambda: posterior().save(3), TypeError, "save(path=...) must be the path"),
        "save('')": (lambda: posterior().save(""), TypeError, "save(path=...) must be the path"),
        "save(folder)": (lambda: posterior().save("/"), IsADirectoryError, "must be a file"),
        "load(3)": (
            lambda: cx.load(3),
            TypeError,
            "load(path=...) must be the path of a file; got 3",
        ),
        "load(folder)": (lambda: cx.load("/"), cx.StorageError, "load(path=...) must be a file"),
    },
    "estimators": {
        "hidden=50": (lambda: regressor(hidden=50), TypeError, "widths, e.g. [50, 50]; got 50"),
        "method=3": (lambda: regressor(method=3), TypeError, "a method such as cx.MAP()"),
        "method=class": (lambda: regressor(method=cx.MAP), TypeError, "such as cx.MAP()"),
        "random_state='a'": (
            lambda: regressor(random_state="a"),
            TypeError,
            "random_state=...) must",
        ),
    },
}
ROWS = {f"{group}: {name}": case for group, cases in CASES.items() for name, case in cases.items()}


@pytest.mark.parametrize("call, error, message", ROWS.values(), ids=ROWS)
def test_it_is_refused_in_words(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)


def test_a_single_callback_is_called():
    events = []
    fit(callbacks=events.append)
    assert events[-1].step == 3
