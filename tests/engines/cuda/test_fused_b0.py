"""The hand-written EfficientNet-B0 against MONAI's, and each of its kernels against a naive statement in torch.

Where there is no GPU the kernels run in Triton's interpreter, on the CPU: slowly, so images are tiny here.
"""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
triton = pytest.importorskip("triton", reason="Triton, in which the kernels are written, is not installed")

from triton.runtime import interpreter  # noqa: E402

from fedperl.config import load_config  # noqa: E402
from fedperl.engines.cuda import (  # noqa: E402
    kernels,
    kernels_depthwise,
    kernels_expand,
    kernels_expand_input,
    kernels_expand_weight,
    kernels_norm,
    kernels_project,
    kernels_squeeze,
    kernels_sums,
    recorded_pass,
    tiles,
)
from fedperl.engines.cuda.captured import Step  # noqa: E402
from fedperl.engines.cuda.fused_b0 import FusedB0  # noqa: E402
from fedperl.engines.cuda.kernels_stem import stem_columns  # noqa: E402
from fedperl.engines.cuda.kernels_sums import segment_table, sum_parts, sum_segments  # noqa: E402
from fedperl.learn.nets import InputScale, build_net  # noqa: E402
from fedperl.learn.objectives.fedirm import mean_of_passes  # noqa: E402
from fedperl.learn.predict import predict  # noqa: E402
from fedperl.learn.recalibrate import recalibrate  # noqa: E402
from fedperl.learn.state import load_into  # noqa: E402

WINDOWS = [(3, 1, (1, 1)), (5, 1, (2, 2)), (3, 2, (0, 1)), (5, 2, (1, 2))]  # kernel, stride, padding before and after


@pytest.fixture(autouse=True)
def _mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mend two faults of Triton 3.6's interpreter: loop bounds under NumPy 2.4, and products of bfloat16."""
    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def as_float(handle: Any) -> Any:
        bits = handle.data.astype(np.uint32) << 16 if handle.dtype.is_bf16() else None
        return handle if bits is None else interpreter.TensorHandle(bits.view(np.float32), triton.language.float32)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)
    monkeypatch.setattr(
        interpreter.InterpreterBuilder,
        "create_dot",
        lambda self, a, b, *others: dot(self, as_float(a), as_float(b), *others),
    )


@pytest.fixture(autouse=True)
def _exact_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the reference round to 11 bits on a GPU unless told otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(name="wide_tiles")
def _wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few large tiles for whole networks: the interpreter's time goes by the number of operations, not their size."""
    if DEVICE == "cuda":
        return
    larger: dict[Any, dict[str, Any]] = {
        tiles: {"CHANNELS": 128, "PROGRAMS": 1},
        kernels_depthwise: {"LANES": 256, "STRIP": 2, "STRIP_BACK": {1: 2, 2: 1}},
        kernels_norm: {"FEW": 128, "PARTS": 4, "FEW_PARTS": 4},
        kernels_expand_weight: {"FEW": 128},
        kernels_squeeze: {"CHANNELS": 128},
        kernels_sums: {"LENGTH": 2**16, "PARTS": 4},
    }
    for module, values in larger.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE)


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= tolerance * wanted.norm().clamp_min(1e-6)


def norm_of(channels: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01).to(DEVICE)
    for parameter in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(parameter, 1.0, 0.5)  # type: ignore[arg-type]
    return norm


def statistics(z: Tensor, norm: nn.BatchNorm2d, groups: int) -> Tensor:
    """(groups, 4, channels): mean, 1/std, scale and shift of (rows, channels)."""
    mean, var = z.view(groups, -1, z.shape[1]).mean(1), z.view(groups, -1, z.shape[1]).var(1, correction=0)
    inverse = (var + norm.eps).rsqrt()
    return torch.stack([mean, inverse, norm.weight * inverse, norm.bias - mean * norm.weight * inverse], 1).detach()


