import jax
import numpy as np
import pytest

import credax as cx
from credax.fit import program
from credax.fit.padding import padded, padded_size
from credax.inference import METHODS

SHORT = {
    "map": cx.MAP(num_steps=30),
    "maximum-likelihood": cx.MaximumLikelihood(num_steps=30),
    "hmc": cx.HMC(chains=2, num_warmup=8, num_draws=4),
    "nuts": cx.NUTS(chains=1, num_warmup=8, num_draws=4, max_depth=3),
}
MODEL = cx.Model(cx.networks.mlp([4]), standardise=True)


def rows(count, seed=0):
    x = np.random.default_rng(seed).normal(size=(count, 2))
    return x, x[:, 0] - 2 * x[:, 1] ** 2


def test_every_method_whose_rows_may_be_padded_is_tried():
    assert {name for name, kind in METHODS.items() if "pad rows" in kind().can} == set(SHORT)


@pytest.mark.parametrize(
    "name", ["map", *(pytest.param(n, marks=pytest.mark.slow) for n in SHORT if n != "map")]
)
def test_rows_of_weight_zero_change_nothing_but_rounding(x64, name):
    data, method = rows(37), SHORT[name]
    weights = np.random.default_rng(1).uniform(0.5, 2.0, 37)
    for given in (None, weights):
        plain = cx.fit(MODEL, data, method, progress=False, weights=given)
        filled = cx.fit(MODEL, data, method, progress=False, weights=given, pad_rows=True)
        pairs = zip(jax.tree.leaves(plain.draws), jax.tree.leaves(filled.draws), strict=True)
        for one, other in pairs:
            # Trajectories amplify rounding errors, those of a weight near zero as much as the others.
            np.testing.assert_allclose(other, one, atol=1e-6 * np.abs(one).max())
        assert len(filled.training.x) == 37, "the doctor sees the rows of the user"
        assert filled.training.weights is None or given is not None


def test_nearly_as_many_rows_share_a_program():
    method = cx.MAP(num_steps=31)
    sizes = program._advance._cache_size
    cx.fit(MODEL, rows(40), method, progress=False, pad_rows=True)
    before = sizes()
    cx.fit(MODEL, rows(41), method, progress=False, pad_rows=True)
    assert sizes() == before
    cx.fit(MODEL, rows(41), method, progress=False)
    assert sizes() == before + 1, "without it, each number of rows has its own"


@pytest.mark.parametrize(
    "network, method",
    [
        (cx.networks.mlp([4], dropout=0.1), cx.MAP()),
        (cx.networks.mlp([4], batch_norm=True), cx.MAP()),
        (cx.networks.mlp([4]), cx.MAP(batch_size=8)),
        (cx.networks.mlp([4]), cx.HMC(collapse=None)),
        (cx.networks.mlp([4]), cx.BayesByBackprop()),
        (cx.networks.mlp([4]), cx.CrossFitEnsemble()),
    ],
)
def test_rows_are_not_added_where_they_would_matter(network, method):
    model, data = cx.Model(network).prepare(rows(37))
    assert padded(model, method, data) is data


def test_sizes():
    found = [padded_size(n) for n in range(1, 5_000)]
    assert found == sorted(found)
    assert all(0 <= more - n < max(32, n / 8 + 1) for n, more in enumerate(found, start=1))
    with pytest.raises(TypeError, match=r"fit\(pad_rows=...\) must be True or False"):
        cx.fit(MODEL, rows(4), cx.MAP(), pad_rows=1)
