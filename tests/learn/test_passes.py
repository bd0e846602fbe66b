"""Views that pass a network together give what they would one after the other."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from fedperl.engines.cuda.kernels import _one_pass
from fedperl.learn.nets import build_net
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