def normalised(z: Tensor, norm: nn.BatchNorm2d, groups: int) -> Tensor:
    """Batch norm of (rows, channels), each group apart."""
    parts = [F.batch_norm(part, None, None, norm.weight, norm.bias, True, 0.0, norm.eps) for part in z.chunk(groups)]
    return torch.cat(parts)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_stem_columns_are_the_windows_of_the_scaled_image(memory_format: torch.memory_format) -> None:
    images, scale = torch.rand(2, 3, 9, 8, device=DEVICE), InputScale().to(DEVICE)
    out = torch.full((2 * 20, 32), torch.nan, device=DEVICE)
    given = images.contiguous(memory_format=memory_format)
    stem_columns(given, scale.mean, scale.std, out, (5, 4), (1, 0))
    wanted = F.unfold(F.pad(scale(images), (0, 1, 1, 1)), 3, stride=2).transpose(1, 2)
    close(out.view(2, 20, 32)[..., :27], wanted, 1e-6)
    assert (out[:, 27:] == 0).all()


@pytest.mark.parametrize("groups", [1, 3])
def test_statistics_and_their_running_means(groups: int) -> None:
    norm, x, weight = norm_of(40), draw(groups * 150, 24), draw(40, 24)
    reference, z = copy.deepcopy(norm), x @ weight.t()
    for part in z.chunk(groups):
        reference(part[..., None, None])
    found = kernels_norm.batch_statistics(kernels_expand.expand_sums(x, weight, groups), norm, 150)
    close(found, statistics(z, norm, groups))
    close(norm.running_mean, reference.running_mean)  # type: ignore[arg-type]
    close(norm.running_var, reference.running_var)  # type: ignore[arg-type]


@pytest.mark.parametrize(("channels", "width", "pixels"), [(40, 24, 35), (40, 80, 70), (72, 192, 9)])
def test_expansion_and_head(channels: int, width: int, pixels: int) -> None:
    x, weight, norm = draw(4 * pixels, width), draw(channels, width) / 4, norm_of(channels)
    stats = statistics(x @ weight.t(), norm, 2)
    wanted = F.silu(normalised(x @ weight.t(), norm, 2))
    close(kernels_expand.expand_forward(x, weight, stats), wanted)
    close(kernels_expand.head_features(x, weight, stats, pixels), wanted.view(4, pixels, -1).mean(1))


@pytest.mark.parametrize(("channels", "width", "head"), [(40, 24, False), (40, 80, False), (72, 192, True)])
def test_expansion_backward(channels: int, width: int, head: bool) -> None:
    x, weight, norm = draw(4 * 35, width) + 1, draw(channels, width) / 4, norm_of(channels)
    x.requires_grad_(), weight.requires_grad_()
    active = F.silu(normalised(x @ weight.t(), norm, 2))
    d_active, skip = draw(4, channels) if head else draw(*active.shape), draw(*x.shape)
    (active.view(4, 35, -1).mean(1) if head else active).backward(d_active)  # type: ignore[no-untyped-call]
    stats = statistics(x @ weight.t(), norm, 2)
    out = (torch.empty_like(weight), torch.empty_like(norm.weight), torch.empty_like(norm.bias))
    with torch.no_grad():
        pixels = 35 if head else None
        slopes = kernels_expand_weight.expand_weight_back(x, weight, d_active, stats, out, live=True, pixels=pixels)
        if head:
            d_x = kernels_expand_input.head_back(x, weight, d_active, stats, slopes, 35)
        else:
            d_x = kernels_expand_input.expand_back(x, weight, d_active, stats, slopes, skip)
    for found, wanted in zip((*out, d_x), (weight, norm.weight, norm.bias, x), strict=True):
        assert wanted.grad is not None
        close(found, wanted.grad if wanted is not x or head else wanted.grad + skip)


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [pytest.param(*window, marks=[] if window[:2] in ((3, 1), (5, 2)) else pytest.mark.slow) for window in WINDOWS],
)
def test_depthwise_forward_and_backward(kernel: int, stride: int, padding: tuple[int, int]) -> None:
    x, weight = draw(2, 40, 10, 5).requires_grad_(), draw(40, 1, kernel, kernel).requires_grad_()
    z = F.conv2d(F.pad(x, padding * 2), weight, stride=stride, groups=40)
    d_z = draw(*z.shape)
    z.backward(d_z)  # type: ignore[no-untyped-call]
    window = kernels_depthwise.Window(kernel, stride, (padding[0],) * 2, (10, 5), (z.shape[2], z.shape[3]))
    rows, d_rows = (t.detach().permute(0, 2, 3, 1).reshape(-1, 40) for t in (x, d_z))
    taps = weight.detach().reshape(40, -1).t().contiguous()
    found, part = kernels_depthwise.depthwise_forward(rows, taps, window, 2)
    wanted = z.detach().permute(0, 2, 3, 1).reshape(2, -1, 40)
    close(found.view(2, -1, 40), wanted)
    close(part.sum(1), torch.stack([wanted.sum(1), wanted.square().sum(1)], 1))
    norm = statistics(wanted.flatten(0, 1), norm_of(40), 1)
    found, part = kernels_depthwise.depthwise_active(rows, taps, window, norm)
    active = F.silu(wanted * norm[0, 2] + norm[0, 3])
    close(found.view_as(active), active)
    close(part.sum(1)[:, 0], active.sum(1))
    assert x.grad is not None
    assert weight.grad is not None
    close(kernels_depthwise.depthwise_back(d_rows, taps, window), x.grad.permute(0, 2, 3, 1).reshape(-1, 40))
    parts = torch.empty(kernels_depthwise.depthwise_weight_parts(window, 2, 40)[0], 40, kernel**2, device=DEVICE)
    kernels_depthwise.depthwise_weight_back(rows, d_rows, parts, window)
    close(parts.sum(0), weight.grad.reshape(40, -1))


