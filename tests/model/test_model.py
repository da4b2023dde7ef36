"""The model: its log joint against explicit sums, its parameters, and the input that it refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, log_softmax

import credax as cx
from credax.core import random
from credax.core.typing import Draw
from credax.model import Schema, likelihoods, networks, priors
from credax.model.data import ArrayData, Batch

ROWS, BATCH = 12, 5
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(ROWS, 2))
NUMBERS = GENERATOR.normal(size=(ROWS, 2))
CLASSES = np.arange(ROWS) % 3
LABELS = (NUMBERS > 0).astype(int)
COUNTS = GENERATOR.poisson(2.0, size=(ROWS, 2))
COVARIANCE = ((0.5, 0.2), (0.2, 0.4))


def softplus(r):
    return np.logaddexp(0, r)


def factor(learned):
    """The Cholesky factor of a learned 2 x 2 covariance with these parameters."""
    matrix = np.diag(np.exp(learned["log_diagonal"]))
    matrix[1, 0] = learned["lower"][0]
    return matrix


def correlated(covariance, f, y):
    return sum(stats.multivariate_normal(f[i], covariance).logpdf(y[i]) for i in range(len(y)))


# The likelihood, the targets, and the log likelihood of the rows by scipy, given outputs and learned
# parameters.
def mixed(f, y):
    """The log density under a normal and a Student's t component, whose weight is at least 0.001."""
    share = 0.999 * expit(f[:, 0] - f[:, 1])
    scales = 0.01 + softplus(f[:, 4:])
    normal = stats.norm(f[:, 2] - 0.5, scales[:, 0]).pdf(y)
    tail = stats.t(4, f[:, 3] + 0.5, scales[:, 1]).pdf(y)
    return np.log(share * normal + (1 - share) * tail).sum()


def overdispersed(mean, shape):
    return stats.nbinom(shape, shape / (shape + mean))


def graded(f, y, learned):
    """The log probability of ordered classes, by differences of the cumulative probabilities."""
    thresholds = learned["first"][0] + np.append(0, np.cumsum(softplus(learned["gaps"])))
    reached = expit(thresholds - f)
    probs = np.diff(reached, prepend=0, append=1)
    return np.log(probs[np.arange(len(y)), y]).sum()


CASES = {
    "gaussian": (
        likelihoods.Gaussian(0.3),
        NUMBERS[:, 0],
        lambda f, y, w: stats.norm(f[:, 0], 0.3).logpdf(y).sum(),
    ),
    "gaussian, one scale per target": (
        likelihoods.Gaussian((0.3, 2.0)),
        NUMBERS,
        lambda f, y, w: stats.norm(f, [0.3, 2.0]).logpdf(y).sum(),
    ),
    "gaussian, learned": (
        likelihoods.Gaussian(None, priors.Laplace(0.5, -1.0)),
        NUMBERS,
        lambda f, y, w: stats.norm(f, np.exp(w["log_scale"])).logpdf(y).sum(),
    ),
    "student": (
        likelihoods.StudentT(5.0, 0.3),
        NUMBERS[:, :1],
        lambda f, y, w: stats.t(5.0, f, 0.3).logpdf(y).sum(),
    ),
    "student, learned": (
        likelihoods.StudentT(5.0, None),
        NUMBERS[:, 0],
        lambda f, y, w: stats.t(5.0, f[:, 0], np.exp(w["log_scale"])).logpdf(y).sum(),
    ),
    "heteroscedastic": (
        likelihoods.Heteroscedastic(0.01),
        NUMBERS,
        lambda f, y, w: stats.norm(f[:, :2], 0.01 + softplus(f[:, 2:])).logpdf(y).sum(),
    ),
    "mixture density": (
        likelihoods.MixtureDensity(2, 0.01),
        NUMBERS[:, 0],
        lambda f, y, w: mixed(f, y),
    ),
    "multivariate": (
        likelihoods.MultivariateGaussian(COVARIANCE),
        NUMBERS,
        lambda f, y, w: correlated(COVARIANCE, f, y),
    ),
    "multivariate, learned": (
        likelihoods.MultivariateGaussian(),
        NUMBERS,
        lambda f, y, w: correlated(factor(w) @ factor(w).T, f, y),
    ),
    "log-normal": (
        likelihoods.LogNormal(0.3, centre=0.5, width=2.0),
        np.exp(NUMBERS),
        lambda f, y, w: stats.lognorm(0.6, scale=np.exp(0.5 + 2 * f)).logpdf(y).sum(),
    ),
    "ordinal": (likelihoods.Ordinal(), CLASSES, graded),
    "categorical": (
        likelihoods.Categorical(),
        CLASSES,
        lambda f, y, w: log_softmax(f, axis=1)[np.arange(len(y)), y].sum(),
    ),
    "categorical, one class unseen": (
        likelihoods.Categorical(4),
        CLASSES,
        lambda f, y, w: log_softmax(f, axis=1)[np.arange(len(y)), y].sum(),
    ),
    "bernoulli": (
        likelihoods.Bernoulli(),
        LABELS[:, 0],
        lambda f, y, w: stats.bernoulli(expit(f[:, 0])).logpmf(y).sum(),
    ),
    "bernoulli, two labels": (
        likelihoods.Bernoulli(),
        LABELS,
        lambda f, y, w: stats.bernoulli(expit(f)).logpmf(y).sum(),
    ),
    "poisson": (
        likelihoods.Poisson(),
        COUNTS,
        lambda f, y, w: stats.poisson(np.exp(f)).logpmf(y).sum(),
    ),
    "negative binomial": (
        likelihoods.NegativeBinomial(),
        COUNTS,
        lambda f, y, w: overdispersed(*np.split(np.exp(f), 2, axis=1)).logpmf(y).sum(),
    ),
}
PRIOR = priors.PerLayer({"*/kernel": priors.Normal(0.5, 0.1), "*": priors.Laplace(2.0)})
every_case = pytest.mark.parametrize("case", CASES)


