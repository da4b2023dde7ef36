"""Settings with which every method is fitted to the problems."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

from gate import refused
from problems import PROBLEMS, Problem

from credax.inference import METHODS, Method

SETTINGS = {
    "exact": {
        "chains": 4,
        "num_warmup": 300,
        "num_draws": 750,
        "thin": 2,
        "num_leapfrog": 32,
        "particles": 500,
        "num_steps": 100,
        "learning_rate": 0.1,
    },
    "approximate": {
        "chains": 4,
        "num_warmup": 1_500,
        "num_draws": 400,
        "thin": 20,
        "members": 4,
        "num_steps": 3_000,
        "batch_size": 8,
        "learning_rate": 0.03,
        "samples": 8,
    },
    "point": {"num_steps": 2_000, "batch_size": 8, "learning_rate": 0.03},
}
"""Values of the settings that have the same name everywhere, by kind: enough for the answer, and quick."""
GIVEN_STEP = 0.1
"""The step size of dynamics that do not adapt it."""
MORE = {"num_draws": 4, "num_steps": 2, "particles": 4, "num_warmup": 2}
"""What the settings are multiplied by in slow tests."""


def settings_of(cls: type[Method]) -> dict[str, Any]:
    """The settings of a method and their defaults."""
    return {field.name: field.default for field in dataclasses.fields(cls) if field.init}


def instance(cls: Any, more: bool = False, **given: Any) -> Method:
    """A method with the settings above, as far as it has them, and the given ones."""
    defaults = settings_of(cls)
    chosen = {name: value for name, value in SETTINGS[cls.kind].items() if name in defaults}
    if isinstance(defaults.get("step_size"), float):
        chosen["step_size"] = GIVEN_STEP
    if more:
        chosen |= {name: factor * chosen[name] for name, factor in MORE.items() if name in chosen}
    return cls(**chosen | {name: value for name, value in given.items() if name in defaults})


TURN = ("network", "logistic", "learned scale")
"""The problems that exact methods take in turn, in their quick tests."""


def quick_problem(name: str) -> Problem:
    """The problem of a method's quick test: the first in its order that it takes."""
    cls, order = METHODS[name], ["linear", *PROBLEMS]
    if cls.kind == "exact":
        # By a hash of its name, so that a new method changes the problem of no other.
        turn = zlib.crc32(f"run of {name}".encode()) % len(TURN)
        order = [*TURN[turn:], *TURN, *PROBLEMS]
    for problem in (PROBLEMS[p]() for p in order):
        if refused(instance(cls), problem) is None:
            return problem
    raise AssertionError(f"{cls.__name__} takes none of the problems: {', '.join(PROBLEMS)}")
