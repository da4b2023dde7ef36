"""A loaded posterior is the one that was saved, and a damaged file is refused."""

import dataclasses
import hashlib
import itertools
import json
import os
import pickle
import re
import stat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import credax
import credax as cx
from credax import storage
from credax.decisions.pruning import prune
from credax.model import likelihoods, priors
from credax.model.frame import Frame
from credax.model.networks import cnn, from_function, linear, mlp
from credax.posterior import Estimate
from credax.posterior.approximations import Draws
from credax.posterior.approximations.families import MeanField
from credax.storage import files

VECTORS = np.random.default_rng(0).normal(size=(6, 3))
IMAGES = np.random.default_rng(1).normal(size=(6, 4, 4))
ONE = np.arange(6) / 3
TWO = np.column_stack([ONE, -ONE])
LABELS = np.array([0, 1, 2, 0, 1, 2])

NETWORKS = {
    "linear": (linear(), VECTORS),
    "mlp": (mlp([4, 2], activation="tanh", dropout=0.1), VECTORS),
    "cnn": (cnn([2], [3], kernel_size=3, activation="gelu"), IMAGES),
}
PRIORS = [
    priors.Normal(2.0, -1.0),
    priors.Laplace(0.3),
    priors.StudentT(4.0, 0.5, 0.1),
    priors.ScaleMixture(0.3, 2.0, 0.01),
    priors.FanInNormal(3.0),
    priors.Discrete([-1, 0, 0.1], [0.2, 0.3, 0.5]),
    priors.PerLayer({"*bias": priors.StudentT(5.0), "*": priors.ScaleMixture(0.9)}),
    priors.PerLayer({"*bias": priors.Discrete([0, 1]), "*kernel": priors.Discrete([-1, 1])}),
]
LIKELIHOODS = [
    (likelihoods.Gaussian(0.1), ONE),
    (likelihoods.Gaussian([0.1, 0.2]), TWO),
    (likelihoods.Gaussian(None), ONE),
    (likelihoods.Gaussian(None, priors.StudentT(3.5)), TWO),
    (likelihoods.StudentT(3.0, 0.2), ONE),
    (likelihoods.StudentT(3.0, None, priors.Laplace(0.1)), ONE),
    (likelihoods.Heteroscedastic(0.01), TWO),
    (likelihoods.MultivariateGaussian([[1, 0.3], [0.3, 2]]), TWO),
    (likelihoods.MultivariateGaussian(None, priors.StudentT()), TWO),
    (likelihoods.Categorical(), LABELS),
    (likelihoods.Categorical(5), LABELS),
    (likelihoods.Bernoulli(), LABELS % 2),
    (likelihoods.Poisson(), LABELS),
]


def random_posterior(model, data, *, replicas=2, draws=3, weighted=False, **fields):
    """A posterior with random weights, without a fit."""
    bound = model.bind(data)
    shapes = jax.eval_shape(bound.init, jax.random.key(0))
    generator = np.random.default_rng(5)
    params = jax.tree.map(
        lambda leaf: generator.normal(0, 0.3, (replicas, draws, *leaf.shape)).astype(leaf.dtype),
        shapes,
    )
    log_weights = generator.normal(size=(replicas, draws)) if weighted else None
    return cx.Posterior(bound, Draws(params, (), log_weights), **fields)


