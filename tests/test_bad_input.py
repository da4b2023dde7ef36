"""Bad input is refused before anything compiles; unusual but valid input gives the same result as plain input.

Checks that ``fit`` and the posterior make by themselves do not depend on the method. So every row of every
table is tested with one method in quick tests and with a fifth of the methods in slow ones, in turn, so that
every method meets a fifth of the rows.
"""

import dataclasses
import itertools
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

import credax as cx
from credax.core import random
from credax.inference import METHODS
from credax.model import likelihoods, networks, priors

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

TINY = {
    "num_steps": 7,
    "batch_size": None,
    "num_warmup": 3,
    "num_draws": 4,
    "members": 2,
    "chains": 2,
    "particles": 4,
}

ROWS = 16
GENERATOR = np.random.default_rng(0)
# Multiples of an eighth, which every float format represents exactly.
X = GENERATOR.integers(-16, 17, size=(ROWS, 2)) / 8
Y = np.round(8 * np.sin(X[:, 0])) / 8
CLASSES = np.arange(ROWS) % 3
COUNTS = np.arange(ROWS) % 4

each_method = pytest.mark.parametrize("name", METHODS)


def in_turn(arguments, rows):
    """Every row ``(name, *arguments)`` with a fifth of the methods, of which one is a quick test."""
    pairs = itertools.product(enumerate(METHODS), enumerate(rows))
    cases = [
        pytest.param(
            name, *row, marks=slow_unless((i - j) % len(METHODS) == 0), id=f"{name}-{what}"
        )
        for (i, name), (j, (what, *row)) in pairs
        if (i - j) % len(METHODS) % 5 == 0
    ]
    return pytest.mark.parametrize(f"name, {arguments}", cases)


def seventh_method(turn):
    """Every method, of which every seventh is a quick test."""
    names = [pytest.param(n, marks=slow_unless(i % 7 == turn)) for i, n in enumerate(METHODS)]
    return pytest.mark.parametrize("name", names)


def slow_unless(quick):
    return () if quick else pytest.mark.slow


def tiny(cls, **settings):
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    return cls(**{k: v for k, v in {**TINY, **settings}.items() if k in known})


def settings_of(cls):
    return {field.name: field.default for field in dataclasses.fields(cls) if field.init}


def takes(method, model, data):
    try:
        method.check(*model.prepare(data))
    except (TypeError, ValueError):
        return False
    return True


@cache
def gaussian_model(name):
    """The simplest model that the method accepts: continuous weights and no hidden layer if possible."""
    choices = itertools.product(
        (priors.Normal(1.0), priors.Discrete([-1.0, 1.0])), (networks.linear(), networks.mlp([3]))
    )
    models = [cx.Model(network, prior, likelihoods.Gaussian(0.5)) for prior, network in choices]
    return next(model for model in models if takes(tiny(METHODS[name]), model, (X, Y)))


@cache
def fitted(name):
    return cx.fit(gaussian_model(name), (X, Y), tiny(METHODS[name]), progress=False)


def changed(array, where, value):
    copy = np.array(array, float)
    copy[where] = value
    return copy


def model(likelihood, network=None, prior=None):
    return cx.Model(network or networks.mlp([3]), prior or priors.Normal(), likelihood)


def function_model(init, apply):
    return cx.Model(networks.from_function(init, apply), likelihood=likelihoods.Gaussian(0.5))


def one_weight(key):
    return {"w": jnp.zeros((2, 1), jnp.result_type(float))}


def first_column(params, x):
    return x[:, :1]


DENSITY = cx.LogDensity(one_weight, lambda params: -jnp.sum(params["w"] ** 2))


def layered(patterns):
    return model(likelihoods.Gaussian(0.5), prior=dict.fromkeys(patterns, priors.Normal()))


def other_posterior():
    """A posterior of another network. It is made without a method, so that nothing compiles."""
    bound = model(likelihoods.Gaussian(0.5), networks.mlp([4])).bind((X, Y))
    shapes = jax.eval_shape(bound.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros((2, 1, *leaf.shape), leaf.dtype), shapes)
    return cx.Posterior(bound, cx.approximations.Draws(params))


# -- refused by fit ---------------------------------------------------------------------------------
#
# The name of the case, the changed arguments of fit, the error, and its message.

