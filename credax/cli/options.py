"""The values of options: methods and their settings, priors, likelihoods, columns, widths and times."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import inspect
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from credax.core.errors import CredaxError


class UsageError(CredaxError, ValueError):
    """A command or option cannot be carried out; the message says why, in one line."""


# -- names -------------------------------------------------------------------------------------------


def spelled(name: str) -> str:
    """The name of a class or a method without what people spell differently.

    >>> spelled("MicrocanonicalEnsemble") == spelled("microcanonical-ensemble")
    True
    """
    return re.sub(r"[^a-z0-9]", "", name.lower().removeprefix("cx."))


def find(what: str, name: str, known: Mapping[str, Any]) -> str:
    """The name in ``known`` that is meant by a name, also of a class and in any case.

    Raises:
      UsageError: there is none; the message names the most similar one.
    """
    same = {spelled(each): each for each in known}
    if spelled(name) in same:
        return same[spelled(name)]
    near = difflib.get_close_matches(spelled(name), list(same), 1)
    hint = f" Did you mean {same[near[0]]!r}?" if near else ""
    see = "See: credax methods." if what == "method" else f"There are {', '.join(known)}."
    raise UsageError(f"There is no {what} {name!r}.{hint} {see}")


def command_names(classes: Iterable[type]) -> dict[str, type]:
    """The classes by their names on the command line."""
    from credax.inference import command_name

    return {command_name(each): each for each in classes}


def priors() -> dict[str, type]:
    """The priors that need no further explanation, by name."""
    from credax.model import priors as module

    return command_names(_simple(module, module.Elementwise))


def likelihoods() -> dict[str, type]:
    """The likelihoods of one number or count, by name."""
    from credax.model import likelihoods as module

    found = _simple(module, module.Likelihood)
    numbers = [each for each in found if each.task != "classification"]  # pyright: ignore[reportAttributeAccessIssue]
    return command_names(each for each in numbers if each.__name__ != "MultivariateGaussian")


def _simple(module: Any, base: type) -> list[type]:
    """The public classes of a module that are derived from ``base`` and can be made without arguments."""
    found = [each for name, each in vars(module).items() if not name.startswith("_")]
    kinds = [each for each in found if inspect.isclass(each) and issubclass(each, base)]
    return [each for each in kinds if not inspect.isabstract(each) and _needs_nothing(each)]


def _needs_nothing(kind: Any) -> bool:
    try:
        made = kind(**_learned(kind))
    except (TypeError, ValueError):
        return False
    return dataclasses.is_dataclass(made)


def _learned(kind: Any) -> dict[str, Any]:
    """The setting with which a likelihood learns its noise, if it has one."""
    from credax.model.likelihoods import ConstantScale

    return {"scale": None} if isinstance(kind, type) and issubclass(kind, ConstantScale) else {}


def chosen(what: str, text: str | None, known: Mapping[str, type]) -> Any:
    """A prior or likelihood that is written as its name or as a call, such as ``laplace(scale=0.5)``."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*([\w.-]+)\s*(?:\((.*)\))?\s*", text)
    if not found:
        raise UsageError(
            f"--{what} must be a name such as {next(iter(known))}, perhaps with settings in brackets; got "
            f"{text!r}."
        )
    kind: Any = known[find(what, found[1], known)]
    try:
        call = ast.parse(f"f({found[2] or ''})", mode="eval").body
        assert isinstance(call, ast.Call)
        given = {word.arg: ast.literal_eval(word.value) for word in call.keywords if word.arg}
        if call.args:
            raise ValueError("settings need names")
    except (SyntaxError, ValueError):
        raise UsageError(
            f"--{what} must have settings such as (scale=0.5); got ({found[2]})."
        ) from None
    return kind(**(_learned(kind) | given))


# -- methods -----------------------------------------------------------------------------------------


def method(options: argparse.Namespace) -> tuple[Any, dict[str, Any]]:
    """The method that the user named, ``None`` if none, and the settings to change."""
    from credax.inference import METHODS

    settings: dict[str, Any] = {}
    if options.config is not None:
        try:
            settings |= tomllib.loads(options.config.read_text("utf-8"))
        except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
            raise UsageError(f"--config {options.config} cannot be read: {error}.") from None
    configured = settings.pop("method", None)
    named = options.method or configured
    for text in options.set:
        name, separator, value = text.partition("=")
        if not separator:
            raise UsageError(f"--set must be NAME=VALUE, e.g. num_steps=2000; got {text!r}.")
        settings[name.strip()] = _value(value.strip())
    if named is None:
        return None, settings
    return METHODS[find("method", str(named), METHODS)](), settings


