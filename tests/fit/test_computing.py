"""Batches computed in parts, with less kept for gradients, and in other float types: for every method."""

import dataclasses
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import credax as cx
from credax.core import random
from credax.inference import METHODS
from credax.model.compute import Compute
from credax.model.data import Batch

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

ROWS = 13
PARTS = Compute(micro_batch=5, rematerialise=True)  # parts of 5, 5 and 3 rows
TINY = {"num_steps": 8, "num_warmup": 3, "num_draws": 4, "members": 3, "chains": 2}
TINY |= {"particles": 4, "num_moves": 1}  # more moves of SMC magnify rounding errors


@cache
def table():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(ROWS, 2)).astype(np.float32)
    noise = generator.normal(size=ROWS)
    return x, (np.sin(x[:, 0]) + 0.1 * noise).astype(np.float32)


def tiny(cls, **settings):
    known = {item.name for item in dataclasses.fields(cls) if item.init}
    return cls(**{k: v for k, v in {**TINY, **settings}.items() if k in known})


def model_for(method):
    """A small network; a linear one with two values for each weight where weights must be discrete."""
    if "gradient" in method.needs or type(method).__name__ != "Enumeration":
        return cx.Model(
            cx.networks.mlp([4, 4], activation="tanh"), likelihood=cx.likelihoods.Gaussian(0.3)
        )
    return cx.Model(
        cx.networks.linear(), cx.priors.Discrete((-1.0, 1.0)), cx.likelihoods.Gaussian(0.3)
    )


