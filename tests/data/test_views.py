"""Views against naive references: PIL for the colours, a loop over pixels for the geometry."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from fedperl.data.views import (
    STRONG_RECIPES,
    WEAK_RECIPES,
    Choice,
    Operation,
    StrongDraw,
    StrongRecipe,
    WeakDraw,
    apply_strong,
    apply_weak,
    draw_strong,
    draw_weak,
    to_float,
)
from fedperl.data.views import images as images_module

GREY = 128 / 255
MOVING = [Operation.ROTATE, Operation.SHEAR_X, Operation.SHEAR_Y, Operation.TRANSLATE_X, Operation.TRANSLATE_Y]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photographs(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Return uint8 images with smooth colours, an edge, some noise, and not the whole range of levels."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(random.uniform(1, 9) * x + random.uniform(1, 9) * y + random.uniform(0, 6)) for _ in range(3 * n)]
    pictures = np.stack(waves).reshape(n, 3, height, width) * 80 + random.uniform(90, 160, (n, 3, 1, 1))
    pictures += random.normal(0, 6, pictures.shape) + 30 * (x > random.uniform(0.3, 0.7, (n, 1, 1, 1)))
    return torch.from_numpy(pictures.clip(5, 250).astype(np.uint8))


def to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy())


def from_pil(image: Image.Image) -> Tensor:
    return to_float(torch.from_numpy(np.array(image)).permute(2, 0, 1))


def strong(operation: Operation, values: list[float]) -> StrongDraw:
    """Return a draw of one slot: the same operation for every image, each with its own value."""
    return StrongDraw(torch.full((len(values), 1), int(operation)), torch.tensor(values)[:, None])


def weak(n: int, **changed: Tensor) -> WeakDraw:
    """Return a draw that leaves n images as they are, but for what is given."""
    still = draw_weak(n, generator(), "none")
    return dataclasses.replace(still, moves=True, jitters=True, **changed)


def distinct(values: Tensor) -> list[float]:
    return sorted(set(values.flatten().tolist()))


def sampled_pixel_by_pixel(image: Tensor, coefficients: tuple[float, ...], fill: float) -> Tensor:
    """Return PIL's AFFINE of one image, bilinear, with `fill` outside: the slow and obvious way."""
    a, b, c, d, e, f = coefficients
    height, width = image.shape[1:]
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            x = a * (column + 0.5) + b * (row + 0.5) + c - 0.5
            y = d * (column + 0.5) + e * (row + 0.5) + f - 0.5
            left, top = math.floor(x), math.floor(y)
            for i, j in [(top, left), (top, left + 1), (top + 1, left), (top + 1, left + 1)]:
                weight = (1 - abs(y - i)) * (1 - abs(x - j))
                inside = 0 <= i < height and 0 <= j < width
                result[:, row, column] += weight * (image[:, i, j] if inside else fill)
    return result


def rotation_coefficients(degrees: float, height: int, width: int) -> tuple[float, ...]:
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    x, y = width / 2, height / 2
    return (cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)


# --- colour ---------------------------------------------------------------------------------------------------------

PIL_OPERATIONS: list[tuple[Operation, list[float], Callable[[Image.Image, float], Image.Image], int]] = [
    (Operation.COLOUR, [0.1, 0.7, 1.0, 1.9], lambda image, v: ImageEnhance.Color(image).enhance(v), 2),
    (Operation.CONTRAST, [0.1, 0.5, 1.0, 1.9], lambda image, v: ImageEnhance.Contrast(image).enhance(v), 2),
    (Operation.BRIGHTNESS, [0.1, 0.7, 1.0, 1.9], lambda image, v: ImageEnhance.Brightness(image).enhance(v), 1),
    (Operation.SHARPNESS, [0.0, 0.1, 1.0, 1.9], lambda image, v: ImageEnhance.Sharpness(image).enhance(v), 2),
    (Operation.AUTOCONTRAST, [0.0, 0.0, 0.0, 0.0], lambda image, _: ImageOps.autocontrast(image), 1),
    (Operation.EQUALIZE, [0.0, 0.0, 0.0, 0.0], lambda image, _: ImageOps.equalize(image), 0),
    (Operation.SOLARIZE, [256.0, 200.5, 128.0, 0.0], lambda image, v: ImageOps.solarize(image, v), 0),  # type: ignore[arg-type]
    (Operation.POSTERIZE, [8.0, 6.0, 4.0, 1.0], lambda image, v: ImageOps.posterize(image, int(v)), 0),
]


