"""The evidence lower bound of a minibatch, and the KL divergence, against closed forms."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from regression import flat, line, rows
from scipy import integrate, stats

import credax as cx
from credax.core import random
from credax.core.trees import named_leaves
from credax.inference.variational.objective import average, negative_kl
from credax.posterior.approximations.families import MeanField

QUICK = {"xla_backend_optimization_level": 0}
"""For programs that take seconds to compile and moments to run."""


# -- the bound of a minibatch ----------------------------------------------------------------------


KL_WEIGHTS = {
    "uniform": "uniform",
    "blundell": "blundell",
    "custom": (0.1, 0.4, 0.0, 0.5),
}


@pytest.mark.slow
def test_the_average_over_an_epoch_is_the_full_bound(x64):
    """With equal draws, to rounding: the prior is in closed form for the bias, at the draw for the weights."""
    prior = cx.priors.PerLayer({"*/bias": cx.priors.Normal(0.7), "*": cx.priors.Laplace()})
    likelihood = cx.likelihoods.Gaussian(scale=None)
    model, data = cx.Model(cx.networks.linear(), prior, likelihood).prepare(rows(24))
    family = MeanField.around(model.init(random.key(0)), 0.3)
    key = random.key(1)

    def over_an_epoch(method, size, count):
        def of_step(step):
            return method.gradient(key, family, model, data.batch(random.key(5), step, size))

        run = jax.jit(lambda steps: jax.lax.map(of_step, steps), compiler_options=QUICK)
        return jax.tree.leaves(run(jnp.arange(count, dtype=jnp.int32)))

    want = over_an_epoch(cx.BayesByBackprop(estimator="weight"), None, 1)
    for name, kl_weights in KL_WEIGHTS.items():
        method = cx.BayesByBackprop(batch_size=6, kl_weights=kl_weights)
        each = over_an_epoch(method, 6, 4)
        assert len(each) == 1 + 6, "the log likelihood, and mean and rho of three leaves"
        for got, whole in zip(each, want, strict=True):
            assert np.ptp(got, axis=0).max() > 1e-3, f"{name}: the batches must differ"
            np.testing.assert_allclose(got.mean(0), whole[0], rtol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [pytest.param(1, marks=pytest.mark.slow), 500])
def test_the_shares_of_the_kl_add_up_to_one(batches):
    """With a likelihood scale of zero, the gradient is that of the KL alone."""
    model, data = line().prepare(rows(2))
    family = MeanField.around(model.init(random.key(0)), 0.3)
    generator = np.random.default_rng(0)
    custom = generator.dirichlet(np.full(batches, 0.5))
    gradients = {}
    for kl_weights in ("uniform", "blundell", tuple(custom / custom.sum())):
        method = cx.BayesByBackprop(batch_size=2, kl_weights=kl_weights)

        def of_index(index, method=method):
            zero = jnp.zeros((), data.x.dtype)
            batch = cx.Batch(data.x, data.y, zero, index, batches)
            return method.gradient(random.key(0), family, model, batch)[-1]

        indices = jnp.arange(batches, dtype=jnp.int32)
        each = jax.jit(jax.vmap(of_index), compiler_options=QUICK)(indices)
        each = np.asarray(jax.vmap(lambda g: ravel_pytree(g)[0])(each), np.float64)
        want = jax.grad(lambda q: negative_kl(model, q, q.mean))(family)
        np.testing.assert_allclose(each.mean(0), flat(want), rtol=1e-5)
        gradients[kl_weights] = each
    if batches > 1:
        first = gradients["blundell"][:2, -1]
        np.testing.assert_allclose(first[0], 2 * first[1], rtol=1e-5)
        share = gradients[kl_weights][:, -1] / gradients["uniform"][:, -1]
        np.testing.assert_allclose(share, batches * custom, rtol=1e-4, atol=1e-6)


# -- the Kullback-Leibler divergence ---------------------------------------------------------------


def deep(prior):
    """A network with a hundred layers, and a q whose parameters all differ."""
    generator = np.random.default_rng(1)
    data = generator.normal(size=(3, 5)), generator.normal(size=3)
    network = cx.networks.mlp([5] * 99)
    model = cx.Model(network, prior, cx.likelihoods.Gaussian(0.1)).bind(data)
    template = jax.eval_shape(model.init, random.key(0))
    draw = lambda loc, scale: jax.tree.map(  # noqa: E731
        lambda leaf: jnp.asarray(generator.normal(loc, scale, leaf.shape), leaf.dtype), template
    )
    return model, MeanField(draw(0.0, 0.5), draw(-3.0, 1.0))


PRIORS = {
    "normal": (cx.priors.Normal(0.3, loc=0.1), lambda path, leaf: (0.1, 0.3)),
    "fan-in": (
        cx.priors.FanInNormal(0.8),
        lambda path, leaf: (0.0, 0.8 / np.sqrt(5) if leaf.ndim == 2 else 0.8),
    ),
    "per layer": (
        {
            "layer_0/*": cx.priors.Normal(0.1),
            "*/bias": cx.priors.Normal(2.0, loc=-1.0),
            "*": cx.priors.FanInNormal(),
        },
        lambda path, leaf: (
            (0.0, 0.1)
            if path.startswith("layer_0/")
            else (-1.0, 2.0)
            if path.endswith("bias")
            else (0.0, 1 / np.sqrt(5))
        ),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "normal" else pytest.mark.slow) for n in PRIORS],
)
@pytest.mark.parametrize("precision", ["single", "double"])
def test_the_kl_is_summed_over_a_hundred_layers(name, precision):
    prior, describe = PRIORS[name]
    with jax.enable_x64(precision == "double"):
        model, family = deep(prior)
        got = -float(jax.jit(lambda q: negative_kl(model, q, q.mean))(family))
        want, size = 0.0, 0
        for (path, mean), (_, rho) in zip(
            named_leaves(family.mean), named_leaves(family.rho), strict=True
        ):
            loc, scale = describe(path, mean)
            mean, sigma = np.asarray(mean, np.float64), np.logaddexp(0, np.asarray(rho, np.float64))
            ratio = (sigma**2 + (mean - loc) ** 2) / scale**2
            want += np.sum(np.log(scale / sigma) + 0.5 * ratio - 0.5)
            size += mean.size
    assert size == 99 * 30 + 6
    assert abs(got - want) < (1e-12 if precision == "double" else 1e-6) * want


@pytest.mark.parametrize(
    "prior",
    [cx.priors.ScaleMixture(0.3, 1.0, 0.1), cx.priors.Laplace(0.5), cx.priors.StudentT(3.0, 0.5)],
    ids=lambda prior: type(prior).__name__,
)
def test_the_kl_to_other_priors_is_unbiased(prior, x64):
    model = cx.Model(cx.networks.linear(), prior, cx.likelihoods.Gaussian(0.1)).bind(rows(3))
    means, sigmas = np.array([0.0, 0.3, -1.0, 2.0]), np.array([0.05, 0.2, 0.5, 1.0])
    unravel = ravel_pytree(jax.tree.map(jnp.zeros_like, model.init(random.key(0))))[1]
    family = MeanField(unravel(jnp.asarray(means)), unravel(jnp.log(jnp.expm1(sigmas))))
    log_p = {
        "ScaleMixture": lambda w: np.logaddexp(
            np.log(0.3) + stats.norm.logpdf(w), np.log(0.7) + stats.norm.logpdf(w, scale=0.1)
        ),
        "Laplace": stats.laplace(scale=0.5).logpdf,
        "StudentT": stats.t(3.0, scale=0.5).logpdf,
    }[type(prior).__name__]
    want = 0.0
    for mean, sigma in zip(means, sigmas, strict=True):
        q = stats.norm(mean, sigma)
        integrand = lambda w, q=q: q.pdf(w) * (q.logpdf(w) - log_p(w))  # noqa: E731
        parts = np.unique(
            [mean - 9 * sigma, mean, mean + 9 * sigma, *([0.0] if sigma > 0.1 else [])]
        )
        want += sum(
            integrate.quad(integrand, a, b, limit=200)[0] for a, b in itertools.pairwise(parts)
        )
    keys = jax.random.split(random.key(0), 20_000)
    each = np.asarray(
        jax.jit(jax.vmap(lambda key: -negative_kl(model, family, family.draw(key))))(keys)
    )
    assert abs(each.mean() - want) < 4 * each.std() / np.sqrt(len(each))


# -- averages over keys ----------------------------------------------------------------------------


def test_an_average_over_keys_keeps_whole_numbers_whole():
    drawn = lambda key: {"value": jax.random.normal(key), "count": jnp.int32(3)}  # noqa: E731
    mean = average(drawn, random.key(0), 4)
    assert mean["count"] == 3
    assert mean["count"].dtype == jnp.int32
    expected = np.mean(
        [float(jax.random.normal(key)) for key in jax.random.split(random.key(0), 4)]
    )
    assert float(mean["value"]) == pytest.approx(expected, rel=1e-6)
