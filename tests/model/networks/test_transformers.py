"""A small BERT and a small GPT-2, made from their configurations: outputs, weights from files, fits."""

import jax
import numpy as np
import pytest

import credax as cx

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.slow,
    # With so few steps the posteriors are poor, and some methods warn about it.
    pytest.mark.filterwarnings("ignore::credax.core.errors.PosteriorWarning"),
    # PyTorch and transformers warn about parts of themselves.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

# Without 0, which pads: PyTorch sets the gradient of its embedding to zero, credax does not.
TOKENS = np.random.default_rng(0).integers(1, 31, (10, 8))
CLASSES = TOKENS[:, 0] % 2


class Bert(torch.nn.Module):
    """A classifier of sentences."""

    def __init__(self):
        super().__init__()
        config = transformers.BertConfig(
            vocab_size=31,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=12,
            num_labels=2,
        )
        self.model = transformers.BertForSequenceClassification(config)

    def forward(self, x):
        return self.model(input_ids=x).logits


class GPT2(torch.nn.Module):
    """The logits of the next token, from a head that shares its weights with the embedding."""

    def __init__(self):
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=31,
            n_embd=16,
            n_layer=2,
            n_head=2,
            n_positions=12,
            attn_implementation="eager",
        )
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, x):
        return self.model(input_ids=x, use_cache=False).logits[:, -1]


def made(module, seed):
    torch.manual_seed(seed)
    return module().eval()


def outputs(module):
    with torch.no_grad():
        return module(torch.tensor(TOKENS)).numpy()


@pytest.mark.parametrize("module", [Bert, GPT2])
def test_outputs_and_gradients_are_those_of_pytorch(module):
    original = made(module, 0)
    network = cx.networks.from_torch(original, pretrained=True)
    params = network.init(cx.random.key(0))
    wanted = outputs(original)
    np.testing.assert_allclose(network.apply(params, TOKENS), wanted, atol=1e-5)
    gradient = jax.grad(lambda w: (network.apply(w, TOKENS) ** 2).sum())(params)
    (original(torch.tensor(TOKENS)) ** 2).sum().backward()
    for name, parameter in original.named_parameters():
        leaf = gradient
        for part in name.split("."):
            leaf = leaf[part]
        scale = float(parameter.grad.abs().max()) + 1e-6
        np.testing.assert_allclose(leaf, parameter.grad.numpy(), atol=1e-4 * scale)


@pytest.mark.parametrize("module", [Bert, GPT2])
def test_weights_from_the_file_of_another_module(module, tmp_path):
    trained, fresh = made(module, 0), made(module, 1)
    trained.model.save_pretrained(tmp_path, safe_serialization=True)
    network = cx.networks.load_weights(
        cx.networks.from_torch(fresh), tmp_path / "model.safetensors", {r"^": "model."}
    )
    assert not np.allclose(outputs(fresh), outputs(trained), atol=1e-3)
    params = network.init(cx.random.key(0))
    np.testing.assert_allclose(network.apply(params, TOKENS), outputs(trained), atol=1e-5)


@pytest.mark.parametrize("module, head", [(Bert, "*/classifier/*"), (GPT2, "*/ln_f/*")])
def test_a_posterior_over_a_part_goes_back_to_the_module(module, head):
    original = made(module, 0)
    targets, classes = (CLASSES, 2) if module is Bert else (TOKENS[:, 0], 31)
    network = cx.networks.subset(cx.networks.from_torch(original, pretrained=True), head)
    model = cx.Model(network, likelihood=cx.likelihoods.Categorical(classes))
    method = cx.BayesByBackprop(num_steps=3, batch_size=5)
    posterior = cx.fit(model, (TOKENS, targets), method, progress=False)
    merged = cx.networks.merge(posterior, key=3)
    wanted = network.network.apply(merged, TOKENS)
    before = outputs(original)
    back = cx.networks.to_module(posterior, key=3)
    assert back is original
    np.testing.assert_allclose(outputs(back), wanted, atol=1e-5)
    assert not np.allclose(before, wanted, atol=1e-4)


class Masked(torch.nn.Module):
    """A model that is told which tokens count."""

    def __init__(self, model):
        super().__init__()
        self.model = model.model

    def forward(self, x):
        return self.model(input_ids=x["tokens"], attention_mask=x["seen"]).logits


SEEN = np.arange(8) < np.random.default_rng(1).integers(3, 9, 10)[:, None]


@pytest.mark.parametrize("module", [Bert, GPT2])
def test_sentences_of_different_lengths(module):
    """The outputs are those of PyTorch, and do not depend on what stands in the padding."""
    original = Masked(made(module, 0)).eval()
    network = cx.networks.from_torch(original, pretrained=True)
    params = network.init(cx.random.key(0))
    found = []
    for padding in (0, 7):
        rows = {"tokens": np.where(SEEN, TOKENS, padding), "seen": SEEN.astype(int)}
        got = np.asarray(network.apply(params, jax.tree.map(jax.numpy.asarray, rows)))
        with torch.no_grad():
            want = original(jax.tree.map(torch.tensor, rows)).numpy()
        found.append((got, want) if module is Bert else (got[SEEN], want[SEEN]))
        np.testing.assert_allclose(*found[-1], atol=1e-5)
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)


def test_a_head_on_sentences_of_different_lengths():
    original = Masked(made(GPT2, 0)).eval()
    network = cx.networks.from_torch(original, pretrained=True)
    network = cx.networks.lora(network, 2, "*/mlp/c_fc/*")
    model = cx.Model(network, likelihood=cx.likelihoods.Categorical(31))
    rows = {"tokens": np.where(SEEN, TOKENS, 0), "seen": SEEN.astype(int)}
    after = np.where(SEEN[:, 1:], TOKENS[:, 1:], -1)
    following = np.concatenate([after, np.full((len(TOKENS), 1), -1)], 1)
    weights = following >= 0
    method = cx.IVON(num_steps=3, batch_size=5)
    posterior = cx.fit(model, (rows, following), method, weights=weights, progress=False)
    scores = posterior.evaluate(rows, following, weights=weights)
    assert scores.rows == weights.sum()
    assert np.isfinite(scores.log_likelihood)
    calibrated = posterior.calibrate(rows, following, weights=weights)
    after = calibrated.evaluate(rows, following, weights=weights)
    assert after.log_likelihood >= scores.log_likelihood - 1e-4


def test_a_setting_that_cannot_be_exported_says_which_helps():
    config = transformers.GPT2Config(
        vocab_size=31, n_embd=16, n_layer=1, n_head=2, n_positions=12, attn_implementation="sdpa"
    )
    model = transformers.GPT2LMHeadModel(config)
    network = cx.networks.from_torch(Masked(type("Holder", (), {"model": model})))
    rows = {"tokens": TOKENS, "seen": SEEN.astype(int)}
    with pytest.raises(ValueError, match='attn_implementation="eager"'):
        network.apply(network.init(cx.random.key(0)), jax.tree.map(jax.numpy.asarray, rows))
