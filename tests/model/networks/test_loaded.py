"""Weights from safetensors files with the names of model hubs, in the layouts of GPT-2 and BERT."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy.special import erf, softmax

import credax as cx

GENERATOR = np.random.default_rng(0)
WIDTH, HEADS, WORDS, LENGTH = 8, 2, 11, 5
TOKENS = GENERATOR.integers(0, WORDS, size=(6, LENGTH))


def normal(*shape):
    return (0.3 * GENERATOR.normal(size=shape)).astype(np.float32)


def layer(prefix, inputs, outputs, outputs_first=False):
    shape = (outputs, inputs) if outputs_first else (inputs, outputs)
    return {f"{prefix}.weight": normal(*shape), f"{prefix}.bias": normal(outputs)}


def norm(prefix):
    return {f"{prefix}.weight": 1 + normal(WIDTH), f"{prefix}.bias": normal(WIDTH)}


def gpt2():
    """The tensors of a GPT-2 of two blocks: matrices with inputs first, in Hugging Face's names."""
    tensors = {"wte.weight": normal(WORDS, WIDTH), "wpe.weight": normal(LENGTH, WIDTH)}
    for i in range(2):
        tensors |= norm(f"h.{i}.ln_1") | norm(f"h.{i}.ln_2")
        tensors |= layer(f"h.{i}.attn.c_attn", WIDTH, 3 * WIDTH)
        tensors |= layer(f"h.{i}.attn.c_proj", WIDTH, WIDTH)
        tensors |= layer(f"h.{i}.mlp.c_fc", WIDTH, 4 * WIDTH)
        tensors |= layer(f"h.{i}.mlp.c_proj", 4 * WIDTH, WIDTH)
        tensors[f"h.{i}.attn.bias"] = np.tril(np.ones((1, 1, LENGTH, LENGTH), np.float32))
    tensors |= norm("ln_f")
    return {f"transformer.{name}": tensor for name, tensor in tensors.items()}


def bert():
    """The tensors of a BERT of one layer: matrices with outputs first."""
    tensors = {
        "embeddings.word_embeddings.weight": normal(WORDS, WIDTH),
        "embeddings.position_embeddings.weight": normal(LENGTH, WIDTH),
    }
    for name in ("query", "key", "value"):
        tensors |= layer(f"encoder.layer.0.attention.self.{name}", WIDTH, WIDTH, True)
    tensors |= layer("encoder.layer.0.attention.output.dense", WIDTH, WIDTH, True)
    tensors |= norm("encoder.layer.0.attention.output.LayerNorm")
    tensors |= layer("encoder.layer.0.intermediate.dense", WIDTH, 2 * WIDTH, True)
    tensors |= layer("encoder.layer.0.output.dense", 2 * WIDTH, WIDTH, True)
    tensors |= norm("encoder.layer.0.output.LayerNorm")
    return tensors


# -- the same two networks: in JAX from nested parameters, and in NumPy from the tensors of the file ------


def normalised(np_, x, weight, bias):
    mean, variance = np_.mean(x, -1, keepdims=True), np_.var(x, -1, keepdims=True)
    return (x - mean) / np_.sqrt(variance + 1e-5) * weight + bias


def jax_attention(q, k, v, causal):
    split = lambda a: a.reshape(*a.shape[:2], HEADS, -1).transpose(0, 2, 1, 3)  # noqa: E731
    q, k, v = map(split, (q, k, v))
    scores = q @ jnp.swapaxes(k, 2, 3) / np.sqrt(q.shape[-1]).astype(np.float32)
    if causal:
        scores = jnp.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -jnp.inf)
    return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(len(q), LENGTH, WIDTH)


def numpy_attention(q, k, v, causal):
    """One head and one word at a time."""
    result, size = np.zeros_like(q), WIDTH // HEADS
    for row in range(len(q)):
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            for word in range(LENGTH):
                seen = word + 1 if causal else LENGTH
                scores = k[row, :seen, part] @ q[row, word, part] / np.sqrt(size)
                result[row, word, part] = softmax(scores) @ v[row, :seen, part]
    return result


def dense(p, x):
    return x @ p["weight"] + p["bias"]


def gpt2_apply(params, x):
    """The logits of the next word after the last one."""
    h = params["wte"]["weight"][x] + params["wpe"]["weight"]
    for i in range(2):
        block = params["h"][str(i)]
        z = normalised(jnp, h, **block["ln_1"])
        q, k, v = jnp.split(dense(block["attn"]["c_attn"], z), 3, axis=-1)
        h = h + dense(block["attn"]["c_proj"], jax_attention(q, k, v, causal=True))
        z = normalised(jnp, h, **block["ln_2"])
        h = h + dense(block["mlp"]["c_proj"], jax.nn.gelu(dense(block["mlp"]["c_fc"], z)))
    return normalised(jnp, h, **params["ln_f"])[:, -1] @ params["wte"]["weight"].T