@pytest.mark.parametrize(
    ("operation", "values", "reference", "levels"), PIL_OPERATIONS, ids=lambda x: getattr(x, "name", "")
)
def test_colour_operation_is_pils(
    operation: Operation, values: list[float], reference: Callable[[Image.Image, float], Image.Image], levels: int
) -> None:
    pictures = photographs(len(values), 20, 26)
    got = apply_strong(to_float(pictures), strong(operation, values))
    for image, value, view in zip(pictures, values, got, strict=True):
        expected = from_pil(reference(to_pil(image), value))
        assert (view - expected).abs().max() <= (levels + 0.01) / 255
    assert not torch.equal(got, to_float(pictures))


def test_every_operation_but_identity_is_tested() -> None:
    assert {row[0] for row in PIL_OPERATIONS} | set(MOVING) == set(Operation) - {Operation.IDENTITY}


@pytest.mark.parametrize("operation", [Operation.COLOUR, Operation.CONTRAST, Operation.BRIGHTNESS, Operation.SHARPNESS])
def test_factor_one_changes_nothing_at_all(operation: Operation) -> None:
    images = torch.rand(3, 3, 11, 9, generator=generator())
    assert torch.equal(apply_strong(images, strong(operation, [1.0] * 3)), images)


@pytest.mark.parametrize(("operation", "value"), [(Operation.POSTERIZE, 8.0), (Operation.SOLARIZE, 256.0)])
def test_eight_bits_are_rounded_to(operation: Operation, value: float) -> None:
    images = torch.rand(2, 3, 8, 8, generator=generator())
    got = apply_strong(images, strong(operation, [value] * 2))
    torch.testing.assert_close(got, (images * 255).round() / 255, atol=1e-6, rtol=0)


def test_sharpness_leaves_the_border() -> None:
    images = torch.rand(2, 3, 8, 8, generator=generator())
    view = apply_strong(images, strong(Operation.SHARPNESS, [0.1, 1.9]))
    inside = torch.zeros(8, 8, dtype=torch.bool)
    inside[1:-1, 1:-1] = True
    assert torch.equal(view[..., ~inside], images[..., ~inside])
    assert (view[..., inside] != images[..., inside]).float().mean() > 0.9


def test_autocontrast_leaves_flat_channels() -> None:
    flat = 0.4 + 1e-6 * torch.rand(1, 3, 8, 8, generator=generator())
    assert torch.equal(apply_strong(flat, strong(Operation.AUTOCONTRAST, [0.0])), flat)


@pytest.mark.parametrize("levels", [[7], [7, 200], [0, 255]])
def test_equalize_of_few_levels_is_pils(levels: list[int]) -> None:
    choice = torch.randint(len(levels), (2, 3, 30, 30), generator=generator())
    pictures = torch.tensor(levels, dtype=torch.uint8)[choice]
    got = apply_strong(to_float(pictures), strong(Operation.EQUALIZE, [0.0, 0.0]))
    assert torch.equal(got, torch.stack([from_pil(ImageOps.equalize(to_pil(image))) for image in pictures]))


# --- geometry -------------------------------------------------------------------------------------------------------


def coefficients(operation: Operation, value: float, height: int, width: int) -> tuple[float, ...]:
    """Return what the authors give to PIL's AFFINE, and for rotation what PIL makes of the angle."""
    return {
        Operation.ROTATE: rotation_coefficients(value, height, width),
        Operation.SHEAR_X: (1, value, 0, 0, 1, 0),
        Operation.SHEAR_Y: (1, 0, 0, value, 1, 0),
        Operation.TRANSLATE_X: (1, 0, value * width, 0, 1, 0),
        Operation.TRANSLATE_Y: (1, 0, 0, 0, 1, value * height),
    }[operation]