def test_the_table_has_every_likelihood():
    concrete = {c for c in vars(likelihoods).values() if dataclasses.is_dataclass(c)}
    made_of_others = {likelihoods.Heads, likelihoods.PerPosition}  # see test_shapes.py
    assert {type(likelihood) for likelihood, _, _ in CASES.values()} == {
        c for c in concrete - made_of_others if issubclass(c, likelihoods.Likelihood)
    }


def prepared(case):
    likelihood, y, _ = CASES[case]
    model = cx.Model(networks.mlp([3], activation="tanh"), PRIOR, likelihood)
    bound, data = model.prepare((X, y))
    start = bound.init(random.key(0))
    moved = priors.Normal(0.4).sample(random.key(1), start)
    return bound, data, moved


def log_prior_by_hand(params):
    total = 0.0
    for layer in params.values():
        total += stats.norm(0.1, 0.5).logpdf(layer["kernel"]).sum()
        total += stats.laplace(0, 2.0).logpdf(layer["bias"]).sum()
    return total


def outputs_by_hand(params, x):
    hidden = np.tanh(x @ params["layer_0"]["kernel"] + params["layer_0"]["bias"])
    return hidden @ params["layer_1"]["kernel"] + params["layer_1"]["bias"]


# -- the densities ----------------------------------------------------------------------------------


@pytest.mark.matrix
@every_case
def test_log_joint_is_prior_plus_scaled_likelihood(case, x64):
    model, data, params = prepared(case)
    _, y, log_likelihood = CASES[case]
    network, learned = model.split(jax.tree.map(np.asarray, params))
    prior = log_prior_by_hand(network)
    if learned is not None:
        others = {"gaussian, learned": stats.laplace(-1.0, 0.5), "ordinal": stats.norm(0, 3)}
        base = others.get(case, stats.norm(0, 1))
        prior += sum(base.logpdf(leaf).sum() for leaf in learned.values())
    assert model.log_prior(params) == pytest.approx(prior, rel=1e-10)

    whole = log_likelihood(outputs_by_hand(network, X), y, learned)
    everything = data.everything()
    assert model.log_likelihood(params, everything) == pytest.approx(whole, rel=1e-9)
    assert model.log_joint(params, everything) == pytest.approx(prior + whole, rel=1e-9)

    some = log_likelihood(outputs_by_hand(network, X[:BATCH]), y[:BATCH], learned)
    scale = ROWS / BATCH
    batch = Batch(data.x[:BATCH], data.y[:BATCH], jnp.asarray(scale), jnp.int32(0), 2)
    assert model.log_joint(params, batch) == pytest.approx(prior + scale * some, rel=1e-9)
    joint, state = model.train_log_joint(params, batch, (), random.key(0))
    assert joint == pytest.approx(prior + scale * some, rel=1e-9)
    assert state == ()
    value, state = model.train_log_likelihood(params, batch, (), random.key(0))
    assert value == pytest.approx(scale * some, rel=1e-9)
    assert state == ()