REFUSED = [
    # the shape of the data
    ("0 rows", {"data": (X[:0], Y[:0])}, ValueError, r"x must have at least 1 row; got shape \(0, 2\)"),
    ("0 columns", {"data": (X[:, :0], Y)}, ValueError, r"x must have at least 1 column; got 0"),
    ("1-D x", {"data": (X[:, 0], Y)},
     ValueError, r"x must be 2-D, .* for an mlp; got shape \(rows\).*x\[:, None\]"),
    ("3-D x", {"data": (X[:, :, None], Y)},
     ValueError, r"x must be 2-D, .* for an mlp; got shape \(rows, 2, 1\)"),
    ("0-D x", {"data": (1.0, Y)}, ValueError, r"x must have rows; got a single value"),
    ("0-D y", {"data": (X, 1.0)}, ValueError, r"y must have rows; got a single value"),
    ("lengths", {"data": (X, Y[:9])}, ValueError, r"same number of rows; got 16 and 9"),
    ("3-D y", {"data": (X, Y[:, None, None])}, ValueError, r"y must have shape .*; got \(16, 1, 1\)"),
    ("y without columns", {"data": (X, X[:, :0])}, ValueError, r"y must have shape .*; got \(16, 0\)"),
    ("classes in two columns", {"model": model(likelihoods.Categorical()), "data": (X, np.abs(np.sign(X)))},
     ValueError, r"y must have shape \(rows,\) for Categorical; got \(16, 2\)"),
    ("one target for a covariance", {"model": model(likelihoods.MultivariateGaussian())},
     ValueError, r"y must have shape \(rows, targets\) for MultivariateGaussian; got \(16,\)"),
    # data that is not a pair
    ("no data", {"data": None}, TypeError, r"data must be a pair \(x, y\); got None"),
    ("x alone", {"data": X}, TypeError, r"data must be a pair \(x, y\); got ndarray"),
    ("one of two", {"data": (X,)}, TypeError, r"data must be a pair .*; got tuple of length 1"),
    ("three of two", {"data": [X, Y, Y]}, TypeError, r"data must be a pair .*; got list of length 3"),
    ("a dict", {"data": {"x": X, "y": Y}}, TypeError, r"data must be a pair \(x, y\); got dict"),
    ("y is None", {"data": (X, None)}, TypeError, r"y must be an array, a data frame or .*; got None"),
    # dtypes that are not real numbers
    ("objects", {"data": (X.astype(object), Y)}, TypeError, r"x must hold real numbers; got dtype object"),
    ("text", {"data": (X.astype(str), Y)}, TypeError, r"x must hold real numbers; .*Encode text"),
    ("bytes", {"data": (X.astype("S8"), Y)}, TypeError, r"x must hold real numbers; .*Encode text"),
    ("text labels", {"data": (X, ["a"] * ROWS)}, TypeError, r"y must hold real numbers; .*Encode text"),
    ("complex", {"data": (X + 1j, Y)}, TypeError, r"x must hold real .*complex128.*imaginary columns"),
    ("dates", {"data": (X.astype("int64").astype("datetime64[s]"), Y)},
     TypeError, r"x must hold real .*datetime64\[s\]\. Convert dates"),
    ("durations", {"data": (X.astype("int64").astype("timedelta64[s]"), Y)},
     TypeError, r"x must hold real .*timedelta64\[s\]\. Convert durations"),
    ("ragged lists", {"data": ([[1, 2], [3]], [1, 2])}, TypeError, r"x must be an array, .*; got list"),
    ("a sparse matrix", {"data": (scipy.sparse.csr_matrix(X), Y)},
     TypeError, r"x must be dense; got a sparse csr_matrix. Use .toarray"),
    ("a sparse array", {"data": (scipy.sparse.coo_array(X), Y)},
     TypeError, r"x must be dense; got a sparse coo_array"),
    ("a masked x", {"data": (np.ma.masked_array(X, X > 1), Y)},
     TypeError, r"x must not be a masked array: fill or drop"),
    ("a masked y", {"data": (X, np.ma.masked_array(Y, Y > 1))},
     TypeError, r"y must not be a masked array: fill or drop"),
    # values
    ("NaN in x", {"data": (changed(X, (3, 1), np.nan), Y)},
     ValueError, r"x .*finite.*nan at row 3, column 1"),
    ("inf in x", {"data": (changed(X, (3, 1), np.inf), Y)},
     ValueError, r"x .*finite.*inf at row 3, column 1"),
    ("NaN in y", {"data": (X, changed(Y, 5, np.nan))}, ValueError, r"y .*finite.*got nan at row 5\."),
    ("inf in y", {"data": (X, changed(Y, 5, -np.inf))}, ValueError, r"y .*finite.*got -inf at row 5\."),
    ("1e300 in x", {"data": (changed(X, (0, 0), 1e300), Y)},
     ValueError, r"x .*range of float32 \(enable jax_enable_x64 .*got 1e\+300 at row 0"),
    ("-1e300 in y", {"data": (X, changed(Y, 0, -1e300))}, ValueError, r"y .*range of float32 .*-1e\+300"),
    # labels and counts
    ("a label above", {"model": model(likelihoods.Categorical(3)), "data": (X, CLASSES + 1)},
     ValueError, r"y must hold whole numbers from 0 to 2 for Categorical\(num_classes=3\); got labels 1, 2, 3"),
    ("a label below", {"model": model(likelihoods.Categorical(3)), "data": (X, CLASSES - 1)},
     ValueError, r"y must hold whole numbers from 0 to 2 .*; got labels -1, 0, 1"),
    ("labels with a gap", {"model": model(likelihoods.Categorical()), "data": (X, 2 * CLASSES)},
     ValueError, r"y must hold the labels 0, 1, ..., K - 1 .*; got labels 0, 2, 4. Relabel"),
    ("labels between", {"model": model(likelihoods.Categorical()), "data": (X, CLASSES + 0.5)},
     ValueError, r"y must hold the labels 0, 1, .*; got labels 0.5, 1.5, 2.5"),
    ("labels between, counted", {"model": model(likelihoods.Categorical(3)), "data": (X, CLASSES / 2)},
     ValueError, r"y must hold whole numbers from 0 to 2 .*; got labels 0, 0.5, 1"),
    ("one class", {"model": model(likelihoods.Categorical()), "data": (X, 0 * CLASSES)},
     ValueError, r"y must hold the labels 0, 1, .*two or more, .*; got labels 0\."),
    ("three labels of two", {"model": model(likelihoods.Bernoulli()), "data": (X, CLASSES)},
     ValueError, r"y must hold only 0 and 1 for Bernoulli\(\); got 2"),
    ("labels -1 and 1", {"model": model(likelihoods.Bernoulli()), "data": (X, np.sign(CLASSES - 0.5))},
     ValueError, r"y must hold only 0 and 1 for Bernoulli\(\); got -1"),
    ("a negative count", {"model": model(likelihoods.Poisson()), "data": (X, COUNTS - 1)},
     ValueError, r"y must hold whole numbers, at least 0, for Poisson\(\); got -1"),
    ("half a count", {"model": model(likelihoods.Poisson()), "data": (X, COUNTS + 0.5)},
     ValueError, r"y must hold whole numbers, at least 0, for Poisson\(\); got 0.5"),
    ("three scales for one target", {"model": model(likelihoods.Gaussian((1.0, 2.0, 3.0)))},
     ValueError, r"Gaussian\(scale=...\) must be one number, or one for each of the 1 targets"),
    # the model
    ("no model", {"model": None}, TypeError, r"fit\(model=...\) must be a cx.Model .*; got None"),
    ("a network", {"model": networks.mlp()}, TypeError, r"fit\(model=...\) must be .*; got MLP"),
    ("a class", {"model": cx.Model}, TypeError, r"fit\(model=...\) must be .*class"),
    ("outputs of another width", {"model": function_model(one_weight, lambda p, x: x)},
     ValueError, r"Model\(network=...\) must map x to outputs of shape \(rows, 1\) .*; got \(rows, 2\)"),
    ("outputs in one axis", {"model": function_model(one_weight, lambda p, x: x[:, 0])},
     ValueError, r"outputs of shape \(rows, 1\) .*; got \(rows,\)"),
    ("outputs of other rows", {"model": function_model(one_weight, lambda p, x: x[:1, :1])},
     ValueError, r"outputs of shape \(rows, 1\) .*; got \(1, 1\)"),
    ("outputs in a tuple", {"model": function_model(one_weight, lambda p, x: (x @ p["w"], {}))},
     ValueError, r"outputs of shape \(rows, 1\) .*; got tuple"),
    ("whole outputs", {"model": function_model(one_weight, lambda p, x: jnp.zeros((x.shape[0], 1), int))},
     ValueError, r"must map x to floating-point outputs; got int32"),
    ("no parameters", {"model": function_model(lambda key: {}, first_column)},
     ValueError, r"Model\(network=...\) must have parameters; its init returned none"),
    ("whole parameters", {"model": function_model(lambda key: {"w": jnp.zeros(2, int)}, first_column)},
     ValueError, r"Every parameter must be a floating-point array; got int32 at 'w'"),
    ("complex parameters", {"model": function_model(lambda key: {"w": jnp.zeros(2, complex)}, first_column)},
     ValueError, r"Every parameter must be a floating-point array; got complex64 at 'w'"),
    ("a pattern that matches nothing", {"model": layered(["layer0/*", "*"])},
     ValueError, r"PerLayer\(parts=...\) must hold .*'layer0/\*' matches none. Similar paths: 'layer_0"),
    ("a parameter that no pattern matches", {"model": layered(["layer_0/*"])},
     ValueError, r"PerLayer\(parts=...\) must match every parameter; 'layer_1/bias' matches none"),
    # the other arguments of fit
    ("key 1.5", {"key": 1.5}, TypeError, r"key must be an int or a JAX key; got 1.5"),
    ("key 'a'", {"key": "a"}, TypeError, r"key must be an int or a JAX key; got 'a'"),
    ("key None", {"key": None}, TypeError, r"key must be an int or a JAX key; got None"),
    ("key True", {"key": True}, TypeError, r"key must be an int or a JAX key; got True"),
    ("key [1, 2]", {"key": [1, 2]}, TypeError, r"key must be an int or a JAX key; got \[1, 2\]"),
    ("key 2**64", {"key": 2**64},
     ValueError, r"key must be an int .*at most 64 bits; got 18446744073709551616"),
    ("no method", {"method": None}, TypeError, r"fit\(method=...\) must be a method .*; got None"),
    ("a name", {"method": "map"}, TypeError, r"fit\(method=...\) must be a method .*; got 'map'"),
    ("chunk_steps 0", {"chunk_steps": 0}, ValueError, r"fit\(chunk_steps=...\) must be .*; got 0"),
    ("chunk_steps 1.5", {"chunk_steps": 1.5}, TypeError, r"fit\(chunk_steps=...\) must be .*; got 1.5"),
    ("callbacks", {"callbacks": [3]}, TypeError, r"fit\(callbacks=...\) must be functions .*; got 3"),
    ("start 3", {"start": 3}, TypeError, r"fit\(start=...\) must be a posterior; got 3"),
    ("early_stopping 1", {"early_stopping": 1},
     TypeError, r"fit\(early_stopping=...\) must be an EarlyStopping, True or False; got 1"),
    ("early_stopping 'yes'", {"early_stopping": "yes"},
     TypeError, r"fit\(early_stopping=...\) must be .*; got 'yes'"),
    ("early_stopping of too few rows", {"early_stopping": True, "data": (X[:2], Y[:2])},
     ValueError, r"early_stopping needs rows to hold out: 0.1 of 2 rows is 0"),
    ("early_stopping, lengths", {"early_stopping": True, "data": (X, Y[:9])},
     ValueError, r"same number of rows; got 16 and 9"),
    ("early_stopping, masked", {"early_stopping": True, "data": (np.ma.masked_array(X, X > 1), Y)},
     TypeError, r"x must not be a masked array"),
    ("early_stopping, no pair", {"early_stopping": True, "data": X},
     TypeError, r"data must be a pair \(x, y\); got ndarray"),
    ("validation of other features", {"early_stopping": cx.EarlyStopping(validation=(X[:, :1], Y))},
     ValueError, r"EarlyStopping\(validation=...\): x must have shape \(rows, 2\)"),
    ("validation of other lengths", {"early_stopping": cx.EarlyStopping(validation=(X, Y[:3]))},
     ValueError, r"EarlyStopping\(validation=...\): y must have as many rows as x, 16; got 3"),
    ("validation that is no pair", {"early_stopping": cx.EarlyStopping(validation=X)},
     TypeError, r"EarlyStopping\(validation=...\): .*must be a pair"),
]  # fmt: skip


