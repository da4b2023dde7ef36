"""Runs of MCLMC that are shared by the tests of its draws and of its warm-up."""

import warnings
from functools import cache

import jax
import numpy as np
from exact_targets import (
    correlated,
    ill_conditioned,
    isotropic,
    linear_regression,
    logistic_regression,
)

import credax as cx
from credax.core.errors import PosteriorWarning
from credax.inference.montecarlo.mclmc import MCLMC

TARGETS = {
    "two": lambda: isotropic(2),
    "fifty": lambda: isotropic(50),
    "ill_conditioned": ill_conditioned,
    "correlated": correlated,
    "linear_regression": linear_regression,
    "logistic_regression": logistic_regression,
}
METHODS = {
    "unadjusted": MCLMC(num_warmup=3_000, num_draws=2_000, thin=20),
    "adjusted": MCLMC(num_warmup=1_000, num_draws=4_000, thin=2, adjusted=True),
}


def fit(target, method, key=0, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PosteriorWarning)
        return cx.fit(target.model, target.data, method, key=key, progress=False, **arguments)


@cache
def fitted(method, target):
    return fit(TARGETS[target](), METHODS[method])


def after_warmup(posterior, name):
    return posterior.info[name][:, posterior.method.num_warmup :]


def dimension(posterior):
    return sum(leaf[0, 0].size for leaf in jax.tree.leaves(posterior.draws))


def energy_variance(posterior):
    """The mean squared energy error per step and dimension after the warm-up, for each chain."""
    changes = after_warmup(posterior, "energy_change").astype(np.float64)
    return (changes**2).mean(1) / dimension(posterior)
