"""bde in a process of its own: it needs another version of BlackJAX than credax.

``python bde_child.py FOLDER`` fits the rows of ``FOLDER/train.npz`` and prints a line. When it reads a line, it
predicts the rows of ``FOLDER/test.npy`` and writes what it predicts to ``FOLDER/found.npz``.
"""

import sys

import numpy as np
from bde import BdeClassifier, BdeRegressor
from sklearn.preprocessing import StandardScaler


def main(folder: str) -> None:
    import jax

    train = np.load(f"{folder}/train.npz")
    scaler = StandardScaler().fit(train["x"])
    classes = str(train["task"]) == "classification"
    model = BdeClassifier() if classes else BdeRegressor()
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