@pytest.mark.matrix
@every_case
@pytest.mark.parametrize("wide", [False, True])
def test_the_log_joint_and_its_gradient_have_the_float_type(case, wide):
    with jax.enable_x64(wide):
        model, data = cx.Model(networks.mlp([3]), PRIOR, CASES[case][0]).prepare(
            (X, CASES[case][1])
        )
        params = jax.eval_shape(model.init, jax.random.key(0))
        both = jax.value_and_grad(model.log_joint)
        joint, gradient = jax.eval_shape(both, params, data.everything())
        assert joint.shape == ()
        assert joint.dtype == jnp.result_type(float)
        assert not joint.weak_type
        for leaf, like in zip(jax.tree.leaves(gradient), jax.tree.leaves(params), strict=True):
            assert leaf.dtype == like.dtype == joint.dtype
            assert not leaf.weak_type


def test_batches_are_unbiased_for_the_whole(x64):
    model, data, params = prepared("gaussian, learned")
    steps = jnp.arange(3, dtype=jnp.int32)
    estimate = lambda step: model.log_joint(params, data.batch(random.key(4), step, 4))  # noqa: E731
    values = np.asarray([estimate(step) for step in steps])
    assert values.mean() == pytest.approx(
        float(model.log_joint(params, data.everything())), rel=1e-12
    )
    assert values.std() > 0


# -- parameters -------------------------------------------------------------------------------------


@pytest.mark.matrix
@every_case
def test_split(case):
    model, _, params = prepared(case)
    network, learned = model.split(params)
    assert set(network) == {"layer_0", "layer_1"}
    if not model.likelihood.learned:
        assert learned is None
        assert network is params
        return
    assert set(params) == {"network", "likelihood"}
    assert learned is params["likelihood"]
    assert network is params["network"]
    start = model.init(random.key(0))
    # Three ordered classes are equally probable at first: thresholds of -log 2 and log 2.
    ordered = {"first": -np.log(2), "gaps": np.log(3)} if case == "ordinal" else {}
    for name, leaf in start["likelihood"].items():
        np.testing.assert_allclose(leaf, ordered.get(name, 0), rtol=1e-6)
    assert jax.tree.structure(start) == jax.tree.structure(params)


def test_discrete_weights_start_at_their_values():
    model = cx.Model(networks.mlp([20]), priors.Discrete([-1, 0, 2]), likelihoods.Gaussian(None))
    model = model.bind((X, NUMBERS))
    assert model.discrete
    assert not cx.Model(networks.mlp()).discrete
    params = model.init(random.key(0))
    values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(params["network"])])
    assert set(values) == {-1, 0, 2}


def test_starting_at():
    model, data, params = prepared("gaussian")
    moved = model.starting_at(Draw(params, {"mean": jnp.ones(1)}))
    assert moved.init(random.key(5)) is params
    assert moved.init_state() == {"mean": jnp.ones(1)}
    assert model.init_state() == ()
    assert moved == model
    assert hash(moved) == hash(model)
    np.testing.assert_array_equal(
        moved.log_joint(params, data.everything()), model.log_joint(params, data.everything())
    )
    assert not np.array_equal(
        model.init(random.key(5))["layer_0"]["kernel"], params["layer_0"]["kernel"]
    )


