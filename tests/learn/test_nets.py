import pytest
import torch

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
