"""One suite over every method of ``cx.inference.METHODS``: what they share, with no branch on a name.

Compiling is what costs time here. So a method is compiled for few runs, and every test looks at the same ones:
a rich one in float32 (a hidden layer, a learned scale, minibatches), and a log density in float64, or classes
where it takes none. Each other likelihood is quick for one method and slow for the rest.
"""

import dataclasses
import itertools
import json
import re
import zlib
from functools import cache
from typing import NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logsumexp, softmax, xlogy

import credax as cx
from credax.core import random
from credax.diagnostics.doctor import Diagnosis
from credax.inference import METHODS, Method
from credax.inference.method import Ability, Need
from credax.model.likelihoods import Likelihood
from credax.model.networks.network import AbstractNetwork
from credax.model.networks.wandering import Wandering
from credax.posterior.approximations import Draws
from credax.storage.describe import describe, rebuild

# So few steps make bad posteriors, and some methods say so.
pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

ROWS, FEATURES, NEW_ROWS = 24, 2, 5
DRAWS = 2
"""How many draws a test asks for: another number would be another program to compile."""
TINY = {
    "num_steps": 23,
    "batch_size": None,
    "num_warmup": 11,
    "num_draws": 7,
    "members": 3,
    "chains": 2,
    "particles": 8,
}
"""Quick values of the settings that have the same name everywhere."""


def settings_of(cls):
    return [field.name for field in dataclasses.fields(cls) if field.init]


def tiny(cls, **settings):
    """A quick instance: the shared settings that it has, and the given ones that it has."""
    return cls(**{k: v for k, v in {**TINY, **settings}.items() if k in settings_of(cls)})


# -- the problems: one data set, a network, a likelihood and targets each --------------------------


class Case(NamedTuple):
    network: AbstractNetwork
    likelihood: Likelihood
    targets: str
    batch_size: int | None = None


LINEAR = cx.networks.linear()
HIDDEN = cx.networks.mlp([3], activation="tanh")
# Dropout is for training: predictions are by hand without it below.
DROPOUT = cx.networks.mlp([3], activation="tanh", dropout=0.3)
CASES = {
    "learned": Case(HIDDEN, cx.likelihoods.Gaussian(scale=None), "number", 7),
    "gaussian": Case(LINEAR, cx.likelihoods.Gaussian(0.3), "number"),
    "heteroscedastic": Case(LINEAR, cx.likelihoods.Heteroscedastic(), "number"),
    "poisson": Case(LINEAR, cx.likelihoods.Poisson(), "count"),
    "one column, dropout": Case(DROPOUT, cx.likelihoods.Gaussian(0.3), "number column"),
    "three columns": Case(LINEAR, cx.likelihoods.Gaussian((0.2, 0.3, 0.4)), "three numbers"),
    "categorical": Case(LINEAR, cx.likelihoods.Categorical(), "class"),
    "bernoulli": Case(LINEAR, cx.likelihoods.Bernoulli(), "label"),
}
RICH = "learned"


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


def data_of(case, seed=0):
    x = inputs(seed)
    return x, targets(CASES[case].targets, x, seed + 1)


@cache
def model_of(method, case):
    """The case's model, or one near it that the method takes: other network, given scale, discrete weights."""
    network, likelihood = CASES[case][:2]
    scales = [likelihood, cx.likelihoods.Gaussian(0.3)] if likelihood.learned else [likelihood]
    priors = (cx.priors.Normal(1.0), cx.priors.Discrete([-1.0, 1.0]))
    refusals = []
    for prior, scale, shape in itertools.product(priors, scales, (network, LINEAR, HIDDEN)):
        model = cx.Model(shape, prior, scale)
        try:
            method.check(*model.prepare(data_of(case)))
        except (TypeError, ValueError) as error:
            refusals.append(str(error))
        else:
            return model
    if case == RICH:
        pytest.fail(f"{type(method).__name__} takes no model at all: {refusals}")
    return pytest.skip(f"not for this method: {refusals[0]}")


def method_of(name, case=RICH):
    return tiny(METHODS[name], batch_size=CASES[case].batch_size)


def fit(name, case=RICH, key=0, data=None, **arguments):
    method = method_of(name, case)
    arguments = {"progress": False, **arguments}
    return cx.fit(model_of(method, case), data or data_of(case), method, key=key, **arguments)


