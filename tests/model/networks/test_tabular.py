"""The network with embedded columns, and the positions of values among the knots of their columns."""

import jax
import numpy as np
import pytest

import credax as cx
from credax.core.scaling import Positions, Scaling

RNG = np.random.default_rng(0)
X = np.column_stack(
    [
        RNG.normal(size=100),
        RNG.integers(0, 4, 100),
        np.where(RNG.random(100) < 0.9, 0, RNG.random(100)),
        np.full(100, 7.0),
    ]
)


def test_positions_count_the_knots_that_a_value_has_passed():
    found = Positions.learn(X, 8)
    assert found.knots[1] == (0.0, 1.0, 2.0, 3.0)
    assert found.knots[3] == (7.0,)
    inputs = found.inputs(X)
    assert inputs.shape == (100, 8)
    np.testing.assert_allclose(inputs[:, 1], X[:, 1])
    np.testing.assert_allclose(inputs[:, 4:], Scaling.learn(X).standard(X))
    knots = np.array(found.knots[0])
    assert len(knots) <= 9
    assert (knots[0], knots[-1]) == (X[:, 0].min(), X[:, 0].max())
    order = np.argsort(X[:, 0])
    assert np.all(np.diff(inputs[order, 0]) >= 0)
    # Nine rows in ten are zero, but the other values have knots of their own.
    assert sum(knot > 0 for knot in found.knots[2]) >= 3
    beyond = found.inputs(X[:1] + 1e6)
    assert np.all(np.abs(beyond) < 100)


def test_the_embedding_is_piecewise_linear():
    network = cx.networks.tabular([], bins=4, embedding=3).build((2,), 1)
    params = network.init(jax.random.key(0))
    u = np.linspace(0, 4, 81)
    outputs = network.apply(params, np.column_stack([u, np.zeros_like(u)]).astype(np.float32))
    # By hand, at one position: the bins passed before, and the part of the bin of the value.
    passed = np.array([1, 1, 0.25, 0]) - 0.5
    kernel, bias = (np.asarray(params["embedding"][k])[0] for k in ("kernel", "bias"))
    features = np.append(np.maximum(passed @ kernel + bias, 0), 0.0)
    last = params["layer_0"]
    np.testing.assert_allclose(outputs[45], features @ last["kernel"] + last["bias"], rtol=1e-4)


def test_a_second_table_of_the_same_shape_compiles_nothing(compilations):
    model = cx.Model(cx.networks.tabular([8], bins=4), standardise=True)
    method = cx.MAP(num_steps=5)
    cx.fit(model, (X, X[:, 0]), method, progress=False)
    with compilations() as count:
        cx.fit(model, (3 * X + 1, X[:, 1]), method, progress=False)
    assert count() == 0


def test_it_learns_a_step_that_a_line_cannot():
    y = (X[:, 1] == 2).astype(float)
    model = cx.Model(
        cx.networks.tabular([], bins=8), likelihood=cx.likelihoods.Gaussian(0.1), standardise=True
    )
    posterior = cx.fit(model, (X, y), cx.MAP(num_steps=1_000), progress=False)
    assert np.corrcoef(posterior.predict(X).mean, y)[0, 1] > 0.98


def test_saved_and_loaded(tmp_path):
    model = cx.Model(cx.networks.tabular([8], bins=4), standardise=True)
    posterior = cx.fit(model, (X, X[:, 0]), cx.MAP(num_steps=5), progress=False)
    posterior.save(tmp_path / "p.credax")
    loaded = cx.load(tmp_path / "p.credax")
    np.testing.assert_array_equal(loaded.predict(X).mean, posterior.predict(X).mean)
    assert loaded.model.schema.input_shape == (4,)


@pytest.mark.parametrize("x, standardise, match", [
    (X, False, r"Model\(standardise=...\) must be True or 'x' for tabular"),
    (X[:, 0], True, r"x must be 2-D.*x\[:, None\]"),
])  # fmt: skip
def test_what_it_cannot_take_is_refused(x, standardise, match):
    model = cx.Model(cx.networks.tabular([8]), standardise=standardise)
    with pytest.raises(ValueError, match=match):
        cx.fit(model, (x, X[:, 0]), cx.MAP(), progress=False)
