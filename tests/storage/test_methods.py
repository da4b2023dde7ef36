"""The method of a loaded posterior is the method of the fit, or a stand-in that says why it is not."""

import dataclasses

import jax
import numpy as np
import optax
import pytest

import credax as cx
from credax import storage
from credax.model.networks import linear
from credax.posterior.approximations import Draws, MeanField
from credax.storage.describe import Stored, describe, describe_or_name
from credax.storage.methods import METHODS, rebuild_method

NAMES = [method.__name__ for method in cx.inference.METHODS.values()]
X = np.zeros((4, 2))


def posterior_of(method, **fields):
    """A posterior without a fit."""
    model = cx.Model(linear()).bind((X, X[:, 0]))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda leaf: np.zeros((1, 1, *leaf.shape), leaf.dtype), shapes)
    return cx.Posterior(model, Draws(params), method, **fields)


def loaded(method, path):
    posterior_of(method).save(path)
    return cx.load(path).method


def test_every_method_can_be_loaded():
    assert {METHODS.get(name) for name in NAMES} == set(cx.inference.METHODS.values()), (
        "credax/inference/__init__.py must enter its methods in credax.storage.methods.METHODS"
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_method_survives_with_its_settings(name, tmp_path):
    method = getattr(cx, name)()
    found = loaded(method, tmp_path / "it")
    assert type(found) is type(method)
    assert found == method


def test_settings_other_than_the_defaults_survive(tmp_path):
    method = cx.DeepEnsemble(
        members=3, num_steps=7, batch_size=2, optimiser="sgd", random_prior=0.5, learning_rate=0.3
    )
    assert loaded(method, tmp_path / "it") == method
    assert loaded(None, tmp_path / "it") is None


# -- methods that cannot be built again -------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A method from elsewhere."""

    chains: int = 3


def by_function(step):
    return 0.1


CUSTOM = {
    "an optimiser": (
        cx.MAP(num_steps=9, optimiser=optax.adam(0.1)),
        "<MAP from a file, not built again: a file cannot hold its optimiser>",
    ),
    "a schedule": (
        cx.MAP(num_steps=9, learning_rate=by_function),
        "<MAP from a file, not built again: a file cannot hold its learning_rate>",
    ),
    "another class": (
        Foreign(),
        "<Foreign from a file, not built again: credax has no method Foreign>",
    ),
    "no settings": (
        by_function,
        "<by_function from a file, not built again: credax has no method by_function>",
    ),
}


@pytest.mark.parametrize("name", CUSTOM)
def test_what_a_file_cannot_hold_is_described(name, tmp_path):
    method, text = CUSTOM[name]
    found = loaded(method, tmp_path / "it")
    assert isinstance(found, Stored)
    assert repr(found) == text
    assert describe_or_name(found) == describe_or_name(method)
    again = loaded(found, tmp_path / "again")
    assert again == found


def test_the_other_settings_are_kept(tmp_path):
    found = loaded(CUSTOM["a schedule"][0], tmp_path / "it")
    assert found.name == "MAP"
    assert found.settings["num_steps"] == 9
    assert found.settings["learning_rate"] == {"custom": "by_function"}
    assert "type" not in found.settings


def test_a_posterior_as_a_setting_is_described(tmp_path):
    family = MeanField.around({"w": jax.numpy.zeros(3)}, 0.1)
    proposal = dataclasses.replace(posterior_of(cx.IVON()), approximation=family)
    method = cx.ImportanceSampling(proposal=proposal)
    found = loaded(method, tmp_path / "it")
    assert repr(found).endswith("a file cannot hold its proposal>")
    assert found.settings["proposal"]["method"] == describe(cx.IVON())


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"surplus": 1}, "this version refuses its settings: .*surplus"),
        ({"num_steps": -1}, r"this version refuses its settings: MAP\(num_steps=...\) must be"),
        ({"num_steps": {"type": "Popen"}}, "this version refuses its settings: 'Popen' is none of"),
        ({"num_steps": [{"custom": "f"}]}, "a file cannot hold its num_steps"),
        ({"type": "Newer"}, "credax has no method Newer"),
    ],
)
def test_settings_of_another_version_do_not_prevent_loading(change, reason):
    found = rebuild_method({**describe(cx.MAP()), **change})
    assert isinstance(found, Stored)
    with pytest.raises(ValueError, match=reason):
        raise ValueError(found.reason)


@pytest.mark.parametrize("description", [3, "MAP", ["MAP"], True, {"type": ["MAP"]}, {"type": {}}])
def test_what_describes_no_method_is_refused(description, tmp_path):
    with pytest.raises((TypeError, ValueError)):
        rebuild_method(description)
    posterior_of(cx.MAP()).save(tmp_path / "it")
    header, tensors = storage.read_file(tmp_path / "it", "posterior")
    storage.write_file(tmp_path / "it", "posterior", {**header, "method": description}, tensors)
    with pytest.raises(cx.StorageError, match="does not describe a posterior"):
        cx.load(tmp_path / "it")


def test_a_stand_in_is_shown_with_the_posterior(tmp_path):
    posterior_of(cx.MAP(optimiser=optax.adam(0.1))).save(tmp_path / "it")
    assert repr(cx.load(tmp_path / "it")).startswith("Posterior(MAP, 1 draw, ")


# -- estimates --------------------------------------------------------------------------------------


def test_estimates_of_older_files_err_to_an_unknown_side(tmp_path):
    posterior_of(None, log_evidence=(-3.0, 0.5, "unbiased")).save(tmp_path / "it")
    header, tensors = storage.read_file(tmp_path / "it", "posterior")
    assert header["log_evidence"] == [-3.0, 0.5, "unbiased"]
    assert header["format"] == 1, "older versions read the first two"
    assert cx.load(tmp_path / "it").log_evidence.errs == "unbiased"
    storage.write_file(
        tmp_path / "it", "posterior", {**header, "log_evidence": [-3.0, 0.5]}, tensors
    )
    found = cx.load(tmp_path / "it").log_evidence
    assert found == (-3.0, 0.5)
    assert found.errs == "unknown"