def gpt2_numpy(tensors, x):
    t = {name.removeprefix("transformer."): np.float64(array) for name, array in tensors.items()}
    affine = lambda name, a: a @ t[f"{name}.weight"] + t[f"{name}.bias"]  # noqa: E731
    layer_norm = lambda name, a: normalised(np, a, t[f"{name}.weight"], t[f"{name}.bias"])  # noqa: E731
    gelu = lambda a: 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3)))  # noqa: E731
    h = t["wte.weight"][x] + t["wpe.weight"]
    for i in range(2):
        q, k, v = np.split(affine(f"h.{i}.attn.c_attn", layer_norm(f"h.{i}.ln_1", h)), 3, -1)
        h = h + affine(f"h.{i}.attn.c_proj", numpy_attention(q, k, v, True))
        h = h + affine(
            f"h.{i}.mlp.c_proj", gelu(affine(f"h.{i}.mlp.c_fc", layer_norm(f"h.{i}.ln_2", h)))
        )
    return layer_norm("ln_f", h)[:, -1] @ t["wte.weight"].T


def kernel(p, x):
    return x @ p["kernel"] + p["bias"]


def bert_apply(params, x):
    """A network in the style of Flax, with inputs first, and a new head on the first word."""
    words, positions = (params["embeddings"][f"{n}_embeddings"] for n in ("word", "position"))
    h = words["weight"][x] + positions["weight"]
    block = params["encoder"]["layer"]["0"]
    own, output = block["attention"]["self"], block["attention"]["output"]
    z = jax_attention(*(kernel(own[n], h) for n in ("query", "key", "value")), causal=False)
    h = normalised(jnp, h + kernel(output["dense"], z), **output["LayerNorm"])
    z = jax.nn.gelu(kernel(block["intermediate"]["dense"], h), approximate=False)
    h = normalised(jnp, h + kernel(block["output"]["dense"], z), **block["output"]["LayerNorm"])
    return kernel(params["head"], h[:, 0])


def bert_numpy(t, head, x):
    t = {name: np.float64(array) for name, array in t.items()}
    base = "encoder.layer.0"
    affine = lambda name, a: a @ t[f"{name}.weight"].T + t[f"{name}.bias"]  # noqa: E731
    layer_norm = lambda name, a: normalised(np, a, t[f"{name}.weight"], t[f"{name}.bias"])  # noqa: E731
    h = t["embeddings.word_embeddings.weight"][x] + t["embeddings.position_embeddings.weight"]
    q, k, v = (affine(f"{base}.attention.self.{n}", h) for n in ("query", "key", "value"))
    z = affine(f"{base}.attention.output.dense", numpy_attention(q, k, v, False))
    h = layer_norm(f"{base}.attention.output.LayerNorm", h + z)
    z = affine(f"{base}.intermediate.dense", h)
    z = affine(f"{base}.output.dense", 0.5 * z * (1 + erf(z / np.sqrt(2))))
    h = layer_norm(f"{base}.output.LayerNorm", h + z)
    return h[:, 0] @ np.float64(head["kernel"]) + np.float64(head["bias"])


def like(tensors, rename):
    """Initial parameters with these names and shapes, by another way than that of load_weights."""
    tree = {}
    for name, array in tensors.items():
        *parents, last = rename(name).split(".")
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        turned = last == "kernel"
        branch[last] = jnp.zeros(array.shape[::-1] if turned else array.shape)
    return tree


GPT2, BERT = gpt2(), bert()
GPT2_LIKE = like(
    {k: v for k, v in GPT2.items() if not k.endswith(".attn.bias")},
    lambda name: name.removeprefix("transformer."),
)
BERT_LIKE = like(
    BERT,
    lambda name: name if "Norm" in name or "embed" in name else name.replace("weight", "kernel"),
)


def gpt2_init(key):
    return GPT2_LIKE


def bert_init(key):
    return {
        **BERT_LIKE,
        "head": {"kernel": jax.random.normal(key, (WIDTH, 2)), "bias": jnp.zeros(2)},
    }


def written(tmp_path, tensors, name="model.safetensors"):
    save_file({key: np.ascontiguousarray(array) for key, array in tensors.items()}, tmp_path / name)
    return tmp_path / name


