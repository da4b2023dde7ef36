"""One host of a run on several, or a run on as many devices of one process; prints what came out.

python over_hosts.py '{"hosts": 2, "index": 0, "port": 1234, "devices": 2, "runs": [{"case": "rows"}]}'
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import jax
import numpy as np

import credax as cx
from credax.core import hosts

OPTIONS = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
X = np.random.default_rng(0).normal(size=(48, 3))
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
MODEL = cx.Model(
    cx.networks.mlp([16], activation="tanh"), cx.priors.Normal(1.0), cx.likelihoods.Gaussian(0.3)
)
WIDE = cx.Model(
    cx.networks.mlp([32, 32], activation="tanh"),
    cx.priors.Normal(1.0),
    cx.likelihoods.Gaussian(0.3),
)
ENSEMBLE = cx.DeepEnsemble(members=4, num_steps=30, batch_size=12)
CASES = {
    # The method, the model, the mesh
    "ensemble": (ENSEMBLE, MODEL, {"replica": 4}),
    "uneven": (
        cx.DeepEnsemble(members=3, num_steps=30, batch_size=12),
        MODEL,
        {"replica": 2, "data": 2},
    ),
    "rows": (cx.BayesByBackprop(num_steps=30, batch_size=16), MODEL, {"data": 4}),
    "all-rows": (cx.MAP(num_steps=30), MODEL, None),
    "chains": (cx.HMC(chains=4, num_warmup=10, num_draws=8), MODEL, None),
    "laplace": (cx.Laplace(num_steps=30), MODEL, {"data": 4}),
    # The default rate amplifies rounding tenfold every three steps, to 1e-8; this one does not.
    "model": (
        cx.IVON(num_steps=30, batch_size=16, learning_rate=0.03),
        WIDE,
        {"data": 2, "model": 2},
    ),
    "model-over-hosts": (cx.MAP(num_steps=30), WIDE, {"model": 4}),
}


def data(options):
    x, y = X, Y
    if options.get("other_data") and options["index"] == 1:
        y = Y + 1
    if options.get("source"):
        return cx.sources.arrays(x, y)
    if options.get("function"):
        return cx.sources.function(made, 48, name="made")
    return x, y


def made(key, step, size):
    x = np.asarray(jax.random.normal(key, (size, 3))) + 0.01 * step
    return x, np.sin(x[:, 0])


def run(options):
    method, model, mesh = CASES[options["case"]]
    if "num_steps" in options:
        from dataclasses import replace

        steps = options["num_steps"]
        if options.get("other_steps") and options["index"] == 1:
            steps += 1
        method = replace(method, num_steps=steps)
    arguments = {"key": 1, "progress": False, "mesh": options.get("mesh", mesh)}
    if "folder" in options:
        from credax.fit import pace

        pace.SHARE = 1e9  # a checkpoint after every chunk
        arguments |= {"checkpoint": cx.Checkpoint(options["folder"], options.get("sharded", False))}
        arguments |= {"chunk_steps": options.get("chunk", 5)}
    callbacks = []
    if "die_at" in options:

        def die(event):
            if event.step >= options["die_at"] and options["index"] == options.get("victim", 0):
                print("dying", flush=True)
                time.sleep(600)  # until the test kills it

        callbacks.append(die)
    if "fail_at" in options:

        def fail(event):
            if event.step >= options["fail_at"] and options["index"] == options.get("victim", 1):
                raise KeyError("a callback has failed")

        callbacks.append(fail)
    if "stop_at" in options:
        callbacks.append(
            lambda event: event.step >= options["stop_at"] and options["index"] == options["victim"]
        )
    if "early" in options:
        arguments |= {"early_stopping": cx.EarlyStopping((X[:8], Y[:8]), every=5, patience=2)}
    posterior = cx.fit(model, data(options), method, callbacks=callbacks, **arguments)
    predictive = posterior.predict(X[:16])
    return {
        "mean": np.asarray(predictive.mean, float).tolist(),
        "std": np.asarray(predictive.std, float).tolist(),
        "steps": int(posterior.info["steps"]),
        "ended": posterior.info["ended"],
    }


def main(options):
    jax.config.update("jax_enable_x64", True)
    cx.use_cores(options["devices"])
    if options.get("other_version") and options["index"] == 1:
        hosts.__version__ = "0.0.1"
    if options.get("hosts", 1) > 1 or options.get("connect"):
        address = f"127.0.0.1:{options['port']}"
        cx.use_hosts(address, options["hosts"], options["index"], options.get("timeout", 60))
    for each in options["runs"]:
        print("RESULT " + json.dumps(run({**options, **each})), flush=True)


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main(OPTIONS)