@cache
def run(name, case, dtype):
    assert dtype == jnp.result_type(float), "the dtype is part of what a run depends on"
    posterior = fit(name, case)
    return posterior, posterior.predict(inputs(7, NEW_ROWS))


def fitted(name, case=RICH):
    return run(name, case, jnp.result_type(float))[0]


def prediction(name, case=RICH):
    return run(name, case, jnp.result_type(float))[1]


def start(key):
    return {"location": (0.1 * jax.random.normal(key, (2,)), jnp.zeros(()))}


def log_joint(params):
    """Normal, around 1 and 2."""
    location, offset = params["location"]
    return -0.5 * (jnp.sum((location - 1) ** 2) + (offset - 2) ** 2)


DENSITY = cx.LogDensity(start, log_joint)


def refusal_of_a_density(name):
    try:
        tiny(METHODS[name]).check(*DENSITY.prepare(None))
    except (TypeError, ValueError) as error:
        return error
    return None


# -- which runs are quick ---------------------------------------------------------------------------


def rank(*words):
    """A number that depends on the words alone, so that a new method changes no choice among the others."""
    return zlib.crc32(" ".join(words).encode())


def doubled(name):
    """A fifth of the methods is quick in float64 too, on a log density or on classes."""
    return rank(name) % 5 == 0


OTHERS = [case for case in CASES if case != RICH]
QUICK = {
    *((name, RICH, "float32") for name in METHODS),
    *((min(METHODS, key=lambda name: rank(name, case)), case, "float32") for case in OTHERS),
    *(
        (name, "categorical", "float64")
        for name in METHODS
        if refusal_of_a_density(name) and doubled(name)
    ),
}


def each_run(*cases, dtypes=("float32", "float64")):
    """Every method on the rich case in both precisions, and on every other case in one of them.

    What is not ``QUICK`` is slow.
    """
    runs = [
        (name, case, dtype)
        for name, case, dtype in itertools.product(METHODS, cases or CASES, dtypes)
        if case == RICH
        or len(dtypes) == 1
        or (name, case, dtype) in QUICK
        or dtype == one_of(case, name)
    ]
    params = [
        pytest.param(*run, marks=() if run in QUICK else pytest.mark.slow, id="-".join(run))
        for run in runs
    ]
    return pytest.mark.parametrize("name, case, dtype", params, indirect=["dtype"])


def one_of(case, name):
    """The precision of a case, in turn."""
    return ("float32", "float64")[rank(name, case) % 2]


each_method = pytest.mark.parametrize("name", METHODS)
each_method_in_turn = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if doubled(n) else pytest.mark.slow) for n in METHODS]
)
# Minibatches, and all rows at once where there is time.
each_batching = each_run(RICH, "categorical", dtypes=["float32"])


@pytest.fixture
def dtype(request):
    """The precision of a run; float64 is switched on for the test."""
    if request.param == "float64":
        request.getfixturevalue("x64")
    return np.dtype(request.param)


# -- the surface ------------------------------------------------------------------------------------


@pytest.mark.matrix
@each_batching
def test_a_second_fit_compiles_nothing(name, case, dtype, compilations):
    """The first test that fits, so that its second fit is the second of the process."""

    def predicted(posterior):
        predictive = posterior.predict(inputs(7, NEW_ROWS))
        return predictive.mean, predictive.sample(0, 3)

    first = predicted(fitted(name, case))
    with compilations() as count:
        posterior = fit(name, case, data=data_of(case, seed=3), key=5)
        assert count() == 0
        second = predicted(posterior)
        assert count() == 0
        fit(name, case, key=2, chunk_steps=9)
        assert count() == 0
    assert not np.array_equal(first[0], second[0])


@each_method
def test_registry(name):
    cls = METHODS[name]
    assert issubclass(cls, Method)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name)
    assert name.replace("-", "") == cls.__name__.lower()
    assert getattr(cx, cls.__name__) is cls
    assert cls.__name__ in cx.__all__
    assert cls.__subclasses__() == [], "methods are final"


def assert_stacked(sample, template, *lead):
    """The structure and shapes of the parameters, behind so many leading axes, and finite."""
    assert jax.tree.structure(sample) == jax.tree.structure(template)
    for leaf, like in zip(jax.tree.leaves(sample), jax.tree.leaves(template), strict=True):
        assert leaf.shape == (*lead, *like.shape)
        assert np.all(np.isfinite(leaf))


