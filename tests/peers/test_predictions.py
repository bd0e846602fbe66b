import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fedperl.learn.nets import build_net
from fedperl.peers import embedding, noise_image, prediction_similarity, top_peers


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def below(x: float) -> float:
    return (1 + math.erf(x / math.sqrt(2))) / 2


@pytest.mark.parametrize(("mean", "std"), [(125.0, 125.0), (0.0, 1.0), (300.0, 40.0)])
def test_noise_has_the_moments_of_the_truncated_normal(mean: float, std: float) -> None:
    pixels = noise_image(128, mean=mean, std=std).double() * 255
    low, high = -mean / std, (255 - mean) / std
    mass = below(high) - below(low)
    shift = (density(low) - density(high)) / mass
    variance = 1 + (low * density(low) - high * density(high)) / mass - shift**2
    deviation = std * math.sqrt(variance)
    assert pixels.mean().item() == pytest.approx(mean + std * shift, abs=4 * deviation / math.sqrt(pixels.numel()))
    assert pixels.std().item() == pytest.approx(deviation, rel=0.02)


def test_noise_is_one_image_redrawn_not_clipped_and_repeats() -> None:
    image = noise_image(32)
    assert image.shape == (1, 3, 32, 32)
    assert image.dtype == torch.float32
    assert 0 <= image.min() < 0.01
    assert 0.99 < image.max() <= 1
    assert ((image == 0) | (image == 1)).float().mean() < 0.01  # a clipped normal would have a third of its mass there
    assert torch.equal(image, noise_image(32, seed=0))
    assert not torch.equal(image, noise_image(32, seed=1))


def test_the_authors_noise_is_almost_black() -> None:
    image = noise_image(32, mean=0.0, std=1.0)
    assert 0.01 < image.max() < 0.025
    assert image.min() >= 0


def test_noise_refuses() -> None:
    with pytest.raises(ValueError, match="size = 0"):
        noise_image(0)
    with pytest.raises(ValueError, match="std = 0"):
        noise_image(4, std=0.0)
    with pytest.raises(ValueError, match="leave nothing"):
        noise_image(4, mean=-1e4, std=1.0)


class Frozen(nn.Module):
    """A network whose batch norm was put in eval mode by hand, as for a frozen backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.head = nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Linear(3, 4)
        self.norm.eval()

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(self.norm(images)).mean(dim=(2, 3)))
        return logits


def test_embedding_is_the_eval_output_and_leaves_the_net_as_it_was() -> None:
    torch.manual_seed(0)
    net = Frozen()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    image = noise_image(8)
    logits = embedding(net, image, "logits")
    channels = image[0].mean(dim=(1, 2)) / math.sqrt(1 + net.norm.eps)
    expected = [
        sum(w * x for w, x in zip(row, channels.tolist(), strict=True)) + b
        for row, b in zip(net.head.weight.tolist(), net.head.bias.tolist(), strict=True)
    ]
    assert logits == pytest.approx(expected, abs=1e-6)
    total = sum(math.exp(x) for x in expected)
    assert embedding(net, image) == pytest.approx([math.exp(x) / total for x in expected], abs=1e-6)
    assert logits.dtype == np.float64
    assert (net.training, net.norm.training, net.dropout.training) == (True, False, True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    assert all(parameter.grad is None for parameter in net.parameters())


def test_the_mode_is_restored_when_the_net_fails() -> None:
    net = build_net("small_cnn", 4, seed=1).train()
    with pytest.raises(RuntimeError):
        embedding(net, torch.zeros(1, 5, 8, 8))
    assert all(module.training for module in net.modules())


def test_embedding_of_a_real_net_ignores_the_batch_statistics() -> None:
    net = build_net("small_cnn", 5, seed=2).train()
    image = noise_image(16)
    found = embedding(net, image)
    assert found.shape == (5,)
    assert found.sum() == pytest.approx(1.0)
    with torch.no_grad():
        expected = torch.softmax(net.eval()(image).double(), dim=1)[0]
    assert found == pytest.approx(expected.numpy(), abs=1e-12)


def test_embedding_refuses() -> None:
    net = build_net("small_cnn", 4, seed=1)
    with pytest.raises(ValueError, match=r"found \(2, 3, 8, 8\)"):
        embedding(net, torch.zeros(2, 3, 8, 8))
    with pytest.raises(ValueError, match="output = 'probs'"):
        embedding(net, noise_image(8), "probs")  # type: ignore[arg-type]


@given(st.integers(0, 9999), st.integers(2, 12), st.integers(1, 10))
def test_similarity_against_naive(seed: int, clients: int, classes: int) -> None:
    generator = np.random.default_rng(seed)
    embeddings = generator.dirichlet(np.ones(classes), size=clients)
    rows = generator.permutation(clients)[: clients // 2 + 1].tolist()
    expected = [
        [-math.sqrt(sum((a - b) ** 2 for a, b in zip(embeddings[r], embeddings[k], strict=True)))]
        for r in rows
        for k in range(clients)
    ]
    found = prediction_similarity(embeddings, rows)
    assert found == pytest.approx(np.array(expected).reshape(len(rows), clients), abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_neighbours_are_those_of_a_kd_tree(seed: int) -> None:
    spatial = pytest.importorskip("scipy.spatial")
    embeddings = np.random.default_rng(seed).dirichlet(np.ones(10), size=60)
    _, neighbours = spatial.cKDTree(embeddings).query(embeddings, k=6)
    similarity = prediction_similarity(embeddings, range(60))
    for client in range(60):
        assert top_peers(similarity[client], client, 5) == neighbours[client][1:].tolist()


def test_an_embedding_that_is_not_finite_is_near_nobody() -> None:
    embeddings = np.array([[0.0, 1.0], [np.nan, 0.0], [0.5, 0.5], [np.inf, 0.0], [1.0, 0.0]])
    similarity = prediction_similarity(embeddings, [0, 1, 3])
    assert top_peers(similarity[0], 0, 4) == [2, 4]
    assert top_peers(similarity[1], 1, 4) == []
    assert top_peers(similarity[2], 3, 4) == []


def test_similarity_refuses() -> None:
    with pytest.raises(ValueError, match=r"found shape \(3,\)"):
        prediction_similarity(np.ones(3), [0])
