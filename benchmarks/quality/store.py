"""Figures on disk, cell by cell: what is stored is not measured again, and a killed run loses one cell."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent.parent / "results"


def figures(name: str) -> dict[str, Any]:
    """The stored figures of a benchmark; none if it was never run."""
    return _whole(name).get("figures", {})


def cell(name: str, keys: tuple[str, ...], measure: Callable[[], Any]) -> Any:
    """The stored cell at a path of keys; if there is none, it is measured, stored at once and shown."""
    found = figures(name)
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if found is None:
        found = measure()
        put(name, keys, found)
        print(" / ".join(keys), shown(found), flush=True)
    return found


def put(name: str, keys: tuple[str, ...], value: Any) -> None:
    """Store a cell; the file is replaced as a whole, so that it is never half written."""
    whole = _whole(name)
    place = whole.setdefault("figures", {})
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = value
    RESULTS.mkdir(exist_ok=True)
    beside = RESULTS / f"{name}.{os.getpid()}.new"
    beside.write_text(json.dumps(whole, indent=2) + "\n")
    beside.replace(RESULTS / f"{name}.json")


def forget(name: str, keep: Callable[[tuple[str, ...]], bool], depth: int) -> None:
    """Remove all cells, which lie ``depth`` keys deep, whose keys are not to be kept."""
    whole = _whole(name)

    def sifted(part: Any, keys: tuple[str, ...]) -> Any:
        if len(keys) == depth:
            return part if keep(keys) else None
        kept = {key: sifted(value, (*keys, key)) for key, value in part.items()}
        return {key: value for key, value in kept.items() if value} or None

    whole["figures"] = sifted(whole.get("figures", {}), ()) or {}
    (RESULTS / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")


def shown(found: Any) -> Any:
    """A cell, short enough for one line: numbers are rounded and lists of numbers left out."""
    if isinstance(found, dict):
        return {k: shown(v) for k, v in found.items() if not isinstance(v, list) or len(v) < 5}
    return float(f"{found:.4g}") if isinstance(found, float) else found


def _whole(name: str) -> dict[str, Any]:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}