@each_method
def test_sample_and_draws(name):
    posterior = fitted(name)
    template = jax.eval_shape(posterior.model.init, jax.random.key(0))
    sample = posterior.sample(0, DRAWS)
    assert_stacked(sample, template, DRAWS)
    same = posterior.sample(jax.random.key(0), DRAWS)
    jax.tree.map(np.testing.assert_array_equal, sample, same)
    if not isinstance(posterior.approximation, Draws):
        for wanted in ("draws", "log_weights"):
            with pytest.raises(AttributeError, match=r"keeps no draws.*posterior\.sample"):
                getattr(posterior, wanted)
        return
    replicas, draws = jax.tree.leaves(posterior.draws)[0].shape[:2]
    assert_stacked(posterior.draws, template, replicas, draws)
    assert replicas == posterior.method.replicas
    if posterior.log_weights is not None:
        assert posterior.log_weights.shape == (replicas, draws)
        assert np.all(posterior.log_weights < np.inf)  # -inf: a draw that weighs nothing
        assert np.any(posterior.log_weights > -np.inf)
    if len(posterior.info["kept"]):
        assert len(posterior.info["kept"]) == draws


@each_method
def test_info(name):
    posterior, method = fitted(name), method_of(name)
    info = posterior.info
    assert posterior.method == method
    assert info["ended"] == "complete"
    assert 0 < info["steps"] <= method.num_steps
    if METHODS[name].finished is Method.finished:
        assert info["steps"] == method.num_steps
    assert info["seconds"] > 0
    assert info["compile_seconds"] > 0
    figures = {k: v for k, v in info.items() if np.ndim(v) == 2}
    assert figures, "a person sees nothing of the run"
    for figure, values in figures.items():
        assert values.shape == (method.replicas, info["steps"]), figure
        assert np.all(np.isfinite(values)), figure
    kept = np.asarray(info["kept"])
    assert np.all((kept >= method.num_warmup) & (kept < info["steps"]))
    for estimate in (posterior.log_evidence, posterior.elbo):
        assert estimate is None or (len(estimate) == 2 and np.all(np.isfinite(estimate)))


@pytest.mark.matrix
@each_method
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


@each_method
def test_progress_names_the_method_and_its_figures(name, capsys):
    fit(name, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert METHODS[name].__name__ in shown.err
    fit(name, progress=False)
    assert capsys.readouterr() == ("", "")


# -- settings ---------------------------------------------------------------------------------------


@each_method
def test_settings_are_values(name):
    cls = METHODS[name]
    method, same = tiny(cls), tiny(cls)
    assert method == same
    assert hash(method) == hash(same)
    assert method is not same
    assert cls() == cls()  # every setting has a default
    assert hash(cls()) == hash(cls())
    for setting in settings_of(cls):
        value = getattr(method, setting)
        if type(value) in (int, float) and value:
            other = value + 1 if type(value) is int else value / 2
            assert dataclasses.replace(method, **{setting: other}) != method, setting
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, setting, value)
        assert f"{setting}={value!r}" in repr(method)
    text = json.dumps(describe(method))
    assert rebuild(json.loads(text), {cls.__name__: cls}) == method


@each_method
def test_numbers_of_other_libraries_are_settings(name):
    """They become Python numbers, so that a method is equal to itself written otherwise, and hashable."""
    plain = tiny(METHODS[name])
    values = {setting: getattr(plain, setting) for setting in settings_of(METHODS[name])}
    numbers = {setting: v for setting, v in values.items() if type(v) in (int, float)}
    for convert in (np.asarray, jnp.asarray):
        with jax.enable_x64(True):
            others = {setting: convert(value) for setting, value in numbers.items()}
        method = dataclasses.replace(plain, **others)
        assert method == plain
        assert hash(method) == hash(plain)
        for setting, value in numbers.items():
            assert type(getattr(method, setting)) is type(value), setting


@each_method
def test_every_setting_is_documented(name):
    cls = METHODS[name]
    assert ".. math::" in cls.__doc__
    arguments = re.search(r"\n( *)Args:\n(.*)", cls.__doc__, re.DOTALL)
    documented = re.findall(rf"^{arguments[1]}  (\w+): \S", arguments[2], re.MULTILINE)
    assert documented == settings_of(cls)


# -- the same run, bit for bit ----------------------------------------------------------------------


