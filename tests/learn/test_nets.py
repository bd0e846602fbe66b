import pytest
import torch
import torch.nn.functional as F

from fedperl.learn.nets import IMAGENET_MEAN, IMAGENET_STD, NETS, build_net
from fedperl.learn.predict import predict


@pytest.mark.parametrize("name", NETS)
def test_same_seed_same_weights_and_shapes(name: str) -> None:
    first, again, other = (build_net(name, 5, seed=seed).eval() for seed in (1, 1, 2))
    images = torch.rand(2, 3, 32, 32)
    assert first(images).shape == (2, 5)
    assert torch.equal(first(images), again(images))
    assert not torch.equal(first(images), other(images))


def test_resnet9_is_fedmatchs() -> None:
    net = build_net("resnet9", 10, seed=1)
    assert sum(p.numel() for p in net.parameters()) == 6_568_640
    assert not list(net.buffers())
    conv = net.conv4.weight  # type: ignore[union-attr]
    assert torch.std(conv).item() == pytest.approx((256 * 9) ** -0.5, rel=0.02)  # type: ignore[arg-type]


def test_building_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    build_net("small_cnn", 3, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_imagenet_scale_keeps_names_and_normalises() -> None:
    plain, scaled = (build_net("small_cnn", 3, seed=1, input_scale=s).eval() for s in ("unit", "imagenet"))
    assert plain.state_dict().keys() == scaled.state_dict().keys()
    images = torch.rand(2, 3, 16, 16)
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    assert torch.allclose(scaled(images), plain((images - mean) / std), atol=1e-6)


def test_unknown_net() -> None:
    with pytest.raises(ValueError, match="'vgg' is unknown; wanted one of efficientnet_b0"):
        build_net("vgg", 3, seed=1)


def test_predict_is_the_eval_softmax_in_any_batch_size() -> None:
    net = build_net("small_cnn", 4, seed=1).train()
    images = torch.randint(0, 256, (7, 3, 16, 16), dtype=torch.uint8)
    expected = torch.softmax(net.eval()(images.float() / 255), dim=1)
    net.train()
    for batch in (2, 7, 100):
        assert torch.allclose(predict(net, images, batch=batch), expected, atol=1e-6)
    assert net.training


def test_resnet9_against_its_description() -> None:
    """Convolution, ReLU, pooling in the published order, and the gradients that it gives."""
    net, images = build_net("resnet9", 10, seed=1).double(), torch.rand(3, 3, 32, 32, dtype=torch.float64)

    def published(x: torch.Tensor) -> torch.Tensor:
        weights = {name: p for name, p in net.named_parameters()}

        def conv(name: str, x: torch.Tensor) -> torch.Tensor:
            return F.relu(F.conv2d(x, weights[f"{name}.weight"], padding=1))

        x = F.max_pool2d(conv("conv2", conv("conv1", x)), 2)
        x = x + conv("pair1.1", conv("pair1.0", x))
        x = F.max_pool2d(conv("conv4", F.max_pool2d(conv("conv3", x), 2)), 2)
        x = x + conv("pair2.1", conv("pair2.0", x))
        return F.linear(F.max_pool2d(x, 4).flatten(1), weights["head.weight"])

    ours, theirs = net(images), published(images)
    assert torch.equal(ours, theirs)
    every = list(net.parameters())
    for one, other in zip(
        torch.autograd.grad(ours.square().sum(), every), torch.autograd.grad(theirs.square().sum(), every), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NETS)
def test_drawn_weights_are_multiplied_and_norms_are_not(name: str) -> None:
    plain, scaled = (build_net(name, 5, seed=1, init_scale=scale).state_dict() for scale in (1.0, 1.2))
    for key, tensor in plain.items():
        assert torch.equal(scaled[key], tensor * 1.2 if tensor.ndim > 1 else tensor), key
