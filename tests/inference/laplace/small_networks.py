"""Small networks with data, and their Gauss-Newton matrices from explicit Jacobians."""

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx


def images(rows=7, seed=2):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(rows, 6, 6)), generator.integers(0, 3, rows)


def _odd_init(key):
    keys = jax.random.split(key, 5)
    normal = lambda i, *shape: 0.5 * jax.random.normal(keys[i], shape)  # noqa: E731
    return {
        "first": normal(0, 4, 3),  # outputs first, as in other libraries
        "gain": 1 + 0.1 * normal(1, 4),
        "twice": normal(2, 4, 4),
        "last": normal(3, 4, 3),
        "offset": normal(4, 3),
    }


@jax.jit
def _odd_layer(weight, x):
    return jnp.tanh(x @ weight.T)


def _odd_apply(params, x):
    """A network with a transposed weight in a jitted layer, a gain, a weight used twice, and a bias."""
    z = params["gain"] * _odd_layer(params["first"], x)
    z = jnp.sin(z @ params["twice"]) @ params["twice"]
    return z @ params["last"] + params["offset"]


NETWORKS = {
    "mlp": cx.networks.mlp([4, 3], activation="tanh"),
    "cnn": cx.networks.cnn((2, 2), (4,), kernel_size=3, activation="softplus"),
    "function": cx.networks.from_function(_odd_init, _odd_apply),
}


LIKELIHOODS = {
    "categorical": cx.likelihoods.Categorical(3),
    "gaussian": cx.likelihoods.Gaussian((0.2, 0.5, 1.0)),
    "bernoulli": cx.likelihoods.Bernoulli(),
    "poisson": cx.likelihoods.Poisson(),
}


def problem(network="mlp", likelihood="categorical", seed=0):
    generator = np.random.default_rng(seed)
    x = images()[0] if network == "cnn" else generator.normal(size=(7, 3))
    y = {
        "categorical": generator.integers(0, 3, 7),
        "gaussian": generator.normal(size=(7, 3)),
        "bernoulli": generator.integers(0, 2, (7, 3)),
        "poisson": generator.poisson(1.0, (7, 3)),
    }[likelihood]
    model = cx.Model(NETWORKS[network], cx.priors.Normal(0.7), LIKELIHOODS[likelihood])
    bound, rows = model.prepare((x, y))
    return bound, rows, bound.init(cx.random.key(3))


def explicit(model, rows, params):
    """The Jacobians ``(rows, outputs, weights)``, by forward differentiation, and the sum of J' H J."""
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    apply = lambda w: model.network.apply(unravel(w), rows.x)  # noqa: E731
    negative = lambda f, y: -model.likelihood.log_prob(f[None], y[None])[0]  # noqa: E731

    @jax.jit
    def both(w):
        return jax.jacfwd(apply)(w), jax.vmap(jax.hessian(negative))(apply(w), rows.y)

    jacobian, hessian = map(np.asarray, both(flat))
    return jacobian, np.einsum("rci,rcd,rdj->ij", jacobian, hessian, jacobian)
