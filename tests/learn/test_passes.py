"""Views that pass a network together give what they would one after the other."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedperl.config import resolve
from fedperl.engines.cuda.kernels import _one_pass
from fedperl.learn.local_images import LocalImages
from fedperl.learn.nets import build_net
from fedperl.learn.nets.decomposed import Decomposed
from fedperl.learn.objectives import Batch, Context, Losses, build_objective
from fedperl.learn.passes import together


class Grouped(nn.Module):
    """Counts the passes that it is asked for."""

    def __init__(self, one_size: bool) -> None:
        super().__init__()
        self.groups_of_one_size, self.asked = one_size, list[int]()

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((1, 2, 3))

    def forward_groups(self, views: Sequence[Tensor], graph: Sequence[bool]) -> list[Tensor]:
        self.asked.append(len(views))
        return [self(view) for view in views]


@pytest.mark.parametrize(
    ("sizes", "one_size", "passes"), [((4, 4), True, [2]), ((4, 6), True, []), ((4, 6), False, [2]), ((4,), False, [])]
)
def test_views_of_other_sizes_pass_together_where_the_network_can(
    sizes: tuple[int, ...], one_size: bool, passes: list[int]
) -> None:
    net, views = Grouped(one_size), [torch.rand(size, 3, 8, 8) for size in sizes]
    forward = together(net, views, [True] * len(views))
    for view in views:
        assert torch.equal(forward(view), net(view))
    assert net.asked == passes


@pytest.mark.parametrize("graph", [(True, False, True), (True, True, True), (False, False, False)])
def test_one_pass_is_several(graph: tuple[bool, ...]) -> None:
    net = build_net("resnet9", 10, seed=1).double()
    views = [torch.rand(size, 3, 16, 16, dtype=torch.float64) for size in (2, 5, 3)]
    found, wanted = _one_pass(net, views, graph), [net(view) for view in views]
    assert [logits.requires_grad for logits in found] == list(graph)
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs)
    if any(graph):
        every = list(net.parameters())
        sums = [
            sum(logits.square().sum() for logits, of in zip(some, graph, strict=True) if of) for some in (found, wanted)
        ]
        for one, other in zip(*(torch.autograd.grad(total, every) for total in sums), strict=True):
            assert torch.allclose(one, other)


@pytest.mark.parametrize("label_mode", ["train", "eval"])
@pytest.mark.parametrize("peers", [0, 2])
@pytest.mark.parametrize("method", ["uda", "fedmatch", "fedperl_raw", "rscfed", "fedirm"])
def test_objectives_give_the_same_in_one_pass(method: str, peers: int, label_mode: str) -> None:
    """Losses and gradients of every step on a batch, views of two sizes."""
    own = {"tau": 0.0, "class_weights": "none", "label_mode": label_mode}
    settings = resolve({"method": method, "objective": own, "model": {"net": "resnet9"}}).objective
    images, labels = torch.zeros(20, 3, 16, 16, dtype=torch.uint8), torch.arange(20) % 10
    data = LocalImages(images, labels, torch.arange(10), torch.arange(10, 20), 10)
    generator = torch.Generator().manual_seed(1)
    views = [torch.rand(n, 3, 16, 16, generator=generator, dtype=torch.float64) for n in (4, 6, 6, 4, 6)]
    relation = torch.rand(10, 10, generator=generator, dtype=torch.float64).softmax(1)
    asked: list[tuple[bool, ...]] = []

    def net(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        layers = nn.Conv2d(3, 8, 3, 2), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.ReLU(), nn.AdaptiveMaxPool2d(1)
        plain = nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10)).double()
        return Decomposed(plain) if settings.decomposed else plain

    def steps(*, grouped: bool) -> list[list[Tensor]]:
        trained, helpers = net(1), [net(seed).eval().requires_grad_(False) for seed in range(2, 2 + peers)]
        if grouped:

            def groups(views: Sequence[Tensor], graph: Sequence[bool]) -> list[Tensor]:
                asked.append(tuple(graph))
                return _one_pass(trained, views, graph)

            trained.forward_groups = groups  # type: ignore[assignment]
        teacher = net(9).eval().requires_grad_(False)
        objective = build_objective(settings, Context(data, None, helpers, teacher, relation, round=50))
        batch = Batch(views[0], labels[:4], views[1], views[2], progress=0.5)
        if method in ("rscfed", "fedirm"):
            batch = replace(
                batch, strong=None, weak_again=views[4], labelled_again=views[3] if method == "fedirm" else None
            )
        losses: Losses | None = objective(trained, batch)
        found = []
        while losses is not None:
            trained.zero_grad()
            losses.total.backward()  # type: ignore[no-untyped-call]
            slopes = [torch.zeros(()) if p.grad is None else p.grad.clone() for p in trained.parameters()]
            found.append([losses.total.detach(), *slopes])
            losses = losses.then() if losses.then else None
        return found

    for ours, theirs in zip(steps(grouped=True), steps(grouped=False), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)
    needs = bool(peers)
    if method in ("rscfed", "fedirm"):
        assert asked == [(True, True, True) if method == "fedirm" else (True, True)]
    elif label_mode == "train":
        assert asked == [(needs, True)] if method == "fedmatch" else [(True, needs, True)]
