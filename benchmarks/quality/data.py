"""The data sets of the papers, from the folder that ``CREDAX_DATA`` names."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

TABLES = (
    "yacht",
    "bostonHousing",
    "energy",
    "concrete",
    "wine-quality-red",
    "kin8nm",
    "power-plant",
    "naval-propulsion-plant",
    "protein-tertiary-structure",
)
"""The tables of Hernandez-Lobato & Adams (2015), in the order of their rows."""


class Split(NamedTuple):
    """Rows to fit and rows to test."""

    x: np.ndarray
    y: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def folder(part: str) -> Path:
    """A folder of the data, or the end of the program with what is missing."""
    path = Path(os.environ.get("CREDAX_DATA", "../shared/data")) / part
    if not path.exists():
        raise SystemExit(f"There is no {path}: set CREDAX_DATA to the folder that contains {part}.")
    return path


def table(name: str) -> dict[str, np.ndarray]:
    """``x``, ``y``, ``test_mask`` (split, row) and ``gap_mask`` (column, row) of a table."""
    with np.load(folder("uci") / f"{name}.npz") as stored:
        return {key: stored[key] for key in stored}


def split(name: str, number: int, mask: str = "test_mask") -> Split:
    """One of the published splits of a table, or the one whose gap is in a column (``gap_mask``)."""
    whole = table(name)
    test = whole[mask][number]
    x, y = whole["x"], whole["y"]
    return Split(x[~test], y[~test], x[test], y[test])


def held_out(count: int, seed: int) -> np.ndarray:
    """Which of the training rows are held out: a random tenth."""
    rows = np.zeros(count, bool)
    rows[np.random.default_rng(seed).permutation(count)[: count // 10]] = True
    return rows


def idx(path: Path) -> np.ndarray:
    """The array in a file in MNIST's IDX format."""
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, -1, 4 + 4 * axes).reshape(shape)


def images(name: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Pixels divided by 126 (Blundell et al., 2015), and labels; ``kind`` is "train" or "t10k"."""
    at = folder(name)
    pixels, labels = (
        idx(at / f"{kind}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1")
    )
    return pixels.reshape(len(pixels), -1).astype(np.float32) / 126, labels.astype(np.int32)