def two_steps(method, compute):
    """The state after two steps of one replica, in double precision, since chains magnify rounding errors."""
    model, data = model_for(method).prepare(table())
    model = dataclasses.replace(model, compute=compute)

    @jax.jit
    def run(key):
        state = method.init(key, model, dataclasses.replace(data, replica=jnp.int32(0)))
        for step in (jnp.int32(0), jnp.int32(1)):
            batch = method.batch(key, model, data, step)
            state, _ = method.step(jax.random.fold_in(key, step), state, model, batch, step)
        return state

    numbers = [
        leaf
        for leaf in jax.tree.leaves(run(random.key(1)))
        if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return np.concatenate([np.ravel(leaf) for leaf in numbers])


DRAWS_PER_PART = {"mc-dropout"}
"""Methods whose default settings draw noise for each row, and so other noise if rows come in parts."""
PARTED = [name for name, cls in METHODS.items() if "sum parts" in tiny(cls).can]


@pytest.mark.slow
@pytest.mark.parametrize("name", PARTED)
def test_a_method_is_the_same_up_to_rounding(name, x64):
    method = tiny(METHODS[name])
    compute = Compute(rematerialise=True) if name in DRAWS_PER_PART else PARTS
    expected = two_steps(method, None)
    assert len(expected) > 0
    np.testing.assert_allclose(two_steps(method, compute), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_weights_of_each_row_are_the_same_in_every_part(estimator, x64):
    method = tiny(cx.BayesByBackprop, estimator=estimator)
    expected = two_steps(method, None)
    np.testing.assert_allclose(two_steps(method, PARTS), expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_either_has_its_batches_computed_by_the_model_or_says_that_it_does_not(
    name, monkeypatch
):
    method, seen = tiny(METHODS[name]), []
    summed = Compute.summed

    def noted(self, *arguments):
        seen.append(1)
        return summed(self, *arguments)

    monkeypatch.setattr(Compute, "summed", noted)
    model, data = model_for(method).prepare(table())
    model = dataclasses.replace(model, compute=PARTS)
    data = dataclasses.replace(data, replica=jnp.int32(0))

    def step(key):
        state = method.init(key, model, data)
        batch = method.batch(key, model, data, jnp.int32(0))
        return method.step(key, state, model, batch, jnp.int32(0))

    jax.eval_shape(step, random.key(0))
    assert bool(seen) == ("sum parts" in method.can)


def test_the_gradient_of_parts_is_that_of_the_whole_in_double_precision(x64):
    x, y = table()
    weights = np.linspace(0.0, 2.0, ROWS)
    model = cx.Model(
        cx.networks.mlp([6, 6], activation="tanh"), likelihood=cx.likelihoods.Gaussian(None)
    )
    model, data = model.prepare((x.astype(float), y.astype(float)), weights)
    batch = dataclasses.replace(data.everything(), scale=jnp.asarray(2.5))
    params = model.init(random.key(0))
    expected = jax.grad(lambda p: model.log_likelihood(p, batch))(params)
    for compute in (
        PARTS,
        Compute(micro_batch=1),
        Compute(micro_batch=13),
        Compute(rematerialise=True),
    ):
        other = dataclasses.replace(model, compute=compute)
        found = jax.grad(lambda p: other.log_likelihood(p, batch))(params)  # noqa: B023
        same = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)  # noqa: E731
        jax.tree.map(same, found, expected)


@pytest.mark.matrix
@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_weights_drawn_for_each_row_keep_their_mean_and_gradient(estimator):
    """The noise differs between parts; its mean over many keys does not."""
    x, y = table()
    method = cx.BayesByBackprop(estimator=estimator, num_steps=1)
    model, data = cx.Model(cx.networks.mlp([4]), likelihood=cx.likelihoods.Gaussian(0.5)).prepare(
        (x, y)
    )
    family = method.init(random.key(0), model, data).family.explicit()
    batch = data.everything()

    @jax.jit(static_argnames="compute")
    def values(keys, compute):
        own = dataclasses.replace(model, compute=compute)
        draw = family.draw(random.key(0))
        return jax.vmap(lambda k: method._log_likelihood(draw, family, own, batch, (), k)[0])(keys)

    whole = np.asarray(values(jax.random.split(random.key(1), 2_000), None), np.float64)
    parts = np.asarray(values(jax.random.split(random.key(2), 2_000), PARTS), np.float64)
    error = np.hypot(whole.std(), parts.std()) / np.sqrt(2_000)
    assert abs(whole.mean() - parts.mean()) < 4 * error


def test_bfloat16_is_close_and_keeps_the_weights_in_float32():
    model, data = model_for(cx.MAP()).prepare(table())
    params, batch = model.init(random.key(0)), data.everything()
    rounded = dataclasses.replace(model, compute=Compute(compute_dtype="bfloat16"))
    evaluate = lambda model: jax.value_and_grad(lambda p: model.log_joint(p, batch))(params)  # noqa: E731
    (value, gradient), (found, slope) = evaluate(model), evaluate(rounded)
    assert found != value  # it was computed in fewer digits
    np.testing.assert_allclose(found, value, rtol=0.03)
    for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(gradient), strict=True):
        assert a.dtype == jnp.float32
        np.testing.assert_allclose(a, b, atol=0.05 * float(jnp.abs(b).max()))
    text = str(jax.make_jaxpr(lambda p: rounded.log_likelihood(p, batch))(params))
    assert "bf16[13,4] = dot_general" in text


def test_fits_are_close_and_the_posterior_is_that_of_the_plain_model():
    model = model_for(cx.MAP())
    x, _ = table()
    method = cx.MAP(num_steps=100)
    plain = cx.fit(model, table(), method, progress=False)
    settings = {"micro_batch": 4, "rematerialise": True}
    found = cx.fit(model, table(), method, progress=False, **settings)
    np.testing.assert_allclose(found.predict(x).mean, plain.predict(x).mean, atol=1e-3)
    assert found.model == plain.model
    rounded = cx.fit(
        model, table(), method, progress=False, compute_dtype="bfloat16", optimiser_dtype="bfloat16"
    )
    np.testing.assert_allclose(rounded.predict(x).mean, plain.predict(x).mean, atol=0.1)
    assert jax.tree.leaves(rounded.draws)[0].dtype == np.float32


def test_dropout_draws_its_noise_for_each_part():
    x, y = table()
    network = cx.networks.mlp([8], dropout=0.5)
    model, data = cx.Model(network, likelihood=cx.likelihoods.Gaussian(1.0)).prepare((x, y))
    rows = Batch.of(jnp.repeat(data.x[:1], 8, axis=0), jnp.repeat(data.y[:1], 8))
    parts = dataclasses.replace(model, compute=Compute(micro_batch=4))
    params = model.init(random.key(0))
    one = lambda k: parts.train_log_likelihood(params, rows, (), k)[0]  # noqa: E731
    # If both parts had the same masks, their sum would be twice that of four rows.
    half = dataclasses.replace(model, compute=None)
    first = lambda k: half.train_log_likelihood(params, Batch.of(rows.x[:4], rows.y[:4]), (), k)[0]  # noqa: E731
    keys = jax.random.split(random.key(3), 2_000)
    both, single = (np.asarray(jax.jit(jax.vmap(f))(keys)) for f in (one, first))
    assert both.var() == pytest.approx(2 * single.var(), rel=0.25)
    assert both.mean() == pytest.approx(2 * single.mean(), rel=0.05)


def test_batch_statistics_are_refused_in_parts_and_work_otherwise():
    model = cx.Model(cx.networks.mlp([4], batch_norm=True), likelihood=cx.likelihoods.Gaussian(0.3))
    method = cx.MAP(num_steps=5)
    with pytest.raises(
        ValueError, match=r"micro_batch=.* must be None for a network with batch stat"
    ):
        cx.fit(model, table(), method, progress=False, micro_batch=5)
    plain = cx.fit(model, table(), method, progress=False)
    again = cx.fit(model, table(), method, progress=False, rematerialise=True)
    close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4)  # noqa: E731
    jax.tree.map(close, vars(again.approximation), vars(plain.approximation))
    rounded = cx.fit(model, table(), method, progress=False, compute_dtype="bfloat16")
    statistics = rounded.approximation.state["norm_0"]["mean"]
    assert statistics.dtype == np.float32
    np.testing.assert_allclose(
        statistics, plain.approximation.state["norm_0"]["mean"], rtol=0.05, atol=0.02
    )
    start = {"start": plain, "progress": False, "key": 1}
    chain = cx.SGLD(chains=1, num_warmup=2, num_draws=3)
    with pytest.raises(ValueError, match="batch statistics"):  # its steps update the statistics
        cx.fit(model, table(), chain, micro_batch=5, **start)


