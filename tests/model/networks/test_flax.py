"""Flax modules give the outputs that Flax gives, and can be fitted by every family of methods."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.trees import named_leaves

pytest.importorskip("flax")
from flax import linen, nnx

# With so few steps the posteriors are poor, and some methods warn about it.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(24, 3)).astype(np.float32) + 1
Y = np.sin(X[:, 0]).astype(np.float32)
IMAGES = GENERATOR.normal(size=(12, 6, 6, 1)).astype(np.float32) + 1
TOKENS = GENERATOR.integers(0, 11, size=(12, 5))
KEY = cx.random.key(3)
NOISE = cx.likelihoods.Gaussian(0.3)


class Perceptron(nnx.Module):
    """A perceptron with dropout."""

    def __init__(self, rngs, inputs=3):
        self.layers = nnx.List([nnx.Linear(inputs, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)])
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = self.dropout(jnp.tanh(layer(x)))
        return self.head(x)


class Residual(nnx.Module):
    """A small ResNet: batch normalisation, dropout and a shortcut."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.conv = nnx.Conv(4, 4, (3, 3), rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4, 1, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)
        x = x + self.conv(nnx.relu(self.norm(x)))
        return self.head(self.dropout(jnp.mean(x, (1, 2))))


class Transformer(nnx.Module):
    """One attention block over tokens."""

    def __init__(self, rngs):
        self.embedding = nnx.Embed(11, 8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        x = self.embedding(x)
        return self.head(jnp.mean(self.norm(x + self.attention(x)), 1))


class LinenResidual(linen.Module):
    """The same network, with a single argument for dropout and batch statistics."""

    @linen.compact
    def __call__(self, x, train: bool):
        x = linen.Conv(4, (3, 3))(x)
        y = linen.relu(linen.BatchNorm(use_running_average=not train, name="norm")(x))
        x = jnp.mean(x + linen.Conv(4, (3, 3))(y), (1, 2))
        x = linen.Dropout(0.5, deterministic=not train)(x)
        return linen.Dense(1, name="head")(x)


class LinenTransformer(linen.Module):
    @linen.compact
    def __call__(self, x, deterministic: bool):
        x = linen.Embed(11, 8)(x)
        x = x + linen.MultiHeadDotProductAttention(2, dropout_rate=0.5)(
            x, deterministic=deterministic
        )
        return linen.Dense(1, name="head")(jnp.mean(linen.LayerNorm()(x), 1))


RESIDUAL = cx.networks.from_flax(Residual(nnx.Rngs(0)), pretrained=True)
PERCEPTRON = cx.networks.from_flax(Perceptron)
LINEN = cx.networks.from_flax(LinenResidual())


def fit(method, network=PERCEPTRON, data=(X, Y), **arguments):
    model = cx.Model(network, likelihood=NOISE)
    return cx.fit(model, data, method, progress=False, **arguments)


def random_params(network):
    """Parameters that differ from those of the module."""
    params = jax.jit(network.init)(KEY)
    return jax.tree.map(lambda leaf: leaf + 0.1, params)


# -- the same function ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made, x",
    [(Perceptron, X), (Residual, IMAGES), (Transformer, TOKENS)],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_nnx_outputs_are_those_of_the_module(made, x):
    module = made(nnx.Rngs(1))
    network = cx.networks.from_flax(module, pretrained=True)
    params, state = network.init(KEY), network.init_state()
    module.eval()
    apply, call = jax.jit(network.apply), nnx.jit(lambda module, x: module(x))
    np.testing.assert_array_equal(apply(params, x, state), call(module, x))
    shifted = random_params(network)
    for path, value in nnx.to_flat_state(nnx.state(module, nnx.Param)):
        value[...] = dict(named_leaves(shifted))["/".join(map(str, path))]
    np.testing.assert_array_equal(apply(shifted, x, state), call(module, x))
    assert np.any(apply(shifted, x, state) != apply(params, x, state))


@pytest.mark.slow
@pytest.mark.parametrize("module, x", [(LinenResidual(), IMAGES), (LinenTransformer(), TOKENS)])
def test_linen_outputs_are_those_of_the_module(module, x):
    network = cx.networks.from_flax(module).build(x.shape[1:], 1)
    params, state = random_params(network), network.init_state()
    flag = {"train": False} if isinstance(module, LinenResidual) else {"deterministic": True}
    variables = {"params": params, **(state or {})}
    wanted = jax.jit(lambda v, x: module.apply(v, x, **flag))(variables, x)
    np.testing.assert_array_equal(jax.jit(network.apply)(params, x, state), wanted)


# -- batch statistics and keys --------------------------------------------------------------------


@pytest.mark.parametrize(
    "network", [RESIDUAL, pytest.param(LINEN, marks=pytest.mark.slow)], ids=["nnx", "linen"]
)
def test_training_updates_statistics_and_prediction_does_not(network):
    network = network.build(IMAGES.shape[1:], 1)
    params, state = jax.jit(network.init)(KEY), network.init_state()
    call = jax.jit(network.call, static_argnames="train")
    _, new = call(params, IMAGES, state=state, key=None, train=True)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
        assert np.all(before != after)
    _, held = call(params, IMAGES, state=state, key=KEY, train=False)
    jax.tree.map(np.testing.assert_array_equal, held, state)


def test_nnx_statistics_are_those_of_the_module():
    module = Residual(nnx.Rngs(0))
    module.train()
    module.dropout.deterministic = True
    outputs = nnx.jit(lambda module, x: module(x))(module, IMAGES)
    params, state = RESIDUAL.init(KEY), RESIDUAL.init_state()
    call = jax.jit(RESIDUAL.call, static_argnames="train")
    got, new = call(params, IMAGES, state=state, key=None, train=True)
    np.testing.assert_array_equal(got, outputs)
    np.testing.assert_array_equal(new["norm"]["mean"], module.norm.mean[...])
    np.testing.assert_array_equal(new["norm"]["var"], module.norm.var[...])


@pytest.mark.slow
def test_linen_statistics_are_those_of_the_module():
    network = LINEN.build(IMAGES.shape[1:], 1)
    params, state = jax.jit(network.init)(KEY), network.init_state()
    rngs = {"dropout": jax.random.key(0)}

    @jax.jit
    def train(variables):
        module = LinenResidual()
        return module.apply(variables, IMAGES, train=True, rngs=rngs, mutable=["batch_stats"])

    _, wanted = train({"params": params, **state})
    call = jax.jit(network.call, static_argnames="train")
    _, new = call(params, IMAGES, state=state, key=KEY, train=True)
    for one, other in zip(jax.tree.leaves(new), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "network, x",
    [
        (PERCEPTRON, X),
        pytest.param(RESIDUAL, IMAGES, marks=pytest.mark.slow),
        (LINEN, IMAGES),
        pytest.param(cx.networks.from_flax(LinenTransformer()), TOKENS, marks=pytest.mark.slow),
    ],
    ids=["nnx", "nnx-norm", "linen-norm", "linen-attention"],
)
def test_the_key_decides_what_is_dropped(network, x):
    network = network.build(x.shape[1:], 1)
    params, state = jax.jit(network.init)(KEY), network.init_state()
    call = jax.jit(lambda key, x: network.call(params, x, state=state, key=key, train=False)[0])

    def outputs(key):
        return np.asarray(call(None if key is None else cx.random.key(key), x))

    np.testing.assert_array_equal(outputs(1), outputs(1))
    assert np.any(outputs(1) != outputs(2))
    assert np.any(outputs(1) != outputs(None))
    # In prediction the running statistics are used, so that a row does not depend on the others.
    np.testing.assert_allclose(call(None, x[:1]), outputs(None)[:1], rtol=1e-5, atol=1e-6)


def test_one_argument_for_dropout_and_statistics_is_refused_where_they_differ():
    class Both(nnx.Module):
        def __init__(self, rngs):
            self.norm, self.dropout = nnx.BatchNorm(3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
            self.head = nnx.Linear(3, 1, rngs=rngs)

        def __call__(self, x, train):
            x = self.norm(x, use_running_average=not train)
            return self.head(self.dropout(x, deterministic=not train))

    network = cx.networks.from_flax(Both)
    arguments = {"state": network.init_state(), "key": KEY}
    with pytest.raises(ValueError, match="single argument 'train' for both"):
        network.call(network.init(KEY), X, train=False, **arguments)
    network.call(network.init(KEY), X, train=True, **arguments)


# -- starts, equality, files ----------------------------------------------------------------------


def test_first_weights():
    module = Perceptron(nnx.Rngs(0))
    own = cx.networks.from_flax(module, pretrained=True)
    kernel = module.head.kernel[...]
    for key in (1, 2):
        np.testing.assert_array_equal(own.init(cx.random.key(key))["head"]["kernel"], kernel)
    again = cx.networks.from_flax(module)
    one, other = (again.init(cx.random.key(key))["head"]["kernel"] for key in (1, 2))
    assert np.any(one != other)
    np.testing.assert_array_equal(np.sort(one, None), np.sort(kernel, None))
    one, other = (PERCEPTRON.init(cx.random.key(key))["head"]["kernel"] for key in (1, 2))
    assert np.any(np.sort(one, None) != np.sort(other, None))
    made = Perceptron(nnx.Rngs(jax.random.key(1))).head.kernel[...]
    np.testing.assert_array_equal(one, made)


def test_networks_built_alike_are_equal():
    one, other = (cx.networks.from_flax(Perceptron(nnx.Rngs(0))) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert one != cx.networks.from_flax(Perceptron(nnx.Rngs(1)))
    assert cx.networks.from_flax(LinenResidual()) == LINEN
    # A list, which many modules hold, has no hash.
    one, other = (
        cx.networks.from_flax(linen.Sequential([linen.Dense(2), linen.relu])) for _ in range(2)
    )
    assert one == other
    assert hash(one) == hash(other)
    assert one.build((3,), 2) == other.build((3,), 2)
    assert one != cx.networks.from_flax(linen.Sequential([linen.Dense(3), linen.relu]))


@pytest.mark.slow
def test_a_second_fit_compiles_nothing(compilations):
    fit(cx.MAP(num_steps=2))
    with compilations() as count:
        fit(cx.MAP(num_steps=2))
    assert count() == 0


def test_changed_weights_are_seen():
    module = Perceptron(nnx.Rngs(0))
    before = cx.networks.from_flax(module, pretrained=True)
    module.head.bias[...] += 1
    after = cx.networks.from_flax(module, pretrained=True)
    assert before != after
    assert after.init(KEY)["head"]["bias"] == before.init(KEY)["head"]["bias"] + 1


@pytest.mark.slow
def test_variables_of_linen_are_the_start():
    module = LinenResidual()
    variables = jax.jit(lambda: module.init(jax.random.key(5), IMAGES, train=False))()
    network = cx.networks.from_flax(module, variables, pretrained=True).build(IMAGES.shape[1:], 1)
    for one, other in zip(
        jax.tree.leaves(network.init(KEY)), jax.tree.leaves(variables["params"]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    jax.tree.map(
        np.testing.assert_array_equal, network.init_state()["batch_stats"], variables["batch_stats"]
    )


@pytest.mark.slow
def test_saved_and_loaded(tmp_path):
    posterior = fit(cx.MAP(num_steps=3), LINEN, (IMAGES, Y[:12]))
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax", cx.networks.from_flax(LinenResidual()))
    np.testing.assert_array_equal(loaded.predict(IMAGES).mean, posterior.predict(IMAGES).mean)
    with pytest.raises(cx.StorageError, match=r"pass load\(network=...\)"):
        cx.load(tmp_path / "a.credax")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((3,), "from_flax(module=...) must be an NNX or a Linen module"),
        ((lambda rngs: 3,), "from_flax(module=...) must be a function rngs -> module"),
        ((LinenResidual(), {"a": 1}), "from_flax(variables=...) must be"),
        ((Perceptron(nnx.Rngs(0)), {"params": {}}), "from_flax(variables=...) must be None"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises((TypeError, ValueError)) as error:
        cx.networks.from_flax(*arguments)
    assert message in str(error.value)


def test_a_function_has_no_trained_weights():
    with pytest.raises(ValueError, match=r"pretrained=...\) must be False where a function"):
        cx.networks.from_flax(Perceptron, pretrained=True)


# -- methods --------------------------------------------------------------------------------------


METHODS = {
    "map": cx.MAP(num_steps=5),
    "mc-dropout": cx.MCDropout(num_steps=5),
    "weight": cx.BayesByBackprop(num_steps=5, estimator="weight"),
    "flipout": cx.BayesByBackprop(num_steps=5, estimator="flipout"),
    "local": cx.BayesByBackprop(num_steps=5, estimator="local"),
    "ivon": cx.IVON(num_steps=5),
    "swag": cx.SWAG(num_warmup=4, num_steps=12, thin=2),
    "ensemble": cx.DeepEnsemble(members=2, num_steps=5, batch_size=6),
    "hmc": cx.HMC(chains=2, num_warmup=4, num_draws=4),
    "laplace": cx.Laplace(num_steps=5),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_every_family_fits(name):
    posterior = fit(METHODS[name])
    predictive = posterior.predict(X[:4])
    assert np.all(np.isfinite(predictive.mean))
    assert name == "map" or np.all(predictive.epistemic > 0)


@pytest.mark.slow
@pytest.mark.parametrize("network", [RESIDUAL, LINEN], ids=["nnx", "linen"])
@pytest.mark.parametrize("name", ["mc-dropout", "weight", "swag", "ensemble", "hmc"])
def test_networks_with_statistics(name, network):
    data = IMAGES, Y[:12]
    start = fit(cx.MAP(num_steps=5), network, data) if name == "hmc" else None
    predictive = fit(METHODS[name], network, data, start=start).predict(IMAGES)
    assert np.all(np.isfinite(predictive.mean))


@pytest.mark.slow
def test_double_precision(x64):
    posterior = fit(cx.MAP(num_steps=3))
    assert posterior.predict(X[:2]).mean.dtype == np.float64
    assert posterior.draws["head"]["kernel"].dtype == np.float64
