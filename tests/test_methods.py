"""One suite over every method of ``cx.inference.METHODS``: what they share, with no branch on a name."""

import dataclasses
import json
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logsumexp, softmax, xlogy

import credax as cx
from credax import random
from credax.approximations import Draws
from credax.describe import describe, rebuild
from credax.diagnostics.doctor import Diagnosis
from credax.inference import METHODS, Method

ROWS, FEATURES, NEW_ROWS = 24, 2, 5
TINY = {
    "num_steps": 23,
    "num_warmup": 11,
    "num_draws": 7,
    "members": 3,
    "chains": 2,
    "particles": 8,
}
"""Quick values of the settings that have the same name everywhere."""

every_method = pytest.mark.parametrize("name", METHODS)


def tiny(cls, **settings):
    """A quick instance: the shared settings that it has, and the given ones that it has."""
    known = {field.name for field in dataclasses.fields(cls) if field.init}
    return cls(**{k: v for k, v in {**TINY, **settings}.items() if k in known})


def settings_of(cls):
    return [field for field in dataclasses.fields(cls) if field.init]


# -- the problems: one data set, a likelihood and targets each -------------------------------------

LIKELIHOODS = {
    "gaussian": (cx.likelihoods.Gaussian(0.3), "number"),
    "learned": (cx.likelihoods.Gaussian(scale=None), "number"),
    "heteroscedastic": (cx.likelihoods.Heteroscedastic(), "number"),
    "categorical": (cx.likelihoods.Categorical(), "class"),
    "bernoulli": (cx.likelihoods.Bernoulli(), "label"),
    "poisson": (cx.likelihoods.Poisson(), "count"),
    "one column, dropout": (cx.likelihoods.Gaussian(0.3), "number column"),
    "three columns": (cx.likelihoods.Gaussian((0.2, 0.3, 0.4)), "three numbers"),
}


def inputs(seed, rows=ROWS):
    return np.random.default_rng(seed).normal(size=(rows, FEATURES))


def targets(kind, x, seed=1):
    generator = np.random.default_rng(seed)
    signal = np.sin(2 * x[:, 0]) + 0.5 * x[:, 1]
    noisy = signal[:, None] * [1.0, -0.5, 2.0] + 0.3 * generator.normal(size=(len(x), 3))
    # The first three rows show every class, however few rows there are.
    classes = np.concatenate([[0, 1, 2], generator.integers(0, 3, len(x))])[: len(x)]
    return {
        "number": noisy[:, 0],
        "number column": noisy[:, :1],
        "three numbers": noisy,
        "class": classes,
        "label": (noisy[:, 0] > 0).astype(int),
        "count": generator.poisson(np.exp(0.5 * signal)),
    }[kind]


def data_of(case, seed=0, rows=ROWS):
    x = inputs(seed, rows)
    return x, targets(LIKELIHOODS[case][1], x)


def model_of(method, case):
    """A model that the method takes: with continuous weights if it can, else with discrete ones."""
    likelihood = LIKELIHOODS[case][0]
    priors = (cx.priors.Normal(1.0), cx.priors.Discrete([-1.0, 1.0]))
    refusals = []
    for prior in priors:
        # Dropout is for training: predictions are by hand without it below.
        rate = 0.3 if "dropout" in case else 0.0
        network = cx.networks.mlp([3], activation="tanh", dropout=rate)
        model = cx.Model(network, prior, likelihood)
        try:
            method.check(*model.prepare(data_of(case)))
        except (TypeError, ValueError) as error:
            refusals.append(str(error))
        else:
            return model
    if type(method).check is Method.check or case == "gaussian":
        pytest.fail(f"{type(method).__name__} takes no model at all: {refusals}")
    return pytest.skip(f"not for this method: {refusals[0]}")


def fit(method, case, key=0, **arguments):
    arguments = {"progress": False, **arguments}
    return cx.fit(model_of(method, case), data_of(case), method, key=key, **arguments)


@cache
def cached_fit(name, case, dtype):
    assert dtype == jnp.result_type(float), "the dtype is part of what a fit depends on"
    return fit(tiny(METHODS[name]), case)


@cache
def cached_prediction(name, case, dtype):
    return cached_fit(name, case, dtype).predict(inputs(7, NEW_ROWS))


def fitted(name, case="gaussian"):
    return cached_fit(name, case, jnp.result_type(float))


