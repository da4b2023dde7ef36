"""Linear regression, whose posterior is known exactly, for the tests of variational methods."""

import numpy as np
from jax.flatten_util import ravel_pytree

import credax as cx

NOISE, PRIOR = 0.5, 1.5


def flat(params):
    return np.asarray(ravel_pytree(params)[0], np.float64)


def fit(model, data, method, **arguments):
    return cx.fit(model, data, method, progress=False, **arguments)


def rows(count=24):
    generator = np.random.default_rng(0)
    mix = np.array([[1.0, 0.8, 0.0], [0.0, 0.6, 0.5], [0.0, 0.0, 1.0]])
    x = generator.normal(size=(count, 3)) @ mix
    y = x @ [0.5, -1.0, 0.3] + 0.2 + NOISE * generator.normal(size=count)
    return x, y


def line():
    return cx.Model(
        cx.networks.linear(), cx.priors.Normal(PRIOR), cx.likelihoods.Gaussian(scale=NOISE)
    )