# -- binding to data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "likelihood, y, schema",
    [
        (likelihoods.Gaussian(), NUMBERS[:, 0], Schema((2,), None, 1)),
        (likelihoods.Gaussian(), NUMBERS[:, :1], Schema((2,), 1, 1)),
        (likelihoods.Gaussian(), NUMBERS, Schema((2,), 2, 2)),
        (likelihoods.Heteroscedastic(), NUMBERS, Schema((2,), 2, 4)),
        (likelihoods.Categorical(), CLASSES, Schema((2,), None, 3)),
        (likelihoods.Categorical(7), CLASSES[:, None], Schema((2,), 1, 7)),
        (likelihoods.Bernoulli(), LABELS[:, 0], Schema((2,), None, 1)),
        (likelihoods.Poisson(), COUNTS[:, 0], Schema((2,), None, 1)),
    ],
)
def test_bind(likelihood, y, schema, compilations):
    model = cx.Model(networks.mlp([3]), likelihood=likelihood)
    # JAX compiles a program for the transfer of each new shape, which is not what is counted here.
    jax.random.key(0)
    for dtype in (np.float32, np.int32):
        jnp.asarray(X.astype(dtype)), jnp.asarray(np.asarray(y).astype(dtype))
    with compilations() as count:
        bound = model.bind((X, y))
    assert count() == 0
    assert bound.schema == schema
    assert model.schema is None
    assert bound.network.inputs == 2
    assert bound.network.outputs == schema.outputs
    assert bound.bind((X, y)) == bound
    assert hash(bound.bind((X, y))) == hash(bound)
    assert bound != model


def test_prepare_puts_checked_data_on_the_device():
    model = cx.Model(networks.mlp([3]), likelihood=likelihoods.Categorical())
    bound, data = model.prepare((X.tolist(), CLASSES.astype(float)))
    assert isinstance(data, ArrayData)
    assert data.rows == ROWS
    assert isinstance(data.x, jax.Array)
    assert data.x.dtype == jnp.result_type(float)
    assert data.y.dtype == jnp.int32
    assert bound.likelihood == likelihoods.Categorical(3)
    images = cx.Model(networks.cnn([2], [3]), likelihood=likelihoods.Gaussian())
    assert images.bind((np.zeros((4, 6, 5)), np.zeros(4))).schema.input_shape == (6, 5)


def test_a_mapping_is_a_prior():
    mapping = {"layer_0/*": priors.Normal(0.1), "*": priors.Normal(1.0)}
    one, other = cx.Model(networks.mlp(), mapping), cx.Model(networks.mlp(), dict(mapping))
    assert one.prior == priors.PerLayer(mapping)
    assert one == other
    assert hash(one) == hash(other)


