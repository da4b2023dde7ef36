"""What memory a fit needs, and refusals of fits that need more than there is."""

import gc
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import credax as cx
from credax.core.memory import bytes_of, free_on_host, in_words
from credax.core.programs import MOST

pytestmark = pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning")

MODEL = cx.Model(cx.networks.mlp([5]), likelihood=cx.likelihoods.Gaussian(0.3))
WEIGHTS = 3 * 5 + 5 + 5 + 1
DATA = (np.zeros((40, 3), np.float32), np.linspace(0, 1, 40, dtype=np.float32))


def test_the_parts_are_known_from_the_shapes(compilations):
    method = cx.DeepEnsemble(members=3, num_steps=50, batch_size=8)
    cx.memory(MODEL, DATA, cx.MAP(), compile=False)  # whatever is compiled for every question
    with compilations() as count:
        found = cx.memory(MODEL, DATA, method, compile=False)
    assert count() == 0
    # Weights and two means of Adam for each member, its two keys of eight bytes and counts.
    assert 3 * 3 * WEIGHTS * 4 <= found.state <= 3 * (3 * WEIGHTS * 4 + 64)
    assert found.data == 40 * 4 * 4
    assert found.temporary == WEIGHTS * 4  # one gradient, since members may take turns
    assert found.draws == 0
    assert not found.compiled
    assert "at least" in str(found)


def test_draws_of_chains_are_counted_on_the_host_and_not_if_they_go_to_disk(tmp_path):
    method = cx.HMC(chains=2, num_warmup=10, num_draws=70)
    found = cx.memory(MODEL, DATA, method, compile=False)
    assert found.draws == 2 * 70 * WEIGHTS * 4
    on_disk = cx.memory(MODEL, DATA, method, compile=False, draws=tmp_path / "draws")
    assert on_disk.draws == 0
    assert not (tmp_path / "draws").exists()
    assert found.total - on_disk.total == found.draws


def test_the_fit_does_not_compile_the_program_again_and_records_the_figures(compilations):
    method = cx.MAP(num_steps=7, learning_rate=0.0123)
    cx.fit(MODEL, DATA, cx.MAP(num_steps=8), progress=False)  # whatever is compiled for every fit
    found = cx.memory(MODEL, DATA, method)
    assert found.compiled
    assert found.fits
    with compilations() as count:
        posterior = cx.fit(MODEL, DATA, method, progress=False)
    assert count() <= 1  # the first states, which `memory` does not compute
    assert posterior.info["memory"] == found.figures()
    assert found.on_device >= found.state + found.data


def test_a_fit_that_is_too_large_is_refused_before_anything_is_compiled(compilations):
    method = cx.HMC(chains=4, num_warmup=10, num_draws=1_000_000)
    cx.memory(MODEL, DATA, cx.HMC(chains=4, num_draws=10), compile=False)
    with compilations() as count, pytest.raises(cx.MemoryLimitError) as error:
        cx.fit(MODEL, DATA, method, memory_limit=2e8)
    assert count() <= 2
    text = str(error.value)
    assert "HMC needs at least" in text
    assert "which has 200 MB" in text
    assert "num_draws=, a larger thin=, fit(draws='a folder')" in text
    assert isinstance(error.value, MemoryError)
    assert isinstance(error.value, cx.CredaxError)


def test_a_fit_whose_program_is_too_large_is_refused_before_it_runs():
    x = np.zeros((4_000, 3), np.float32)
    model = cx.Model(cx.networks.mlp([64, 64]), likelihood=cx.likelihoods.Gaussian(0.3))
    data, method, seen = (x, np.linspace(0, 1, 4_000)), cx.MAP(num_steps=3), []
    most = cx.memory(model, data, method)
    bound = cx.memory(model, data, method, compile=False)
    lean = cx.memory(model, data, method, micro_batch=100)
    assert bound.total < lean.total < most.total
    limit = (lean.total + most.total) / 2
    with pytest.raises(
        cx.MemoryLimitError, match=r"needs about .* change batch_size=, fit\(micro_batch"
    ):
        cx.fit(model, data, method, memory_limit=limit, callbacks=seen.append)
    assert not seen
    cx.fit(model, data, method, memory_limit=limit, micro_batch=100, progress=False)
    cx.fit(model, data, method, memory_limit=math.inf, progress=False)


@pytest.mark.parametrize("value", [0, -1.0, "8 GB", True, math.nan])
def test_a_bad_limit_is_refused(value):
    with pytest.raises((TypeError, ValueError), match="memory_limit"):
        cx.fit(MODEL, DATA, cx.MAP(num_steps=2), memory_limit=value)


def test_a_log_density_and_a_source_have_figures_too():
    density = cx.LogDensity(lambda key: jnp.zeros(1_000), lambda w: -jnp.sum(w**2))
    found = cx.memory(density, None, cx.HMC(chains=1, num_draws=10), compile=False)
    assert found.data == 0
    assert found.draws == 10 * 1_000 * 4
    source = cx.sources.arrays(*DATA)
    streamed = cx.memory(MODEL, source, cx.MAP(num_steps=5, batch_size=8), compile=False)
    assert streamed.data > 0


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["low_rank", "kronecker", "diagonal", "full", "last_layer"])
def test_the_curvature_of_laplace_is_counted(structure):
    method = cx.Laplace(structure=structure, rank=3, num_steps=5)
    found = cx.memory(MODEL, DATA, method)
    kept = {"low_rank": 3 * WEIGHTS, "diagonal": WEIGHTS, "full": WEIGHTS**2, "last_layer": 36}
    assert found.finish >= 4 * kept.get(structure, 6**2)
    assert found.on_device == found.state + found.data + max(
        found.chunk + found.temporary, found.finish
    )
    assert "finish " in repr(found)
    assert cx.memory(MODEL, DATA, method, compile=False).finish == 0
    assert cx.memory(MODEL, DATA, cx.MAP(num_steps=5)).finish == 0


def test_texts_name_the_parts_and_what_there_is():
    found = cx.memory(MODEL, DATA, cx.MAP(num_steps=5), compile=False, memory_limit=1e9)
    assert "needs at least" in str(found)
    assert "the host has 1.0 GB" in str(found)
    assert repr(found).startswith("Memory(needs")
    assert "state " in repr(found)
    assert [in_words(n) for n in (999, 1_500_000, 2e15)] == ["999 B", "1.5 MB", "2000 TB"]


def test_the_host_has_memory_and_trees_have_bytes():
    free = free_on_host()
    assert free is None or free > 1e7
    assert bytes_of((np.zeros(3), jax.ShapeDtypeStruct((2, 2), jnp.bfloat16), None)) == 32


@pytest.mark.slow
def test_memory_does_not_grow_with_steps_and_fits():
    """The arrays of JAX and its programs; a fit leaves none behind but those of its posterior."""

    def arrays(rows, steps):
        x = np.zeros((rows, 3), np.float32)
        method = cx.SGLD(chains=1, num_warmup=1, num_draws=steps, batch_size=8)
        cx.fit(MODEL, (x, np.linspace(0, 1, rows)), method, progress=False, chunk_steps=50)
        gc.collect()
        return sum(a.nbytes for a in jax.live_arrays())

    first = arrays(40, 20)
    assert all(arrays(40, 20) <= first + 1_000 for _ in range(3))
    assert arrays(40, 400) <= first + 1_000
    assert MOST <= 64  # programs of other shapes are dropped beyond this number