def test_gate_projection_and_their_gradients() -> None:
    """All from the depthwise output to the projection's: pooling, gate, product, and the norm before them."""
    images, pixels, channels, out, squeezed = 4, 70, 40, 24, 6
    z, norm, weight = draw(images * pixels, channels).requires_grad_(), norm_of(channels), draw(out, channels)
    layers = [draw(squeezed, channels) / 4, draw(squeezed), draw(channels, squeezed), draw(channels)]
    for tensor in (*layers, weight):
        tensor.requires_grad_()
    active = F.silu(normalised(z, norm, 2)).view(images, pixels, channels)
    hidden = F.linear(active.mean(1), layers[0], layers[1])
    gate = F.linear(F.silu(hidden), layers[2], layers[3]).sigmoid()
    product = ((active * gate[:, None]) @ weight.t()).view(-1, out)
    d_out = draw(*product.shape)
    product.backward(d_out)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        stats, end = statistics(z, norm, 2), draw(1, 4, out)
        part = kernels_squeeze.pool_sums(z, stats, pixels, slopes=True)
        saved = kernels_squeeze.squeeze_gate(part, (layers[0], layers[1], layers[2], layers[3]), pixels)
        close(saved[1], hidden)
        close(saved[2], gate)
        gated = kernels_project.gated_input(z, stats, saved[2])
        close(gated, (active * gate[:, None]).view(-1, channels))
        found, sums = kernels_project.project_forward(gated, weight, 2)
        close(found, product)
        close(sums.sum(1), torch.stack([product, product.square()], 1).view(2, -1, 2, out).sum(1))
        ended = kernels_project.project_end(active.view(-1, channels), gate, weight, end, d_out)
        close(ended, product * end[0, 2] + end[0, 3] + d_out)
        d_weight = torch.empty(kernels_project.project_weight_parts(out, channels, images * pixels)[0], out, channels)
        d_weight = d_weight.to(DEVICE)
        kernels_project.project_weight_back(d_out, gated, d_weight)
        d_active = d_out @ weight
        part = kernels_squeeze.pool_sums(z, stats, pixels, slopes=True, given=d_active)
        into = [torch.empty_like(layer) for layer in layers]
        d_open, d_hidden, d_pooled, sums = kernels_squeeze.squeeze_back(part, saved, (layers[0], layers[2]), pixels)
        kernels_squeeze.squeeze_weights_back(saved[:2], d_open, d_hidden, (into[0], into[1], into[2], into[3]))
        d_norm = (torch.empty_like(norm.weight), torch.empty_like(norm.bias))
        slopes = kernels_norm.norm_gradients(sums.view(2, 2, 2, -1), stats, d_norm, 2 * pixels, live=True)
        d_z = kernels_project.gated_back(d_active, z, stats, (saved[2], d_pooled), slopes)
    pairs = zip((*into, d_weight.sum(0), *d_norm, d_z), (*layers, weight, norm.weight, norm.bias, z), strict=True)
    for gradient, wanted in pairs:
        assert wanted.grad is not None
        close(gradient, wanted.grad)


