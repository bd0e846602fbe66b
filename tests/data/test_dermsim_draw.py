"""Drawn lesions: pure functions of their names, one picture at any size, and classes that mean colours do not tell."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score
from sklearn.preprocessing import StandardScaler

from fedperl.data.dermsim import CLASSES, STYLES, contact_sheet, draw

Images = npt.NDArray[np.uint8]
Names = npt.NDArray[np.int64]


def _mixture(count: int, first_lesion: int = 0) -> tuple[Names, Names, Names, Names]:
    """Return labels, lesions, shots and styles: all classes and styles alike, every lesion once."""
    number = np.arange(count)
    return number % len(CLASSES), first_lesion + number, np.zeros_like(number), number // len(CLASSES) % len(STYLES)


def _correlation(a: npt.NDArray[np.floating], b: npt.NDArray[np.floating]) -> float:
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1])


def _halved(images: Images) -> npt.NDArray[np.float64]:
    n, channels, size, _ = images.shape
    pooled: npt.NDArray[np.float64] = images.reshape(n, channels, size // 2, 2, size // 2, 2).mean(axis=(3, 5))
    return pooled


def _probe(features: npt.NDArray[np.float64], labels: Names) -> float:
    """Return the balanced accuracy of a linear classifier on the last third, taught on the first two."""
    split = 2 * len(labels) // 3
    scaled = StandardScaler().fit(features[:split]).transform(features)
    model = LogisticRegression(C=0.1, max_iter=300).fit(scaled[:split], labels[:split])
    return float(balanced_accuracy_score(labels[split:], model.predict(scaled[split:])))


def _colour_statistics(images: Images) -> npt.NDArray[np.float64]:
    return np.concatenate([images.mean(axis=(2, 3)), images.std(axis=(2, 3))], axis=1)


def test_images_are_repeated_exactly_and_change_with_every_name() -> None:
    first = draw([1], [7], [2], [3], size=32, seed=5)
    assert first.dtype == np.uint8
    assert first.shape == (1, 3, 32, 32)
    assert np.array_equal(first, draw([1], [7], [2], [3], size=32, seed=5))
    others = [(0, 7, 2, 3, 5), (1, 8, 2, 3, 5), (1, 7, 0, 3, 5), (1, 7, 2, 1, 5), (1, 7, 2, 3, 6)]
    for label, lesion, shot, style, seed in others:
        assert not np.array_equal(first, draw([label], [lesion], [shot], [style], size=32, seed=seed))


@pytest.mark.parametrize("size", [16, 33, 64])
def test_an_image_does_not_depend_on_its_batch(size: int) -> None:
    names = _mixture(80)
    together = draw(*names, size=size)
    alone = np.concatenate([draw(*(values[row : row + 1] for values in names), size=size) for row in range(80)])
    assert np.array_equal(together, alone)
    shuffled = np.random.default_rng(0).permutation(80)
    assert np.array_equal(together[shuffled], draw(*(values[shuffled] for values in names), size=size))


def test_order_and_chunks_do_not_matter_beyond_one_chunk() -> None:
    names = _mixture(600)
    images = draw(*names, size=32)
    assert np.array_equal(images[550:], draw(*(values[550:] for values in names), size=32))


def test_every_class_in_every_style_is_a_picture_with_a_lesion_in_it() -> None:
    label, style = (axis.ravel() for axis in np.meshgrid(range(len(CLASSES)), range(len(STYLES)), indexing="ij"))
    images = draw(label, np.arange(40), np.zeros(40, dtype=int), style).astype(float)
    assert (images.std(axis=(1, 2, 3)) > 8.0).all()
    middle = images[:, 1:, 22:42, 22:42].mean(axis=(1, 2, 3))
    around = images[:, 1:, 8:56, 8:56].mean(axis=(1, 2, 3))
    # All classes absorb green and blue; a few pale ones hide behind shadows and dark corners.
    assert (middle < around).mean() > 0.7


def test_two_photographs_of_a_lesion_differ_but_share_its_colours() -> None:
    label = np.arange(160) % len(CLASSES)
    lesion, style = np.arange(160), np.full(160, STYLES.index("HAM10000"))
    first, second = (draw(label, lesion, np.full(160, shot), style).astype(float) for shot in (0, 1))
    assert (np.abs(first - second).mean(axis=(1, 2, 3)) > 2.0).all()

    def signature(images: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Mean and spread of the lesion's middle: what turning and mirroring leave alone, whitened over lesions."""
        middle = images[:, :, 20:44, 20:44]
        values = np.concatenate([middle.mean(axis=(2, 3)), middle.std(axis=(2, 3))], axis=1)
        return np.asarray((values - values.mean(axis=0)) / values.std(axis=0))

    a, b = signature(first), signature(second)
    same = np.linalg.norm(a - b, axis=1)
    # Another lesion of the same class, so that it is not the class that is recognised.
    other = np.linalg.norm(a - np.roll(b, len(CLASSES), axis=0), axis=1)
    assert np.median(same) < 0.6 * np.median(other)