@in_turn("change, error, message", REFUSED)
def test_refused_before_anything_compiles(name, change, error, message, compilations):
    refuse(name, change, error, message, compilations)


def refuse(name, change, error, message, compilations):
    arguments = {"model": gaussian_model(name), "data": (X, Y), "method": tiny(METHODS[name])}
    arguments |= {"key": 0, "progress": False, **change}
    # Every call makes keys first, and the last checks come when the data is on the device: compile both now.
    _, _, _, _ = jax.random.split(random.key(0), 4)
    gaussian_model(name).prepare((X, Y))
    with compilations() as count, pytest.raises(error, match=message):
        cx.fit(**arguments)
    assert count() == 0


@each_method
def test_a_class_in_place_of_a_method(name, compilations):
    message = r"fit\(method=...\) must be a method .*with parentheses.*; got <class"
    refuse(name, {"method": METHODS[name]}, TypeError, message, compilations)


@each_method
def test_a_start_of_another_network(name, compilations):
    start = other_posterior()
    start.starts(random.key(0), tiny(METHODS[name]).replicas, start.model)
    message = r"fit\(start=...\) must have the parameters of the model, .*\(2, 4\)"
    refuse(name, {"start": start}, ValueError, message, compilations)


FRAMES = [
    ("pandas text", "pandas", lambda pd: pd.DataFrame({"size": X[:, 0], "colour": ["red"] * ROWS}),
     r"x must have numeric columns only; got colour \((object|str)\)"),
    ("pandas dates and kinds", "pandas",
     lambda pd: pd.DataFrame({"day": pd.to_datetime([0] * ROWS), "kind": pd.Categorical(["a"] * ROWS)}),
     r"x must have numeric columns only; got day \(datetime64.*\), kind \(category\)"),
    ("polars text", "polars", lambda pl: pl.DataFrame({"size": X[:, 0], "colour": ["red"] * ROWS}),
     r"x must have numeric columns only; got colour \(String\)"),
    ("polars dates", "polars", lambda pl: pl.DataFrame({"day": X[:, 0]}).cast(pl.Date),
     r"x must have numeric columns only; got day \(Date\)"),
]  # fmt: skip