def methods(text: str | None) -> dict[str, Any]:
    """The methods in a list with commas; all of them if there is no list."""
    from credax.inference import METHODS

    if text is None:
        return dict(METHODS)
    names = [find("method", name.strip(), METHODS) for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--methods must be names with commas, e.g. map,hmc; got {text!r}.")
    return {name: METHODS[name] for name in names}


def _value(text: str) -> Any:
    """The number, truth value or list that the text denotes in Python's notation; otherwise the text itself."""
    try:
        return ast.literal_eval(text.replace("true", "True").replace("false", "False"))
    except (ValueError, SyntaxError):
        return text


# -- numbers and columns -------------------------------------------------------------------------------


def widths(text: str | None) -> list[int] | None:
    """The widths of hidden layers, such as 50,50."""
    if text is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", text.replace(" ", "")):
        raise UsageError(f"--hidden must be whole numbers with commas, e.g. 50,50; got {text!r}.")
    return [int(part) for part in text.split(",")]


def seconds(text: str) -> float:
    """The seconds of a time such as 90s, 5m or 1h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", text.strip())
    if not found or float(found[1]) <= 0:
        raise UsageError(f"--budget must be a time such as 90s, 5m or 1h; got {text!r}.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[found[2]]


def mesh(text: str | None) -> dict[str, int] | None:
    """The devices along each axis, such as replica=2,data=4."""
    if text is None:
        return None
    parts = [part.partition("=") for part in list_of(text)]
    if not parts or not all(size.strip().isdecimal() for _, _, size in parts):
        raise UsageError(f"--mesh must be axes with numbers, e.g. replica=2,data=4; got {text!r}.")
    return {name.strip(): int(size) for name, _, size in parts}


def quantiles(text: str | None) -> tuple[float, ...]:
    """The levels of quantiles, such as 0.05,0.5,0.95."""
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(0 < q < 1 for q in found):
        raise UsageError(
            f"--quantiles must be numbers between 0 and 1 with commas, e.g. 0.05,0.5,0.95; got {text!r}."
        )
    return found


def kept(texts: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns to keep, from texts such as id,region. A text that is a column is not divided.

    >>> kept(["id,region", "size, m2"], ["id", "region", "size, m2"])
    ['id', 'region', 'size, m2']
    """
    found = []
    for text in texts:
        found += [text] if text in columns else list_of(text)
    return list(dict.fromkeys(found))


def list_of(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def kinds(texts: Sequence[str]) -> dict[str, str]:
    """What columns hold, from texts such as price=number. A name may have an equals sign in it."""
    from credax.tables.columns import CHOICES

    found = {}
    for text in texts:
        name, _, kind = text.rpartition("=")
        if not name or kind.strip() not in CHOICES:
            raise UsageError(
                f"--column must be COL=KIND, with a kind among {', '.join(CHOICES)}; got {text!r}."
            )
        found[name.strip()] = kind.strip()
    return found


def quoted(*parts: Any) -> str:
    """A command that can be pasted into a shell, whatever its parts contain.

    >>> quoted("credax", "report", "my run")
    "credax report 'my run'"
    """
    return shlex.join(str(part) for part in parts)


def table_options(options: argparse.Namespace) -> list[str]:
    """The options about the table that the user gave, for another command on the same table."""
    found = ["--target", options.target]
    found += ["--task", options.task] if options.task else []
    found += [part for name in options.drop for part in ("--drop", name)]
    found += [part for text in options.column for part in ("--column", text)]
    found += ["--encoding", options.encoding] if options.encoding else []
    return found


def stem(data: Path) -> str:
    """The name of a table without its endings; for standard input, which has none, the user must choose."""
    if str(data) == "-":
        raise UsageError("--out must be given if the table comes from standard input.")
    if data.is_dir():  # beside it, not in it
        return f"{data.resolve().name}-run"
    return re.sub(r"(\.\w+?)?\.gz$", "", data.name) if data.suffix == ".gz" else data.stem
