"""Run benchmarks, store their figures, and write the page that shows them.

The figures are written to ``benchmarks/results/NAME.json``, together with the machine on which they were
measured, and ``docs/benchmarks.md`` is generated from all stored figures. Without names, all benchmarks run
that need nothing but credax. A benchmark is a module of this folder with a function ``measure() -> dict``. If
it has a function ``options``, arguments after its name are passed to it, and what it returns to ``measure``. If
it has an ``OWN_PAGE``, its function ``write_page`` puts the figures there. If it returns ``None``, it has
stored a part of its figures itself, and no page is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import jax

from benchmarks.quality import store

BENCHMARKS = ("loop", "normals", "ensemble", "prediction", "variational", "sampling", "reading")
QUALITY = ("uci", "mnist", "cifar", "lora", "bandit", "reference")
"""Those in the folder ``quality``, which measure the tables of the papers again."""
ELSEWHERE = (
    "variational_peers",
    "sampling_peers",
    "samplers",
    "laplace_peers",
    "microcanonical_peers",
    "tables",
    "fidelity",
    "first_page",
    "pruning",
    "calibration",
    "accelerator",
    "streaming",
    "scaling",
    "torch_peer",
    "serving",
    "memory",
    "growth",
    "networks",
    "chains",
    "giant",
    "vit",
    *QUALITY,
)
"""These run only when they are named: they need data files, other libraries, an accelerator or an hour."""
HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "benchmarks.md"


def main(arguments: list[str]) -> int:
    known = (*BENCHMARKS, *ELSEWHERE)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    listed = f"one or more of {', '.join(known)}; by default {', '.join(BENCHMARKS)}"
    parser.add_argument("names", nargs="*", metavar="NAME", help=listed)
    options, rest = parser.parse_known_args(arguments)
    names = options.names
    if rest and (len(names) != 1 or not hasattr(_module(names[0]), "options")):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    RESULTS.mkdir(exist_ok=True)
    for name in names or BENCHMARKS:
        module = _module(name)
        print(f"{name}: {module.__doc__.splitlines()[0]}", flush=True)
        figures = module.measure(**(module.options(rest) if hasattr(module, "options") else {}))
        if figures is None:  # a part, which the benchmark has stored itself
            continue
        facts = {"machine": _machine(), "date": time.strftime("%Y-%m-%d")}
        if name in QUALITY:
            store.describe(name, facts)  # other processes may be adding figures
        else:
            result = {"figures": figures, **facts}
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        if store.RESULTS != store.HERE:
            continue
        if hasattr(module, "OWN_PAGE"):
            module.write_page(figures)
        else:
            print(json.dumps(figures, indent=2), flush=True)
    if store.RESULTS == store.HERE:
        PAGE.write_text(_page())
    return 0


def _module(name: str) -> Any:
    folder = "benchmarks.quality" if name in QUALITY else "benchmarks"
    return importlib.import_module(f"{folder}.{name}")


def _machine() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": platform.machine(),
        "device": str(jax.devices()[0]),
        "python": platform.python_version(),
        "jax": jax.__version__,
    }


def _page() -> str:
    """The page, with one section per benchmark: its docstring and its figures."""
    parts = [
        "# Benchmarks",
        (
            "`make bench` measures every figure that needs nothing but credax, `python -m benchmarks NAME` "
            f"the others ({', '.join(ELSEWHERE)}). The alternatives alternate in one process and their medians "
            "are compared, so that ratios are reliable even on a noisy machine, where times are not."
        ),
    ]
    for name in (*BENCHMARKS, *ELSEWHERE):
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        result = json.loads(path.read_text())
        module = _module(name)
        parts.append(f"## {name}\n\n{module.__doc__.strip()}")
        if hasattr(module, "OWN_PAGE"):
            address = module.OWN_PAGE.relative_to(PAGE.parent)
            parts.append(f"The figures are on [a page of their own]({address}).")
            continue
        machine = result["machine"]
        parts.append("\n".join(["| figure | value |", "| --- | --- |", *_rows(result["figures"])]))
        parts.append(
            f"{result['date']}, {machine['device']}, {machine['cores']} cores, Python {machine['python']}, "
            f"JAX {machine['jax']}."
        )
    return "\n\n".join(parts) + "\n"


def _rows(figures: dict, prefix: str = "") -> list[str]:
    rows = []
    for name, value in figures.items():
        label = f"{prefix}{name}".replace("_", " ")
        if isinstance(value, dict):
            rows += _rows(value, f"{label}: ")
        else:
            rows.append(
                f"| {label} | {value:,.4g} |"
                if isinstance(value, float)
                else f"| {label} | {value} |"
            )
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