@in_turn("library, make, message", FRAMES)
def test_data_frames_of_text(name, library, make, message, compilations):
    library = pytest.importorskip(library)
    refuse(name, {"data": (make(library), Y)}, TypeError, message, compilations)
    labels = library.Series(["a"] * ROWS)
    refuse(name, {"data": (X, labels)}, TypeError, r"y must hold real numbers", compilations)


@each_method
def test_batches_larger_than_the_data(name, compilations):
    cls = METHODS[name]
    if "batch_size" not in settings_of(cls):
        return
    for rows in (ROWS + 1, 10**9):
        message = rf"{cls.__name__}\(batch_size=...\) must be at most .*{ROWS}; got {rows}"
        refuse(name, {"method": tiny(cls, batch_size=rows)}, ValueError, message, compilations)
    # A log density has no data: a method that accepts one refuses batches of it.
    change = {"model": DENSITY, "data": None, "method": tiny(cls, batch_size=4)}
    reason = r"\(batch_size=...\) must be None where there is no data; got 4"
    message = rf"^{cls.__name__}{reason if takes(tiny(cls), DENSITY, None) else ' needs '}"
    refuse(name, change, (TypeError, ValueError), message, compilations)


@each_method
def test_what_the_method_cannot_do(name, compilations):
    cls = METHODS[name]
    change = {"model": DENSITY, "data": None}
    needs = tiny(cls).needs
    if "likelihood" in needs:
        message = rf"^{cls.__name__} needs a Model .*; got a LogDensity"
        refuse(name, change, TypeError, message, compilations)
    if "gradient" in needs:
        discrete = {"model": model(likelihoods.Gaussian(0.5), prior=priors.Discrete([-1, 1]))}
        message = rf"{cls.__name__} needs gradients, which .*discrete weights do not have"
        refuse(name, discrete, ValueError, message, compilations)
    message = r"fit\(early_stopping=...\) must be None for a LogDensity"
    refuse(name, {**change, "early_stopping": True}, TypeError, message, compilations)


