"""Settings to JSON and back."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import credax as cx
from credax.model import Schema, likelihoods, priors
from credax.storage.describe import NotDescribable, describe, describe_or_name, rebuild

PRIORS = {name: value for name, value in vars(priors).items() if dataclasses.is_dataclass(value)}


@dataclasses.dataclass(frozen=True)
class Pair:
    left: object = None
    right: object = None


@dataclasses.dataclass(frozen=True)
class Hidden:
    shown: int = 1
    ignored: int = dataclasses.field(default=2, compare=False)
    derived: int = dataclasses.field(default=3, init=False)


CLASSES = {"Pair": Pair, "Hidden": Hidden, **PRIORS}


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -2.5,
        1e-300,
        "text",
        "größe",
        (),
        (1, 2.0, "x", None, False),
        ((1, 2), (3, (4,))),
        Pair(),
        Pair(1, (2, Pair("three", (Pair(4.0),)))),
        priors.Normal(2.0, -1.0),
        priors.ScaleMixture(),
        priors.Discrete([0, 1, 0.1], [0.2, 0.3, 0.5]),
        priors.PerLayer({"a/*": priors.Laplace(0.1), "*": priors.StudentT(4.0)}),
    ],
)
def test_what_is_described_is_rebuilt(value):
    described = describe(value)
    text = json.dumps(described)
    rebuilt = rebuild(json.loads(text), CLASSES)
    assert rebuilt == value
    assert type(rebuilt) is type(value)


def test_floats_survive_to_the_last_bit():
    numbers = tuple(np.random.default_rng(0).normal(size=50) ** 9)
    numbers = tuple(float(number) for number in numbers)
    assert rebuild(json.loads(json.dumps(describe(numbers))), {}) == numbers


def test_the_form_is_the_name_and_the_fields():
    assert describe(priors.Normal(2.0)) == {"type": "Normal", "scale": 2.0, "loc": 0.0}
    assert describe(Hidden(5)) == {"type": "Hidden", "shown": 5}


def test_lists_become_tuples():
    assert rebuild(describe([1, [2]]), {}) == (1, (2,))


@pytest.mark.parametrize(
    "value",
    [lambda x: x, np.zeros(3), jnp.zeros(3), {"a": 1}, {1, 2}, object(), b"bytes", 1j, Pair, int],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_hold_is_refused(value):
    for wrapped in (value, (1, value), Pair(1, Pair(value))):
        with pytest.raises(NotDescribable, match="cannot be written as JSON"):
            describe(wrapped)


def function(x):
    return x


def test_what_json_cannot_hold_is_named():
    assert describe_or_name(function) == {"custom": "function"}
    assert describe_or_name(Pair(1, function)) == {
        "type": "Pair",
        "custom": True,
        "left": 1,
        "right": {"custom": "function"},
    }
    assert describe_or_name(Pair(1, 2)) == describe(Pair(1, 2))
    method = cx.MAP(learning_rate=optax.constant_schedule(0.1))
    described = describe_or_name(method)
    assert described["type"] == "MAP"
    assert "custom" in described["learning_rate"]
    json.dumps(described)


@pytest.mark.parametrize(
    "description",
    [
        {"type": "Popen", "args": ["true"]},
        {"type": "object"},
        {"type": None},
        {"custom": "function"},
        {},
        {"left": 1},
        [1, {"type": "Popen"}],
        {"type": "Pair", "left": {"type": "Popen"}, "right": 1},
    ],
)
def test_unknown_types_are_refused(description):
    with pytest.raises(ValueError, match=r"is none of Around, Discrete, .*, Pair"):
        rebuild(description, CLASSES)


def test_surplus_fields_are_refused():
    with pytest.raises(TypeError, match="surplus"):
        rebuild({"type": "Pair", "surplus": 1}, CLASSES)


def test_settings_are_checked_as_they_are_rebuilt():
    with pytest.raises(ValueError, match=r"Normal\(scale=...\) must be positive"):
        rebuild({"type": "Normal", "scale": -1.0}, PRIORS)


def test_fields_may_be_of_other_classes_of_the_same_name():
    """A likelihood and its prior are both called StudentT."""
    value = likelihoods.StudentT(3.0, None, priors.StudentT(5.0))
    outer = {"StudentT": likelihoods.StudentT}
    rebuilt = rebuild(describe(value), outer, PRIORS)
    assert rebuilt == value
    assert type(rebuilt.scale_prior) is priors.StudentT
    with pytest.raises(ValueError, match="'Normal' is none of StudentT"):
        rebuild(describe(likelihoods.StudentT()), outer)


def test_a_schema_survives():
    schema = Schema((28, 28, 1), None, 10)
    rebuilt = rebuild(json.loads(json.dumps(describe(schema))), {"Schema": Schema})
    assert rebuilt == schema
    assert hash(rebuilt) == hash(schema)