def bits(posterior):
    """Everything that must be the same when a run is the same."""
    info = {k: v for k, v in posterior.info.items() if np.ndim(v) > 0}
    predictive = posterior.predict(inputs(7, NEW_ROWS))
    sample = posterior.sample(3, DRAWS)
    return [*jax.tree.leaves((sample, info)), predictive.mean, predictive.epistemic]


def assert_same_bits(one, other):
    for a, b in zip(bits(one), bits(other), strict=True):
        np.testing.assert_array_equal(a, b)


@each_batching
def test_bits_depend_on_the_key_alone(name, case, dtype):
    posterior = fitted(name, case)
    for steps in (1, 7):
        assert_same_bits(posterior, fit(name, case, chunk_steps=steps))
    assert_same_bits(posterior, fit(name, case, key=jax.random.key(0)))
    other = fit(name, case, key=1)
    # A sum over all discrete weights leaves nothing to chance but the order, and neither does the optimum of a
    # bound that is known without error.
    known = posterior.log_evidence if posterior.model.discrete else posterior.elbo
    exact = known and known[1] == 0
    for a, b in zip(bits(posterior)[-2:], bits(other)[-2:], strict=True):
        assert np.allclose(a, b, rtol=1e-5) if exact else not (np.any(a) and np.array_equal(a, b))


# -- every likelihood, shape of targets and precision -----------------------------------------------


def assert_dtype(posterior, dtype):
    sample = [np.asarray(leaf) for leaf in jax.tree.leaves(posterior.sample(0, DRAWS))]
    assert {leaf.dtype for leaf in sample} == {dtype}
    if isinstance(posterior.approximation, Draws):
        assert {leaf.dtype for leaf in jax.tree.leaves(posterior.draws)} == {dtype}
    figures = [v for v in posterior.info.values() if np.ndim(v) == 2]
    assert {values.dtype for values in figures if values.dtype.kind == "f"} <= {dtype}
    # Steps in float64 are steps in float64: no part of the run has the digits of float32 only.
    if dtype == np.float64 and not posterior.model.discrete:
        assert any(np.any(leaf != leaf.astype(np.float32)) for leaf in sample)


@each_run()
def test_a_run_has_one_dtype(name, case, dtype):
    assert_dtype(fitted(name, case), dtype)


@each_run()
def test_predictions_have_the_shape_of_the_targets(name, case, dtype):
    predictive, task = prediction(name, case), fitted(name, case).model.likelihood.task
    y = targets(CASES[case].targets, inputs(7, NEW_ROWS))
    shape = (NEW_ROWS, 3) if case == "categorical" else y.shape
    fields = dict.fromkeys(("mean", "std", "variance", "epistemic", "aleatoric"), shape)
    measures = ("entropy", "expected_entropy", "mutual_information")
    if task == "classification":
        fields["probs"] = (NEW_ROWS, 3 if case == "categorical" else 2)
        fields |= dict.fromkeys(measures, (NEW_ROWS,))
        assert predictive.label.shape == (NEW_ROWS,)
        assert predictive.label.dtype.kind == "i"
        for call in (predictive.interval, lambda: predictive.quantile(0.5)):
            with pytest.raises(AttributeError, match="quantile is for predictions of numbers"):
                call()
    else:
        message = r"(probs|entropy) is for predictions of classes"
        for field in ("probs", *measures):
            with pytest.raises(AttributeError, match=message):
                getattr(predictive, field)
    arrays = {field: (getattr(predictive, field), shape) for field, shape in fields.items()}
    arrays["log_prob"] = predictive.log_prob(y), (NEW_ROWS,)
    if task == "regression":  # counts compile for seconds
        lower, upper = predictive.interval(0.8)
        assert np.all(lower < upper)
        arrays |= {"lower": (lower, y.shape), "upper": (upper, y.shape)}
    for field, (values, shape) in arrays.items():
        assert (values.shape, values.dtype) == (shape, dtype), field
    drawn = predictive.sample(0, 3)
    assert drawn.shape == (3, *y.shape)
    assert drawn.dtype == (np.int32 if task == "classification" else dtype)


def sampled(name, case):
    """The prediction from the samples, also where it has a closed form."""
    posterior = fitted(name, case)
    count = posterior.approximation.samples(random.key(0), None).count
    return posterior.predict(inputs(7, NEW_ROWS), num_samples=count)