# -- refused settings -------------------------------------------------------------------------------


COUNTS_OF_SOMETHING = {*TINY, "thin"} - {"num_warmup"}


@each_method
def test_whole_settings(name):
    cls = METHODS[name]
    defaults = settings_of(cls)
    for setting, default in defaults.items():
        if type(default) is not int and setting != "batch_size":
            continue
        for bad in (-1, 1.5, "a", True, np.nan, [1], np.float64(2.0)):
            with pytest.raises(
                (TypeError, ValueError), match=rf"^{cls.__name__}\({setting}=...\) must be"
            ):
                cls(**{setting: bad})
    for setting in COUNTS_OF_SOMETHING & set(defaults):
        message = rf"^{cls.__name__}\({setting}=...\) must be .*; got 0\.$"
        with pytest.raises(ValueError, match=message):
            cls(**{setting: 0})


@each_method
def test_real_settings(name):
    cls = METHODS[name]
    for setting, default in settings_of(cls).items():
        if type(default) is not float:
            continue
        for bad in ("a", np.nan, np.inf, True, [1.0], -1.0):
            with pytest.raises(
                (TypeError, ValueError), match=rf"^{cls.__name__}\({setting}=...\) must be"
            ):
                cls(**{setting: bad})


@each_method
def test_named_settings(name):
    cls = METHODS[name]
    for setting, default in settings_of(cls).items():
        if type(default) is not str:
            continue
        for bad in ("no such thing", 3, [default]):
            message = rf"^{cls.__name__}\({setting}=...\) must be"
            with pytest.raises((TypeError, ValueError), match=message):
                cls(**{setting: bad})


