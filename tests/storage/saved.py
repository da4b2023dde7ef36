"""Posteriors without a fit, and files that are damaged on purpose."""

import json

import jax
import numpy as np
import pytest
import safetensors.numpy

import credax as cx
from credax.model import likelihoods, priors
from credax.model.networks import cnn, linear, mlp
from credax.posterior.approximations import Draws
from credax.storage import files

VECTORS = np.random.default_rng(0).normal(size=(6, 3))
IMAGES = np.random.default_rng(1).normal(size=(6, 4, 4))
ONE = np.arange(6) / 3
TWO = np.column_stack([ONE, -ONE])
LABELS = np.array([0, 1, 2, 0, 1, 2])

NETWORKS = {
    "linear": (linear(), VECTORS),
    "mlp": (mlp([4, 2], activation="tanh", dropout=0.1), VECTORS),
    "cnn": (cnn([2], [3], kernel_size=3, activation="gelu"), IMAGES),
}
PRIORS = [
    priors.Normal(2.0, -1.0),
    priors.Laplace(0.3),
    priors.StudentT(4.0, 0.5, 0.1),
    priors.ScaleMixture(0.3, 2.0, 0.01),
    priors.FanInNormal(3.0),
    priors.Discrete([-1, 0, 0.1], [0.2, 0.3, 0.5]),
    priors.PerLayer({"*bias": priors.StudentT(5.0), "*": priors.ScaleMixture(0.9)}),
    priors.PerLayer({"*bias": priors.Discrete([0, 1]), "*kernel": priors.Discrete([-1, 1])}),
]
LIKELIHOODS = [
    (likelihoods.Gaussian(0.1), ONE),
    (likelihoods.Gaussian([0.1, 0.2]), TWO),
    (likelihoods.Gaussian(None), ONE),
    (likelihoods.Gaussian(None, priors.StudentT(3.5)), TWO),
    (likelihoods.StudentT(3.0, 0.2), ONE),
    (likelihoods.StudentT(3.0, None, priors.Laplace(0.1)), ONE),
    (likelihoods.Heteroscedastic(0.01), TWO),
    (likelihoods.MultivariateGaussian([[1, 0.3], [0.3, 2]]), TWO),
    (likelihoods.MultivariateGaussian(None, priors.StudentT()), TWO),
    (likelihoods.Categorical(), LABELS),
    (likelihoods.Categorical(5), LABELS),
    (likelihoods.Bernoulli(), LABELS % 2),
    (likelihoods.Poisson(), LABELS),
]


def random_posterior(model, data, *, replicas=2, draws=3, weighted=False, **fields):
    """A posterior with random weights, without a fit."""
    bound = model.bind(data)
    shapes = jax.eval_shape(bound.init, jax.random.key(0))
    generator = np.random.default_rng(5)
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.3, (replicas, draws, *leaf.shape)).astype(leaf.dtype),
        shapes,
    )
    log_weights = generator.normal(size=(replicas, draws)) if weighted else None
    return cx.Posterior(bound, Draws(params, (), log_weights), **fields)


def same_tree(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_array_equal(left, right)


SMALL = cx.Model(linear(), likelihood=likelihoods.Gaussian(0.1))


def small(**fields):
    return random_posterior(SMALL, (VECTORS, ONE), **fields)


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(cx.StorageError) as caught:
        cx.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def with_header(content, change):
    """The file with another header and the digest that belongs to it, as no accidental damage gives."""
    arrays = safetensors.numpy.load(content)
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["credax"]
    text = json.dumps(change(json.loads(text)), sort_keys=True)
    metadata = {"credax": text, "sha256": files._digest(text, arrays)}
    return safetensors.numpy.save(arrays, metadata)


def with_arrays(content, change):
    """The file with other arrays and the digest that belongs to them."""
    arrays = safetensors.numpy.load(content)
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["credax"]
    change(arrays)
    return safetensors.numpy.save(arrays, {"credax": text, "sha256": files._digest(text, arrays)})


def nested(header, *path, value):
    header = json.loads(json.dumps(header))
    inside = header
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return header
