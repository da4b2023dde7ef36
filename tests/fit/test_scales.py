"""``fit`` warns of data whose scale does not suit the model, once, with the numbers and the remedy."""

import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.fit.scales import unsuitable

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(100, 3))
Y = X[:, 0] + 0.1 * GENERATOR.normal(size=100)
LEARNED = cx.likelihoods.Gaussian(None)


def judged(x, y, network=None, likelihood=LEARNED, **settings):
    network = cx.networks.mlp([8]) if network is None else network
    return unsuitable(*cx.Model(network, likelihood=likelihood, **settings).prepare((x, y)))


def with_column(values):
    return np.c_[X, np.broadcast_to(values, 100)]


OUTLIER = np.where(np.arange(100) == 17, 1e6, Y)
UNSUITABLE = {
    "large targets": (
        X,
        1e3 * Y,
        r"targets .* y is around -?\d+ with standard deviation 1\.\d+e\+03",
    ),
    "small targets": (X, 1e-6 * Y, "standard deviation 1.*e-06, while a typical target"),
    "targets far from zero": (X, Y + 1_000, "y is around 1e.03 with standard deviation 1"),
    "one of two targets": (X, np.c_[Y, 1e6 * Y], "column 1 of y"),
    "inputs far from zero": (X + 1e6, Y, r"column 0 of x has mean 1e\+06 .*and 2 more columns"),
    "small inputs": (1e-8 * X, Y, "column 0 of x has mean .* standard deviation 1.*e-08"),
    "wide inputs": (with_column(1e4 * Y), Y, "column 3 of x"),
    "a large constant column": (with_column(1e6), Y, r"column 3 of x has mean 1e\+06"),
    "an outlier": (X, OUTLIER, r"outliers in 1 of 100 rows: 1e\+06 in row 17"),
}
SUITABLE = {
    "unit scale": (X, Y),
    "twenty times": (X, 20 * Y),
    "a tenth": (X, 0.1 * Y + 2),
    "a constant target": (X, np.ones(100)),
    "a column of ones": (with_column(1.0), Y),
    "a column of zeros": (with_column(0.0), Y),
    "a rare category": (with_column(np.arange(100) == 5), Y),
    "pixels": (GENERATOR.uniform(size=(100, 30)), Y),
    "a dark pixel": (with_column(0.004 * (np.arange(100) == 5)), Y),
    "a probability": (with_column(GENERATOR.uniform(0.4, 0.6, 100)), Y),
    "small whole numbers": (GENERATOR.integers(0, 10, (100, 3)), Y),
}


@pytest.mark.parametrize("x, y, message", UNSUITABLE.values(), ids=UNSUITABLE)
def test_unsuitable_data(x, y, message):
    text = judged(x, y)
    assert text is not None
    assert re.search(message, text), text
    assert judged(x, y, standardise=True, likelihood=cx.likelihoods.StudentT(scale=None)) is None


@pytest.mark.parametrize("x, y", SUITABLE.values(), ids=SUITABLE)
def test_suitable_data(x, y):
    assert judged(x, y) is None


def test_the_prior_and_the_noise_decide_the_scale_of_the_targets():
    assert judged(X, 100 * Y, likelihood=cx.likelihoods.Gaussian(1.0)) is None
    assert "targets" in judged(X, 100 * Y, prior=cx.priors.Normal(0.01))
    assert judged(X, 1e3 * Y, prior=cx.priors.Normal(30.0)) is None


def test_columns_are_named():
    pandas = pytest.importorskip("pandas")
    x = pandas.DataFrame(with_column(2_000 + np.arange(100) % 7), columns=["a", "b", "c", "year"])
    assert "column 'year' of x has mean 2e+03" in judged(x, Y)


def test_classes_counts_and_numbers_of_words_have_no_scale():
    assert judged(X, np.arange(100) % 2, likelihood=cx.likelihoods.Bernoulli()) is None
    assert judged(X, 1_000 + np.arange(100), likelihood=cx.likelihoods.Poisson()) is None

    def init(key):
        return jax.random.normal(key, (5_000, 1), jnp.float32)

    words = cx.networks.from_function(init, lambda table, x: table[x[:, 0]])
    assert judged(GENERATOR.integers(0, 5_000, (100, 1)), Y, words) is None


def test_a_network_that_scales_its_inputs_itself_is_not_warned_of():
    def init(key):
        return jax.random.normal(key, (3, 1), jnp.float32)

    network = cx.networks.from_function(init, lambda w, x: ((x - 1e6) / 2) @ w)
    assert judged(X + 1e6, Y, network) is None


def test_fit_warns_once_before_it_compiles_and_the_doctor_repeats_it(tmp_path):
    model = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Gaussian(1.0))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        posterior = cx.fit(model, (X + 1e6, 1e6 * Y), cx.MAP(num_steps=5), progress=False)
    found = [w for w in caught if w.category is cx.DataWarning]
    assert len(found) == 1
    assert found[0].filename == __file__
    text = str(found[0].message)
    assert "standardise=True" in text
    assert posterior.info["data_warnings"] == text
    posterior.save(tmp_path / "it.credax")
    for it in (posterior, cx.load(tmp_path / "it.credax")):
        assert any(str(finding) == text for finding in it.diagnose())


def test_data_that_suit_the_model_leave_no_trace():
    model = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Gaussian(1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", cx.DataWarning)
        posterior = cx.fit(model, (X, Y), cx.MAP(num_steps=5), progress=False)
    assert "data_warnings" not in posterior.info


def test_many_rows_are_examined_at_even_steps():
    x, y = np.tile(X, (250, 1)), np.tile(Y, 250)
    assert judged(x, y) is None
    assert "column 0 of x" in judged(x + 1e6, y)