@pytest.mark.parametrize(
    "settings, error, text",
    [
        (
            {"micro_batch": 0},
            ValueError,
            r"fit\(micro_batch=...\) must be a whole number, at least 1; got 0",
        ),
        ({"micro_batch": 2.5}, TypeError, "micro_batch"),
        ({"rematerialise": 1}, TypeError, "rematerialise.* must be True or False"),
        ({"compute_dtype": "float16"}, ValueError, "compute_dtype.* 'bfloat16', 'float32'"),
        ({"optimiser_dtype": "int8"}, ValueError, "optimiser_dtype.* 'bfloat16', 'float32'"),
    ],
)
def test_bad_settings_are_refused(settings, error, text, compilations):
    with compilations() as count, pytest.raises(error, match=text):
        cx.fit(model_for(cx.MAP()), table(), cx.MAP(), **settings)
    assert count() == 0


@pytest.mark.parametrize(
    "method", [cx.VariationalLastLayer(), cx.NUTS(collapse=True), cx.HMC(collapse=None)]
)
def test_methods_that_need_all_rows_at_once_say_so(method):
    with pytest.raises(ValueError, match=r"micro_batch=.* must be left out for"):
        cx.fit(model_for(cx.MAP()), table(), method, micro_batch=5)


def test_a_log_density_has_no_rows():
    density = cx.LogDensity(lambda key: jnp.zeros(2), lambda w: -jnp.sum(w**2))
    with pytest.raises(TypeError, match=r"rematerialise=.* must be left out for a LogDensity"):
        cx.fit(density, None, cx.MAP(), rematerialise=True)


def test_the_optimiser_s_running_mean_is_stored_in_its_float_type(tmp_path):
    method = cx.MAP(num_steps=5)
    model = model_for(method)
    whole = cx.memory(model, table(), method, compile=False).state
    half = cx.memory(model, table(), method, compile=False, optimiser_dtype="bfloat16").state
    weights = sum(leaf.size for leaf in jax.tree.leaves(model.bind(table()).init(random.key(0))))
    assert whole - half == 2 * weights  # of the weights and two means, one mean takes half
    posterior = cx.fit(model, table(), method, progress=False, optimiser_dtype="bfloat16")
    posterior.save(tmp_path / "point.credax")
    assert cx.load(tmp_path / "point.credax").method == posterior.method


@pytest.mark.parametrize(
    "method, text",
    [
        (cx.HMC(), "None for HMC, which has no optimiser"),
        (cx.MAP(optimiser=optax.adam(1e-3)), "None for an optax transformation"),
        (cx.MAP(optimiser="rmsprop"), "None for the optimiser 'rmsprop'"),
    ],
)
def test_optimisers_without_a_float_type_are_refused(method, text):
    with pytest.raises(ValueError, match=text):
        cx.fit(model_for(cx.MAP()), table(), method, optimiser_dtype="bfloat16")


@pytest.mark.slow
def test_parts_and_segments_make_the_compiled_program_smaller():
    generator = np.random.default_rng(1)
    x = generator.normal(size=(4_096, 8)).astype(np.float32)
    y = np.sin(x[:, 0])
    model = cx.Model(
        cx.networks.mlp([32] * 16, activation="gelu"), likelihood=cx.likelihoods.Gaussian(0.3)
    )
    method = cx.MAP(num_steps=5)
    need = lambda **how: cx.memory(model, (x, y), method, **how).temporary  # noqa: E731
    whole = need()
    assert need(micro_batch=256) < 0.2 * whole
    assert need(rematerialise=True) < 0.7 * whole
    assert need(micro_batch=256, rematerialise=True) < need(micro_batch=256)
