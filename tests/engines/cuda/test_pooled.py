"""Pooling and ReLU by kernels against torch's operations; without a GPU in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton, in which the kernels are written, is not installed")

from fedperl.engines.cuda import kernels_pooled  # noqa: E402
from fedperl.engines.cuda.kernels import _pooling_fast, pooling_works  # noqa: E402
from fedperl.engines.cuda.kernels_pooled import FastPooled  # noqa: E402
from fedperl.learn.nets import build_net  # noqa: E402
from fedperl.learn.nets.decomposed import Decomposed  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(2, 8, 4, 6), (1, 3, 2, 2), (3, 40, 10, 8), (1, 700, 4, 4)])
def test_values_and_gradients_are_torchs(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Numbers are coarse, so that many of the four are equal or 0."""
    numbers = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).mul(2).round().div(2)
    x = numbers.to(DEVICE, dtype).contiguous(memory_format=torch.channels_last).requires_grad_()
    ours, theirs = FastPooled()(x), F.max_pool2d(F.relu(x), 2)
    assert torch.equal(ours, theirs)
    slope = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE, dtype)
    mine, others = (torch.autograd.grad(y, x, slope)[0] for y in (ours, theirs))
    # Where several are equal and above 0, torch and we both take the first.
    assert torch.equal(mine, others)
    with torch.no_grad():
        assert torch.equal(FastPooled()(x), theirs)


def test_what_is_not_a_number_stays_seen() -> None:
    for place in range(4):
        x = torch.tensor([1.0, -1.0, 3.0, 0.0])
        x[place] = torch.nan
        x = x.view(1, 1, 2, 2).to(DEVICE).contiguous(memory_format=torch.channels_last)
        assert kernels_pooled._Pooled.apply(x).isnan().all()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("sides", [(5, 4), (4, 7)])
def test_odd_sides_and_other_layouts_go_the_usual_way(sides: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *sides).to(DEVICE)
    assert torch.equal(FastPooled()(x), F.max_pool2d(F.relu(x), 2))
    x = torch.randn(2, 3, 4, 4).to(DEVICE)
    assert torch.equal(FastPooled()(x), F.max_pool2d(F.relu(x), 2))


def test_a_network_is_the_same_with_them() -> None:
    assert pooling_works(DEVICE)
    plain, fast = (build_net("resnet9", 10, seed=1).to(DEVICE).to(memory_format=torch.channels_last) for _ in range(2))  # type: ignore[call-overload]
    _pooling_fast(fast)
    assert isinstance(fast.pooled, FastPooled)
    assert fast.state_dict().keys() == plain.state_dict().keys()
    images = torch.rand(2, 3, 16, 16).to(DEVICE).contiguous(memory_format=torch.channels_last)
    assert torch.allclose(fast(images), plain(images), atol=1e-6)
    both = Decomposed(build_net("resnet9", 10, seed=1))
    assert isinstance(_pooling_fast(both).sigma.pooled, FastPooled)  # type: ignore[union-attr]


def test_kernels_that_do_not_work_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: FastPooled, x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x, 2)

    pooling_works.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr(FastPooled, "forward", wrong)
        assert not pooling_works(DEVICE)
    pooling_works.cache_clear()
    assert pooling_works(DEVICE)
