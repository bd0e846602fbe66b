"""What a trained network says of images: batch by batch, in one orientation or as the mean of several."""

import numpy as np
import pytest
import torch

from fedperl.learn.nets import build_net
from fedperl.learn.predict import mean_of, oriented, predict, predict_apart, predict_further, predict_parts


def dihedral(image: np.ndarray) -> list[np.ndarray]:
    """An image (3, h, w) in the eight orientations of a square, by quarter turns of it and of its mirror image."""
    return [np.rot90(one, turns, (1, 2)) for one in (image, image[:, :, ::-1]) for turns in range(4)]


def test_eight_orientations_are_those_of_a_square() -> None:
    image = torch.arange(3 * 5 * 5).view(3, 5, 5)
    found = {one.numpy().tobytes() for one in (view.contiguous() for view in oriented(image, 8))}
    assert found == {np.ascontiguousarray(one).tobytes() for one in dihedral(image.numpy())}
    assert len(found) == 8
    assert [torch.equal(oriented(image, count)[0], image) for count in (1, 2, 4, 8)] == [True] * 4
    assert torch.equal(oriented(image, 2)[1], image.flip(2))  # a mirror, for images with an up and a down
    upright = {one.contiguous().numpy().tobytes() for one in oriented(image, 4)}
    assert upright == {
        one.contiguous().numpy().tobytes() for one in (image, image.flip(1), image.flip(2), image.flip(1, 2))
    }


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_the_answer_is_the_mean_over_orientations(count: int) -> None:
    net = build_net("small_cnn", 4, seed=3)
    images = torch.randint(0, 256, (11, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    naive = []
    for image in images:
        views = [view.contiguous() for view in oriented(image, count)]
        naive.append(np.mean([predict(net, view[None])[0].numpy() for view in views], axis=0))
    found = predict(net, images, batch=4, orientations=count)
    assert np.allclose(found.numpy(), naive, atol=1e-6)
    assert torch.allclose(found.sum(1), torch.ones(11))
    parts = predict_parts(net, [images[:3], images[3:3], images[3:]], batch=4, orientations=count)
    assert [len(part) for part in parts] == [3, 0, 8]
    assert torch.allclose(torch.cat(parts), found, atol=1e-6)
    turned = predict(net, images.transpose(-1, -2).contiguous(), orientations=count)
    assert torch.allclose(turned, found, atol=1e-6) == (count == 8)  # then an image's orientation means nothing


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_orientations_apart_are_those_one_by_one(count: int) -> None:
    net = build_net("small_cnn", 4, seed=3)
    images = torch.randint(0, 256, (11, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    parts = [images[:3], images[3:3], images[3:]]
    found = predict_apart(net, parts, batch=4, orientations=count)
    assert [one.shape for one in found] == [(count, 3, 4), (count, 0, 4), (count, 8, 4)]
    for part, said in zip(parts, found, strict=True):
        for view, one in zip(oriented(part, count), said, strict=True):
            if len(part):
                assert torch.allclose(one, predict(net, view.contiguous()), atol=1e-6)
    for first in range(1, count):
        others = predict_apart(net, parts, batch=4, orientations=count, first=first)
        assert all(torch.equal(some, said[first:]) for some, said in zip(others, found, strict=True))
    whole = predict(net, images[3:], orientations=count)
    assert torch.allclose(mean_of(found[2]), whole, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_what_is_known_of_images_as_they_are_is_not_asked_again(count: int) -> None:
    net = build_net("small_cnn", 4, seed=3)
    images = torch.randint(0, 256, (11, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    parts = [images[:3], images[3:3], images[3:]]
    said, wanted = predict_parts(net, parts), predict_parts(net, parts, orientations=count)
    shown: list[int] = []
    with net.register_forward_pre_hook(lambda _, given: shown.append(len(given[0]))):
        found = predict_further(net, parts, said, orientations=count)
        assert predict_further(net, [], [], orientations=count) == []
    assert shown == [len(images)] * (count - 1)
    for one, other in zip(found, wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
