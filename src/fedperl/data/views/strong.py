"""The strong view: RandAugment, a few operations an image from a list, each at some magnitude (A in section 2.2).

First `draw_strong` draws operations and magnitudes for every image, then `apply_strong` applies them: slot by slot,
all images with the same operation at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

import torch
from torch import Tensor

from fedperl.data.views import colour, geometry
from fedperl.data.views.images import check, chunks

_GREY = 128 / 255
"""What lies outside an image that was moved."""


class Operation(IntEnum):
    """What can be done to an image. The five that move it stand together, so that they share one resampling."""

    IDENTITY = 0
    ROTATE = 1
    SHEAR_X = 2
    SHEAR_Y = 3
    TRANSLATE_X = 4
    TRANSLATE_Y = 5
    AUTOCONTRAST = 6
    EQUALIZE = 7
    SOLARIZE = 8
    POSTERIZE = 9
    COLOUR = 10
    CONTRAST = 11
    BRIGHTNESS = 12
    SHARPNESS = 13


@dataclass(frozen=True)
class Choice:
    """One entry of a recipe's list: at magnitude index i the operation's value is centre + or - magnitudes[i].

    The sign is drawn if `signed`, else plus. Values are degrees, shear factors, fractions of the side, thresholds
    in 0..256, bits, or enhancement factors.
    """

    operation: Operation
    magnitudes: tuple[float, ...]
    centre: float = 0.0
    signed: bool = False


@dataclass(frozen=True)
class StrongRecipe:
    """How many operations an image gets, from which choices, and at which magnitude index (None: each at random)."""

    operations: int
    magnitude: int | None
    choices: tuple[Choice, ...]

    def __post_init__(self) -> None:
        lengths = {len(choice.magnitudes) for choice in self.choices}
        if len(lengths) != 1:
            raise ValueError(f"choices must have equally many magnitudes, was given {sorted(lengths)}")

    @property
    def bins(self) -> int:
        """How many magnitude indices there are."""
        return len(self.choices[0].magnitudes)


def _spread(first: float, last: float, bins: int) -> tuple[float, ...]:
    return tuple(first + (last - first) * index / (bins - 1) for index in range(bins))


def _enhance(operation: Operation, most: float, bins: int) -> Choice:
    return Choice(operation, _spread(0.0, most, bins), centre=1.0, signed=True)


def _fedperl() -> StrongRecipe:
    """Return the list and the ranges of the authors' randaug.py.

    We chose otherwise in two places. What shear and translation bring in is grey, as after a rotation; theirs is black,
    since PIL ignores the name under which they pass the fill. And we always interpolate bilinearly; they take the
    nearest pixel, for shear a cubic.
    """
    return StrongRecipe(
        operations=6,
        magnitude=None,
        choices=(
            Choice(Operation.AUTOCONTRAST, (0.0,) * 10),
            Choice(Operation.IDENTITY, (0.0,) * 10),  # stands in the list as equalize, which returns its input
            Choice(Operation.ROTATE, _spread(0.0, 360.0, 10)),
            Choice(Operation.SOLARIZE, _spread(256.0, 231.0, 10)),
            _enhance(Operation.COLOUR, 0.9, 10),
            Choice(Operation.POSTERIZE, tuple(float(round(bits)) for bits in _spread(8.0, 4.0, 10))),
            _enhance(Operation.CONTRAST, 0.5, 10),
            _enhance(Operation.BRIGHTNESS, 0.3, 10),
            _enhance(Operation.SHARPNESS, 0.9, 10),
            Choice(Operation.SHEAR_X, _spread(0.0, 0.3, 10), signed=True),
            Choice(Operation.SHEAR_Y, _spread(0.0, 0.3, 10), signed=True),
            Choice(Operation.TRANSLATE_X, _spread(0.0, 0.2, 10), signed=True),
            Choice(Operation.TRANSLATE_Y, _spread(0.0, 0.2, 10), signed=True),
        ),
    )


def _standard() -> StrongRecipe:
    """Return RandAugment (Cubuk et al. 2020) with torchvision's 31 bins and ranges; bilinear and grey as above."""
    bins = 31
    return StrongRecipe(
        operations=2,
        magnitude=10,
        choices=(
            Choice(Operation.IDENTITY, (0.0,) * bins),
            Choice(Operation.SHEAR_X, _spread(0.0, 0.3, bins), signed=True),
            Choice(Operation.SHEAR_Y, _spread(0.0, 0.3, bins), signed=True),
            Choice(Operation.TRANSLATE_X, _spread(0.0, 150 / 331, bins), signed=True),
            Choice(Operation.TRANSLATE_Y, _spread(0.0, 150 / 331, bins), signed=True),
            Choice(Operation.ROTATE, _spread(0.0, 30.0, bins), signed=True),
            _enhance(Operation.BRIGHTNESS, 0.9, bins),
            _enhance(Operation.COLOUR, 0.9, bins),
            _enhance(Operation.CONTRAST, 0.9, bins),
            _enhance(Operation.SHARPNESS, 0.9, bins),
            Choice(Operation.POSTERIZE, tuple(float(round(bits)) for bits in _spread(8.0, 4.0, bins))),
            Choice(Operation.SOLARIZE, _spread(255.0, 0.0, bins)),
            Choice(Operation.AUTOCONTRAST, (0.0,) * bins),
            Choice(Operation.EQUALIZE, (0.0,) * bins),
        ),
    )


STRONG_RECIPES = MappingProxyType({"fedperl": _fedperl(), "standard": _standard()})


