"""Export to ONNX: the same numbers as ``predict`` where the converter is installed, and clear refusals."""

import importlib.util

import numpy as np
import pytest

import credax as cx

X = np.random.default_rng(0).uniform(900, 1100, size=(60, 3))
Y = 20 + 5 * np.sin(X[:, 0] / 50)
MLP = cx.networks.mlp([10], activation="tanh")
FIELDS = ("mean", "std", "epistemic", "aleatoric")


def fitted(method, likelihood=None, y=Y):
    likelihood = likelihood or cx.likelihoods.Gaussian(scale=None)
    model = cx.Model(MLP, likelihood=likelihood, standardise=True)
    return cx.fit(model, (X, y), method, progress=False)


@pytest.fixture(scope="module")
def ensemble():
    return fitted(cx.DeepEnsemble(members=3, num_steps=50))


def test_unknown_formats_and_other_suffixes_are_refused(ensemble, tmp_path):
    with pytest.raises(ValueError, match=r"format=...\) must be one of 'stablehlo', 'onnx'"):
        ensemble.export(tmp_path / "a.onnx", format="tflite")
    with pytest.raises(ValueError, match=r"name ends in \.onnx for format='onnx'; got"):
        ensemble.export(tmp_path / "a.npz", format="onnx")


@pytest.mark.skipif(importlib.util.find_spec("jax2onnx") is not None, reason="it is there")
def test_a_missing_converter_is_named(ensemble, tmp_path):
    with pytest.raises(
        ImportError, match=r"needs the package jax2onnx: pip install 'credax\[onnx\]'"
    ):
        ensemble.export(tmp_path / "a.onnx", format="onnx")


def run(path, rows):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(path)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, {"x": rows}), strict=True))


# The converter and what it imports warn of their own deprecations.
converted = pytest.mark.filterwarnings("ignore")


@converted
@pytest.mark.parametrize("rows", [1, 7, 60])
def test_numbers_equal_those_of_predict(ensemble, tmp_path, rows):
    pytest.importorskip("jax2onnx")
    ensemble.export(tmp_path / "a.onnx", format="onnx")
    found, expected = run(tmp_path / "a.onnx", X[:rows]), ensemble.predict(X[:rows])
    assert list(found) == list(FIELDS)
    for name in FIELDS:
        assert found[name].shape == (rows,)
        np.testing.assert_allclose(found[name], getattr(expected, name), rtol=2e-4)


@converted
@pytest.mark.parametrize(
    "likelihood", [cx.likelihoods.Categorical(3), cx.likelihoods.Bernoulli()], ids=["three", "two"]
)
def test_probabilities_equal_those_of_predict(likelihood, tmp_path):
    pytest.importorskip("jax2onnx")
    classes = 3 if "Cat" in type(likelihood).__name__ else 2
    posterior = fitted(cx.SWAG(num_steps=60, num_warmup=20), likelihood, np.arange(60) % classes)
    posterior.export(tmp_path / "a.onnx", format="onnx")
    found = run(tmp_path / "a.onnx", X)
    np.testing.assert_allclose(found["probs"], posterior.predict(X).probs, atol=1e-5)


@converted
def test_a_closed_form_asks_for_a_number_of_samples(tmp_path):
    pytest.importorskip("jax2onnx")
    posterior = fitted(cx.Laplace(num_steps=50), cx.likelihoods.Gaussian(0.5))
    with pytest.raises(ValueError, match="Give num_samples, such as 100"):
        posterior.export(tmp_path / "a.onnx", format="onnx")
    posterior.export(tmp_path / "a.onnx", format="onnx", num_samples=20)
    expected = posterior.predict(X, num_samples=20)
    found = run(tmp_path / "a.onnx", X)
    np.testing.assert_allclose(found["mean"], expected.mean, rtol=1e-4)
    np.testing.assert_allclose(found["epistemic"], expected.epistemic, rtol=1e-3)


@converted
def test_a_network_that_cannot_be_converted_is_refused_and_nothing_written(tmp_path):
    pytest.importorskip("jax2onnx")
    images = np.random.default_rng(0).normal(size=(20, 8, 8, 1))
    model = cx.Model(cx.networks.cnn(), likelihood=cx.likelihoods.Categorical(2))
    posterior = cx.fit(model, (images, np.arange(20) % 2), cx.MAP(num_steps=3), progress=False)
    with pytest.raises(
        ValueError, match=r"jax2onnx cannot carry this model .* format='stablehlo' can"
    ):
        posterior.export(tmp_path / "a.onnx", format="onnx")
    assert not (tmp_path / "a.onnx").exists()
