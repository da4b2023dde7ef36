"""Targets at positions are the same rows one after another; masks leave positions out; heads add up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.rows import Observed, RowTree
from credax.model import likelihoods
from credax.model.data import Batch
from credax.model.likelihoods import Heads, PerPosition
from credax.model.shapes import flattened, head

ROWS, LENGTH, WIDTH, CLASSES = 7, 4, 3, 5
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, LENGTH, WIDTH)).astype(np.float32)


def weights_init(outputs):
    def init(key):
        return {"kernel": jax.random.normal(key, (WIDTH, outputs)), "bias": jnp.ones(outputs)}

    return init


def apply(params, x):
    return x @ params["kernel"] + params["bias"]


CASES = {
    "categorical": (likelihoods.Categorical(CLASSES), CLASSES, lambda o: o.argmax(-1)),
    "bernoulli": (likelihoods.Bernoulli(), 1, lambda o: (o[..., 0] > 0).astype(int)),
    "labels": (likelihoods.Bernoulli(), 2, lambda o: (o > 0).astype(int)),
    "gaussian": (likelihoods.Gaussian(0.3), 1, lambda o: o[..., 0]),
    "targets": (likelihoods.Gaussian((0.3, 0.5)), 2, lambda o: o),
    "learned": (likelihoods.Gaussian(None), 1, lambda o: o[..., 0]),
    "heteroscedastic": (likelihoods.Heteroscedastic(), 2, lambda o: o[..., 0]),
    "student": (likelihoods.StudentT(), 1, lambda o: o[..., 0]),
    "poisson": (likelihoods.Poisson(), 1, lambda o: np.abs(o[..., 0]).round()),
    "negative binomial": (likelihoods.NegativeBinomial(), 2, lambda o: np.abs(o[..., 0]).round()),
    "correlated": (likelihoods.MultivariateGaussian(), 2, lambda o: o),
    "mixture": (likelihoods.MixtureDensity(2), 6, lambda o: o[..., 0]),
    "log-normal": (likelihoods.LogNormal(0.4), 1, lambda o: np.exp(o[..., 0])),
    "ordinal": (likelihoods.Ordinal(3), 1, lambda o: np.clip(o[..., 0].round(), 0, 2).astype(int)),
}
"""For each likelihood, the number of outputs and a function from outputs to targets."""


def models(name):
    """The model of sequences, the model of their positions as rows, and the targets of the former."""
    likelihood, outputs, targets = CASES[name]
    y = targets(GENERATOR.normal(size=(ROWS, LENGTH, outputs)).astype(np.float32))
    network = cx.networks.from_function(weights_init(outputs), apply)
    model = cx.Model(network, likelihood=likelihood)
    return model, y


def flat(a):
    return a.reshape(-1, *a.shape[2:])


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_the_log_joint_is_that_of_the_positions_as_rows(name):
    model, y = models(name)
    whole, data = model.prepare((X, y))
    rows, flat_data = model.prepare((flat(X), flat(y)))
    params = whole.sample_prior(jax.random.key(0))

    got = jax.value_and_grad(whole.log_joint)(params, data.everything())
    want = jax.value_and_grad(rows.log_joint)(params, flat_data.everything())

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-4), got, want)
    assert float(data.total) == flat_data.rows


@pytest.mark.parametrize("name", ["categorical", "targets", "learned", "poisson"])
def test_a_hidden_position_is_left_out(name):
    model, y = models(name)
    mask = GENERATOR.random((ROWS, LENGTH)) > 0.4
    hidden = y.astype(np.float64)
    hidden[~mask] = np.nan
    whole, data = model.prepare((X, hidden), mask)
    rows, seen = model.prepare((X[mask], y[mask]))
    params = whole.sample_prior(jax.random.key(0))

    got = whole.log_joint(params, data.everything())

    np.testing.assert_allclose(got, rows.log_joint(params, seen.everything()), rtol=1e-5)
    assert float(data.total) == pytest.approx(mask.sum())


def test_weights_of_rows_and_of_positions_multiply_the_log_likelihood():
    model, y = models("categorical")
    each = GENERATOR.random(ROWS).astype(np.float32)
    of_rows, data = model.prepare((X, y), each)
    of_positions, spread = model.prepare((X, y), np.repeat(each[:, None], LENGTH, 1))
    params = of_rows.sample_prior(jax.random.key(0))

    got, want = (
        m.log_likelihood(params, d.everything())
        for m, d in [(of_rows, data), (of_positions, spread)]
    )

    np.testing.assert_allclose(got, want, rtol=1e-5)
    np.testing.assert_allclose(float(data.total), float(spread.total), rtol=1e-5)


def test_a_batch_of_sequences_estimates_the_sum_over_all():
    model, y = models("categorical")
    mask = GENERATOR.random((ROWS, LENGTH)) > 0.3
    model, data = model.prepare((X, y), mask)
    params = model.sample_prior(jax.random.key(0))
    batches = [data.batch(jax.random.key(3), jnp.asarray(step), 1) for step in range(ROWS)]

    each = [float(model.log_likelihood(params, batch)) for batch in batches]

    whole = float(model.log_likelihood(params, data.everything()))
    np.testing.assert_allclose(np.mean(each), whole, rtol=1e-5)
    assert all(float(batch.total) == pytest.approx(mask.sum()) for batch in batches)


def test_images_have_two_axes_of_positions():
    images = GENERATOR.normal(size=(3, 4, 5, WIDTH)).astype(np.float32)
    y = GENERATOR.integers(0, CLASSES, (3, 4, 5))
    network = cx.networks.from_function(weights_init(CLASSES), apply)
    model, data = cx.Model(network, likelihood=likelihoods.Categorical(CLASSES)).prepare(
        (images, y)
    )

    assert model.schema.positions == (4, 5)
    assert isinstance(model.likelihood, PerPosition)
    assert data.y.values.shape == (3, 20)
    assert model.schema.outputs == 20 * CLASSES
    assert flattened(model).schema.outputs == CLASSES


def test_classes_are_counted_at_visible_positions_only():
    network = cx.networks.from_function(weights_init(2), apply)
    y = GENERATOR.integers(0, 2, (ROWS, LENGTH))
    y[0] = -100
    mask = np.ones((ROWS, LENGTH), bool)
    mask[0] = False

    model = cx.Model(network, likelihood=likelihoods.Categorical()).prepare((X, y), mask)[0]

    assert model.likelihood.likelihood.num_classes == 2


def test_standardised_targets_have_the_scale_of_visible_positions():
    network = cx.networks.from_function(weights_init(1), apply)
    y = 100 + 5 * GENERATOR.normal(size=(ROWS, LENGTH))
    mask = np.ones((ROWS, LENGTH))
    mask[:, 0] = 0
    model = cx.Model(network, likelihood=likelihoods.Gaussian(0.1), standardise=True)

    bound, data = model.prepare((X, np.where(mask, y, np.inf)), mask)

    scaling = bound.frame.y_scaling
    assert scaling.centre[0] == pytest.approx(y[:, 1:].mean())
    assert scaling.scale[0] == pytest.approx(y[:, 1:].std())
    np.testing.assert_allclose(np.asarray(data.y.values)[:, 1:].mean(), 0, atol=1e-5)


def test_a_likelihood_takes_further_axes():
    outputs = jnp.asarray(GENERATOR.normal(size=(ROWS, LENGTH, CLASSES)), jnp.float32)
    y = GENERATOR.integers(0, CLASSES, (ROWS, LENGTH))
    each = likelihoods.Categorical(CLASSES).log_prob(outputs, y)
    want = likelihoods.Categorical(CLASSES).log_prob(flat(outputs), flat(y))
    np.testing.assert_array_equal(each.reshape(-1), want)
    numbers = likelihoods.Gaussian(0.1).log_prob(outputs[..., :1], outputs[..., 1])
    assert numbers.shape == (ROWS, LENGTH)
    assert likelihoods.Bernoulli().log_prob(outputs[..., :1], y % 2).shape == (ROWS, LENGTH)


def test_two_axes_of_targets_mean_what_they_meant():
    """A network with outputs (rows, targets) has no positions, whatever y is."""
    network = cx.networks.from_function(weights_init(LENGTH), lambda p, x: apply(p, x)[:, 0])
    y = GENERATOR.normal(size=(ROWS, LENGTH))
    model, data = cx.Model(network, likelihood=likelihoods.Gaussian(0.1)).prepare((X, y))
    assert model.network is network
    assert model.schema.positions is None
    assert data.y.shape == (ROWS, LENGTH)
    assert data.mean_weight is None


# -- several heads -------------------------------------------------------------------------------


def two_heads(params, x):
    outputs = apply(params, x)
    return {"price": outputs[:, 0, :1], "word": outputs[..., 1:]}


HEADS = {"price": likelihoods.Gaussian(None), "word": likelihoods.Categorical()}
Y = {"price": GENERATOR.normal(size=ROWS), "word": GENERATOR.integers(0, 2, (ROWS, LENGTH))}
TWO = cx.networks.from_function(weights_init(3), two_heads)


def test_the_log_likelihoods_of_heads_add_up():
    model, data = cx.Model(TWO, likelihood=HEADS).prepare((X, Y))
    params = model.sample_prior(jax.random.key(0))
    outputs = two_heads(params["network"], X)
    scale = np.exp(float(params["likelihood"]["price"]["log_scale"][0]))

    got = model.log_likelihood(params, data.everything())

    price = likelihoods.Gaussian(scale).log_prob(outputs["price"], Y["price"]).sum()
    word = likelihoods.Categorical(2).log_prob(outputs["word"], Y["word"]).sum()
    np.testing.assert_allclose(got, price + word, rtol=1e-5)
    assert isinstance(model.likelihood, Heads)
    assert isinstance(data.y, RowTree)
    assert isinstance(data.y.tree["word"], Observed)
    np.testing.assert_allclose(
        model.log_prior(params),
        model._prior.log_prob(params["network"])
        + HEADS["price"].log_prior(params["likelihood"]["price"]),
        rtol=1e-6,
    )


def test_the_model_of_a_head_has_its_outputs_and_parameters():
    model, data = cx.Model(TWO, likelihood=HEADS).prepare((X, Y))
    params = model.sample_prior(jax.random.key(0))
    parts = {name: head(model, name) for name in HEADS}
    each = [
        part.log_likelihood(params, Batch.of(data.x, data.y.tree[name]))
        for name, part in parts.items()
    ]
    np.testing.assert_allclose(
        sum(each), model.log_likelihood(params, data.everything()), rtol=1e-5
    )


def test_weights_of_the_rows_of_a_head_count_for_its_positions():
    rows = np.arange(ROWS) >= 3
    hidden = dict(Y, word=np.where(rows[:, None], Y["word"], -1))
    model, data = cx.Model(TWO, likelihood=HEADS).prepare((X, hidden), {"word": rows})
    params = model.sample_prior(jax.random.key(0))
    outputs = two_heads(params["network"], X)
    scale = np.exp(float(params["likelihood"]["price"]["log_scale"][0]))
    price = likelihoods.Gaussian(scale).log_prob(outputs["price"], Y["price"]).sum()
    word = likelihoods.Categorical(2).log_prob(outputs["word"][3:], Y["word"][3:]).sum()
    got = model.log_likelihood(params, data.everything())
    np.testing.assert_allclose(got, price + word, rtol=1e-5)


def test_a_target_that_is_missing_for_some_rows_is_hidden_by_the_weights_of_its_head():
    missing = dict(Y, price=np.where(np.arange(ROWS) < 3, np.nan, Y["price"]))
    weights = {"price": np.arange(ROWS) >= 3}
    model, data = cx.Model(TWO, likelihood=HEADS).prepare((X, missing), weights)
    params = model.sample_prior(jax.random.key(0))
    outputs = two_heads(params["network"], X)
    scale = np.exp(float(params["likelihood"]["price"]["log_scale"][0]))
    price = likelihoods.Gaussian(scale).log_prob(outputs["price"][3:], Y["price"][3:]).sum()
    word = likelihoods.Categorical(2).log_prob(outputs["word"], Y["word"]).sum()
    np.testing.assert_allclose(
        model.log_likelihood(params, data.everything()), price + word, rtol=1e-5
    )


# -- bad input -------------------------------------------------------------------------------------

CLASSIFIER = cx.Model(
    cx.networks.from_function(weights_init(CLASSES), apply),
    likelihood=likelihoods.Categorical(CLASSES),
)
LABELS = GENERATOR.integers(0, CLASSES, (ROWS, LENGTH))

BAD = {
    "shorter targets": (
        CLASSIFIER,
        X,
        LABELS[:, 1:],
        None,
        r"\(rows, 4\).*outputs of shape \(rows, 4, 5\); got \(rows, 3\)",
    ),
    "fewer rows": (CLASSIFIER, X, LABELS[1:], None, "same number of rows; got 7 and 6"),
    "too many axes": (
        CLASSIFIER,
        X,
        np.zeros((ROWS, LENGTH, 2, 2), int),
        None,
        "got .rows, 4, 2, 2.",
    ),
    "label out of range": (CLASSIFIER, X, LABELS + 1, None, "whole numbers from 0 to 4"),
    "nothing visible": (
        CLASSIFIER,
        X,
        LABELS,
        np.zeros((ROWS, LENGTH)),
        "at least one position; they hide all",
    ),
    "no row visible": (CLASSIFIER, X, LABELS, np.zeros(ROWS), "at least one row"),
    "negative weight": (CLASSIFIER, X, LABELS, np.full((ROWS, LENGTH), -1), "must not be negative"),
    "weights of other positions": (
        CLASSIFIER,
        X,
        LABELS,
        np.ones((ROWS, 3)),
        r"\(7,\), one for each row, or \(7, 4\)",
    ),
    "number of classes": (
        cx.Model(CLASSIFIER.network, likelihood=likelihoods.Categorical(9)),
        *(X, LABELS, None),
        r"\(rows, 4, 9\) for Categorical and y of shape \(rows, 4\); got \(rows, 4, 5\)",
    ),
    "time before rows": (
        cx.Model(
            cx.networks.from_function(
                weights_init(CLASSES), lambda p, x: apply(p, x).swapaxes(0, 1)
            ),
            likelihood=likelihoods.Categorical(CLASSES),
        ),
        *(X, LABELS, None),
        r"\(rows, ..., outputs\); got \(4, 2, 5\) for 2 rows",
    ),
    "missing head": (
        cx.Model(TWO, likelihood=HEADS),
        X,
        {"price": Y["price"]},
        None,
        "word missing",
    ),
    "unexpected head": (
        cx.Model(TWO, likelihood=HEADS),
        X,
        {**Y, "size": Y["price"]},
        None,
        "size unexpected",
    ),
    "targets without names": (
        cx.Model(TWO, likelihood=HEADS),
        X,
        Y["price"],
        None,
        "dictionary of targets",
    ),
    "a head's targets": (
        cx.Model(TWO, likelihood=HEADS),
        X,
        {**Y, "word": Y["word"][:, 1:]},
        None,
        "Head 'word': y must",
    ),
    "weights of no head": (
        cx.Model(TWO, likelihood=HEADS),
        X,
        Y,
        {"size": np.ones(ROWS)},
        "names of heads",
    ),
    "no such output": (
        cx.Model(TWO, likelihood={**HEADS, "size": likelihoods.Poisson()}),
        *(X, {**Y, "size": Y["price"]}, None),
        "return outputs for price, word, size; got size missing",
    ),
    "one output for heads": (
        cx.Model(CLASSIFIER.network, likelihood=HEADS),
        *(X, Y, None),
        "dictionary of outputs with the names of the heads, price, word",
    ),
    "standardised heads": (
        cx.Model(TWO, likelihood=HEADS, standardise=True),
        X,
        Y,
        None,
        "False or 'x' for several heads",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_before_anything_compiles(name, compilations):
    model, x, y, weights, message = BAD[name]
    with compilations() as count, pytest.raises((TypeError, ValueError), match=message):
        model.prepare((x, y), weights)
    assert count() == 0


@pytest.mark.parametrize(
    "value, message",
    [
        ({}, "a mapping of names to likelihoods"),
        ({"a": 1}, "a mapping of names to likelihoods"),
        ({"a/b": likelihoods.Gaussian()}, "without any of"),
        ({"a": Heads(HEADS)}, "a mapping of names to likelihoods"),
    ],
)
def test_heads_have_names_and_likelihoods(value, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cx.Model(TWO, likelihood=value)


def test_a_bound_model_can_be_bound_to_other_shapes():
    model, y = models("categorical")
    bound, _ = model.prepare((X, y))
    again, data = bound.prepare((X[:, :2], y[:, :2]))
    assert again.schema.positions == (2,)
    assert data.y.values.shape == (ROWS, 2)
    bound, _ = cx.Model(TWO, likelihood=HEADS).prepare((X, Y))
    again, _ = bound.prepare((X, Y))
    assert again == bound