def prediction(name, case="gaussian"):
    return cached_prediction(name, case, jnp.result_type(float))


def bits(posterior):
    """Everything that must be the same when a run is the same."""
    info = {k: v for k, v in posterior.info.items() if np.ndim(v) > 0}
    predictive = posterior.predict(inputs(7, NEW_ROWS))
    return [*jax.tree.leaves((posterior.sample(3, 5), info)), predictive.mean, predictive.epistemic]


def assert_same_bits(one, other):
    for a, b in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(a, b)


# -- the surface ------------------------------------------------------------------------------------


@every_method
def test_registry(name):
    cls = METHODS[name]
    assert issubclass(cls, Method)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert name.replace("-", "") == cls.__name__.lower()
    assert getattr(cx, cls.__name__) is cls
    assert cls.__name__ in cx.__all__
    assert cls.__subclasses__() == [], "methods are final"


@every_method
def test_sample(name):
    posterior = fitted(name)
    template = jax.eval_shape(posterior.model.init, jax.random.key(0))
    sample = posterior.sample(0, 4)
    assert jax.tree.structure(sample) == jax.tree.structure(template)
    for leaf, like in zip(jax.tree.leaves(sample), jax.tree.leaves(template), strict=True):
        assert leaf.shape == (4, *like.shape)
        assert np.all(np.isfinite(leaf))
    same = posterior.sample(jax.random.key(0), 4)
    jax.tree.map(np.testing.assert_array_equal, sample, same)


@every_method
def test_draws(name):
    posterior = fitted(name)
    if not isinstance(posterior.approximation, Draws):
        for wanted in ("draws", "log_weights"):
            with pytest.raises(AttributeError, match=r"keeps no draws.*posterior\.sample"):
                getattr(posterior, wanted)
        return
    template = jax.eval_shape(posterior.model.init, jax.random.key(0))
    assert jax.tree.structure(posterior.draws) == jax.tree.structure(template)
    heads = set()
    for leaf, like in zip(jax.tree.leaves(posterior.draws), jax.tree.leaves(template), strict=True):
        heads.add(leaf.shape[:2])
        assert leaf.shape[2:] == like.shape
    (head,) = heads
    assert head[0] == posterior.method.replicas
    if posterior.log_weights is not None:
        assert posterior.log_weights.shape == head
    if len(posterior.info["kept"]):
        assert len(posterior.info["kept"]) == head[1]


@every_method
def test_info(name):
    posterior, method = fitted(name), tiny(METHODS[name])
    info = posterior.info
    assert posterior.method == method
    assert info["steps"] == method.num_steps
    assert info["ended"] == "complete"
    assert info["seconds"] > 0
    assert info["compile_seconds"] > 0
    figures = {k: v for k, v in info.items() if np.ndim(v) == 2}
    assert figures, "a person sees nothing of the run"
    for figure, values in figures.items():
        assert values.shape == (method.replicas, method.num_steps), figure
        assert np.all(np.isfinite(values)), figure
    kept = np.asarray(info["kept"])
    assert np.all((kept >= method.num_warmup) & (kept < method.num_steps))


@every_method
def test_words(name):
    posterior = fitted(name)
    diagnosis = posterior.diagnose()
    assert isinstance(diagnosis, Diagnosis)
    assert str(diagnosis).strip()
    for finding in diagnosis:
        assert finding.what.endswith(".")
        assert finding.advice.endswith(".")
        assert np.isfinite(finding.value)
    assert METHODS[name].__name__ in str(posterior)
    assert METHODS[name].when_diverged.endswith(".")


@every_method
def test_estimates(name):
    posterior = fitted(name)
    for estimate in (posterior.log_evidence, posterior.elbo):
        assert estimate is None or (len(estimate) == 2 and np.all(np.isfinite(estimate)))