@pytest.mark.parametrize("skip", [True, False])
def test_end_of_a_block_and_its_gradient(skip: bool) -> None:
    z, x, keep, norm = draw(6 * 35, 24).requires_grad_(), draw(6 * 35, 24), torch.rand(6, device=DEVICE), norm_of(24)
    y = normalised(z, norm, 3)
    wanted = y.view(6, 35, 24) * keep[:, None, None] + x.view(6, 35, 24) if skip else y
    d_out = draw(6 * 35, 24)
    wanted.backward(d_out.view_as(wanted))  # type: ignore[no-untyped-call]
    share = keep if skip else None
    with torch.no_grad():
        stats = statistics(z, norm, 3)
        close(kernels_norm.norm_add(z, stats, 35, (keep, x) if skip else None), wanted.reshape(-1, 24))
        out = (torch.empty_like(norm.weight), torch.empty_like(norm.bias))
        part = kernels_norm.linear_sums(d_out, z, 3, 35, share)
        slopes = kernels_norm.norm_gradients(part, stats, out, 70, live=True)
        d_z = kernels_norm.linear_back(d_out, z, stats, slopes, 35, share)
    for found, tensor in zip((d_z, *out), (z, norm.weight, norm.bias), strict=True):
        assert tensor.grad is not None
        close(found, tensor.grad)


def test_sums_of_parts() -> None:
    part = draw(2, 37, 130)
    close(sum_parts(part), part.sum(1))
    flat, out = draw(400), torch.zeros(260, device=DEVICE)
    sum_segments(flat, segment_table([(0, 2, 150, 100), (310, 3, 30, 8)], flat.device), out)
    close(out[100:250], flat[:300].view(2, 150).sum(0))
    close(out[8:38], flat[310:].view(3, 30).sum(0))
    assert out.count_nonzero() == 180


def small_net(rate: float = 0.0) -> nn.Module:
    """MONAI's network with three blocks, a quarter as wide: without expansion, of stride 2, with a skip."""
    from monai.networks.nets.efficientnet import EfficientNet

    blocks = ["r1_k3_s11_e1_i32_o64_se0.25", "r1_k5_s22_e2_i64_o96_se0.25", "r1_k3_s11_e2_i96_o96_se0.25"]
    torch.manual_seed(3)
    net = EfficientNet(blocks, num_classes=5, width_coefficient=0.25, dropout_rate=0.0, drop_connect_rate=rate)
    return stirred(net.to(DEVICE))