def test_a_lesion_is_one_lesion_in_every_style() -> None:
    label, lesion = np.full(40, CLASSES.index("NV")), np.arange(40)
    shot = np.zeros(40, dtype=int)
    darkness = [
        draw(label, lesion, shot, np.full(40, style))[:, :, 24:40, 24:40].mean(axis=(1, 2, 3)).astype(float)
        for style in (STYLES.index("ISIC19"), STYLES.index("ISIC20"))
    ]
    assert _correlation(*darkness) > 0.6


@pytest.mark.parametrize("size", [32, 64])
def test_the_same_picture_appears_at_twice_the_size(size: int) -> None:
    names = _mixture(80)
    small, large = draw(*names, size=size).astype(float), _halved(draw(*names, size=2 * size))
    agreement = [_correlation(a, b) for a, b in zip(small, large, strict=True)]
    assert np.median(agreement) > 0.97
    assert min(agreement) > 0.85


def test_classes_cannot_be_read_from_colour_but_styles_can() -> None:
    """A renderer that leaks, say by one fixed colour a class, takes this probe far beyond the bound."""
    names = _mixture(1200)
    features = _colour_statistics(draw(*names, size=32))
    assert 0.15 < _probe(features, names[0]) < 0.45
    assert _probe(features, names[3]) > 0.55

    leak = features.copy()
    leak[:, 0] += 40.0 * names[0]
    leak[:, 1] -= 40.0 * (names[0] - 3.5) ** 2
    assert _probe(leak, names[0]) > 0.6


def test_classes_cannot_be_read_from_coarse_pixels() -> None:
    names = _mixture(1200)
    images = draw(*names, size=32)
    coarse = images.reshape(len(images), 3, 8, 4, 8, 4).mean(axis=(3, 5)).reshape(len(images), -1)
    assert _probe(coarse, names[0]) < 0.45


def test_no_images_are_no_images() -> None:
    assert draw([], [], [], [], size=32).shape == (0, 3, 32, 32)


def test_names_may_be_any_whole_numbers() -> None:
    images = draw([0, 0], [-1, 2**62], [-3, 2**62], [0, 0], size=16, seed=-1)
    assert not np.array_equal(images[0], images[1])


@pytest.mark.parametrize(
    ("arguments", "size", "message"),
    [
        (([8], [0], [0], [0]), 64, "labels must lie in 0..7 .* found 8"),
        (([-1], [0], [0], [0]), 64, "labels must lie in 0..7 .* found -1"),
        (([0], [0], [0], [5]), 64, "styles must lie in 0..4 .* found 5"),
        (([0, 1], [0], [0], [0]), 64, r"one length, not \[2, 1, 1, 1\]"),
        (([0], [0], [0], [0]), 15, "size must lie in 16..224 pixels, not 15"),
        (([0], [0], [0], [0]), 225, "not 225"),
        (([0.5], [0], [0], [0]), 64, "labels must be a flat array of whole numbers"),
        (([[0]], [[0]], [[0]], [[0]]), 64, r"of shape \(1, 1\)"),
    ],
)
def test_bad_arguments_are_refused(arguments: tuple[list[int], ...], size: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(*arguments, size=size)


def test_contact_sheet_holds_every_class_and_style() -> None:
    sheet = contact_sheet(size=16, columns=2)
    assert sheet.mode == "RGB"
    assert sheet.width > len(STYLES) * 2 * 16
    assert sheet.height > len(CLASSES) * 16
    with pytest.raises(ValueError, match="columns must be at least 1, not 0"):
        contact_sheet(columns=0)


def test_classes_cannot_be_read_from_single_pixels() -> None:
    labels, lesions, shots, styles = _mixture(1200)
    images = draw(labels, lesions, shots, styles, size=32, seed=5) / 255.0
    scores = [
        _probe(np.concatenate([images[:, :, i, j], images[:, :, i, j] ** 2], axis=1), labels)
        for i in range(4, 32, 8)
        for j in range(4, 32, 8)
    ]
    assert max(scores) < 0.4  # chance is 0.125