GPT2_NETWORK = cx.networks.from_function(gpt2_init, gpt2_apply)
BERT_NETWORK = cx.networks.from_function(bert_init, bert_apply)
GPT2_NAMES = {"rename": {r"^transformer\.": ""}, "ignore": "h/*/attn/bias"}
BERT_NAMES = {
    # Norms and embeddings keep the name "weight".
    "rename": {r"(query|key|value|dense)\.weight$": r"\1.kernel"},
    "transpose": "*/kernel",
    "keep": "head/*",
}


def test_gpt2(tmp_path):
    path = written(tmp_path, GPT2)
    network = cx.networks.load_weights(GPT2_NETWORK, path, **GPT2_NAMES).build((LENGTH,), WORDS)
    assert network.pretrained
    got = jax.jit(network.apply)(network.init(cx.random.key(0)), jnp.asarray(TOKENS))
    np.testing.assert_allclose(got, gpt2_numpy(GPT2, TOKENS), rtol=1e-4, atol=1e-5)


def test_bert_with_a_new_head(tmp_path):
    path = written(tmp_path, BERT)
    network = cx.networks.load_weights(BERT_NETWORK, path, **BERT_NAMES).build((LENGTH,), 2)
    assert not network.pretrained, "the head differs between keys"
    for seed in (0, 1):
        params = network.init(cx.random.key(seed))
        got = jax.jit(network.apply)(params, jnp.asarray(TOKENS))
        want = bert_numpy(BERT, params["head"], TOKENS)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    heads = [network.init(cx.random.key(seed))["head"]["kernel"] for seed in (0, 1)]
    assert not np.array_equal(*heads)


@pytest.mark.slow
def test_low_rank_changes_of_a_loaded_network(tmp_path):
    """The way from a file to predictions with uncertainty."""
    network = cx.networks.load_weights(GPT2_NETWORK, written(tmp_path, GPT2), **GPT2_NAMES)
    adapted = cx.networks.lora(network, 2, "h/*/attn/*/weight")
    model = cx.Model(adapted, likelihood=cx.likelihoods.Categorical(WORDS))
    y = GENERATOR.integers(0, WORDS, 6)
    posterior = cx.fit(model, (TOKENS, y), cx.DeepEnsemble(members=2, num_steps=30), progress=False)
    assert set(posterior.draws["h"]["0"]) == {"attn"}
    start = softmax(gpt2_numpy(GPT2, TOKENS), axis=1)[np.arange(6), y]
    end = posterior.predict(TOKENS).probs[np.arange(6), y]
    assert np.mean(np.log(end)) > np.mean(np.log(start))


def test_several_files_and_half_precision(tmp_path):
    names = sorted(GPT2)
    halves = [{name: GPT2[name].astype(ml_dtypes.bfloat16) for name in names[i::2]} for i in (0, 1)]
    paths = [written(tmp_path, half, f"{i}.safetensors") for i, half in enumerate(halves)]
    network = cx.networks.load_weights(GPT2_NETWORK, paths, **GPT2_NAMES)
    got = network.init(cx.random.key(0))["wte"]["weight"]
    assert got.dtype == jnp.float32
    rounded = GPT2["transformer.wte.weight"].astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(got, rounded)
    with pytest.raises(ValueError, match=r"must give every tensor a name of its own"):
        cx.networks.load_weights(GPT2_NETWORK, [paths[0], paths[0]], **GPT2_NAMES)


def test_built_in_networks_and_batch_statistics(tmp_path):
    plain = cx.networks.mlp([4], batch_norm=True).build((3,), 1)
    weights, state = plain.init(cx.random.key(3)), plain.init_state()
    state = jax.tree.map(lambda leaf: leaf + 0.5, state)
    tensors = {
        f"{layer}.{name}": np.asarray(leaf)
        for tree in (weights, state)
        for layer, leaves in tree.items()
        for name, leaf in leaves.items()
    }
    path = written(tmp_path, tensors)
    network = cx.networks.load_weights(cx.networks.mlp([4], batch_norm=True), path).build((3,), 1)
    jax.tree.map(np.testing.assert_array_equal, network.init(cx.random.key(0)), weights)
    jax.tree.map(np.testing.assert_array_equal, network.init_state(), state)
    x, y = GENERATOR.normal(size=(20, 3)), GENERATOR.normal(size=20)
    model = cx.Model(cx.networks.load_weights(cx.networks.mlp([4], batch_norm=True), path))
    posterior = cx.fit(model, (x, y), cx.MAP(num_steps=2), progress=False)
    posterior.save(tmp_path / "a.credax")
    loaded = cx.load(tmp_path / "a.credax")
    np.testing.assert_array_equal(loaded.predict(x).mean, posterior.predict(x).mean)


