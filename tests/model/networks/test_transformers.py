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