@every_method
def test_progress_names_the_method_and_its_figures(name, capsys):
    fit(tiny(METHODS[name]), "gaussian", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert METHODS[name].__name__ in shown.err
    fit(tiny(METHODS[name]), "gaussian", progress=False)
    assert capsys.readouterr() == ("", "")


# -- settings ---------------------------------------------------------------------------------------


@every_method
def test_settings_are_values(name):
    cls = METHODS[name]
    method, same = tiny(cls), tiny(cls)
    assert method == same
    assert hash(method) == hash(same)
    assert method is not same
    assert cls() == cls()
    assert hash(cls()) == hash(cls())
    assert method != tiny(cls, num_steps=24, num_warmup=12)
    field = settings_of(cls)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(method, field, getattr(method, field))
    for field in settings_of(cls):
        assert f"{field.name}={getattr(method, field.name)!r}" in repr(method)
    text = json.dumps(describe(method))
    assert rebuild(json.loads(text), {cls.__name__: cls}) == method


@every_method
def test_numbers_of_other_libraries_are_settings(name):
    """They become Python numbers, so that a method is equal to itself written otherwise, and hashable."""
    cls = METHODS[name]
    plain = tiny(cls)
    for convert in (np.asarray, jnp.asarray):
        with jax.enable_x64(True):
            others = {
                field.name: convert(getattr(plain, field.name))
                for field in settings_of(cls)
                if type(getattr(plain, field.name)) in (int, float)
            }
        method = dataclasses.replace(plain, **others)
        assert method == plain
        assert hash(method) == hash(plain)
        for setting in others:
            assert type(getattr(method, setting)) is type(getattr(plain, setting)), setting


@every_method
def test_every_setting_is_documented(name):
    cls = METHODS[name]
    assert ".. math::" in cls.__doc__
    arguments = re.search(r"\n( *)Args:\n(.*)", cls.__doc__, re.DOTALL)
    documented = re.findall(rf"^{arguments[1]}  (\w+): \S", arguments[2], re.MULTILINE)
    assert documented == [field.name for field in settings_of(cls)]


@every_method
def test_every_setting_has_a_default(name):
    assert isinstance(METHODS[name](), METHODS[name])


# -- the same run, bit for bit ----------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("batch_size", [None, 7])
def test_bits_depend_on_the_key_alone(name, batch_size):
    method = tiny(METHODS[name], batch_size=batch_size)
    runs = [fit(method, "gaussian", chunk_steps=steps) for steps in (None, 1, 7)]
    for run in runs[1:]:
        assert_same_bits(runs[0], run)
    typed = fit(method, "gaussian", key=jax.random.key(0))
    assert_same_bits(runs[0], typed)
    other = fit(method, "gaussian", key=1)
    assert all(
        not np.array_equal(a, b)
        for a, b in zip(bits(runs[0])[-2:], bits(other)[-2:], strict=True)
        if np.any(a)
    )


@every_method
def test_a_second_fit_compiles_nothing(name, compilations):
    fit(tiny(METHODS[name]), "gaussian").predict(inputs(7, NEW_ROWS)).interval(0.9)
    other = inputs(3), targets("number", inputs(3), seed=4)
    method = tiny(METHODS[name])
    model = model_of(method, "gaussian")
    with compilations() as count:
        posterior = cx.fit(model, other, method, key=5, progress=False)
        assert count() == 0
        posterior.predict(inputs(8, NEW_ROWS)).interval(0.9)
        assert count() == 0
        posterior.sample(0, 3)
    assert not np.array_equal(
        posterior.predict(inputs(7, NEW_ROWS)).mean, prediction(name, "gaussian").mean
    )


@every_method
def test_a_minibatch_run_compiles_once(name, compilations):
    method = tiny(METHODS[name], batch_size=7)
    fit(method, "gaussian", chunk_steps=1)
    with compilations() as count:
        fit(method, "gaussian", key=2, chunk_steps=9)
    assert count() == 0


# -- float32 and float64 ----------------------------------------------------------------------------


def check_dtypes(name, case, dtype):
    posterior, predictive = fitted(name, case), prediction(name, case)
    assert jnp.result_type(float) == dtype
    if isinstance(posterior.approximation, Draws):
        assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {dtype}
    assert {leaf.dtype for leaf in jax.tree.leaves(posterior.sample(0, 2))} == {dtype}
    for field in ("mean", "std", "variance", "epistemic", "aleatoric"):
        assert getattr(predictive, field).dtype == dtype, field
    figures = [v for v in posterior.info.values() if np.ndim(v) == 2]
    assert {values.dtype for values in figures if values.dtype.kind == "f"} <= {dtype}
    if predictive_task(name, case) == "classification":
        for field in ("probs", "entropy", "expected_entropy", "mutual_information"):
            assert getattr(predictive, field).dtype == dtype, field
        assert predictive.label.dtype.kind == "i"
    else:
        y = targets(LIKELIHOODS[case][1], inputs(7, NEW_ROWS))
        assert predictive.log_prob(y).dtype == dtype
        assert predictive.interval(0.8)[0].dtype == dtype
        assert predictive.sample(0, 3).dtype == dtype


@every_method
@pytest.mark.parametrize("case", ["learned", "categorical"])
def test_float32(name, case):
    check_dtypes(name, case, np.dtype(np.float32))


@every_method
@pytest.mark.parametrize("case", ["learned", "categorical"])
def test_float64(name, case, x64):
    check_dtypes(name, case, np.dtype(np.float64))
    # Steps in float64 are steps in float64: no part of the run has the digits of float32 only.
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(fitted(name, case).sample(0, 2))]
    if not fitted(name, case).model.discrete:
        assert any(np.any(leaf != leaf.astype(np.float32)) for leaf in leaves)