def by_hand(posterior, x):
    """The weight of every sample and its likelihood, in float64, with nothing of credax but the weights."""
    samples = posterior.approximation.samples(random.key(0), None)
    params, state = jax.tree.map(np.float64, samples.take(0, samples.count))
    network = params.get("network", params)
    outputs = perceptron(network, x)
    if isinstance(posterior.model.network, Wandering):
        outputs += cosines(state[1], x)
    if samples.centre is not None:  # the linear expansion there; its derivative by a complex step
        mode = jax.tree.map(lambda leaf: np.float64(leaf)[None], samples.centre.params)
        mode = mode.get("network", mode)
        change = jax.tree.map(lambda w, m: m + 1e-30j * (w - m), network, mode)
        outputs = perceptron(mode, x) + perceptron(change, x).imag / 1e-30
    likelihood = distribution(posterior.model.likelihood, outputs, params.get("likelihood"))
    return np.exp(samples.log_weights), likelihood


def perceptron(params, x):
    *hidden, last = [layer for _, layer in sorted(params.items())]
    for layer in hidden:
        x = np.tanh(x @ layer["kernel"] + layer["bias"][:, None])
    return x @ last["kernel"] + last["bias"][:, None]


def cosines(function, x):
    """The random function of each sample."""
    seen = np.stack([x[:, columns] for columns in function["columns"].astype(int)])
    angles = (seen - function["centre"][:, None]) @ function["frequency"] + function["phase"][
        :, None
    ]
    return np.sqrt(2 / angles.shape[-1]) * np.cos(angles) @ function["coefficients"]


def distribution(likelihood, outputs, learned):
    """What scipy has for the likelihood; its parameters have axes (sample, row, target)."""
    match likelihood:
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


@each_run()
def test_the_variance_is_epistemic_plus_aleatoric(name, case, dtype):
    predictive = sampled(name, case)
    weights, each = by_hand(fitted(name, case), inputs(7, NEW_ROWS))
    assert weights.sum() == pytest.approx(1)
    mean = np.tensordot(weights, each.mean(), 1)
    epistemic = np.tensordot(weights, (each.mean() - mean) ** 2, 1)
    aleatoric = np.tensordot(weights, each.var(), 1)
    std = np.sqrt(epistemic + aleatoric)
    tolerance = 2e-4 if dtype == np.float32 else 1e-10
    wanted = {"mean": mean, "epistemic": epistemic, "aleatoric": aleatoric, "std": std}
    for field, want in wanted.items():
        got = getattr(predictive, field).reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance / 100, err_msg=field)
    np.testing.assert_array_equal(predictive.variance, predictive.epistemic + predictive.aleatoric)
    assert np.all(predictive.aleatoric > 0)
    assert np.all(predictive.epistemic >= 0)


@each_run("categorical", "bernoulli")
def test_the_entropy_is_expected_entropy_plus_mutual_information(name, case, dtype):
    predictive = sampled(name, case)
    weights, each = by_hand(fitted(name, case), inputs(7, NEW_ROWS))
    probs = each.mean()
    if probs.shape[-1] == 1:
        probs = np.concatenate([1 - probs, probs], -1)
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


@each_run()
def test_log_prob_is_the_log_of_the_mean_density(name, case, dtype):
    x = inputs(7, NEW_ROWS)
    y = targets(CASES[case].targets, x)
    weights, each = by_hand(fitted(name, case), x)
    if case == "categorical":
        log_prob = np.log(each.mean()[:, np.arange(NEW_ROWS), y])
    else:
        log_density = each.logpmf if CASES[case].targets in ("count", "label") else each.logpdf
        log_prob = log_density(y.reshape(NEW_ROWS, -1)).sum(-1)
    want = logsumexp(log_prob, axis=0, b=weights[:, None])
    # A log density may be near zero, the sum of terms of about one.
    np.testing.assert_allclose(sampled(name, case).log_prob(y), want, rtol=1e-4, atol=1e-6)


@each_method
def test_fewer_samples(name):
    whole = prediction(name).outputs
    few = fitted(name).predict(inputs(7, NEW_ROWS), num_samples=DRAWS)
    assert few.outputs.shape == (min(DRAWS, len(whole)), *whole.shape[1:])
    np.testing.assert_allclose(few.mean, few.outputs[..., 0].mean(0), rtol=1e-4, atol=1e-6)
    assert few.quantile([[0.1, 0.5, 0.9]]).shape == (1, 3, NEW_ROWS)


# -- what comes in and what goes out ----------------------------------------------------------------