@pytest.mark.parametrize("operation", MOVING)
def test_geometric_operation_reads_the_right_pixels(operation: Operation) -> None:
    images = torch.rand(3, 3, 11, 14, generator=generator())
    values = [40.0, 200.0, -17.0] if operation is Operation.ROTATE else [0.3, 0.1, -0.2]
    got = apply_strong(images, strong(operation, values))
    for image, value, view in zip(images, values, got, strict=True):
        expected = sampled_pixel_by_pixel(image, coefficients(operation, value, 11, 14), GREY)
        torch.testing.assert_close(view, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("degrees", [90, 180, 270])
def test_rotation_turns_as_pils(degrees: int) -> None:
    pictures = photographs(1, 16, 16)
    expected = from_pil(to_pil(pictures[0]).rotate(degrees))
    got = apply_strong(to_float(pictures), strong(Operation.ROTATE, [float(degrees)]))[0]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_resampling_rounds_to_nothing_outside_the_range() -> None:
    white, degrees = torch.ones(60, 3, 17, 17), torch.linspace(-180, 180, 60)
    assert apply_weak(white, weak(60, degrees=degrees)).max() == 1
    assert apply_strong(0 * white, strong(Operation.ROTATE, degrees.tolist())).min() == 0


def test_weak_rotation_is_bilinear_on_black() -> None:
    images = torch.rand(2, 3, 12, 9, generator=generator())
    got = apply_weak(images, weak(2, degrees=torch.tensor([20.0, -13.0])))
    for image, degrees, view in zip(images, [20.0, -13.0], got, strict=True):
        expected = sampled_pixel_by_pixel(image, rotation_coefficients(degrees, 12, 9), 0.0)
        torch.testing.assert_close(view, expected, atol=1e-5, rtol=0)
    assert (got[:, :, 0, 0] == 0).any()


@pytest.mark.parametrize("side", [32, 48])
def test_flips_are_flips(side: int) -> None:
    images = torch.rand(4, 3, side, side, generator=generator())
    horizontal, vertical = torch.tensor([False, True, False, True]), torch.tensor([False, False, True, True])
    got = apply_weak(images, weak(4, flip_horizontal=horizontal, flip_vertical=vertical))
    expected = torch.stack([images[0], images[1].flip(-1), images[2].flip(-2), images[3].flip(-1, -2)])
    if side == 32:  # coordinates that are sums of powers of two: not a bit may differ
        assert torch.equal(got, expected)
    torch.testing.assert_close(got, expected, atol=2e-5, rtol=0)


def test_weak_flips_before_it_rotates() -> None:
    images = torch.rand(1, 3, 16, 16, generator=generator())
    yes, degrees = torch.tensor([True]), torch.tensor([20.0])
    together = apply_weak(images, weak(1, flip_horizontal=yes, degrees=degrees))
    in_steps = apply_weak(images.flip(-1), weak(1, degrees=degrees))
    torch.testing.assert_close(together, in_steps, atol=1e-5, rtol=0)


# --- weak recipes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("brightness_first", [True, False])
def test_weak_jitter_is_pils_in_the_drawn_order(brightness_first: bool) -> None:
    picture = photographs(1, 20, 20, seed=3).add(
        80
    )  # wraps around: bright and dark, so that clipping tells the orders apart
    factors = {"brightness": torch.tensor([1.12]), "saturation": torch.tensor([1.45])}
    drawn = dataclasses.replace(
        weak(1, brightness_first=torch.tensor([brightness_first])),
        moves=False,
        **factors,  # type: ignore[arg-type]
    )
    steps: list[Callable[[Image.Image], Image.Image]] = [
        lambda image: ImageEnhance.Brightness(image).enhance(1.12),
        lambda image: ImageEnhance.Color(image).enhance(1.45),
    ]
    expected = to_pil(picture[0])
    for step in steps if brightness_first else steps[::-1]:
        expected = step(expected)
    assert (apply_weak(to_float(picture), drawn)[0] - from_pil(expected)).abs().max() <= 3 / 255
    other = dataclasses.replace(drawn, brightness_first=~drawn.brightness_first)
    assert (apply_weak(to_float(picture), other)[0] - from_pil(expected)).abs().max() > 6 / 255


def test_weak_draw_follows_the_authors_ranges() -> None:
    drawn = draw_weak(4000, generator())
    for flips in (drawn.flip_horizontal, drawn.flip_vertical, drawn.brightness_first):
        assert 0.45 < flips.float().mean() < 0.55
    for values, centre, width in (
        (drawn.degrees, 0.0, 20.0),
        (drawn.brightness, 1.0, 32 / 255),
        (drawn.saturation, 1.0, 0.5),
    ):
        assert (values - centre).abs().max() <= width * (1 + 1e-6)
        assert values.min() < centre - 0.95 * width
        assert values.max() > centre + 0.95 * width
        assert len(distinct(values)) > 3900
    assert 0.2 < (drawn.flip_horizontal & drawn.flip_vertical).float().mean() < 0.3


def test_geometric_recipe_has_no_jitter() -> None:
    images = torch.rand(6, 3, 16, 16, generator=generator())
    full, geometric = draw_weak(6, generator(1)), draw_weak(6, generator(1), "geometric")
    assert torch.equal(full.degrees, geometric.degrees)
    moved = dataclasses.replace(full, jitters=False)
    assert torch.equal(apply_weak(images, geometric), apply_weak(images, moved))
    assert not torch.equal(apply_weak(images, geometric), apply_weak(images, full))
    assert not torch.equal(apply_weak(images, geometric), images)


def test_none_is_identity() -> None:
    images = torch.rand(5, 3, 13, 13, generator=generator())
    assert torch.equal(apply_weak(images, draw_weak(5, generator(), "none")), images)


# --- strong recipes -------------------------------------------------------------------------------------------------

FEDPERL_VALUES = {
    Operation.AUTOCONTRAST: (0.0, 0.0),
    Operation.IDENTITY: (0.0, 0.0),
    Operation.ROTATE: (0.0, 360.0),
    Operation.SOLARIZE: (231.0, 256.0),
    Operation.COLOUR: (0.1, 1.9),
    Operation.POSTERIZE: (4.0, 8.0),
    Operation.CONTRAST: (0.5, 1.5),
    Operation.BRIGHTNESS: (0.7, 1.3),
    Operation.SHARPNESS: (0.1, 1.9),
    Operation.SHEAR_X: (-0.3, 0.3),
    Operation.SHEAR_Y: (-0.3, 0.3),
    Operation.TRANSLATE_X: (-0.2, 0.2),
    Operation.TRANSLATE_Y: (-0.2, 0.2),
}


def test_fedperl_draws_thirteen_operations_evenly_over_their_whole_range() -> None:
    drawn = draw_strong(3000, generator())
    assert drawn.operation.shape == drawn.value.shape == (3000, 6)
    for operation, (least, most) in FEDPERL_VALUES.items():
        values = drawn.value[drawn.operation == operation]
        assert 0.9 / 13 < len(values) / drawn.value.numel() < 1.1 / 13
        assert float(values.min()) == pytest.approx(least, abs=1e-6)
        assert float(values.max()) == pytest.approx(most, abs=1e-6)
    assert set(distinct(drawn.operation)) == {int(operation) for operation in FEDPERL_VALUES}
    repeated = [len(set(row)) < len(row) for row in drawn.operation.tolist()]
    assert 0.6 < np.mean(repeated) < 0.9  # with replacement: 1 - 13! / (7! 13^6) = 0.74


def test_fedperl_magnitudes_are_ten_steps_drawn_independently() -> None:
    drawn = draw_strong(3000, generator())
    angles = drawn.value[drawn.operation == Operation.ROTATE]
    assert distinct(angles) == pytest.approx(np.linspace(0, 360, 10))
    bits = drawn.value[drawn.operation == Operation.POSTERIZE]
    assert distinct(bits) == [4.0, 5.0, 6.0, 7.0, 8.0]
    twice = (drawn.operation[:, 0] == Operation.ROTATE) & (drawn.operation[:, 1] == Operation.ROTATE)
    assert (drawn.value[twice, 0] != drawn.value[twice, 1]).any()


def test_standard_draws_two_of_fourteen_at_one_magnitude() -> None:
    drawn = draw_strong(3000, generator(), "standard")
    assert drawn.operation.shape == (3000, 2)
    assert set(distinct(drawn.operation)) == set(range(14))
    expected = {
        Operation.ROTATE: [-10.0, 10.0],
        Operation.SHEAR_X: [-0.1, 0.1],
        Operation.TRANSLATE_Y: [-50 / 331, 50 / 331],
        Operation.COLOUR: [0.7, 1.3],
        Operation.SOLARIZE: [170.0],
        Operation.POSTERIZE: [7.0],
    }
    for operation, values in expected.items():
        assert distinct(drawn.value[drawn.operation == operation]) == pytest.approx(values, abs=1e-5)


def test_operations_and_magnitude_can_be_given() -> None:
    drawn = draw_strong(500, generator(), "standard", operations=3, magnitude=30)
    assert drawn.operation.shape == (500, 3)
    assert distinct(drawn.value[drawn.operation == Operation.ROTATE].abs()) == [30.0]
    weakest = draw_strong(500, generator(), magnitude=0)
    assert distinct(weakest.value[weakest.operation == Operation.SOLARIZE]) == [256.0]


def test_operations_are_applied_in_their_order_to_their_image() -> None:
    images = torch.rand(40, 3, 10, 12, generator=generator())
    drawn = draw_strong(40, generator(), "standard", operations=5)
    got = apply_strong(images, drawn)
    for i in range(40):
        view = images[i : i + 1]
        for slot in range(5):
            view = apply_strong(view, StrongDraw(drawn.operation[i : i + 1, [slot]], drawn.value[i : i + 1, [slot]]))
        assert torch.equal(got[i], view[0])
    assert not torch.equal(got, images)


def test_own_recipe() -> None:
    recipe = StrongRecipe(1, 0, (Choice(Operation.BRIGHTNESS, (0.5,), centre=0.0),))
    images = torch.rand(3, 3, 6, 6, generator=generator())
    torch.testing.assert_close(apply_strong(images, draw_strong(3, generator(), recipe)), images / 2)


# --- what holds for every view --------------------------------------------------------------------------------------


def weak_view(recipe: str, images: Tensor, seed: int) -> Tensor:
    return apply_weak(images, draw_weak(len(images), generator(seed), recipe))


def strong_view(recipe: str, images: Tensor, seed: int) -> Tensor:
    return apply_strong(images, draw_strong(len(images), generator(seed), recipe))


VIEWS: dict[str, Callable[[Tensor, int], Tensor]] = {
    **{f"weak {recipe}": partial(weak_view, recipe) for recipe in WEAK_RECIPES},
    **{f"strong {recipe}": partial(strong_view, recipe) for recipe in STRONG_RECIPES},
}
CHANGING = sorted(set(VIEWS) - {"weak none"})


@pytest.mark.parametrize("shape", [(61, 3, 17, 13), (37, 3, 24, 24)])
@pytest.mark.parametrize("recipe", ["fedperl", "standard"])
def test_strong_in_chunks_is_strong_at_once(
    recipe: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.rand(shape, generator=generator())
    drawn = draw_strong(len(images), generator(1), recipe)
    together = apply_strong(images, drawn)
    for size in (1, 7, 32):
        parts = [apply_strong(images[i : i + size], drawn[i : i + size]) for i in range(0, len(images), size)]
        assert torch.equal(torch.cat(parts), together)
    monkeypatch.setattr(images_module, "_PIXELS_AT_ONCE", 5 * shape[2] * shape[3])
    assert torch.equal(apply_strong(images, drawn), together)


@pytest.mark.parametrize("shape", [(61, 3, 17, 13), (37, 3, 24, 24)])
def test_weak_in_chunks_is_weak_at_once(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    images = torch.rand(shape, generator=generator())
    drawn = draw_weak(len(images), generator(1))
    together = apply_weak(images, drawn)
    for size in (1, 7, 32):
        parts = [apply_weak(images[i : i + size], drawn[i : i + size]) for i in range(0, len(images), size)]
        assert torch.equal(torch.cat(parts), together)
    monkeypatch.setattr(images_module, "_PIXELS_AT_ONCE", 5 * shape[2] * shape[3])
    assert torch.equal(apply_weak(images, drawn), together)


def test_contrast_of_an_image_alone_is_the_same_with_two_threads() -> None:
    images = torch.rand(8, 3, 227, 223, generator=generator())
    drawn = strong(Operation.CONTRAST, [0.3] * 8)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = apply_strong(images, drawn)
        alone = torch.cat([apply_strong(images[i : i + 1], drawn[i : i + 1]) for i in range(8)])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(together, alone)


@pytest.mark.parametrize("view", CHANGING)
def test_same_seed_same_view_other_seed_other_view(view: str) -> None:
    images = torch.rand(12, 3, 16, 16, generator=generator())
    before = images.clone()
    first = VIEWS[view](images, 5)
    assert torch.equal(first, VIEWS[view](images, 5))
    assert not torch.equal(first, VIEWS[view](images, 6))
    assert torch.equal(images, before)


@pytest.mark.parametrize("view", CHANGING)
def test_equal_images_of_a_batch_get_different_views(view: str) -> None:
    images = torch.rand(1, 3, 16, 16, generator=generator()).expand(8, -1, -1, -1)
    result = VIEWS[view](images, 0)
    assert len({tuple(image.flatten().tolist()) for image in result}) >= 6


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 6),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    style=st.sampled_from(["noise", "black", "white", "extremes"]),
    view=st.sampled_from(sorted(VIEWS)),
)
def test_views_are_images(seed: int, n: int, height: int, width: int, style: str, view: str) -> None:
    noise = torch.rand(n, 3, height, width, generator=generator(seed))
    images = {"noise": noise, "black": noise * 0, "white": noise * 0 + 1, "extremes": noise.round()}[style]
    result = VIEWS[view](images, seed)
    assert result.shape == images.shape
    assert result.dtype == torch.float32
    assert result.isfinite().all()
    assert ((result >= 0) & (result <= 1)).all()


def test_draws_can_be_moved_and_sliced() -> None:
    weak_drawn, strong_drawn = draw_weak(9, generator()), draw_strong(9, generator())
    assert len(weak_drawn[2:5]) == len(strong_drawn[2:5]) == 3
    assert torch.equal(weak_drawn[2:5].degrees, weak_drawn.degrees[2:5])
    assert torch.equal(strong_drawn[2:5].value, strong_drawn.value[2:5])
    elsewhere = weak_drawn.to("meta")
    assert {elsewhere.degrees.device.type, elsewhere.flip_vertical.device.type} == {"meta"}
    assert strong_drawn.to("meta").value.device.type == "meta"
    assert strong_drawn.to("meta").operation.device.type == "cpu"


def test_to_float() -> None:
    assert to_float(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0.0, 0.2, 1.0])
    with pytest.raises(ValueError, match=r"wants uint8 images, was given torch\.float32"):
        to_float(torch.zeros(3))