# -- every likelihood and shape of targets ----------------------------------------------------------


def by_hand(posterior, case, x):
    """The likelihood of every sample and its weight, in float64, with nothing of credax but the weights."""
    samples = posterior.approximation.samples(random.key(0), None)
    params = jax.tree.map(np.float64, samples.take(0, samples.count).params)
    network = params.get("network", params)
    hidden = np.tanh(x @ network["layer_0"]["kernel"] + network["layer_0"]["bias"][:, None])
    outputs = hidden @ network["layer_1"]["kernel"] + network["layer_1"]["bias"][:, None]
    learned = params.get("likelihood")
    return np.exp(samples.log_weights), outputs, distribution(case, outputs, learned)


def distribution(case, outputs, learned):
    """What scipy has for the likelihood; its parameters have axes (sample, row, target)."""
    match LIKELIHOODS[case][0]:
        case cx.likelihoods.Gaussian(scale=None):
            return stats.norm(outputs, np.exp(learned["log_scale"])[:, None])
        case cx.likelihoods.Gaussian(scale=scale):
            return stats.norm(outputs, scale)
        case cx.likelihoods.Heteroscedastic(min_scale=min_scale):
            mean, raw = np.split(outputs, 2, axis=-1)
            return stats.norm(mean, min_scale + np.logaddexp(0, raw))
        case cx.likelihoods.Categorical():
            return stats.bernoulli(softmax(outputs, axis=-1))
        case cx.likelihoods.Bernoulli():
            return stats.bernoulli(expit(outputs))
        case cx.likelihoods.Poisson():
            return stats.poisson(np.exp(outputs))


@every_method
@pytest.mark.parametrize("case", LIKELIHOODS)
def test_the_variance_is_epistemic_plus_aleatoric(name, case):
    predictive = prediction(name, case)
    weights, _, each = by_hand(fitted(name, case), case, inputs(7, NEW_ROWS))
    assert weights.sum() == pytest.approx(1)
    mean = np.tensordot(weights, each.mean(), 1)
    epistemic = np.tensordot(weights, (each.mean() - mean) ** 2, 1)
    aleatoric = np.tensordot(weights, each.var(), 1)
    close = lambda got, want: np.testing.assert_allclose(  # noqa: E731
        got.reshape(want.shape), want, rtol=2e-4, atol=2e-6
    )
    close(predictive.mean, mean)
    close(predictive.epistemic, epistemic)
    close(predictive.aleatoric, aleatoric)
    close(predictive.std, np.sqrt(epistemic + aleatoric))
    np.testing.assert_array_equal(predictive.variance, predictive.epistemic + predictive.aleatoric)
    assert np.all(predictive.aleatoric > 0)
    assert np.all(predictive.epistemic >= 0)