def same_tree(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for left, right in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        np.testing.assert_array_equal(left, right)


SMALL = cx.Model(linear(), likelihood=likelihoods.Gaussian(0.1))


def small(**fields):
    return random_posterior(SMALL, (VECTORS, ONE), **fields)


# -- round trips -----------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
def test_every_combination_of_own_parts_survives(tmp_path, name, prior):
    network, x = NETWORKS[name]
    for likelihood, y in LIKELIHOODS:
        posterior = random_posterior(cx.Model(network, prior, likelihood), (x, y))
        posterior.save(tmp_path / "it")
        loaded = cx.load(tmp_path / "it")
        assert loaded.model == posterior.model
        assert hash(loaded.model) == hash(posterior.model)
        same_tree(loaded.draws, posterior.draws)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("likelihood, y", LIKELIHOODS[1::3], ids=lambda value: type(value).__name__)
def test_predictions_survive_bit_for_bit(tmp_path, likelihood, y, weighted):
    posterior = random_posterior(
        cx.Model(linear(), likelihood=likelihood), (VECTORS, y), weighted=weighted
    )
    posterior.save(tmp_path / "it.credax")
    loaded = cx.load(tmp_path / "it.credax")
    if weighted:
        np.testing.assert_array_equal(loaded.log_weights, posterior.log_weights)
    else:
        assert loaded.log_weights is None
    before, after = (p.predict(VECTORS) for p in (posterior, loaded))
    for name in ("mean", "epistemic", "aleatoric"):
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    np.testing.assert_array_equal(before.log_prob(y), after.log_prob(y))


def test_a_fitted_posterior_survives_with_what_is_known_of_the_run(tmp_path):
    method = cx.DeepEnsemble(members=2, num_steps=5, batch_size=3, learning_rate=0.1)
    posterior = cx.fit(SMALL, (VECTORS, ONE), method, progress=False)
    posterior = dataclasses.replace(
        posterior,
        log_evidence=Estimate(np.float32(-3.5), jnp.asarray(0.25), "unbiased"),
        elbo=(-4.0, float("nan")),
        info={**posterior.info, "text": "grün", "flag": True, "scalar": np.float32(2.5), "n": None},
    )
    posterior.save(tmp_path / "it")
    loaded = cx.load(tmp_path / "it")
    same_tree(loaded.draws, posterior.draws)
    assert set(loaded.info) == set(posterior.info)
    for name, value in posterior.info.items():
        np.testing.assert_array_equal(loaded.info[name], value)
    assert loaded.info["kept"].dtype == posterior.info["kept"].dtype
    assert loaded.log_evidence == (-3.5, 0.25)
    assert loaded.log_evidence.errs == "unbiased"
    assert loaded.elbo is not None
    assert loaded.elbo.value == -4.0
    assert np.isnan(loaded.elbo.standard_error)
    assert loaded.elbo.errs == "unknown"
    assert loaded.method == method


def test_a_loaded_posterior_can_be_saved_again(tmp_path):
    info = {"a": np.arange(3.0), "b": 1}
    posterior = small(method=cx.MAP(num_steps=3), log_evidence=(1.0, 2.0), info=info, weighted=True)
    posterior.save(tmp_path / "first")
    cx.load(tmp_path / "first").save(tmp_path / "second")
    (first, one), (second, two) = (
        storage.read_file(tmp_path / name, "posterior") for name in ("first", "second")
    )
    assert first == second
    assert first["method"]["type"] == "MAP"
    same_tree(one, two)


def test_double_precision_survives(x64, tmp_path):
    posterior = small()
    assert posterior.draws["layer_0"]["kernel"].dtype == np.float64
    posterior.save(tmp_path / "it")
    same_tree(cx.load(tmp_path / "it").draws, posterior.draws)


def test_a_file_of_one_precision_serves_the_other(tmp_path):
    mean = small().predict(VECTORS).mean
    small().save(tmp_path / "single")
    jax.config.update("jax_enable_x64", True)
    try:
        found = cx.load(tmp_path / "single").predict(VECTORS)
        np.testing.assert_allclose(found.mean, mean, rtol=1e-5, atol=1e-6)
        assert found.mean.dtype == found.log_prob(ONE).dtype == np.float64
        double = small()
        double.save(tmp_path / "double")
        expected = double.predict(VECTORS).mean
    finally:
        jax.config.update("jax_enable_x64", False)
    found = cx.load(tmp_path / "double").predict(VECTORS)
    np.testing.assert_allclose(found.mean, expected, rtol=1e-5, atol=1e-6)
    assert found.quantile(0.5).shape == (6,)


def scalar_init(key):
    return {"slope": jnp.zeros(()), "half": jnp.zeros((2,), jnp.bfloat16), "none": jnp.zeros((0,))}


def scalar_apply(params, x):
    return x[:, :1] * params["slope"]


def test_scalars_empty_arrays_and_half_precision_survive(tmp_path):
    network = from_function(scalar_init, scalar_apply)
    posterior = random_posterior(
        cx.Model(network, likelihood=likelihoods.Gaussian(1)), (VECTORS, ONE)
    )
    posterior.save(tmp_path / "it")
    loaded = cx.load(tmp_path / "it", network)
    same_tree(loaded.draws, posterior.draws)
    storage.write_file(tmp_path / "raw", "part", {}, {"scalar": jnp.asarray(2.0)})
    assert storage.read_file(tmp_path / "raw", "part")[1]["scalar"].shape == ()


@pytest.mark.parametrize("name", ["plain", "mit Leerzeichen", "größe-模型", "dots.in.name.credax"])
@pytest.mark.parametrize("kind", [str, Path])
def test_any_path_will_do(tmp_path, name, kind):
    path = kind(tmp_path / "new" / "folder" / name)
    small().save(path)
    same_tree(cx.load(path).draws, small().draws)
    assert [entry.name for entry in (tmp_path / "new" / "folder").iterdir()] == [name]


def test_nothing_on_disk_is_executable(tmp_path):
    small().save(tmp_path / "it")
    mode = (tmp_path / "it").stat().st_mode
    assert not mode & (stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    assert stat.S_ISREG(mode)


# -- networks and models that are not credax's own -------------------------------------------------


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


# -- damage ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp("content") / "it"
    small(replicas=1, draws=1, info={"log_joint": np.arange(4.0), "flag": np.array([True])}).save(
        path
    )
    return path.read_bytes()


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(cx.StorageError) as caught:
        cx.load(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_every_flipped_bit_is_refused(tmp_path, content):
    # One random bit of every byte of the file.
    bits = np.random.default_rng(0).integers(0, 8, len(content))
    for at, bit in enumerate(bits):
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        refused(tmp_path / "it", damaged)


def test_every_swapped_or_zeroed_stretch_is_refused(tmp_path, content):
    generator = np.random.default_rng(1)
    for _ in range(100):
        begin = generator.integers(0, len(content) - 8)
        damaged = bytearray(content)
        damaged[begin : begin + 8] = bytes(generator.integers(0, 256, 8, np.uint8))
        if damaged != content:
            refused(tmp_path / "it", damaged)


def test_every_truncation_is_refused(tmp_path, content):
    for length in {*range(0, len(content), 7), *range(len(content) - 20, len(content))}:
        refused(tmp_path / "it", content[:length])


def test_what_follows_the_end_is_refused(tmp_path, content):
    for more in (b"\0", b"more", content):
        refused(tmp_path / "it", content + more)


def with_header(content, change):
    """The file with another header and the digest that belongs to it, as no accidental damage gives."""
    arrays = safetensors.numpy.load(content)
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["credax"]
    text = json.dumps(change(json.loads(text)), sort_keys=True)
    metadata = {"credax": text, "sha256": files._digest(text, arrays)}
    return safetensors.numpy.save(arrays, metadata)


def test_a_header_of_our_own_making_is_accepted(tmp_path, content):
    (tmp_path / "it").write_bytes(with_header(content, lambda header: header))
    assert cx.load(tmp_path / "it").model.schema is not None


def test_a_file_from_before_columns_had_names_and_scales_is_read(tmp_path, content):
    def without(header):
        model = {k: v for k, v in header["model"].items() if k not in ("frame", "standardise")}
        return {**header, "model": model}

    (tmp_path / "it").write_bytes(with_header(content, without))
    model = cx.load(tmp_path / "it").model
    assert model.frame == Frame()
    assert model.standardise is False


def test_a_newer_format_is_refused(tmp_path, content):
    newer = lambda header: {**header, "format": storage.FORMAT + 1, "credax": "9.9"}  # noqa: E731
    message = refused(tmp_path / "it", with_header(content, newer))
    assert f"was written by credax 9.9 in format {storage.FORMAT + 1}" in message
    assert "Upgrade credax" in message


def nested(header, *path, value):
    header = json.loads(json.dumps(header))
    inside = header
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    return header


@pytest.mark.parametrize(
    "path, value",
    [
        (("kind",), "checkpoint"),
        (("format",), "one"),
        (("format",), None),
        (("model",), None),
        (("model",), []),
        (("model",), {}),
        (("model", "network"), {"type": "Popen", "args": ["true"]}),
        (("model", "network"), {"type": "Normal"}),
        (("model", "network", "hidden"), [-1]),
        (("model", "network", "surplus"), 1),
        (("model", "network"), "MLP"),
        (("model", "prior"), {"type": "MLP"}),
        (("model", "likelihood"), {"type": "Likelihood"}),
        (("model", "likelihood", "scale_prior"), {"type": "Gaussian"}),
        (("model", "schema"), None),
        (("model", "schema", "outputs"), 2),
        (("model", "frame"), 3),
        (("model", "frame"), {"type": "Frame", "x_names": None, "surplus": 1}),
        (("model", "standardise"), "z"),
        (("parameters",), {}),
        (("parameters",), None),
        (("approximation", "type"), "Posterior"),
        (("approximation",), []),
        (("log_evidence",), [1]),
        (("elbo",), "high"),
        (("elbo",), [1, 2, "unbiased", 3]),
        (("method",), 3),
        (("method",), {"type": []}),
        (("info",), 3),
    ],
)
def test_a_header_that_describes_no_posterior_is_refused(tmp_path, content, path, value):
    refused(
        tmp_path / "it", with_header(content, lambda header: nested(header, *path, value=value))
    )


@pytest.mark.parametrize(
    "missing", ["model", "parameters", "approximation", "method", "info", "elbo"]
)
def test_a_header_with_a_hole_is_refused(tmp_path, content, missing):
    hole = lambda header: {k: v for k, v in header.items() if k != missing}  # noqa: E731
    assert missing in refused(tmp_path / "it", with_header(content, hole))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '"text"'])
def test_a_header_that_is_no_object_is_refused(tmp_path, text):
    digest = hashlib.sha256(text.encode()).hexdigest()
    refused(tmp_path / "it", safetensors.numpy.save({}, {"credax": text, "sha256": digest}))


# -- what is no posterior at all -------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"hello, world\n",
        b"\0" * 1000,
        b"\xff" * 1000,
        pickle.dumps({"params": np.zeros(3)}),
        pickle.dumps(Bomb()),
        safetensors.numpy.save({"weight": np.zeros(3)}),
        safetensors.numpy.save({"weight": np.zeros(3)}, {"format": "pt"}),
        safetensors.numpy.save({}),
    ],
    ids=["empty", "text", "zeros", "ones", "pickle", "bomb", "tensors", "torch", "no tensors"],
)
def test_a_foreign_file_is_refused(tmp_path, monkeypatch, foreign):
    monkeypatch.chdir(tmp_path)
    message = refused(tmp_path / "it", foreign)
    assert re.search(r"is not a credax file|but not one of credax", message)
    assert [path.name for path in tmp_path.iterdir()] == ["it"]


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(cx.StorageError, match=str(tmp_path)):
        cx.load(tmp_path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"gone\.credax does not exist"):
        cx.load(tmp_path / "gone.credax")


