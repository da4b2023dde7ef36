"""A fit whose states are written in parts, for tests that kill it: python sharded.py FOLDER RESULT SLOW.

With SLOW, each state takes long to write, so that a kill hits one that is being written.
"""

import sys
import time
import warnings

import jax
import numpy as np

import credax as cx
from credax.fit import pace
from credax.fit.sharded import Shards

X = np.random.default_rng(0).normal(size=(32, 2))
MODEL = cx.Model(cx.networks.mlp([64, 64]), likelihood=cx.likelihoods.Gaussian(0.3))
METHOD = cx.DeepEnsemble(members=2, num_steps=60, batch_size=8)


def main(folder, result, slow):
    pace.SHARE = 1e9  # a checkpoint after every chunk
    if slow:
        from orbax.checkpoint import AsyncCheckpointer, StandardCheckpointer  # noqa: F401

        begun, write = [], Shards.write

        def tell(self, name, states):
            write(self, name, states)
            begun.append(name)
            print(name, flush=True)

        Shards.write = tell
        import orbax.checkpoint._src.multihost.multihost as inside  # noqa: F401

        def wait(self):
            if len(begun) > 1:
                time.sleep(0.05)
            self._orbax.wait_until_finished()

        Shards.wait = wait
    posterior = cx.fit(
        *(MODEL, (X, np.sin(X[:, 0])), METHOD),
        key=1,
        progress=False,
        chunk_steps=3,
        checkpoint=cx.Checkpoint(folder, sharded=True),
    )
    leaves = jax.tree.leaves(vars(posterior.approximation))
    np.savez(result, *map(np.asarray, leaves))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["slow"])