@pytest.mark.matrix
@each_run()
def test_saved_and_loaded_it_predicts_the_same_bits(name, case, dtype, tmp_path):
    posterior = fitted(name, case)
    said = str(posterior.diagnose())
    posterior.save(tmp_path / "posterior.credax")
    loaded = cx.load(tmp_path / "posterior.credax")
    assert loaded.model == posterior.model
    assert_same_bits(posterior, loaded)
    assert loaded.log_evidence == posterior.log_evidence
    assert loaded.elbo == posterior.elbo
    assert loaded.method == posterior.method
    assert str(loaded.diagnose()) == said
    assert {k: v for k, v in loaded.info.items() if np.ndim(v) == 0} == {
        k: v for k, v in posterior.info.items() if np.ndim(v) == 0
    }


@each_method_in_turn
def test_inputs_are_not_modified(name):
    x, y = data_of(RICH)
    copies = x.copy(), y.copy()
    on_device = jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y, jnp.result_type(float))
    for a in (x, y):
        a.flags.writeable = False
    plain, device = fit(name, data=(x, y)), fit(name, data=on_device)
    new = inputs(7, NEW_ROWS)
    new.flags.writeable = False
    plain.predict(new)
    for a, copy in zip((x, y), copies, strict=True):
        np.testing.assert_array_equal(a, copy)
    # A donated buffer would be deleted.
    np.testing.assert_allclose(on_device[0], x, rtol=1e-6)
    np.testing.assert_allclose(on_device[1], y, rtol=1e-6)
    assert_same_bits(plain, device)


@each_method_in_turn
def test_a_posterior_is_a_start_and_starts_from_one(name):
    posterior = fitted(name)
    before = jax.tree.map(np.copy, posterior.sample(0, DRAWS))
    again = fit(name, start=posterior, key=4)
    assert again.info["ended"] == "complete"
    jax.tree.map(np.testing.assert_array_equal, posterior.sample(0, DRAWS), before)
    if not posterior.model.discrete:
        model = model_of(method_of(name), RICH)
        point = cx.MAP(num_steps=5)
        found = cx.fit(model, data_of(RICH), point, start=posterior, progress=False)
        assert np.all(np.isfinite(found.predict(inputs(7, NEW_ROWS)).mean))


@each_method
def test_a_callback_sees_the_run_and_ends_it(name):
    events, method = [], method_of(name)
    stop = min(method.num_warmup + 5, fitted(name).info["steps"])

    def callback(event):
        events.append(event)
        return event.step >= stop

    posterior = fit(name, callbacks=[callback], chunk_steps=1)
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


@each_method_in_turn
def test_log_density(name, x64, tmp_path):
    cls = METHODS[name]
    method, refused = tiny(cls), refusal_of_a_density(name)
    if refused is not None:  # it needs a likelihood, rows or discrete weights, and says so
        assert re.match(rf"{cls.__name__}\b.*\b(Model|LogDensity|data|discrete)\b", str(refused))
        with pytest.raises(type(refused), match=re.escape(str(refused))):
            cx.fit(DENSITY, None, method, progress=False)
        return
    assert "likelihood" not in method.needs
    posterior = cx.fit(DENSITY, None, method, progress=False)
    assert_dtype(posterior, np.dtype(np.float64))
    template = jax.eval_shape(start, jax.random.key(0))
    sample = posterior.sample(0, DRAWS)
    assert_stacked(sample, template, DRAWS)
    if isinstance(posterior.approximation, Draws):
        assert jax.tree.structure(posterior.draws) == jax.tree.structure(template)
    with pytest.raises(TypeError, match=r"predict needs a Model with a network.*LogDensity"):
        posterior.predict(inputs(0))
    posterior.save(tmp_path / "density.credax")
    loaded = cx.load(tmp_path / "density.credax", model=DENSITY)
    jax.tree.map(np.testing.assert_array_equal, loaded.sample(0, DRAWS), sample)
    with pytest.raises(cx.StorageError, match=r"LogDensity; pass load\(model=\.\.\.\)"):
        cx.load(tmp_path / "density.credax")
    with pytest.raises(TypeError, match="data must be None for a LogDensity; got tuple"):
        cx.fit(DENSITY, data_of(RICH), method, progress=False)


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_needs_and_can_do_is_among_what_the_contract_names(name):
    method = METHODS[name]()
    assert method.needs <= set(get_args(Need))
    assert method.can <= set(get_args(Ability))
