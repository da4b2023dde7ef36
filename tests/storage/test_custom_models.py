"""Networks, priors and densities that are not credax's own must be passed to ``load``, and must fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import (
    ONE,
    SMALL,
    VECTORS,
    random_posterior,
    same_tree,
    small,
)

import credax as cx
from credax.model import likelihoods, priors
from credax.model.networks import from_function, linear, mlp


def custom_init(key):
    return {"first": jnp.zeros((3, 2)), "second": [jnp.zeros((2, 1)), jnp.zeros(5)]}


def custom_apply(params, x):
    return x @ params["first"] @ params["second"][0]


CUSTOM = from_function(custom_init, custom_apply)


@pytest.fixture
def custom_file(tmp_path):
    posterior = random_posterior(
        cx.Model(CUSTOM, likelihood=likelihoods.Gaussian(0.1)), (VECTORS, ONE), replicas=1, draws=1
    )
    posterior.save(tmp_path / "custom")
    return tmp_path / "custom", posterior


def test_a_custom_network_must_be_passed(custom_file):
    path, posterior = custom_file
    with pytest.raises(
        cx.StorageError, match=r"its network \(Network\) is not one of credax's own; pass"
    ):
        cx.load(path)
    loaded = cx.load(path, CUSTOM)
    same_tree(loaded.draws, posterior.draws)
    np.testing.assert_array_equal(loaded.predict(VECTORS).mean, posterior.predict(VECTORS).mean)


def other(**changes):
    params = {"first": (3, 2), "second": [(2, 1), (5,)], **changes}
    is_shape = lambda leaf: isinstance(leaf, tuple)  # noqa: E731
    init = lambda key: jax.tree.map(jnp.zeros, params, is_leaf=is_shape)  # noqa: E731
    return from_function(init, custom_apply)


@pytest.mark.parametrize(
    "network, message",
    [
        (other(first=(3, 4)), r"first was stored with shape \(3, 2\); the network's has \(3, 4\)"),
        (other(first=(1, 3, 2)), r"first was stored with shape \(3, 2\); .* \(1, 3, 2\)"),
        (other(second=[(2, 1), (1, 5)]), r"second/1 was stored with shape \(5,\); .* \(1, 5\)"),
        (other(second=[(2, 1), (1, 1, 5)]), r"second/1 was stored with shape \(5,\)"),
        (other(second=[(2, 1), ()]), r"second/1 was stored with shape \(5,\); .* \(\)"),
        (other(second=[(2, 1)]), r"parameters must be those stored, .*second/1.*; got"),
        (other(third=(1,)), r"parameters must be those stored, .*; got .*third"),
        (mlp([2]), r"parameters must be those stored"),
    ],
)
def test_another_network_is_refused(custom_file, network, message):
    with pytest.raises(cx.StorageError, match=message):
        cx.load(custom_file[0], network)


def test_another_network_of_its_own_is_refused_for_a_built_in(tmp_path):
    small().save(tmp_path / "it")
    with pytest.raises(cx.StorageError, match="parameters must be those stored"):
        cx.load(tmp_path / "it", mlp([2]))


def test_what_is_no_network_is_refused(custom_file):
    with pytest.raises(TypeError, match=r"^load\(network=...\) must be a network; got 'mlp'"):
        cx.load(custom_file[0], "mlp")
    with pytest.raises(
        TypeError, match=r"^load\(model=...\) must be a cx.Model or a cx.LogDensity"
    ):
        cx.load(custom_file[0], model=CUSTOM)


def square(x):
    return x * x


def test_a_function_as_activation_must_be_passed_again(tmp_path):
    network = mlp([4], activation=square)
    posterior = random_posterior(cx.Model(network), (VECTORS, ONE))
    posterior.save(tmp_path / "it")
    with pytest.raises(cx.StorageError, match=r"its network \(MLP\) is not one of credax's own"):
        cx.load(tmp_path / "it")
    loaded = cx.load(tmp_path / "it", network)
    assert loaded.model == posterior.model


@dataclasses.dataclass(frozen=True)
class Own(priors.Elementwise):
    """A prior that is not part of credax, and has a function as a setting."""

    function: object = square

    def log_density(self, x):
        return -square(x)

    def draw(self, key, shape, dtype):
        return jax.random.normal(key, shape, dtype)


@dataclasses.dataclass(frozen=True)
class Plain(Own):
    """A prior that is not part of credax, although JSON can describe it."""

    function: float = 1.0


@pytest.mark.parametrize("prior", [Own(), Plain()])
def test_a_prior_of_one_s_own_needs_the_model(tmp_path, prior):
    model = cx.Model(linear(), prior, likelihoods.Gaussian(0.1))
    posterior = random_posterior(model, (VECTORS, ONE))
    posterior.save(tmp_path / "it")
    with pytest.raises(cx.StorageError, match=str(tmp_path / "it")):
        cx.load(tmp_path / "it")
    assert cx.load(tmp_path / "it", model=model).model == posterior.model


def init_density(key):
    return {"a": jnp.zeros(2), "b": jnp.zeros(())}


def log_density(params):
    return -jnp.sum(params["a"] ** 2) - params["b"] ** 2


def test_a_log_density_must_be_passed(tmp_path):
    density = cx.LogDensity(init_density, log_density)
    posterior = random_posterior(density, None)
    posterior.save(tmp_path / "it")
    with pytest.raises(cx.StorageError, match=r"posterior of a LogDensity; pass load\(model=...\)"):
        cx.load(tmp_path / "it")
    with pytest.raises(cx.StorageError, match=r"posterior of a LogDensity; pass load\(model=...\)"):
        cx.load(tmp_path / "it", model=SMALL)
    loaded = cx.load(tmp_path / "it", model=density)
    same_tree(loaded.draws, posterior.draws)
    with pytest.raises(cx.StorageError, match=r"a was stored with shape \(2,\)"):
        cx.load(
            tmp_path / "it",
            model=cx.LogDensity(lambda key: {"a": jnp.zeros(3), "b": jnp.zeros(())}, log_density),
        )


def clash_init(key):
    return {"a/b": jnp.zeros(()), "a": {"b": jnp.ones(())}}


def test_parameters_that_would_overwrite_each_other_are_refused(tmp_path):
    posterior = random_posterior(cx.LogDensity(clash_init, lambda params: jnp.zeros(())), None)
    with pytest.raises(cx.StorageError, match="two parameters have the same path"):
        posterior.save(tmp_path / "it")
    assert list(tmp_path.iterdir()) == []
