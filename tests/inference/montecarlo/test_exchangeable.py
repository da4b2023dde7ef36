"""Groups of weights that are alike because hidden units can be exchanged."""

import jax
import jax.numpy as jnp
import numpy as np

import credax as cx
from credax.core.trees import Flat
from credax.inference.montecarlo.adaptation import Warmup, _fisher
from credax.inference.montecarlo.exchangeable import groups

X = np.linspace(-1, 1, 12).reshape(6, 2)
Y = X @ [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]]


def bound(network, likelihood=None):
    model = cx.Model(network, likelihood=likelihood or cx.likelihoods.Gaussian(1.0))
    model = model.bind((X, Y))
    return model, Flat.of(model.init(jax.random.key(0)))


def test_a_permutation_of_hidden_units_stays_within_the_groups():
    """Permuted units leave the outputs and the groups as they are, and no group could be larger."""
    model, flat = bound(cx.networks.mlp([4, 5]), cx.likelihoods.Gaussian(None))
    numbers = groups(model, flat)
    permuted = jax.tree.map(np.asarray, flat.tree)
    first, second = np.array([2, 0, 3, 1]), np.array([4, 2, 0, 1, 3])
    layers = permuted["network"]
    for tree, (rows, columns) in {
        "layer_0": (slice(None), first),
        "layer_1": (first, second),
        "layer_2": (second, slice(None)),
    }.items():
        layers[tree] = {
            "kernel": layers[tree]["kernel"][rows][:, columns],
            "bias": layers[tree]["bias"][columns],
        }
    apply = model.network.apply
    np.testing.assert_allclose(apply(layers, X), apply(flat.tree["network"], X), rtol=2e-5)
    as_tree = Flat(jnp.asarray(numbers, jnp.float32), flat.structure, flat.leaves).tree["network"]
    sizes = {name: len(np.unique(np.asarray(leaf["kernel"]))) for name, leaf in as_tree.items()}
    assert sizes == {"layer_0": 2, "layer_1": 1, "layer_2": 3}  # inputs and outputs keep their own
    biases = {name: len(np.unique(np.asarray(leaf["bias"]))) for name, leaf in as_tree.items()}
    assert biases == {"layer_0": 1, "layer_1": 1, "layer_2": 3}
    assert len(np.unique(numbers)) == 2 + 1 + 3 + 1 + 1 + 3 + 3  # and each noise scale


def test_without_hidden_units_there_are_no_groups():
    assert groups(*bound(cx.networks.linear())) is None
    density = cx.LogDensity(lambda key: jnp.zeros(3), lambda w: -jnp.sum(w**2))
    assert groups(density, Flat.of(jnp.zeros(3))) is None


def test_masses_are_halfway_between_those_of_the_weights_and_of_the_groups():
    warmup = Warmup(100, "diagonal", 0.8)
    known = warmup.init(jnp.ones(()), jnp.zeros(3))
    squares, slopes = jnp.array([4.0, 1.0, 9.0]), jnp.array([1.0, 1.0, 9.0])
    known = known._replace(
        draws=known.draws._replace(m2=squares), gradients=known.gradients._replace(m2=slopes)
    )
    alone = _fisher(known)
    np.testing.assert_allclose(alone, [2.0, 1.0, 1.0])
    shared = np.sqrt(5 / 2)
    together = _fisher(known, np.array([0, 0, 1]))
    np.testing.assert_allclose(together, [np.sqrt(2 * shared), np.sqrt(shared), 1.0], rtol=1e-6)