def test_modules_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch")
    nn = torch.nn
    make = lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))  # noqa: E731
    torch.manual_seed(0)
    trained, other = make(), make()
    trained(torch.randn(9, 3))  # moves the running statistics
    tensors = {name: tensor.numpy() for name, tensor in trained.state_dict().items()}
    path = written(tmp_path, tensors)
    network = cx.networks.load_weights(
        cx.networks.from_torch(other), path, ignore="*/num_batches_tracked"
    )
    x = GENERATOR.normal(size=(5, 3)).astype(np.float32)
    got = network.apply(network.init(cx.random.key(0)), jnp.asarray(x), network.init_state())
    with torch.no_grad():
        want = trained.eval()(torch.as_tensor(x)).numpy()
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_modules_of_equinox(tmp_path):
    eqx = pytest.importorskip("equinox")
    module, other = (eqx.nn.MLP(3, 2, 4, 1, key=cx.random.key(seed)) for seed in (0, 1))
    tensors = {
        f"layers.{i}.{name}": np.asarray(getattr(layer, name))
        for i, layer in enumerate(module.layers)
        for name in ("weight", "bias")
    }
    network = cx.networks.load_weights(cx.networks.from_equinox(other), written(tmp_path, tensors))
    x = jnp.asarray(GENERATOR.normal(size=(5, 3)), jnp.float32)
    got = network.apply(network.init(cx.random.key(0)), x)
    np.testing.assert_allclose(got, jax.vmap(module)(x), rtol=1e-6)


# -- what is refused --------------------------------------------------------------------------------


def refused(tmp_path, tensors, message, network=None, **arguments):
    network = network or cx.networks.mlp([4])
    with pytest.raises(ValueError, match=message):
        cx.networks.load_weights(network, written(tmp_path, tensors), **arguments).build((3,), 1)


def test_differences_are_listed(tmp_path):
    right = {
        "layer_0.kernel": normal(3, 4),
        "layer_0.bias": normal(4),
        "layer_1.kernel": normal(4, 1),
        "layer_1.bias": normal(1),
    }
    renamed = {k.replace("kernel", "kernels"): v for k, v in right.items()}
    refused(
        tmp_path,
        renamed,
        r"parameters that are not in the file: 'layer_0/kernel' \(similar: 'layer_0/kernels'\).*"
        r"tensors that are not in the network: 'layer_0/kernels', 'layer_1/kernels'",
    )
    turned = {**right, "layer_0.kernel": normal(4, 3)}
    refused(tmp_path, turned, r"other shapes: 'layer_0/kernel' \(3, 4\), in the file \(4, 3\)")
    refused(tmp_path, {**right, "layer_1.bias": np.float32([np.nan])}, "not finite")
    refused(tmp_path, right, "must match matrices; 'layer_0/bias'", transpose="*/bias")
    many = {f"extra.{i}": normal(1) for i in range(20)}
    refused(tmp_path, {**right, **many}, r"'extra/\d+' and 12 more")


def test_values_that_overflow_are_refused(tmp_path):
    network = cx.networks.from_function(
        lambda key: {"w": jnp.ones((3, 1), jnp.float16)}, lambda p, x: x @ p["w"].astype(x.dtype)
    )
    tensors = {"w": np.full((3, 1), 1e6, np.float32)}
    refused(tmp_path, tensors, r"'w' holds 1e\+06, which is more than .* float16", network)


def test_bad_arguments(tmp_path):
    network, load = cx.networks.mlp([4]), cx.networks.load_weights
    path = written(tmp_path, {"a": normal(1)})
    with pytest.raises(TypeError, match=r"load_weights\(network=...\) must be a network"):
        load(3, path)
    with pytest.raises(
        FileNotFoundError, match=r"load_weights\(path=...\) must be a file that exists"
    ):
        load(network, tmp_path / "none.safetensors")
    with pytest.raises(TypeError, match=r"load_weights\(rename=...\) must be a mapping"):
        load(network, path, rename=3)
    with pytest.raises(TypeError, match=r"a function that returns a name; got None"):
        load(network, path, rename=lambda name: None)
    with pytest.raises(
        ValueError, match=r"load_weights\(rename=...\) must be a mapping from regular"
    ):
        load(network, path, rename={"(": ""})
    with pytest.raises(
        TypeError, match=r"load_weights\(path=...\) must be the path of a file; got 3"
    ):
        load(network, 3)
    for argument in ("transpose", "ignore"):
        with pytest.raises(
            ValueError, match=rf"load_weights\({argument}=...\).*'b/\*' matches none"
        ):
            load(network, path, **{argument: "b/*"})
    with pytest.raises(ValueError, match=r"load_weights\(keep=...\).*'head' matches none"):
        load(network, path, keep="head").build((3,), 1)
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(cx.StorageError, match="cannot be read as a safetensors file"):
        load(network, tmp_path / "text")
