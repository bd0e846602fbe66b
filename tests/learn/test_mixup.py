"""Labelled images that are mixed, with their labels, and class weights that are less steep."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, batches, client_weights, mixed
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import FixMatch, Supervised
from fedperl.learn.objectives.base import Batch, Context
from fedperl.settings import Objective, Optimizer, Views

CLASSES = 3


def images(labelled: int = 10, unlabelled: int = 20) -> LocalImages:
    n = labelled + unlabelled
    pixels = torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return LocalImages(pixels, torch.arange(n) % CLASSES, torch.arange(labelled), torch.arange(labelled, n), CLASSES)


def settings(**objective: object) -> LocalSettings:
    return LocalSettings(Objective(**objective), Optimizer(), Views(), steps=6, batch=5)  # type: ignore[arg-type]


def drawn(seed: int = 1, data: LocalImages | None = None, **objective: object) -> list[Batch]:
    return list(batches(data or images(), settings(**objective), seed, frozenset({"labelled", "weak", "strong"})))


def naive(logits: Tensor, labels: list[int], shares: list[float], weights: list[float], smoothing: float) -> float:
    """Image by image: its own label by what is left of it, that of its partner at the other end by its share."""
    total = counted = 0.0
    for i, row in enumerate(logits.tolist()):
        logs = [value - math.log(sum(math.exp(other) for other in row)) for value in row]
        partner = len(labels) - 1 - i
        for label, share in ((labels[i], 1 - shares[i]), (labels[partner], shares[i])):
            loss = -sum(((1 - smoothing) * (k == label) + smoothing / CLASSES) * logs[k] for k in range(CLASSES))
            total, counted = total + share * weights[label] * loss, counted + share * weights[label]
    return total / counted


@pytest.mark.parametrize("kind", ["supervised", "fixmatch"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weights", [None, [0.2, 1.0, 3.0]])
def test_the_loss_of_mixed_images_against_naive(kind: str, smoothing: float, weights: list[float] | None) -> None:
    own = Objective(kind=kind, mixup=0.5, label_smoothing=smoothing)
    context = Context(images(), None if weights is None else torch.tensor(weights))
    batch, plain = drawn(mixup=0.5)[0], drawn()[0].labelled
    assert plain is not None
    assert batch.labels is not None
    assert batch.mixed is not None
    seen: list[Tensor] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = build_net("small_cnn", CLASSES, seed=3).eval()

        def forward(self, views: Tensor) -> Tensor:
            seen.append(views)
            logits: Tensor = self.net(views)
            return logits

    net = Net().eval()
    losses = (Supervised if kind == "supervised" else FixMatch)(own, context)(net, batch)
    shares = batch.mixed.tolist()
    wanted_images = torch.stack([(1 - s) * plain[i] + s * plain[len(shares) - 1 - i] for i, s in enumerate(shares)])
    (at,) = (
        views for views in seen if len(views) == len(wanted_images) and torch.allclose(views, wanted_images, atol=1e-6)
    )
    wanted = naive(net.net(at), batch.labels.tolist(), shares, weights or [1.0] * CLASSES, smoothing)
    assert float(losses.numbers["loss_labelled"]) == pytest.approx(wanted, rel=1e-5)
    other = (Supervised if kind == "supervised" else FixMatch)(own, context)(net, replace(batch, mixed=None))
    assert float(other.numbers["loss_labelled"]) != pytest.approx(wanted, rel=1e-5)


def test_shares_are_drawn_anew_for_every_image_and_step_and_change_nothing_else() -> None:
    every, again, other, plain = drawn(mixup=0.4), drawn(mixup=0.4), drawn(2, mixup=0.4), drawn()
    shares = torch.stack([batch.mixed for batch in every if batch.mixed is not None])
    assert shares.shape == (6, 5)
    assert len(set(shares.flatten().tolist())) == 30
    assert 0 <= float(shares.min()) < 0.1
    assert 0.3 < float(shares.max()) <= 0.4
    for batch, same, another, without in zip(every, again, other, plain, strict=True):
        assert batch.mixed is not None
        assert same.mixed is not None
        assert another.mixed is not None
        assert batch.mixed.equal(same.mixed)
        assert not batch.mixed.equal(another.mixed)
        assert without.mixed is None
        for name in ("labels", "weak", "strong", "rows"):
            assert getattr(batch, name).equal(getattr(without, name))


def test_a_client_without_labels_mixes_nothing() -> None:
    assert all(batch.mixed is None for batch in drawn(data=images(0, 9), mixup=0.5))


def test_the_root_of_class_weights_lies_between_them_and_none() -> None:
    data = replace(images(), labelled=torch.tensor([0, 3, 6, 9, 1, 2]))  # four of class 0, one each of 1 and 2
    steep = client_weights(data, Objective())
    root = client_weights(data, Objective(class_weights="root_median_frequency"))
    assert steep is not None
    assert root is not None
    assert steep.tolist() == pytest.approx([0.25, 1.0, 1.0])
    assert root.tolist() == pytest.approx([0.5, 1.0, 1.0])
    assert client_weights(data, Objective(class_weights="none")) is None
    absent = Objective(class_weights="root_median_frequency", absent_class_weight=100.0)
    without = client_weights(replace(data, labelled=torch.tensor([0, 3, 6, 9, 1])), absent)
    assert without is not None
    assert without.tolist() == pytest.approx([math.sqrt(2.5 / 4), math.sqrt(2.5), 100.0])


def test_an_objective_from_a_file_is_given_images_that_are_mixed() -> None:
    """As docs/extending.md has it: it asks for the labelled loss and knows nothing of mixing."""
    batch, plain = drawn(mixup=0.5)[0], drawn()[0]
    assert batch.labelled is not None
    assert plain.labelled is not None
    assert batch.mixed is not None
    assert not torch.allclose(batch.labelled, plain.labelled, atol=1e-3)
    assert batch.labelled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(batch.labelled, mixed(plain.labelled, batch.mixed))