@dataclass(frozen=True)
class StrongDraw:
    """The operations of each of n images in order, (n, slots), and their values, (n, slots)."""

    operation: Tensor
    value: Tensor

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, rows: slice) -> StrongDraw:
        return StrongDraw(self.operation[rows], self.value[rows])

    def to(self, device: torch.device | str) -> StrongDraw:
        """Return the draw with its values on `device`.

        The operations stay on the CPU: they decide what is launched, and reading them back would halt the device.
        """
        return StrongDraw(self.operation, self.value.to(device))


def draw_strong(
    n_images: int,
    generator: torch.Generator,
    recipe: str | StrongRecipe = "fedperl",
    *,
    operations: int | None = None,
    magnitude: int | None = None,
) -> StrongDraw:
    """Return what a strong view does to each of `n_images`, drawn with replacement from a generator on the CPU.

    Args:
        operations: how many an image, in place of the recipe's number.
        magnitude: the index at which all are applied, in place of the recipe's.
    Raises:
        ValueError: a recipe that has no entry in STRONG_RECIPES, no operation, a magnitude the recipe does not have.
    """
    chosen = _recipe(recipe)
    slots = chosen.operations if operations is None else operations
    fixed = chosen.magnitude if magnitude is None else magnitude
    if slots < 1:
        raise ValueError(f"operations must be 1 or more, was given {slots}")
    if fixed is not None and not 0 <= fixed < chosen.bins:
        raise ValueError(f"magnitude must be in 0..{chosen.bins - 1} for this recipe, was given {fixed}")
    shape = (n_images, slots)
    choice = torch.randint(len(chosen.choices), shape, generator=generator)
    index = torch.randint(chosen.bins, shape, generator=generator)
    sign = torch.randint(2, shape, generator=generator) * 2 - 1
    if fixed is not None:
        index.fill_(fixed)
    magnitudes = torch.tensor([entry.magnitudes for entry in chosen.choices], dtype=torch.float32)[choice, index]
    centre = torch.tensor([entry.centre for entry in chosen.choices], dtype=torch.float32)[choice]
    signed = torch.tensor([entry.signed for entry in chosen.choices])[choice]
    codes = torch.tensor([int(entry.operation) for entry in chosen.choices])
    return StrongDraw(codes[choice], centre + torch.where(signed, sign, 1) * magnitudes)


def apply_strong(images: Tensor, drawn: StrongDraw) -> Tensor:
    """Return the strong views of images (n, 3, h, w): each image through its own operations, in their order.

    Raises:
        ValueError: images that are not float32 of this shape, or a draw for other images or another device.
    """
    check(images, drawn.value)
    result = images.clone()
    for rows in chunks(images):
        _apply(result[rows], drawn[rows])
    return result


def _apply(images: Tensor, drawn: StrongDraw) -> None:
    """Replace the images by their strong views."""
    order = drawn.operation.argsort(dim=0, stable=True)
    counts = (drawn.operation[:, :, None] == torch.arange(len(Operation))).sum(0).tolist()
    order = order.to(images.device, non_blocking=True)
    value = drawn.value.gather(0, order)
    for slot, slot_counts in enumerate(counts):
        _apply_slot(images, order[:, slot], value[:, slot], slot_counts)


def _apply_slot(images: Tensor, order: Tensor, value: Tensor, counts: list[int]) -> None:
    """Replace the images by the result of their operation in one slot.

    Args:
        order: (n,), the images sorted by operation.
        value: (n,), the operations' values in that order.
        counts: how many images have each operation.
    """
    rows, values = torch.split(order, counts), torch.split(value, counts)
    moved = torch.cat(rows[Operation.ROTATE : Operation.AUTOCONTRAST])
    if len(moved):
        matrices = _matrices(values, *images.shape[-2:])
        images.index_copy_(0, moved, geometry.resample(images.index_select(0, moved), matrices, fill=_GREY))
    for operation, apply in _COLOUR.items():
        if counts[operation]:
            selected = images.index_select(0, rows[operation])
            images.index_copy_(0, rows[operation], apply(selected, values[operation]))


def _matrices(values: tuple[Tensor, ...], height: int, width: int) -> Tensor:
    return torch.cat(
        [
            geometry.rotation(values[Operation.ROTATE]),
            geometry.shear_x(values[Operation.SHEAR_X], height),
            geometry.shear_y(values[Operation.SHEAR_Y], width),
            geometry.translation_x(values[Operation.TRANSLATE_X], width),
            geometry.translation_y(values[Operation.TRANSLATE_Y], height),
        ]
    )


_COLOUR: dict[Operation, Callable[[Tensor, Tensor], Tensor]] = {
    Operation.AUTOCONTRAST: lambda images, _: colour.autocontrast(images),
    Operation.EQUALIZE: lambda images, _: colour.equalize(images),
    Operation.SOLARIZE: colour.solarize,
    Operation.POSTERIZE: colour.posterize,
    Operation.COLOUR: colour.saturation,
    Operation.CONTRAST: colour.contrast,
    Operation.BRIGHTNESS: colour.brightness,
    Operation.SHARPNESS: colour.sharpness,
}


def _recipe(recipe: str | StrongRecipe) -> StrongRecipe:
    if isinstance(recipe, StrongRecipe):
        return recipe
    if recipe not in STRONG_RECIPES:
        raise ValueError(f"unknown strong recipe {recipe!r}, wanted one of {', '.join(STRONG_RECIPES)}")
    return STRONG_RECIPES[recipe]