def test_defaults():
    model = cx.Model(networks.mlp())
    assert model.prior == priors.Normal(1.0)
    assert model.likelihood == likelihoods.Gaussian(scale=None)
    assert model == cx.Model(networks.mlp(), priors.Normal())
    assert hash(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        model.prior = priors.Normal(2.0)


def flat(params, x):
    return x[:, 0] * params


MODEL_ERRORS = [
    (lambda: cx.Model(None), TypeError, r"Model\(network=...\) must be a network, .*; got None"),
    (
        lambda: cx.Model(networks.mlp),
        TypeError,
        r"Model\(network=...\) must be a network, .*function mlp",
    ),
    (
        lambda: cx.Model(networks.mlp(), 1.0),
        TypeError,
        r"Model\(prior=...\) must be a prior, .* or a mapping .*; got 1.0",
    ),
    (
        lambda: cx.Model(networks.mlp(), priors.Normal),
        TypeError,
        r"Model\(prior=...\) must be a prior",
    ),
    (
        lambda: cx.Model(networks.mlp(), likelihood="gaussian"),
        TypeError,
        r"Model\(likelihood=...\) must be a likelihood, .*; got 'gaussian'",
    ),
    (
        lambda: cx.Model(networks.mlp()).check_inputs(X),
        ValueError,
        r"has not seen data yet: fit it, or call model.bind",
    ),
    (
        lambda: cx.Model(networks.from_function(lambda key: jnp.ones(1), flat)).bind((X, NUMBERS)),
        ValueError,
        r"must map x to outputs of shape \(rows, 2\) for Gaussian and y of shape \(rows, 2\); got \(rows,\)",
    ),
    (
        lambda: cx.Model(
            networks.from_function(lambda key: jnp.ones(1), lambda p, x: x.astype(int))
        ).bind((X, NUMBERS)),
        ValueError,
        r"must map x to floating-point outputs; got int32",
    ),
    (
        lambda: cx.Model(networks.from_function(lambda key: {}, flat)).bind((X, NUMBERS)),
        ValueError,
        r"Model\(network=...\) must have parameters; its init returned none",
    ),
    (
        lambda: cx.Model(networks.mlp(), {"layer_9/*": priors.Normal(), "*": priors.Normal()}).bind(
            (X, NUMBERS)
        ),
        ValueError,
        r"'layer_9/\*' matches none. Similar paths: 'layer_",
    ),
    (
        lambda: cx.Model(networks.mlp(), {"layer_0/*": priors.Normal()}).bind((X, NUMBERS)),
        ValueError,
        r"must match every parameter; 'layer_1/bias' matches none of 'layer_0/\*'",
    ),
    (
        lambda: cx.Model(networks.mlp(), likelihood=likelihoods.Gaussian((1.0, 2.0, 3.0))).bind(
            (X, NUMBERS)
        ),
        ValueError,
        r"Gaussian\(scale=...\) must be one number, or one for each of the 2 targets",
    ),
]


@pytest.mark.parametrize(
    "call, error, message", MODEL_ERRORS, ids=[row[2][:48] for row in MODEL_ERRORS]
)
def test_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_new_rows_must_look_like_those_of_the_fit():
    model = cx.Model(networks.mlp([3]), likelihood=likelihoods.Categorical()).bind((X, CLASSES))
    np.testing.assert_array_equal(model.check_inputs(X[:3]), X[:3].astype(model_float()))
    with pytest.raises(
        ValueError, match=r"x must have shape \(rows, 2\), as in the fit; got \(rows, 1\)"
    ):
        model.check_inputs(X[:, :1])
    with pytest.raises(
        ValueError, match=r"x must have shape \(rows, 2\), as in the fit; got \(rows\)"
    ):
        model.check_inputs(X[:, 0])
    np.testing.assert_array_equal(model.check_targets([2, 2], 2), [2, 2])
    with pytest.raises(ValueError, match="y must have as many rows as x, 3; got 2"):
        model.check_targets([1, 2], 3)
    with pytest.raises(
        ValueError, match=r"y must have shape \(rows,\), as in the fit; got \(2, 1\)"
    ):
        model.check_targets([[1], [2]], 2)
    with pytest.raises(
        ValueError, match=r"from 0 to 2 for Categorical\(num_classes=3\); got labels 1, 3"
    ):
        model.check_targets([1, 3], 2)


def model_float():
    return jnp.result_type(float)


# -- log densities ----------------------------------------------------------------------------------


def start(key):
    return {"a": jax.random.normal(key, (2,))}


def density(params):
    return -jnp.sum(params["a"] ** 2)


def test_log_density():
    model = cx.LogDensity(start, density)
    assert model == cx.LogDensity(start, density)
    assert hash(model) == hash(cx.LogDensity(start, density))
    assert model != cx.LogDensity(start, lambda params: -density(params))
    assert model.bind(None) == model
    assert model.prepare(None) == (model, None)
    params = model.init(random.key(0))
    np.testing.assert_array_equal(params["a"], start(random.key(0))["a"])
    assert model.log_joint(params) == density(params)
    assert model.log_joint(params, None, state=(), key=None) == density(params)
    assert model.train_log_joint(params, None, (), random.key(0)) == (density(params), ())
    assert model.init_state() == ()
    assert not model.discrete
    moved = model.starting_at(Draw({"a": jnp.ones(2)}))
    np.testing.assert_array_equal(moved.init(random.key(0))["a"], 1)
    assert moved == model


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: cx.LogDensity(3, density),
            TypeError,
            r"LogDensity\(init=...\) must be a function; got 3",
        ),
        (
            lambda: cx.LogDensity(start, None),
            TypeError,
            r"LogDensity\(log_joint=...\) must be a function; got None",
        ),
        (
            lambda: cx.LogDensity(start, density).bind((X, NUMBERS)),
            TypeError,
            r"data must be None for a LogDensity; got tuple",
        ),
        (
            lambda: cx.LogDensity(start, lambda params: params["a"]).bind(None),
            ValueError,
            r"LogDensity\(log_joint=...\) must return a scalar; got shape \(2,\)",
        ),
        (
            lambda: cx.LogDensity(start, lambda params: (density(params), 1)).bind(None),
            ValueError,
            r"LogDensity\(log_joint=...\) must return a scalar; got shape tuple",
        ),
        (
            lambda: cx.LogDensity(lambda key: {"a": jnp.zeros(2, int)}, density).bind(None),
            ValueError,
            r"must be a floating-point array; got int32 at 'a'",
        ),
        (
            lambda: cx.LogDensity(lambda key: {}, lambda params: jnp.zeros(())).bind(None),
            ValueError,
            r"LogDensity\(init=...\) must return parameters",
        ),
    ],
)
def test_log_density_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
