"""Trees of inputs: whole numbers stay whole numbers, and new rows must have the arrays of the fit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.rows import RowTree
from credax.model.inputs import InputTree, check_tree, is_tree, row_shape

ROWS = 12
GENERATOR = np.random.default_rng(0)
TABLE = GENERATOR.normal(size=(ROWS, 3)).astype(np.float32)
TOKENS = GENERATOR.integers(0, 4, (ROWS, 2))
X = {"tokens": TOKENS, "more": (TABLE[:, :2], TABLE[:, 2] > 0)}
Y = GENERATOR.normal(size=ROWS)


def init(key):
    a, b = jax.random.split(key)
    return {"table": jax.random.normal(a, (4, 2)), "kernel": jax.random.normal(b, (2, 1))}


def apply(params, x):
    numbers, flags = x["more"]
    assert x["tokens"].dtype == jnp.int32
    assert flags.dtype == bool
    assert numbers.dtype == jnp.result_type(float)
    words = params["table"][x["tokens"]].sum(1)
    return jnp.where(flags[:, None], words + numbers, words) @ params["kernel"]


NETWORK = cx.networks.from_function(init, apply)
MODEL = cx.Model(NETWORK, likelihood=cx.likelihoods.Gaussian(0.5))


def joined(params, x):
    """The same network for one array of all columns."""
    tokens = x[:, :2].astype(jnp.int32)
    return apply(params, {"tokens": tokens, "more": (x[:, 2:4], x[:, 4] > 0)})


JOINED = cx.Model(cx.networks.from_function(init, joined), likelihood=MODEL.likelihood)
COLUMNS = np.concatenate([TOKENS, TABLE[:, :2], (TABLE[:, 2:] > 0)], axis=1).astype(np.float32)


def test_a_fit_to_a_tree_is_that_to_its_columns(tmp_path):
    method = cx.MAP(num_steps=30, batch_size=5)
    tree = cx.fit(MODEL, (X, Y), method, progress=False)
    table = cx.fit(JOINED, (COLUMNS, Y), method, progress=False)

    jax.tree.map(np.testing.assert_array_equal, tree.draws, table.draws)
    np.testing.assert_array_equal(tree.predict(X).mean, table.predict(COLUMNS).mean)
    assert tree.diagnose(X, Y) is not None

    tree.save(tmp_path / "tree.credax")
    loaded = cx.load(tmp_path / "tree.credax", NETWORK)
    np.testing.assert_array_equal(loaded.predict(X).mean, tree.predict(X).mean)
    assert loaded.model.schema == tree.model.schema
    with pytest.raises(ValueError, match="'more'"):
        loaded.predict({"tokens": TOKENS})


def test_predictions_in_blocks_are_those_of_all_rows(monkeypatch):
    posterior = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=5), progress=False)
    whole = posterior.predict(X)
    mean, some = whole.mean, whole.head(3).mean
    monkeypatch.setattr("credax.posterior.predictive.ROWS", 4)
    np.testing.assert_allclose(posterior.predict(X).mean, mean, rtol=1e-6)
    np.testing.assert_allclose(some, mean[:3], rtol=1e-6)


def test_a_killed_fit_to_a_tree_goes_on(tmp_path):
    class Enough(Exception):
        pass

    def stop(event):
        if event.step >= 4:
            raise Enough

    method = cx.MAP(num_steps=10, batch_size=5)
    settings = {"progress": False, "chunk_steps": 2}
    whole = cx.fit(MODEL, (X, Y), method, **settings)
    with pytest.raises(Enough):
        cx.fit(MODEL, (X, Y), method, checkpoint=tmp_path, callbacks=stop, **settings)
    again = cx.fit(MODEL, (X, Y), method, checkpoint=tmp_path, **settings)
    jax.tree.map(np.testing.assert_array_equal, again.draws, whole.draws)
    other = {**X, "tokens": (TOKENS + 1) % 4}
    with pytest.raises(Exception, match="data"):
        cx.fit(MODEL, (other, Y), method, checkpoint=tmp_path, **settings)


def test_some_rows_are_held_out_of_a_tree():
    stopping = cx.EarlyStopping(fraction=0.25, every=5, patience=1)
    posterior = cx.fit(MODEL, (X, Y), cx.MAP(num_steps=10), early_stopping=stopping, progress=False)
    assert posterior.info["num_rows"] == 9


def test_what_a_tree_is():
    assert is_tree({"a": TABLE})
    assert is_tree((TABLE, TABLE))
    assert is_tree([{"a": TABLE}])
    assert not is_tree([[1.0, 2.0], [3.0, 4.0]])
    assert not is_tree(((1.0, 2.0), (3.0, 4.0)))
    assert not is_tree([TABLE[0], TABLE[1]])  # rows
    assert not is_tree(TABLE)


def test_the_shape_of_a_row_of_a_tree():
    shape = row_shape(check_tree(X))
    assert isinstance(shape, InputTree)
    assert shape.names == ("['more'][0]", "['more'][1]", "['tokens']")
    assert shape.dtypes == (str(jnp.result_type(float)), "bool", "int32")
    rows = shape.rows(2)
    assert rows["more"][1].shape == (2,)
    assert jax.tree.structure(rows) == jax.tree.structure(X)


def test_a_tree_is_taken_apart_like_an_array():
    rows = check_tree(X)
    assert isinstance(rows, RowTree)
    assert len(rows) == ROWS
    assert len(rows[2:5]) == 3
    np.testing.assert_array_equal(rows[[3, 1]].tree["tokens"], TOKENS[[3, 1]])
    assert "int32[12, 2]" in repr(rows)


BAD = {
    "array missing": ({"tokens": TOKENS}, ValueError, r"\['more'\]\[0\], \['more'\]\[1\] missing"),
    "array unexpected": ({**X, "z": TABLE}, ValueError, r"\['z'\] unexpected"),
    "floats for tokens": ({**X, "tokens": TABLE[:, :2]}, TypeError, "whole numbers, as in the fit"),
    "numbers for flags": ({**X, "more": (TABLE[:, :2], TOKENS[:, 0])}, TypeError, "true or false"),
    "other width": ({**X, "tokens": TOKENS[:, :1]}, ValueError, r"\(rows, 2\), as in the fit"),
    "other rows": ({**X, "tokens": TOKENS[1:]}, ValueError, "same number of rows"),
    "nan": ({**X, "more": (TABLE[:, :2] * np.nan, X["more"][1])}, ValueError, "finite"),
    "one array": (TABLE, TypeError, "the arrays of the fit"),
    "text": ({**X, "tokens": np.full((ROWS, 2), "a")}, TypeError, "real numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_new_rows_must_have_the_arrays_of_the_fit(name):
    bad, kind, message = BAD[name]
    model, _ = MODEL.prepare((X, Y))
    with pytest.raises(kind, match=message):
        model.check_inputs(bad)


def test_trees_that_are_refused(compilations):
    with compilations() as count:
        with pytest.raises(ValueError, match="empty tree"):
            MODEL.prepare(({}, Y))
        with pytest.raises(ValueError, match="scale its arrays yourself"):
            cx.Model(NETWORK, standardise=True).prepare((X, Y))
        with pytest.raises(TypeError, match="one array for an mlp"):
            cx.Model(cx.networks.mlp([3])).prepare((X, Y))
        with pytest.raises(TypeError, match="names that are text"):
            MODEL.prepare(({1: TABLE}, Y))
        with pytest.raises(ValueError, match="got 12 and 11"):
            MODEL.prepare((X, Y[1:]))
        one = JOINED.prepare((COLUMNS, Y))[0]
        with pytest.raises(TypeError, match="one array, as in the fit"):
            one.check_inputs(X)
    assert count() == 0
