import pytest
import torch
from torch import Tensor, nn

from fedperl.learn.nets.resnet9 import ResNet9
from fedperl.learn.nets.small_cnn import SmallCNN
from fedperl.learn.recalibrate import recalibrate
from fedperl.learn.state import state_of


def images(n: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, 16, 16), dtype=torch.uint8, generator=generator)


def used() -> SmallCNN:
    """A network whose statistics are those of other images."""
    torch.manual_seed(1)
    net = SmallCNN(3).train()
    for seed in range(3):
        net(images(8, 10 + seed) / 500)
    return net


def first(net: SmallCNN) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution, layer = net.features[0], net.features[1]
    assert isinstance(convolution, nn.Conv2d)
    assert isinstance(layer, nn.BatchNorm2d)
    return convolution, layer


def naive(inputs: list[Tensor]) -> tuple[list[float], list[float]]:
    """The mean over batches of each channel's mean and unbiased variance."""
    means, variances = [], []
    for channel in range(inputs[0].shape[1]):
        columns = [batch[:, channel].flatten().double() for batch in inputs]
        means.append(float(sum(c.sum() / len(c) for c in columns) / len(columns)))
        spread = [((c - c.sum() / len(c)) ** 2).sum() / (len(c) - 1) for c in columns]
        variances.append(float(sum(spread) / len(spread)))
    return means, variances


@pytest.mark.parametrize("last", [0, 1])
def test_first_layer_against_naive(last: int) -> None:
    net, pixels = used(), images(24 + last)
    recalibrate(net, pixels, batch=8)
    convolution, layer = first(net)
    with torch.no_grad():
        inputs = [convolution(pixels[i : i + 8].float() / 255) for i in (0, 8, 16)]  # a last single image is left out
    means, variances = naive(inputs)
    assert layer.running_mean is not None
    assert layer.running_var is not None
    assert layer.running_mean.tolist() == pytest.approx(means, rel=1e-4, abs=1e-5)
    assert layer.running_var.tolist() == pytest.approx(variances, rel=1e-4)


def test_batches_count_by_their_images() -> None:
    net, pixels = used(), images(12)
    recalibrate(net, pixels, batch=8)
    convolution, layer = first(net)
    with torch.no_grad():
        inputs = [convolution(pixels[part].float() / 255) for part in (slice(0, 8), slice(8, 12))]
    expected = 2 / 3 * inputs[0].mean((0, 2, 3)) + 1 / 3 * inputs[1].mean((0, 2, 3))
    assert layer.running_mean is not None
    assert torch.allclose(layer.running_mean, expected, atol=1e-5)


def test_it_forgets_what_was_and_changes_nothing_else() -> None:
    net, other = used(), used()
    other.load_state_dict(
        {name: torch.full_like(t, torch.nan) if "running" in name else t for name, t in state_of(net).items()}
    )
    before = state_of(net)
    for each in (net, other):
        first(each)[1].momentum = 0.3
        recalibrate(each.train(), images(20), batch=4)
        assert not any(module.training for module in each.modules())
        assert [m.momentum for m in each.modules() if isinstance(m, nn.BatchNorm2d)] == [0.3, 0.1, 0.1, 0.1]
    for name, tensor in state_of(net).items():
        assert torch.equal(tensor, before[name]) != ("running" in name)
        assert torch.equal(tensor, other.state_dict()[name])


def test_dropout_is_off_and_no_random_number_is_drawn() -> None:
    net = nn.Sequential(nn.Dropout(0.9), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    state = torch.random.get_rng_state()
    recalibrate(net, images(8))
    assert torch.equal(state, torch.random.get_rng_state())
    with torch.no_grad():
        expected = net[1](images(8) / 255).mean((0, 2, 3))
    assert torch.allclose(net[2].running_mean, expected, atol=1e-5)  # type: ignore[arg-type]


def test_nothing_is_done_where_nothing_can_be() -> None:
    for pixels in (images(0), images(1)):
        net = used()
        before = state_of(net)
        recalibrate(net, pixels)
        assert net.training
        assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(net).items())
    plain = ResNet9(3).train()
    recalibrate(plain, images(4))
    assert plain.training
    with pytest.raises(ValueError, match="batch = 1"):
        recalibrate(used(), images(4), batch=1)


def test_one_value_a_channel_does_not_break() -> None:
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(3))
    net.add_module("head", nn.Conv2d(3, 2, 1))
    recalibrate(net, images(9), batch=4)
    assert all(torch.isfinite(tensor).all() for tensor in net.state_dict().values())
