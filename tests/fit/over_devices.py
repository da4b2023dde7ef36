"""Fit by some methods on one device and on meshes of eight, and print how far the results are apart.

XLA_FLAGS=--xla_force_host_platform_device_count=8 python over_devices.py NAME [all]

With ``all``, on every mesh; otherwise on two, which together have every axis.
"""

import dataclasses
import json
import sys
import warnings

import jax
import numpy as np

import credax as cx
from credax.fit import mesh as meshes

meshes.LEAST = 1  # so that even the arrays of a tiny network are divided
TINY = {
    "num_steps": 13,
    "num_warmup": 5,
    "num_draws": 4,
    "members": 3,
    "chains": 3,
    "particles": 8,
    "batch_size": 8,
    # Of SMC: a thousand leapfrog steps would amplify rounding errors to the size of the result.
    "num_moves": 1,
    "num_leapfrog": 3,
}
MESHES = (
    {"replica": 2},
    {"data": 4},
    {"replica": 2, "data": 4},
    {"data": 2, "model": 3},
    {"replica": 2, "model": 3},
)
TWO = ({"data": 4}, {"replica": 2, "model": 3})
PRIORS = (cx.priors.Normal(1.0), cx.priors.Discrete([-1.0, 1.0]))
NETWORKS = (cx.networks.mlp([4], activation="tanh"), cx.networks.linear())
X = np.random.default_rng(0).normal(
    size=(24, 3)
)  # with it, 3 divides the weights as matrices and as one vector
Y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]


def case(name):
    """A quick instance of the method, and a model that it takes."""
    cls = cx.inference.METHODS[name]
    known = [field.name for field in dataclasses.fields(cls) if field.init]
    method = cls(**{key: value for key, value in TINY.items() if key in known})
    for prior in PRIORS:
        for network in NETWORKS:
            model = cx.Model(network, prior, cx.likelihoods.Gaussian(0.3))
            try:
                method.check(*model.prepare((X, Y)))
            except (TypeError, ValueError):
                continue
            return method, model
    raise AssertionError(f"{name} takes none of the models")


def answers(method, model, mesh):
    posterior = cx.fit(model, (X, Y), method, progress=False, mesh=mesh)
    predictive = posterior.predict(X)
    return np.stack([predictive.mean, predictive.std])


def main(name, meshes):
    warnings.simplefilter("ignore", cx.PosteriorWarning)
    jax.config.update("jax_enable_x64", True)
    method, model = case(name)
    alone, found = answers(method, model, {"replica": 1}), {}
    for mesh in meshes:
        try:
            difference = float(np.abs(answers(method, model, mesh) - alone).max())
        except ValueError as error:
            difference = str(error)
        found[" ".join(mesh)] = difference
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], MESHES if sys.argv[2:] == ["all"] else TWO)
