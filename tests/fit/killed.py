"""Starts fits in copies of this process, for tests that kill them: importing JAX takes longer than the fits.

Each line of standard input names a run and its folder. The answers are the id of the process that runs it, and
its exit status when it has ended; the draws and figures of a completed run are in the folder's ``result.npz``.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
import jax.numpy as jnp
import numpy as np
from crashes import MODEL, POINT, table
from walks import DENSITY, Walk

import credax as cx
from credax.fit import pace

QUARTIC = cx.LogDensity(lambda key: jax.random.normal(key, (3,)), lambda w: -jnp.sum(w**4))
RUNS = {
    "walk": (DENSITY, None, Walk(num_steps=60, replicas=2, num_warmup=9, thin=2)),
    "map": (QUARTIC, None, cx.MAP(num_steps=60)),
    "disk": (DENSITY, None, Walk(num_steps=61, replicas=2, num_warmup=9, thin=2)),
    "hmc": (QUARTIC, None, cx.HMC(chains=2, num_warmup=30, num_draws=30)),
    "variational": (QUARTIC, None, cx.BlackBoxVI(num_steps=60)),
    "minibatches": (MODEL, table(), replace(POINT, num_steps=60)),
}


def run(name, folder):
    pace.SHARE = 1e9  # a checkpoint after every chunk, so that many of the kills hit one that is being written
    posterior = cx.fit(
        *RUNS[name],
        key=1,
        progress=False,
        checkpoint=Path(folder),
        draws=Path(folder) / "draws" if name == "disk" else None,
        chunk_steps=1,
        callbacks=[lambda event: time.sleep(0.01)],
    )
    arrays = {f"info {k}": np.asarray(v) for k, v in posterior.info.items() if np.ndim(v)}
    leaves = jax.tree.leaves(vars(posterior.approximation))
    arrays |= {f"leaf {i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}
    np.savez(Path(folder) / "result.npz", **arrays)


def main():
    for line in sys.stdin:
        name, folder = line.split()
        process = os.fork()
        if process == 0:
            run(name, folder)
            os._exit(0)
        print(process, flush=True)
        print(os.waitpid(process, 0)[1], flush=True)


if __name__ == "__main__":
    main()
