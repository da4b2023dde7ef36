"""A fit whose states are written in parts, for tests that kill it: python sharded.py FOLDER RESULT [hold N].

With ``hold N``, the N-th state that this process writes is never completed: Orbax waits for ever in the thread
that would give its folder its name, and the process says so.
"""

import sys
import threading
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


def hold(number):
    """Stop the writing in the background at the ``number``-th state."""
    from orbax.checkpoint._src.path import atomicity

    write, begun = Shards.write, []

    def counted(self, name, states):
        begun.append(name)
        write(self, name, states)

    Shards.write = counted
    for kind in vars(atomicity).values():
        if isinstance(kind, type) and "finalize" in vars(kind):
            kind.finalize = held(kind.finalize, begun, number)


def held(finalize, begun, number):
    def wait(self, *arguments, **named):
        if len(begun) == number and threading.current_thread() is not threading.main_thread():
            print("holding", begun[-1], flush=True)
            time.sleep(600)
        return finalize(self, *arguments, **named)

    return wait


def main(folder, result, number=None):
    pace.SHARE = 1e9  # a checkpoint after every chunk
    if number is not None:
        hold(number)
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
    main(*sys.argv[1:3], *map(int, sys.argv[4:]))
