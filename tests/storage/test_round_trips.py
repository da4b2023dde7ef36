"""A loaded posterior is the one that was saved."""

import dataclasses
import stat
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from saved import (
    LIKELIHOODS,
    NETWORKS,
    ONE,
    PRIORS,
    SMALL,
    VECTORS,
    random_posterior,
    same_tree,
    small,
)

import credax as cx
from credax import storage
from credax.model import likelihoods
from credax.model.networks import from_function, linear
from credax.posterior import Estimate


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
