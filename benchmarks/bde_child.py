"""bde in a process of its own: it needs another version of BlackJAX than credax.

``python bde_child.py FOLDER`` fits the rows of ``FOLDER/train.npz`` and prints a line. When it reads a line, it
predicts the rows of ``FOLDER/test.npy`` and writes what it predicts to ``FOLDER/found.npz``. The settings are
those of its paper (Sommer et al., 2025), since its defaults (50 steps) are for a first try; a hundred draws of
each member are kept. ``BDE_STEPS`` gives other numbers of steps as ``warmup,steps``.
"""

import os
import sys

import jax
import numpy as np
from bde import BdeClassifier, BdeRegressor
from sklearn.preprocessing import StandardScaler

WARMUP, STEPS = (int(part) for part in os.environ.get("BDE_STEPS", "50000,10000").split(","))
DRAWS = 100
SETTINGS = {
    "n_members": 10,
    "hidden_layers": [16, 16, 16, 16],
    "epochs": 1_000,
    "patience": 25,
    "warmup_steps": WARMUP,
    "n_samples": STEPS,
    "n_thinning": max(1, STEPS // DRAWS),
}


def main(folder: str) -> None:
    train = np.load(f"{folder}/train.npz")
    scaler = StandardScaler().fit(train["x"])
    classes = str(train["task"]) == "classification"
    model = (BdeClassifier if classes else BdeRegressor)(**SETTINGS)
    model.fit(scaler.transform(train["x"]).astype(np.float32), train["y"])
    jax.block_until_ready(model.positions_eT_)
    print("fitted", flush=True)
    sys.stdin.readline()
    rows = scaler.transform(np.load(f"{folder}/test.npy")).astype(np.float32)
    if classes:
        np.savez(f"{folder}/found.npz", probs=np.asarray(model.predict_proba(rows)))
        return
    raw = np.asarray(model.predict(rows, raw=True), np.float64)  # (member, draw, row, 2)
    raw = raw.reshape(-1, *raw.shape[-2:])
    scale = np.logaddexp(0, raw[..., 1]) + 1e-6
    np.savez(f"{folder}/found.npz", means=raw[..., 0], sds=scale)


if __name__ == "__main__":
    main(sys.argv[1])