OTHER_SETTINGS = [
    (lambda: likelihoods.Gaussian(0), ValueError, r"Gaussian\(scale=...\) must be positive; got 0"),
    (lambda: likelihoods.Gaussian(-1.0), ValueError, r"Gaussian\(scale=...\) must be positive; got -1.0"),
    (lambda: likelihoods.Gaussian((1, 0)), ValueError, r"Gaussian\(scale=...\) must be positive; got 0"),
    (lambda: likelihoods.Gaussian(np.nan), ValueError, r"Gaussian\(scale=...\) must be .*; got nan"),
    (lambda: likelihoods.StudentT(4, -2), ValueError, r"StudentT\(scale=...\) must be .*; got -2"),
    (lambda: likelihoods.Heteroscedastic(0), ValueError, r"\(min_scale=...\) must be positive; got 0"),
    (lambda: likelihoods.Categorical(1), ValueError, r"Categorical\(num_classes=...\) .*2; got 1"),
    (lambda: priors.Normal(0), ValueError, r"Normal\(scale=...\) must be positive; got 0"),
    (lambda: priors.Normal(-1.0), ValueError, r"Normal\(scale=...\) must be positive; got -1.0"),
    (lambda: priors.Laplace(-1), ValueError, r"Laplace\(scale=...\) must be positive; got -1"),
    (lambda: cx.EarlyStopping(every=0), ValueError, r"EarlyStopping\(every=...\) must be .*; got 0"),
    (lambda: cx.EarlyStopping(patience=1.5), TypeError, r"\(patience=...\) must be .*; got 1.5"),
    (lambda: cx.EarlyStopping(fraction=1.0), ValueError, r"\(fraction=...\) must be between 0 and 1"),
    (lambda: cx.EarlyStopping(fraction="a"), TypeError, r"\(fraction=...\) must be .*; got 'a'"),
]  # fmt: skip


@pytest.mark.parametrize("call, error, message", OTHER_SETTINGS)
def test_refused_settings_of_other_parts(call, error, message):
    with pytest.raises(error, match=message):
        call()


# -- refused by a posterior -------------------------------------------------------------------------