@pytest.mark.parametrize(
    "apply", [lambda x: apply_weak(x, draw_weak(2, generator())), lambda x: VIEWS["strong fedperl"](x, 0)]
)
@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 8, 8), r"\(n, 3, h, w\), was given \(2, 1, 8, 8\)"),
        (torch.zeros(3, 8, 8), r"\(n, 3, h, w\), was given \(3, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "float32 .* was given torch.uint8"),
    ],
)
def test_bad_images(apply: Callable[[Tensor], Tensor], images: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        apply(images)


def test_bad_draws() -> None:
    images = torch.zeros(4, 3, 8, 8)
    with pytest.raises(ValueError, match="4 images and a draw for 3"):
        apply_weak(images, draw_weak(3, generator()))
    with pytest.raises(ValueError, match="4 images and a draw for 5"):
        apply_strong(images, draw_strong(5, generator()))
    with pytest.raises(ValueError, match="images are on cpu, the draw on meta"):
        apply_strong(images, draw_strong(4, generator()).to("meta"))
    with pytest.raises(ValueError, match="unknown weak recipe 'strong', wanted one of fedperl, geometric, none"):
        draw_weak(4, generator(), "strong")
    with pytest.raises(ValueError, match="unknown strong recipe 'uda', wanted one of fedperl, standard"):
        draw_strong(4, generator(), "uda")
    with pytest.raises(ValueError, match=r"magnitude must be in 0..9 for this recipe, was given 10"):
        draw_strong(4, generator(), magnitude=10)
    with pytest.raises(ValueError, match="operations must be 1 or more, was given 0"):
        draw_strong(4, generator(), operations=0)
    with pytest.raises(ValueError, match=r"equally many magnitudes, was given \[1, 2\]"):
        StrongRecipe(1, 0, (Choice(Operation.ROTATE, (1.0,)), Choice(Operation.SHEAR_X, (0.1, 0.2))))