def stirred(net: nn.Module) -> nn.Module:
    """Norms that are not at their start: every one of their numbers counts."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0.0, 0.3)
            nn.init.normal_(module.running_mean, 0.0, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(module.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return net


def check_training(net: nn.Module, groups: int, images: int, tolerance: float) -> None:
    """One backward pass of the fused network is that of separate calls of MONAI's, statistics included."""
    fused, reference = FusedB0(copy.deepcopy(net), dtype=torch.float32).train(), net.train()
    batches = [torch.rand(images, 3, 32, 32, device=DEVICE) for _ in range(groups)]
    weights = [draw(images, net._fc.out_features) for _ in range(groups)]  # type: ignore[union-attr, arg-type]
    found, wanted = fused.forward_groups(batches), [reference(batch) for batch in batches]
    close(torch.cat(found), torch.cat(wanted), tolerance)
    for logits in (found, wanted):
        torch.stack([(part * weight).sum() for part, weight in zip(logits, weights, strict=True)]).sum().backward()  # type: ignore[no-untyped-call]
    size = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None]).norm()
    for (name, one), (same, other) in zip(fused.named_parameters(), reference.named_parameters(), strict=True):
        assert name == same
        assert one.grad is not None
        assert other.grad is not None
        assert (one.grad - other.grad).norm() <= tolerance * size, name
    for one, other in zip(fused.state_dict().values(), reference.state_dict().values(), strict=True):
        close(one.double(), other.double(), tolerance)
    with torch.no_grad():
        close(fused.eval()(batches[0]), reference.eval()(batches[0]), tolerance)


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.parametrize("groups", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_training_is_monais(groups: int) -> None:
    check_training(small_net(), groups, 2, 1e-4)


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.parametrize("training", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_batches_without_a_gradient_leave_none(training: bool) -> None:
    """The first and the last of three batches have gradients; all three move the statistics, one after the other."""
    net = small_net()
    fused, reference = FusedB0(copy.deepcopy(net), dtype=torch.float32).train(training), net.train(training)
    batches, weights, graph = torch.rand(3, 2, 3, 32, 32, device=DEVICE), draw(3, 2, 5), [True, False, True]
    found, wanted = fused.forward_groups(list(batches), graph), [reference(batch) for batch in batches]
    assert [logits.requires_grad for logits in found] == graph
    close(torch.stack(found), torch.stack(wanted))
    for logits in (found, wanted):
        (logits[0] * weights[0] + logits[2] * weights[2]).sum().backward()
    gradients = [[p.grad.flatten() for p in m.parameters() if p.grad is not None] for m in (fused, reference)]
    close(torch.cat(gradients[0]), torch.cat(gradients[1]))
    for one, other in zip(fused.state_dict().values(), reference.state_dict().values(), strict=True):
        close(one.double(), other.double())


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_the_whole_network_is_monais() -> None:
    net = stirred(build_net("efficientnet_b0", 4, seed=0, dropout=0.0, input_scale="imagenet").to(DEVICE))
    for module in net.modules():
        if hasattr(module, "drop_connect_rate"):
            module.drop_connect_rate = 0.0  # type: ignore[assignment]
    check_training(net, 2, 6, 1e-4)  # fewer images leave the last norms too few values to be stable


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_frozen_statistics_have_gradients_too() -> None:
    net = small_net().eval()
    fused, images = FusedB0(copy.deepcopy(net), dtype=torch.float32), torch.rand(2, 3, 32, 32, device=DEVICE)
    weight = draw(2, 5)
    for module in (fused, net):
        (module(images) * weight).sum().backward()
    found, wanted = (torch.cat([p.grad.flatten() for p in m.parameters() if p.grad is not None]) for m in (fused, net))
    close(found, wanted)


def test_state_is_monais_key_for_key() -> None:
    net = build_net("efficientnet_b0", 4, seed=0, input_scale="imagenet")
    other = stirred(build_net("efficientnet_b0", 4, seed=1, input_scale="imagenet"))
    fused = FusedB0(copy.deepcopy(net))
    for kind in ("state_dict", "named_parameters", "named_buffers"):
        names = [list(dict(getattr(module, kind)())) for module in (fused, net)]
        assert names[0] == names[1]
    fused.load_state_dict(other.state_dict())
    net.load_state_dict(fused.state_dict())
    for one, two in zip(net.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.slow
def test_bfloat16_is_near_float32() -> None:
    net, images, weight = small_net(), torch.rand(4, 3, 32, 32, device=DEVICE), draw(4, 5)
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        fused = FusedB0(copy.deepcopy(net), dtype=dtype).train()
        logits = fused(images)
        (logits * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in fused.parameters() if p.grad is not None])
        assert logits.dtype == gradient.dtype == torch.float32
        results.append((logits.detach(), gradient))
    close(results[0][0], results[1][0], 0.03)
    close(results[0][1], results[1][1], 0.05)


@pytest.mark.usefixtures("wide_tiles")
def test_drop_connect_is_monais_given_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    net, images, draws = small_net(rate=0.9), torch.rand(4, 3, 32, 32, device=DEVICE), [0.1, 0.5, 0.39, 0.7]
    given = torch.tensor(draws, device=DEVICE)
    monkeypatch.setattr(torch, "rand", lambda shape, **_: given.clone().view(shape))
    monkeypatch.setattr(torch, "rand_like", lambda like: given.expand_as(like).clone())
    with torch.no_grad():
        fused, wanted = FusedB0(copy.deepcopy(net), dtype=torch.float32).train()(images), net.train()(images)
    close(fused, wanted)


@pytest.mark.usefixtures("wide_tiles")
def test_passes_with_dropout_are_passes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedIRM's uncertainty: dropout on, everything else in eval mode, each pass with a mask of its own."""
    net, images, passes = small_net().train(), torch.rand(2, 3, 32, 32, device=DEVICE), 5
    net._dropout.p = 0.5  # type: ignore[union-attr]
    masks = torch.bernoulli(torch.full((passes * 2, net._fc.in_features), 0.5, device=DEVICE))  # type: ignore[union-attr, arg-type]
    drawn = iter([masks, *torch.split(masks, 2)])
    monkeypatch.setattr(F, "dropout", lambda x, p, training, _: 2 * x * next(drawn) if training else x)
    found = mean_of_passes(FusedB0(copy.deepcopy(net), dtype=torch.float32).train(), images, passes)
    net.eval()
    net._dropout.train()  # type: ignore[union-attr]
    wanted = torch.stack([torch.softmax(net(images), 1) for _ in range(passes)]).mean(0)
    close(found, wanted)
    assert next(drawn, None) is None


def test_drop_connect_keeps_the_mean() -> None:
    fused = FusedB0(build_net("efficientnet_b0", 4, seed=0).to(DEVICE)).train()
    kept = fused._keep(20_000, torch.device(DEVICE))
    rates = [block.rate for block in fused.layout.blocks]
    assert max(rates) == pytest.approx(0.2 * 14 / 16)
    for share, rate in zip(kept, rates, strict=True):
        if share is not None:
            assert share.mean().item() == pytest.approx(1.0, abs=0.02)
            assert (share == 0).float().mean().item() == pytest.approx(rate, abs=0.02)
    assert all(share is None or bool((share == 1).all()) for share in fused.eval()._keep(8, torch.device(DEVICE)))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="not MONAI's"):
        FusedB0(build_net("small_cnn", 4, seed=0))
    fused = FusedB0(build_net("efficientnet_b0", 4, seed=0))
    with pytest.raises(ValueError, match="one shape"):
        fused.forward_groups([torch.rand(2, 3, 32, 32), torch.rand(1, 3, 32, 32)])
    with pytest.raises(ValueError, match="1 things for 2 batches"):
        fused.forward_groups([torch.rand(2, 3, 32, 32)] * 2, [True])
    with pytest.raises(ValueError, match="height, width"):
        fused(torch.rand(2, 1, 32, 32))


@pytest.mark.usefixtures("wide_tiles")
@pytest.mark.slow
def test_a_network_that_predicted_first_can_train() -> None:
    fused = FusedB0(small_net())
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, device=DEVICE)
    with torch.inference_mode():
        fused.eval()(images.float())
    predict(fused, images)
    fused.train()(images.float() / 255).sum().backward()
    assert all(p.grad is not None for p in fused.parameters())


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_statistics_that_are_measured_anew_are_those_of_monais_network() -> None:
    """Batch norms alone are in train mode then: no drop-connect, and no recorded pass."""
    net, images = small_net(0.5), torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, device=DEVICE)
    fused = FusedB0(copy.deepcopy(net), dtype=torch.float32, record=lambda step: step)
    before = net.state_dict()["_bn0.running_mean"].clone()
    for module in (fused, net):
        recalibrate(module, images, batch=3)
    assert not net.state_dict()["_bn0.running_mean"].allclose(before, rtol=0.1)
    for (name, one), other in zip(fused.state_dict().items(), net.state_dict().values(), strict=True):
        assert torch.allclose(one.double(), other.double(), rtol=1e-3, atol=1e-4), name


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_kernels_that_would_not_measure_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "FEW", 4)
    nets = [small_net() for _ in range(3)]
    assert kernels._measured_difference(FusedB0(nets[0]), nets[1], 32) < kernels.NEAR / 10
    monkeypatch.setattr(FusedB0, "_measures", False)
    assert kernels._measured_difference(FusedB0(nets[2]), nets[1], 32) > kernels.NEAR


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_passes_at_rest_are_played_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """What plays a pass here makes it again: whether a graph does the same is seen on a GPU alone."""
    monkeypatch.setattr(recorded_pass, "EACH", 4)
    monkeypatch.setattr(recorded_pass, "WARM", 1)
    made: list[Step] = []
    played: list[int] = []

    def record(step: Step) -> Step:
        def play() -> None:
            played.append(1)
            step()

        made.append(step)
        return play

    net = small_net().eval()
    fused = FusedB0(copy.deepcopy(net), dtype=torch.float32, record=record)
    images = torch.rand(4, 3, 32, 32, device=DEVICE)
    with torch.no_grad():
        for n in (4, 3, 2):
            close(fused(images[:n]), net(images[:n]))
        assert (len(made), len(played)) == (1, 2)
        state = {name: 1.1 * value if "running" in name else value for name, value in net.state_dict().items()}
        for module in (fused, net):
            load_into(module, state)
            load_into(module, {"_fc.bias": torch.arange(5.0), "_conv_stem.weight": -state["_conv_stem.weight"]})
        close(fused(images), net(images))
        assert (len(made), len(played)) == (1, 3)
        fused.forward_groups([images[:2], images[2:]])
        close(fused.train()(images), net.train()(images))
        fused.eval(), net.eval()
    assert fused(images[:2]).requires_grad
    assert (len(made), len(played)) == (1, 3)
    again = copy.deepcopy(fused)
    fused.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        for module in (fused, again):
            close(module(images), net(images))
    assert (len(made), len(played)) == (1, 3)  # neither holds what the first one had recorded