def test_a_checkpoint_is_not_a_posterior(tmp_path):
    cx.fit(SMALL, (VECTORS, ONE), cx.MAP(num_steps=1), progress=False, checkpoint=tmp_path)
    with pytest.raises(cx.StorageError, match="holds a checkpoint, not a posterior"):
        cx.load(tmp_path / "state.credax")


# -- writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize("error", [OSError("No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_whole(tmp_path, monkeypatch, function, error):
    small().save(tmp_path / "it")
    before = (tmp_path / "it").read_bytes()

    def fail(*args):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(type(error)):
            small(draws=2).save(tmp_path / "it")
        with pytest.raises(type(error)):
            small(draws=2).save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert (tmp_path / "it").read_bytes() == before
    same_tree(cx.load(tmp_path / "it").draws, small().draws)


def test_the_content_is_on_disk_before_the_name_points_to_it(tmp_path, monkeypatch):
    order = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda *args, name=name, real=real: (order.append(name), real(*args))
        )
    small().save(tmp_path / "it")
    assert order[:2] == ["fsync", "replace"]


def test_saving_replaces_the_older_file(tmp_path):
    small().save(tmp_path / "it")
    small(draws=7).save(tmp_path / "it")
    assert cx.load(tmp_path / "it").draws["layer_0"]["bias"].shape == (2, 7, 1)
    assert len(list(tmp_path.iterdir())) == 1


