"""Fits of networks with positions, trees of inputs and several heads, by every method."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.inference import METHODS

# So few steps make bad posteriors, and some methods say so.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

ROWS, LENGTH, LETTERS, WIDTH = 20, 6, 5, 8
GENERATOR = np.random.default_rng(0)


def sentences(rows):
    """Letters of which every second one follows from the one before it; the targets are the next letters."""
    tokens = GENERATOR.integers(0, LETTERS, (rows, LENGTH + 1))
    tokens[:, 1::2] = (tokens[:, :-1:2] + 1) % LETTERS
    return tokens[:, :-1], tokens[:, 1:]


X, Y = sentences(ROWS)


# -- sequences of positions that do not interact ---------------------------------------------------


def dense_init(key):
    first, second = jax.random.split(key)
    return {
        "hidden": 0.5 * jax.random.normal(first, (LETTERS, WIDTH)),
        "last": {
            "kernel": 0.5 * jax.random.normal(second, (WIDTH, LETTERS)),
            "bias": jnp.zeros(LETTERS),
        },
    }


def dense(params, x):
    hidden = jnp.tanh(jax.nn.one_hot(x, LETTERS) @ params["hidden"])
    return hidden @ params["last"]["kernel"] + params["last"]["bias"]


DENSE = cx.Model(
    cx.networks.from_function(dense_init, dense), likelihood=cx.likelihoods.Categorical(LETTERS)
)


@pytest.mark.parametrize(
    "method",
    [
        cx.MAP(num_steps=30),
        cx.Laplace(num_steps=30, structure="kronecker"),
        pytest.param(cx.Laplace(num_steps=30, structure="diagonal"), marks=pytest.mark.slow),
        pytest.param(cx.Laplace(num_steps=30, structure="last_layer"), marks=pytest.mark.slow),
        pytest.param(
            cx.Laplace(num_steps=30, structure="diagonal", curvature="fisher"),
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda method: f"{type(method).__name__} {getattr(method, 'structure', '')}",
)
def test_a_fit_to_sequences_is_that_to_their_positions(method):
    whole = cx.fit(DENSE, (X, Y), method, progress=False)
    rows = cx.fit(DENSE, (X.reshape(-1), Y.reshape(-1)), method, progress=False)

    got, want = whole.approximation, rows.approximation
    for field in dataclasses.fields(want):
        a, b = getattr(got, field.name), getattr(want, field.name)
        if field.name in ("inputs", "outputs", "root"):  # eigenvectors, up to their signs
            continue
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), a, b)
    if whole.log_evidence is not None:
        assert whole.log_evidence[0] == pytest.approx(rows.log_evidence[0], rel=1e-4)


def test_a_mask_is_the_positions_left_out():
    mask = GENERATOR.random(X.shape) > 0.4
    whole = cx.fit(
        DENSE, (X, np.where(mask, Y, -1)), cx.MAP(num_steps=30), weights=mask, progress=False
    )
    rows = cx.fit(DENSE, (X[mask], Y[mask]), cx.MAP(num_steps=30), progress=False)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), whole.draws, rows.draws
    )


def test_a_second_fit_compiles_nothing(compilations):
    method = cx.MAP(num_steps=5, batch_size=4)
    cx.fit(DENSE, (X, Y), method, progress=False)
    with compilations() as count:
        cx.fit(DENSE, (X[::-1], Y[::-1]), method, key=1, progress=False)
    assert count() == 0


def test_laplace_refuses_rows_with_too_many_outputs(monkeypatch):
    monkeypatch.setattr("credax.inference.laplace.curvature.ROW_BYTES", 1000)
    message = "for each of the 30 directions of the outputs of a row"
    with pytest.raises(ValueError, match=message):
        cx.fit(DENSE, (X, Y), cx.Laplace(num_steps=3), progress=False)


# -- every method ------------------------------------------------------------------------------------


def heads(params, x):
    outputs = jnp.where(x["seen"][..., None], dense(params, x["tokens"]), 0)
    return {"letter": outputs, "size": outputs.sum(1)[:, :1]}


TWO = cx.Model(
    cx.networks.from_function(dense_init, heads),
    likelihood={
        "letter": cx.likelihoods.Categorical(LETTERS),
        "size": cx.likelihoods.Gaussian(scale=None),
    },
)
SEEN = np.ones(X.shape, bool)
SEEN[:, -1] = False
TWO_X = {"tokens": X, "seen": SEEN}
TWO_Y = {"letter": np.where(SEEN, Y, -1), "size": GENERATOR.normal(size=ROWS)}
TINY = {
    "num_steps": 23,
    "num_warmup": 11,
    "num_draws": 7,
    "members": 2,
    "chains": 1,
    "particles": 8,
    "thin": 1,
}
REFUSED = {
    "Enumeration": "discrete",
    "VariationalLastLayer": "targets of their own",
    "CrossFit": None,
}
"""Methods that refuse such models, with what they say; ``None``: they may run or refuse."""


def tiny(cls):
    names = {field.name for field in dataclasses.fields(cls) if field.init}
    return cls(**{name: value for name, value in TINY.items() if name in names})


QUICK = ("ivon", "variational-last-layer")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in METHODS]
)
def test_every_method_runs_with_positions_and_heads_or_says_why_not(name, tmp_path):
    cls = METHODS[name]
    weights = {"letter": SEEN}
    if REFUSED.get(cls.__name__) is not None:
        with pytest.raises((TypeError, ValueError), match=REFUSED[cls.__name__]):
            cx.fit(TWO, (TWO_X, TWO_Y), tiny(cls), weights=weights, progress=False)
        return
    posterior = cx.fit(TWO, (TWO_X, TWO_Y), tiny(cls), weights=weights, progress=False)

    predictive = posterior.predict(TWO_X, num_samples=4)
    assert predictive["letter"].probs.shape == (ROWS, LENGTH, LETTERS)
    np.testing.assert_allclose(predictive["letter"].probs.sum(-1), 1, rtol=1e-4)
    assert predictive["size"].std.shape == (ROWS,)
    scores = posterior.evaluate(TWO_X, TWO_Y, weights=weights)
    assert scores["letter"].rows == SEEN.sum()
    assert np.isfinite([scores["letter"].log_likelihood, scores["size"].log_likelihood]).all()
    assert predictive.log_prob(TWO_Y, weights=weights).shape == (ROWS,)
    repr(predictive)
    assert isinstance(posterior.diagnose(), tuple)

    posterior.save(tmp_path / "two.credax")
    loaded = cx.load(tmp_path / "two.credax", TWO.network)
    again = loaded.predict(TWO_X, num_samples=4)
    np.testing.assert_allclose(again["size"].mean, predictive["size"].mean, rtol=1e-6)


def test_heads_say_which_ones_there_are():
    posterior = cx.fit(TWO, (TWO_X, {**TWO_Y, "letter": Y}), cx.MAP(num_steps=3), progress=False)
    predictive = posterior.predict(TWO_X)
    assert list(predictive) == ["letter", "size"]
    with pytest.raises(KeyError, match="the heads are letter, size"):
        predictive["price"]
    with pytest.raises(AttributeError, match=r"predictive\['letter'\].mean"):
        predictive.mean  # noqa: B018
    with pytest.raises(ValueError, match="size missing"):
        posterior.evaluate(TWO_X, {"letter": Y})


# -- a transformer -----------------------------------------------------------------------------------


def gpt_init(key):
    keys = jax.random.split(key, 5)
    normal = lambda key, *shape: jax.random.normal(key, shape) / np.sqrt(shape[0])  # noqa: E731
    return {
        "token": jax.random.normal(keys[0], (LETTERS, WIDTH)),
        "place": 0.3 * jax.random.normal(keys[1], (LENGTH, WIDTH)),
        "attend": normal(keys[2], WIDTH, 3 * WIDTH),
        "mix": normal(keys[3], WIDTH, WIDTH),
        "last": normal(keys[4], WIDTH, LETTERS),
    }


def gpt(params, x):
    """One block of causal attention."""
    h = params["token"][x] + params["place"]
    q, k, v = jnp.split(h @ params["attend"], 3, axis=-1)
    scores = q @ k.swapaxes(1, 2) / np.sqrt(WIDTH).astype(q.dtype)
    earlier = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
    h = h + jax.nn.softmax(jnp.where(earlier, scores, -1e9)) @ v @ params["mix"]
    return jnp.tanh(h) @ params["last"]


@cache
def flax_gpt():
    nnx = pytest.importorskip("flax.nnx")

    class GPT(nnx.Module):
        def __init__(self, rngs):
            self.token = nnx.Embed(LETTERS, WIDTH, rngs=rngs)
            self.place = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs)
            self.last = nnx.Linear(WIDTH, LETTERS, rngs=rngs)

        def __call__(self, x):
            h = self.token(x) + self.place(jnp.arange(x.shape[1]))
            mask = jnp.tril(jnp.ones((1, 1, x.shape[1], x.shape[1]), bool))
            return self.last(jnp.tanh(h + self.attention(h, mask=mask)))

    return cx.networks.from_flax(GPT)


GPTS = {"function": lambda: cx.networks.from_function(gpt_init, gpt), "flax": flax_gpt}
METHODS_OF_GPT = [
    cx.MAP(num_steps=300, batch_size=20),
    cx.IVON(num_steps=2_000, batch_size=20),
    cx.DeepEnsemble(members=3, num_steps=300, batch_size=20),
    cx.Laplace(structure="diagonal", num_steps=300, batch_size=20),
]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS_OF_GPT, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("name", GPTS)
def test_a_transformer_is_unsure_where_the_language_is(name, method):
    model = cx.Model(GPTS[name](), likelihood=cx.likelihoods.Categorical(LETTERS))
    x, y = sentences(
        200
    )  # few enough to learn in seconds, and enough to be sure of what is certain
    posterior = cx.fit(model, (x, y), method, progress=False)
    predictive = posterior.predict(x)

    # Letters at even positions of y follow from the one before; those at odd positions are random.
    # A wide posterior, such as a diagonal one, knows less of both; 0.2 nats are ten standard errors.
    assert predictive.entropy[:, ::2].mean() < predictive.entropy[:, 1::2].mean() - 0.2
    right = np.mean(predictive.label == y, axis=0)
    assert right[::2].mean() > right[1::2].mean()
    if not isinstance(method, cx.MAP):
        assert predictive.mutual_information.min() >= 0
        assert predictive.mutual_information.mean() > 1e-4


@pytest.mark.slow
def test_a_causal_network_does_not_look_ahead():
    model = cx.Model(GPTS["function"](), likelihood=cx.likelihoods.Categorical(LETTERS))
    posterior = cx.fit(model, (X, Y), cx.MAP(num_steps=50), progress=False)
    changed = X.copy()
    changed[:, -1] = (changed[:, -1] + 1) % LETTERS
    before, after = posterior.predict(X).probs, posterior.predict(changed).probs
    np.testing.assert_allclose(before[:, :-1], after[:, :-1], rtol=1e-5)
    assert np.abs(before[:, -1] - after[:, -1]).max() > 1e-3


# -- images ------------------------------------------------------------------------------------------


def conv_init(key):
    first, second = jax.random.split(key)
    return {
        "first": 0.3 * jax.random.normal(first, (3, 3, 1, 4)),
        "second": 0.3 * jax.random.normal(second, (3, 3, 4, 1)),
        "bias": jnp.zeros(1),
    }


def conv(params, x):
    numbers = ("NHWC", "HWIO", "NHWC")

    def turn(x, kernel):
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    return turn(jnp.tanh(turn(x, params["first"])), params["second"]) + params["bias"]


@pytest.mark.slow
def test_a_small_network_segments_images():
    images = GENERATOR.normal(size=(40, 8, 8, 1)).astype(np.float32)
    smooth = images[..., 0] + np.roll(images[..., 0], 1, 1) + np.roll(images[..., 0], -1, 1)
    labels = (smooth > 0).astype(int)
    labels[:, 0] = labels[:, -1] = -1  # the border is not labelled
    mask = labels >= 0
    model = cx.Model(
        cx.networks.from_function(conv_init, conv), likelihood=cx.likelihoods.Bernoulli()
    )
    method = cx.DeepEnsemble(members=2, num_steps=400, batch_size=16, learning_rate=2e-2)
    posterior = cx.fit(model, (images[:30], labels[:30]), method, weights=mask[:30], progress=False)

    scores = posterior.evaluate(images[30:], labels[30:], weights=mask[30:])
    predictive = posterior.predict(images[30:])
    assert predictive.probs.shape == (10, 8, 8, 2)
    assert predictive.entropy.shape == (10, 8, 8)
    assert scores.rows == mask[30:].sum()
    assert scores.accuracy > 0.9