@pytest.mark.slow
@pytest.mark.usefixtures("wide_tiles")
def test_kernels_are_tried_beside_monais_network_and_left_out_where_they_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "build_net", lambda *_, **__: small_net())
    monkeypatch.setattr(kernels, "PASS", 3)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    shapes = ((4, (True, False, True)), (3, (False,)))
    assert kernels.b0_works(shapes, 32, DEVICE)
    assert len([*tmp_path.glob("fedperl-*")]) == 1  # while others waited
    right = FusedB0.forward_groups
    monkeypatch.setattr(FusedB0, "forward_groups", lambda *given: [2 * logits for logits in right(*given)])
    kernels.b0_works.cache_clear()
    assert not kernels.b0_works(shapes[1:], 32, DEVICE)
    monkeypatch.setattr(FusedB0, "forward_groups", lambda *given: 1 // 0)
    kernels.b0_works.cache_clear()
    assert not kernels.b0_works(shapes[1:], 32, DEVICE)
    assert "they are off by" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    kernels.b0_works.cache_clear()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["method=fedperl"], ((16, (True, False, True)), (16, (True, True, True)), (256, (False,)))),
        (["method=ssfl"], ((16, (True, False, True)), (256, (False,)))),
        (["method=lower"], ((16, (True,)), (256, (False,)))),
        (["method=fedirm"], ((16, (True, True, True)), (256, (False,)))),
        (["method=rscfed"], ((16, (True, True)), (256, (False,)))),
        (
            ["method=fedirm", "scenario.labels=few_clients"],
            ((16, (True, True, True)), (16, (True,)), (16, (True, True)), (256, (False,))),
        ),
        (
            ["method=ssfl", "scenario.labels=server"],
            ((16, (True, False, True)), (16, (True,)), (16, (False, True)), (256, (False,))),
        ),
        (["method=uda", "federation.unlabelled_batch=8"], ((16, (True,)), (8, (True,)), (256, (False,)))),
    ],
)
def test_kernels_are_compiled_for_the_passes_of_a_run(settings: list[str], expected: kernels.Shapes) -> None:
    assert kernels.shapes_of(load_config(None, settings)) == expected