# -- no code in files ------------------------------------------------------------------------------


def test_no_file_of_credax_can_run_what_it_reads():
    forbidden = re.compile(
        r"\b(import|from) (pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\b|pickle\.|"
        r"(?<![\w.])(?<!def )(eval|exec|__import__|compile)\(|"
        r"allow_pickle\s*=\s*True|yaml\.load\(|torch\.load\(|os\.system\("
    )
    folder = Path(credax.__file__).parent
    found = [
        f"{path.relative_to(folder)}:{number}: {line.strip()}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert found == []


def test_the_files_hold_json_and_numbers_only(content):
    length = int.from_bytes(content[:8], "little")
    head = json.loads(content[8 : 8 + length])
    metadata = head.pop("__metadata__")
    assert set(metadata) == {"credax", "sha256"}
    header = json.loads(metadata["credax"])
    kinds = {dict, list, str, int, float, bool, type(None)}
    inside = [header]
    for value in inside:
        assert type(value) in kinds
        inside += (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
        )
    ends = sorted(itertools.chain(*(entry["data_offsets"] for entry in head.values())))
    assert ends[-1] == len(content) - 8 - length


# -- sparse arrays ---------------------------------------------------------------------------------


def pruned_family(seed=0):
    """A wide mean field, whole and pruned to one weight in twenty."""
    model = cx.Model(mlp([300]), likelihood=likelihoods.Categorical(3))
    model = model.bind((np.zeros((6, 40)), LABELS))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    generator = np.random.default_rng(seed)
    draw = lambda leaf: generator.normal(size=leaf.shape).astype(leaf.dtype)  # noqa: E731
    whole = MeanField(jax.tree.map(draw, shapes), jax.tree.map(draw, shapes))
    posterior = cx.Posterior(model, whole)
    return posterior, prune(posterior, 0.95)


def test_a_pruned_posterior_takes_a_fifth_of_the_room_and_comes_back_bit_for_bit(tmp_path):
    whole, pruned = pruned_family()
    whole.save(tmp_path / "whole")
    pruned.save(tmp_path / "pruned")
    assert (tmp_path / "pruned").stat().st_size < 0.2 * (tmp_path / "whole").stat().st_size
    loaded = cx.load(tmp_path / "pruned").approximation
    for name in ("mean", "rho"):
        stored, given = (getattr(a, name) for a in (loaded, pruned.approximation))
        same_tree(stored, given)
        for a, b in zip(jax.tree.leaves(stored), jax.tree.leaves(given), strict=True):
            assert a.tobytes() == np.asarray(b).tobytes()


def format_of(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["credax"])["format"]


def test_a_file_says_the_lowest_format_that_reads_it(tmp_path, monkeypatch):
    whole, pruned = pruned_family()
    whole.save(tmp_path / "whole")
    pruned.save(tmp_path / "pruned")
    assert format_of(tmp_path / "whole") == 1
    assert format_of(tmp_path / "pruned") == 2
    monkeypatch.setattr(files, "FORMAT", 1)  # an older version
    cx.load(tmp_path / "whole")
    with pytest.raises(cx.StorageError, match="in format 2; this version reads up to format 1"):
        cx.load(tmp_path / "pruned")


@pytest.fixture(scope="module")
def sparse_content(tmp_path_factory):
    path = tmp_path_factory.mktemp("sparse") / "it"
    pruned_family()[1].save(path)
    return path.read_bytes()


def test_flipped_bits_of_a_sparse_file_are_refused(tmp_path, sparse_content):
    generator = np.random.default_rng(0)
    for at in generator.integers(0, len(sparse_content), 150):
        damaged = bytearray(sparse_content)
        damaged[at] ^= 1 << generator.integers(8)
        refused(tmp_path / "it", damaged)


def with_arrays(content, change):
    """The file with other arrays and the digest that belongs to them."""
    arrays = safetensors.numpy.load(content)
    length = int.from_bytes(content[:8], "little")
    text = json.loads(content[8 : 8 + length])["__metadata__"]["credax"]
    change(arrays)
    return safetensors.numpy.save(arrays, {"credax": text, "sha256": files._digest(text, arrays)})


SPARSE = "approximation/mean/layer_0/kernel"


@pytest.mark.parametrize("part", ["common", "mask", "rest"])
def test_a_sparse_array_without_one_of_its_parts_is_refused(tmp_path, sparse_content, part):
    without = with_arrays(sparse_content, lambda arrays: arrays.pop(f"sparse/{part}/{SPARSE}"))
    assert f"is damaged: parts of the sparse array {SPARSE} are missing" in refused(
        tmp_path / "it", without
    )


@pytest.mark.parametrize("part", ["common", "mask", "rest"])
@pytest.mark.parametrize("change", [lambda a: a[:-1], lambda a: np.append(a, a[:1])])
def test_a_sparse_array_whose_parts_do_not_fit_is_refused(tmp_path, sparse_content, part, change):
    name = f"sparse/{part}/{SPARSE}"
    bad = with_arrays(sparse_content, lambda arrays: arrays.__setitem__(name, change(arrays[name])))
    assert "is damaged: " in refused(tmp_path / "it", bad)


@pytest.mark.parametrize(
    "value", [None, 3, [SPARSE], {SPARSE: [40, 301]}, {SPARSE: "all"}, {"no such": [3]}, {}]
)
def test_a_header_that_misdescribes_sparse_arrays_is_refused(tmp_path, sparse_content, value):
    refused(
        tmp_path / "it",
        with_header(sparse_content, lambda header: nested(header, "sparse", value=value)),
    )