PREDICTIONS = [
    ("other features", lambda p: p.predict(X[:, :1]),
     ValueError, r"x must have shape \(rows, 2\).*\(rows, 1\)"),
    ("1-D x", lambda p: p.predict(X[0]),
     ValueError, r"x must have shape \(rows, 2\), as in the fit; got \(rows\)"),
    ("3-D x", lambda p: p.predict(X[None]), ValueError, r"x must have shape \(rows, 2\).*\(rows, 16, 2\)"),
    ("0 rows", lambda p: p.predict(X[:0]), ValueError, r"x must have at least 1 row; got shape \(0, 2\)"),
    ("NaN", lambda p: p.predict(changed(X, (1, 0), np.nan)),
     ValueError, r"x must hold finite .*row 1, column 0"),
    ("text", lambda p: p.predict(X.astype(str)), TypeError, r"x must hold real numbers"),
    ("sparse", lambda p: p.predict(scipy.sparse.csr_matrix(X)), TypeError, r"x must be dense"),
    ("no samples", lambda p: p.predict(X, num_samples=0),
     ValueError, r"predict\(num_samples=...\) .*; got 0"),
    ("1.5 samples", lambda p: p.predict(X, num_samples=1.5),
     TypeError, r"predict\(num_samples=...\) .*; got 1.5"),
    ("predict key", lambda p: p.predict(X, key="a"),
     TypeError, r"key must be an int or a JAX key; got 'a'"),
    ("sample key", lambda p: p.sample(None, 3), TypeError, r"key must be an int or a JAX key; got None"),
    ("sample 0", lambda p: p.sample(0, 0), ValueError, r"sample\(n=...\) must be .*; got 0"),
    ("log_prob length", lambda p: p.predict(X).log_prob(Y[:3]),
     ValueError, r"y must have as many rows as x, 16; got 3"),
    ("log_prob shape", lambda p: p.predict(X).log_prob(Y[:, None]),
     ValueError, r"y must have shape \(rows,\)"),
    ("log_prob NaN", lambda p: p.predict(X).log_prob(changed(Y, 2, np.nan)),
     ValueError, r"y must hold finite .*row 2"),
    ("level 1", lambda p: p.predict(X).interval(1.0),
     ValueError, r"interval\(level=...\) must be .*; got 1.0"),
    ("level 'a'", lambda p: p.predict(X).interval("a"),
     TypeError, r"interval\(level=...\) must be .*; got 'a'"),
    ("quantile 0", lambda p: p.predict(X).quantile(0.0),
     ValueError, r"quantile\(q=...\) must be between 0 and 1"),
    ("no quantile", lambda p: p.predict(X).quantile([]),
     ValueError, r"quantile\(q=...\) must be between 0 and 1"),
    ("draw 0", lambda p: p.predict(X).sample(0, 0), ValueError, r"sample\(n=...\) must be .*; got 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    "call, error, message", [pytest.param(*row, id=what) for what, *row in PREDICTIONS]
)
@pytest.mark.parametrize("name", ["map", "deep-ensemble", "bayes-by-backprop"])
def test_refused_predictions(name, call, error, message):
    """Of a point, of draws and of a distribution: the posterior checks, whatever the method."""
    posterior = fitted(name)
    with pytest.raises(error, match=message):
        call(posterior)


# -- unusual, but valid ---------------------------------------------------------------------------------


def memory_map(array, path):
    np.save(path, array)
    return np.load(path, mmap_mode="r")


def spread(array):
    """The same values as a strided view: every second entry of a larger array."""
    larger = np.zeros([2 * n for n in array.shape], array.dtype)
    view = larger[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


ODD = [
    ("float16", lambda a, path: a.astype(np.float16)),
    ("float32", lambda a, path: a.astype(np.float32)),
    ("long double", lambda a, path: a.astype(np.longdouble)),
    ("big endian", lambda a, path: a.astype(">f8")),
    ("read only", lambda a, path: memory_map(a, path / f"{a.ndim}.npy")),
    ("strided", lambda a, path: spread(a)),
    ("backwards", lambda a, path: a[::-1].copy()[::-1]),
    ("fortran", lambda a, path: np.asfortranarray(a)),
    ("nested lists", lambda a, path: a.tolist()),
    ("lists of arrays", lambda a, path: list(a)),
    ("jax", lambda a, path: jnp.asarray(a, jnp.float32)),
    ("bfloat16", lambda a, path: jnp.asarray(a, jnp.bfloat16)),
    ("subclass", lambda a, path: a.view(type("Subclass", (np.ndarray,), {}))),
    ("pandas", lambda a, path: frame(pytest.importorskip("pandas"), a)),
    ("polars", lambda a, path: frame(pytest.importorskip("polars"), a)),
]


def frame(library, array):
    if array.ndim == 1:
        return library.Series(array.tolist())
    return library.DataFrame({f"column {j}": array[:, j].tolist() for j in range(array.shape[1])})


def values(array):
    return np.asarray(array, np.float64)


def same_prediction(one, other):
    np.testing.assert_array_equal(one.mean, other.mean)
    np.testing.assert_array_equal(one.variance, other.variance)


@in_turn("odd", ODD)
def test_the_same_numbers_give_the_same_posterior(name, odd, tmp_path):
    x, y = (odd(a, tmp_path) for a in (X.copy(), Y.copy()))
    np.testing.assert_array_equal(values(x), X)
    posterior = cx.fit(gaussian_model(name), (x, y), tiny(METHODS[name]), progress=False)
    same_prediction(posterior.predict(X), fitted(name).predict(X))
    same_prediction(posterior.predict(x), fitted(name).predict(X))
    np.testing.assert_array_equal(
        posterior.predict(x).log_prob(y), fitted(name).predict(X).log_prob(Y)
    )
    np.testing.assert_array_equal(values(x), X)
    np.testing.assert_array_equal(values(y), Y)


@in_turn("kind", [(kind, kind) for kind in ("bool", "int64", "int8", "uint16", ">i4")])
def test_whole_numbers_and_truths_are_numbers(name, kind):
    x, y = np.abs(np.sign(X)), np.abs(np.sign(Y))
    model, method = gaussian_model(name), tiny(METHODS[name])
    plain = cx.fit(model, (x, y), method, progress=False)
    odd = cx.fit(model, (x.astype(kind), y.astype(kind)), method, progress=False)
    same_prediction(plain.predict(x), odd.predict(x.astype(kind)))
    np.testing.assert_array_equal(
        plain.predict(x).log_prob(y), odd.predict(x).log_prob(y.astype(kind))
    )


@each_method
def test_constant_and_duplicate_columns_are_data(name):
    check_prediction(name, (changed(X, (slice(None), 1), 3.0), Y))
    check_prediction(name, (X, 0 * Y + 2))
    check_prediction(name, (X[:, [0, 0]], Y))


@pytest.mark.matrix
@seventh_method(0)
def test_one_row_is_data(name):
    if "all rows" in METHODS[name]().needs:  # some of which a member leaves out
        with pytest.raises(ValueError, match=r"needs at least 4 rows.*got 1"):
            check_prediction(name, (X[:1], Y[:1]))
        return
    check_prediction(name, (X[:1], Y[:1]))


def check_prediction(name, data):
    posterior = cx.fit(gaussian_model(name), data, tiny(METHODS[name]), progress=False)
    predictive = posterior.predict(X)
    assert np.all(np.isfinite(predictive.mean))
    assert np.all(predictive.variance > 0)


def test_duplicate_columns_share_their_weight(x64):
    """By symmetry, two equal columns get the same weight; a constant column acts as a second bias."""
    x = np.column_stack([X[:, 0], X[:, 0], np.full(ROWS, 2.0)])
    model = cx.Model(networks.linear(), priors.Normal(0.25), likelihoods.Gaussian(0.5))
    posterior = cx.fit(model, (x, Y), cx.MAP(num_steps=4000, learning_rate=0.03), progress=False)
    design = np.column_stack([x, np.ones(ROWS)])
    ridge = np.linalg.solve(design.T @ design / 0.25 + 16 * np.eye(4), design.T @ Y / 0.25)
    layer = posterior.draws["layer_0"]
    got = np.append(layer["kernel"][0, 0, :, 0], layer["bias"][0, 0])
    np.testing.assert_allclose(got, ridge, atol=1e-8)
    assert got[0] == pytest.approx(got[1], abs=1e-8)
    assert got[2] == pytest.approx(2 * got[3], abs=1e-8)


@pytest.mark.matrix
@seventh_method(2)
def test_a_column_of_targets_gives_columns_of_the_same_predictions(name):
    model, method = gaussian_model(name), tiny(METHODS[name])
    column = cx.fit(model, (X, Y[:, None]), method, progress=False).predict(X)
    plain = fitted(name).predict(X)
    assert column.mean.shape == (ROWS, 1)
    assert plain.mean.shape == (ROWS,)
    np.testing.assert_allclose(column.mean[:, 0], plain.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(column.log_prob(Y[:, None]), plain.log_prob(Y), rtol=1e-5)


@pytest.mark.parametrize("kind", [bool, np.int8, np.uint64, np.float16, ">f4", float])
def test_labels_of_every_kind(kind):
    labels = (X[:, 0] > 0).astype(int)
    for likelihood in (
        likelihoods.Bernoulli(),
        likelihoods.Categorical(),
        likelihoods.Categorical(2),
    ):
        _, data = model(likelihood).prepare((X, labels.astype(kind)))
        assert data.y.dtype == jnp.int32
        np.testing.assert_array_equal(data.y, labels)
    _, data = model(likelihoods.Poisson()).prepare((X, labels.astype(kind)))
    assert data.y.dtype == jnp.result_type(float)
    np.testing.assert_array_equal(data.y, labels)