@every_method
@pytest.mark.parametrize("case", LIKELIHOODS)
def test_shapes_follow_the_targets(name, case):
    predictive = prediction(name, case)
    y = targets(LIKELIHOODS[case][1], inputs(7, NEW_ROWS))
    shape = (NEW_ROWS, 3) if case == "categorical" else y.shape
    for field in ("mean", "std", "variance", "epistemic", "aleatoric"):
        assert getattr(predictive, field).shape == shape, field
    assert predictive.sample(0, 3).shape == (3, *y.shape)
    if predictive_task(name, case) == "classification":
        assert predictive.probs.shape == (NEW_ROWS, 3 if case == "categorical" else 2)
        for field in ("label", "entropy", "expected_entropy", "mutual_information"):
            assert getattr(predictive, field).shape == (NEW_ROWS,), field
        for call in (predictive.interval, lambda: predictive.quantile(0.5)):
            with pytest.raises(AttributeError, match="quantile is for predictions of numbers"):
                call()
    else:
        if predictive_task(name, case) == "regression":  # counts compile for seconds
            lower, upper = predictive.interval(0.8)
            assert lower.shape == upper.shape == y.shape
            assert np.all(lower < upper)
        for field in ("probs", "entropy"):
            with pytest.raises(AttributeError, match=f"{field} is for predictions of classes"):
                getattr(predictive, field)


def predictive_task(name, case):
    return fitted(name, case).model.likelihood.task


@every_method
def test_fewer_samples(name):
    posterior, x = fitted(name), inputs(7, NEW_ROWS)
    whole = prediction(name).outputs
    few = posterior.predict(x, num_samples=2)
    assert few.outputs.shape == (min(2, len(whole)), *whole.shape[1:])
    np.testing.assert_allclose(few.mean, few.outputs[..., 0].mean(0), rtol=1e-4, atol=1e-6)
    assert few.quantile(0.5).shape == (NEW_ROWS,)
    assert few.quantile([[0.1, 0.5, 0.9]]).shape == (1, 3, NEW_ROWS)


@every_method
@pytest.mark.parametrize("case", ["categorical", "bernoulli"])
def test_the_entropy_is_expected_entropy_plus_mutual_information(name, case):
    predictive = prediction(name, case)
    weights, _, each = by_hand(fitted(name, case), case, inputs(7, NEW_ROWS))
    probs = (
        each.mean() if case == "categorical" else np.concatenate([1 - each.mean(), each.mean()], -1)
    )
    mean = np.tensordot(weights, probs, 1)
    expected = np.tensordot(weights, -xlogy(probs, probs).sum(-1), 1)
    np.testing.assert_allclose(predictive.probs, mean, rtol=1e-4)
    np.testing.assert_allclose(predictive.entropy, -xlogy(mean, mean).sum(1), rtol=1e-4)
    np.testing.assert_allclose(predictive.expected_entropy, expected, rtol=1e-4)
    information = predictive.mutual_information
    np.testing.assert_allclose(
        predictive.entropy, predictive.expected_entropy + information, rtol=1e-5
    )
    assert np.all(information >= 0)
    np.testing.assert_array_equal(predictive.label, predictive.probs.argmax(1))


@every_method
@pytest.mark.parametrize("case", ["learned", "categorical", "three columns"])
def test_log_prob_is_the_log_of_the_mean_density(name, case):
    x = inputs(7, NEW_ROWS)
    y = targets(LIKELIHOODS[case][1], x)
    weights, _, each = by_hand(fitted(name, case), case, x)
    if case == "categorical":
        log_prob = np.log(each.mean()[:, np.arange(NEW_ROWS), y])
    else:
        log_prob = each.logpdf(y.reshape(NEW_ROWS, -1)).sum(-1)
    want = logsumexp(log_prob, axis=0, b=weights[:, None])
    np.testing.assert_allclose(prediction(name, case).log_prob(y), want, rtol=1e-4)


# -- what comes in and what goes out ----------------------------------------------------------------


@every_method
@pytest.mark.parametrize("case", ["learned", "categorical"])
def test_saved_and_loaded_it_predicts_the_same_bits(name, case, tmp_path):
    posterior = fitted(name, case)
    posterior.save(tmp_path / "posterior.credax")
    loaded = cx.load(tmp_path / "posterior.credax")
    assert loaded.model == posterior.model
    assert_same_bits(posterior, loaded)
    assert loaded.log_evidence == posterior.log_evidence
    assert loaded.elbo == posterior.elbo
    assert loaded.method == describe(posterior.method)
    assert str(loaded.diagnose()) == str(posterior.diagnose())
    assert {k: v for k, v in loaded.info.items() if np.ndim(v) == 0} == {
        k: v for k, v in posterior.info.items() if np.ndim(v) == 0
    }


