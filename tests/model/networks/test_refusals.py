"""Bad arguments for networks of every library: the error names the argument, and nothing is compiled."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import credax as cx
from credax.core.trees import named_leaves

pytestmark = [
    # PyTorch and Keras warn about parts of themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
]

ROWS, LENGTH, CLASSES = 6, 5, 3
TOKENS = np.random.default_rng(0).integers(0, 7, (ROWS, LENGTH))
LABELS = np.random.default_rng(1).integers(0, CLASSES, (ROWS, LENGTH))
LIKELIHOOD = cx.likelihoods.Categorical(CLASSES)


def flax_nnx(dtype=jnp.float32, spoil=None):
    nnx = pytest.importorskip("flax.nnx")
    embed = nnx.Embed(7, 4, rngs=nnx.Rngs(0), param_dtype=dtype)
    head = nnx.Linear(4, CLASSES, rngs=nnx.Rngs(1), param_dtype=dtype)
    if spoil is not None:
        head.kernel[...] = head.kernel[...].at[0, 0].set(spoil)
    return cx.networks.from_flax(nnx.Sequential(embed, head), pretrained=True)


def flax_linen(dtype=jnp.float32, spoil=None):
    linen = pytest.importorskip("flax.linen")
    module = linen.Sequential(
        [linen.Embed(7, 4, param_dtype=dtype), linen.Dense(CLASSES, param_dtype=dtype)]
    )
    with jax.numpy_dtype_promotion("standard"):
        variables = module.init(jax.random.key(0), TOKENS)
    if spoil is not None:
        kernel = variables["params"]["layers_1"]["kernel"]
        variables["params"]["layers_1"]["kernel"] = kernel.at[0, 0].set(spoil)
    return cx.networks.from_flax(module, variables, pretrained=True)


def equinox(dtype=jnp.float32, spoil=None):
    eqx = pytest.importorskip("equinox")

    class Tagger(eqx.Module):
        embed: eqx.nn.Embedding
        head: eqx.nn.Linear

        def __call__(self, x):
            return jax.vmap(lambda token: self.head(self.embed(token)))(x)

    first, second = jax.random.split(jax.random.key(0))
    embed = eqx.nn.Embedding(7, 4, key=first, dtype=dtype)
    module = Tagger(embed, eqx.nn.Linear(4, CLASSES, key=second, dtype=dtype))
    if spoil is not None:
        weight = module.head.weight.at[0, 0].set(spoil)
        module = eqx.tree_at(lambda m: m.head.weight, module, weight)
    return cx.networks.from_equinox(module, pretrained=True)


def keras(dtype=jnp.float32, spoil=None):
    os.environ.setdefault("KERAS_BACKEND", "jax")
    library = pytest.importorskip("keras")
    if library.backend.backend() != "jax":
        pytest.skip("Keras was imported with another backend")
    layers, name = library.layers, jnp.dtype(dtype).name
    rows = library.Input((LENGTH,), dtype="int32")
    head = layers.Dense(CLASSES, dtype=name)
    model = library.Sequential([rows, layers.Embedding(7, 4, dtype=name), head])
    if spoil is not None:
        head.kernel.assign(jnp.asarray(head.kernel.value).at[0, 0].set(spoil))
    return cx.networks.from_keras(model, pretrained=True)


def pytorch(dtype=jnp.float32, spoil=None):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(7, 4), torch.nn.Linear(4, CLASSES))
    module = module.to(getattr(torch, jnp.dtype(dtype).name))
    if spoil is not None:
        with torch.no_grad():
            module[1].weight[0, 0] = spoil
    return cx.networks.from_torch(module, pretrained=True)


ADAPTERS = (flax_nnx, flax_linen, equinox, keras, pytorch)
adapters = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda make: make.__name__)


def arrays_of(network):
    """The weights of a network by the names that they have in a file."""
    params = network.build((LENGTH,), CLASSES).init(cx.random.key(0))
    return {
        path.replace("/", "."): np.array(leaf, np.float32) for path, leaf in named_leaves(params)
    }


def from_file(network, tmp_path, change):
    arrays = arrays_of(network)
    matrix = next(name for name in sorted(arrays) if arrays[name].shape in ((4, 3), (3, 4)))
    change(arrays, matrix)
    save_file(arrays, tmp_path / "weights.safetensors")
    return cx.networks.load_weights(network, tmp_path / "weights.safetensors"), matrix


def fit(network, y=LABELS, likelihood=LIKELIHOOD, weights=None):
    model = cx.Model(network, likelihood=likelihood)
    method = cx.MAP(num_steps=2)
    return cx.fit(model, (TOKENS, y), method, weights=weights, progress=False)


def refused(compilations, message, network, **arguments):
    with compilations() as count, pytest.raises(ValueError, match=message):
        fit(network, **arguments)
    assert count() == 0


@pytest.fixture(autouse=True, scope="module")
def keys_have_been_split():
    """The first refusal of all splits a key, for which JAX compiles small programs."""
    network = cx.networks.from_function(
        lambda key: jnp.ones((7, CLASSES)), lambda params, x: params[x]
    )
    with pytest.raises(ValueError, match="y must have shape"):
        fit(network, LABELS[:, 1:])


@adapters
def test_patterns_and_ranks(adapter, compilations):
    network = adapter()
    paths = list(arrays_of(network))
    wrong = paths[0].replace(".", "/") + "s"
    near = f"'{wrong}' matches none. Similar paths: .*'{wrong[:-1]}'"
    refused(compilations, rf"subset\(bayesian=.*{near}", cx.networks.subset(network, wrong))
    refused(compilations, rf"lora\(pattern=.*{near}", cx.networks.lora(network, 1, wrong))
    refused(
        compilations,
        r"lora\(rank=...\) must be at most the smaller side of each matrix; got 4 for",
        cx.networks.lora(network, 4),
    )


TARGETS = {
    "one for each row": (
        {"y": LABELS[:, 0]},
        r"outputs of shape \(rows, 3\) for Categorical and y of shape \(rows,\); got \(rows, 5, 3\)",
    ),
    "other length": (
        {"y": LABELS[:, 1:]},
        r"y must have shape \(rows, 5\) .* outputs of shape \(rows, 5, 3\); got \(rows, 4\)",
    ),
    "other classes": (
        {"likelihood": cx.likelihoods.Categorical(4)},
        r"\(rows, 5, 4\) for Categorical and y of shape \(rows, 5\); got \(rows, 5, 3\)",
    ),
    "several heads": (
        {"likelihood": {"a": LIKELIHOOD}, "y": {"a": LABELS}},
        "must return a dictionary of outputs with the names of the heads, a; got",
    ),
    "all hidden": (
        {"weights": np.zeros(LABELS.shape)},
        "weights must be positive for at least one position; they hide all",
    ),
    "a mask of another shape": (
        {"weights": np.ones((ROWS, 4))},
        r"weights must have shape \(6,\), .* or \(6, 5\), one for each position; got \(6, 4\)",
    ),
}


@adapters
@pytest.mark.parametrize("name", TARGETS)
def test_targets_and_masks(adapter, name, compilations):
    arguments, message = TARGETS[name]
    refused(compilations, message, adapter(), **arguments)


@adapters
def test_files_that_do_not_fit(adapter, tmp_path, compilations):
    network = adapter()

    def renamed(arrays, name):
        arrays[f"model.{name}"] = arrays.pop(name)

    loaded, name = from_file(network, tmp_path, renamed)
    path = name.replace(".", "/")
    message = (
        rf"parameters that are not in the file: '{path}' \(similar: 'model/{path}'\); tensors that are not in "
        rf"the network: 'model/{path}'"
    )
    refused(compilations, message, loaded)

    def longer(arrays, name):
        arrays[name] = np.zeros((9, 9), np.float32)

    loaded, _ = from_file(network, tmp_path, longer)
    refused(compilations, rf"other shapes: '{path}' \([34], [34]\), in the file \(9, 9\)", loaded)


@adapters
def test_weights_that_overflow(adapter, tmp_path, compilations):
    """1e5 is beyond float16, whether it comes from a file or is already infinite in the module."""

    def large(arrays, name):
        arrays[name][0, 0] = 1e5

    loaded, name = from_file(adapter(jnp.float16), tmp_path, large)
    path = name.replace(".", "/")
    refused(compilations, f"'{path}' holds 1e\\+05, which is more than .* float16 can hold", loaded)
    with pytest.raises(
        ValueError,
        match=rf"=...\) must hold finite .*/{path.split('/')[-1]}' \(float16\) holds inf",
    ):
        adapter(jnp.float16, spoil=1e5)
    loaded, name = from_file(adapter(), tmp_path, large)
    path = name.replace(".", "/")
    assert np.max(dict(named_leaves(loaded.init(cx.random.key(0))))[path]) == np.float32(1e5)
