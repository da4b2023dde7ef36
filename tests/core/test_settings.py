"""Settings: each is checked and converted once, when an instance is made."""

import dataclasses

import pytest

from credax.core.checks import number, positive
from credax.core.settings import (
    REQUIRED,
    Settings,
    at_least,
    checks_of,
    flag,
    function,
    instance_of,
    one_among,
    optional,
    setting,
)


@dataclasses.dataclass(frozen=True)
class Walk(Settings):
    steps: int = setting(REQUIRED, at_least(1))
    size: float = setting(0.1, positive)
    drift: float | None = setting(None, optional(number))
    label: str = ""

    def __post_init__(self):
        super().__post_init__()
        if self.drift is not None and self.drift > self.size:
            raise ValueError("the drift is larger than the size")


@dataclasses.dataclass(frozen=True)
class LongWalk(Walk):
    size: float = 2.0


def test_values_are_converted_and_compare_by_value():
    walk = Walk(3, 1)
    assert repr(walk) == "Walk(steps=3, size=1.0, drift=None, label='')"
    assert walk == Walk(3, 1.0)
    assert hash(walk) == hash(Walk(3, 1.0))
    assert dataclasses.replace(walk, drift=1) == Walk(3, 1.0, 1.0)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ({}, TypeError, "missing 1 required positional argument: 'steps'"),
        ({"steps": 0}, ValueError, r"^Walk\(steps=...\) must be a whole number, at least 1; got 0\.$"),
        ({"steps": 1, "size": "a"}, TypeError, r"^Walk\(size=...\) must be a positive number; got 'a'\.$"),
        ({"steps": 1, "drift": True}, TypeError, r"^Walk\(drift=...\) must be a finite number"),
        ({"steps": 1, "drift": 1.0}, ValueError, "^the drift is larger than the size$"),
    ],
)  # fmt: skip
def test_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        Walk(**arguments)


def test_a_subclass_with_another_default_keeps_the_check():
    assert LongWalk(1).size == 2.0
    assert [name for name, _ in checks_of(LongWalk)] == ["steps", "size", "drift"]
    with pytest.raises(ValueError, match=r"^LongWalk\(size=...\) must be positive; got 0\.$"):
        LongWalk(1, size=0)


@pytest.mark.parametrize(
    "check, good, bad, allowed",
    [
        (flag, [True, False], [0, 1.0, None], "True or False"),
        (function, [len, Walk], [None, "len"], "a function"),
        (one_among("a", 2), ["a", 2], ["b", None, [2]], "one of 'a', 2"),
        (instance_of(Walk, "a walk"), [LongWalk(1)], [Walk, 3], "a walk"),
    ],
)
def test_shared_checks(check, good, bad, allowed):
    for value in good:
        assert check("Owner", "name", value) is value
    for value in bad:
        with pytest.raises(
            (TypeError, ValueError), match=rf"^Owner\(name=...\) must be {allowed}; got"
        ):
            check("Owner", "name", value)