@every_method
def test_inputs_are_not_modified(name):
    method = tiny(METHODS[name], batch_size=7)
    x, y = data_of("gaussian")
    copies = x.copy(), y.copy()
    on_device = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y, jnp.result_type(float))
    for a in (x, y):
        a.flags.writeable = False
    plain = cx.fit(model_of(method, "gaussian"), (x, y), method, progress=False)
    device = cx.fit(model_of(method, "gaussian"), on_device, method, progress=False)
    new = inputs(7, NEW_ROWS)
    new.flags.writeable = False
    plain.predict(new)
    for a, copy in zip((x, y), copies, strict=True):
        np.testing.assert_array_equal(a, copy)
    # A donated buffer would be deleted.
    np.testing.assert_allclose(on_device[0], x, rtol=1e-6)
    np.testing.assert_allclose(on_device[1], y, rtol=1e-6)
    assert_same_bits(plain, device)


@every_method
def test_a_posterior_is_a_start_and_starts_from_one(name):
    posterior, method = fitted(name), tiny(METHODS[name])
    before = jax.tree.map(np.copy, posterior.sample(0, 3))
    again = fit(method, "gaussian", start=posterior, key=4)
    assert again.info["steps"] == method.num_steps
    jax.tree.map(np.testing.assert_array_equal, posterior.sample(0, 3), before)
    if not posterior.model.discrete:
        point = fit(cx.MAP(num_steps=5), "gaussian", start=posterior)
        assert np.all(np.isfinite(point.predict(inputs(7, NEW_ROWS)).mean))


@every_method
def test_a_callback_sees_the_run_and_ends_it(name):
    events = []
    method = tiny(METHODS[name])
    stop = method.num_warmup + 5

    def callback(event):
        events.append(event)
        return event.step >= stop

    posterior = fit(method, "gaussian", callbacks=[callback], chunk_steps=1)
    assert [event.step for event in events] == list(range(1, stop + 1))
    assert events[-1].num_steps == method.num_steps
    assert events[-1].seconds > 0
    figures = events[-1].figures
    assert figures
    assert all(np.isfinite(value) for value in figures.values())
    assert posterior.info["ended"] == "callback"
    assert posterior.info["steps"] == stop
    assert all(posterior.info[figure].shape[1] == stop for figure in figures)


# -- a log density in place of a model --------------------------------------------------------------


def start(key):
    return {"location": (0.1 * jax.random.normal(key, (2,)), jnp.zeros(())), "scale": jnp.zeros(3)}


def log_joint(params):
    """Normal, around 1, 2 and 3."""
    location, offset = params["location"]
    terms = (jnp.sum((location - 1) ** 2), (offset - 2) ** 2, jnp.sum((params["scale"] - 3) ** 2))
    return -0.5 * sum(terms)


@every_method
def test_log_density(name, tmp_path):
    cls = METHODS[name]
    method, density = tiny(cls), cx.LogDensity(start, log_joint)
    if cls.needs_likelihood:
        with pytest.raises(TypeError, match=f"{cls.__name__} needs a Model .*got a LogDensity"):
            cx.fit(density, None, method, progress=False)
        return
    if cls.check is not Method.check:
        try:
            method.check(*density.prepare(None))
        except (TypeError, ValueError) as refusal:
            pytest.skip(str(refusal))
    posterior = cx.fit(density, None, method, progress=False)
    template = jax.eval_shape(start, jax.random.key(0))
    sample = posterior.sample(0, 4)
    assert jax.tree.structure(sample) == jax.tree.structure(template)
    for leaf, like in zip(jax.tree.leaves(sample), jax.tree.leaves(template), strict=True):
        assert leaf.shape == (4, *like.shape)
        assert np.all(np.isfinite(leaf))
    if isinstance(posterior.approximation, Draws):
        assert jax.tree.structure(posterior.draws) == jax.tree.structure(template)
    with pytest.raises(TypeError, match=r"predict needs a Model with a network.*LogDensity"):
        posterior.predict(inputs(0))
    posterior.save(tmp_path / "density.credax")
    loaded = cx.load(tmp_path / "density.credax", model=density)
    jax.tree.map(np.testing.assert_array_equal, loaded.sample(0, 4), sample)
    with pytest.raises(cx.StorageError, match=r"LogDensity; pass load\(model=\.\.\.\)"):
        cx.load(tmp_path / "density.credax")
    with pytest.raises(TypeError, match="data must be None for a LogDensity; got tuple"):
        cx.fit(density, data_of("gaussian"), method, progress=False)
