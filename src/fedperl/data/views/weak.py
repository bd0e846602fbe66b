"""The weak view: flips, a small rotation, a little colour jitter (alpha in section 2.2; the jitter is the code's).

First `draw_weak` draws what will be done to every image, then `apply_weak` does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from fedperl.data.views import colour, geometry
from fedperl.data.views.images import check, chunks


@dataclass(frozen=True)
class WeakRecipe:
    """How far a weak view may stray: flips have probability 0.5 or 0, the rest are half-widths of uniform draws."""

    flips: bool
    degrees: float
    brightness: float
    saturation: float


WEAK_RECIPES = MappingProxyType(
    {
        "fedperl": WeakRecipe(flips=True, degrees=20.0, brightness=32 / 255, saturation=0.5),
        "geometric": WeakRecipe(flips=True, degrees=20.0, brightness=0.0, saturation=0.0),
        "none": WeakRecipe(flips=False, degrees=0.0, brightness=0.0, saturation=0.0),
    }
)
"""`fedperl` is the authors' code, `geometric` the paper's text, `none` the image itself, as FedMatch uses it."""


@dataclass(frozen=True)
class WeakDraw:
    """What happens to each of n images; every tensor has one entry an image.

    `moves` and `jitters` say if anything happens at all, without asking a device for the values of its tensors.
    """

    flip_horizontal: Tensor
    flip_vertical: Tensor
    degrees: Tensor
    brightness: Tensor
    saturation: Tensor
    brightness_first: Tensor
    moves: bool
    jitters: bool

    def __len__(self) -> int:
        return len(self.degrees)

    def __getitem__(self, rows: slice) -> WeakDraw:
        return self._map(lambda tensor: tensor[rows])

    def to(self, device: torch.device | str) -> WeakDraw:
        """Return the same draw on `device`."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self, function: Callable[[Tensor], Tensor]) -> WeakDraw:
        return WeakDraw(
            function(self.flip_horizontal),
            function(self.flip_vertical),
            function(self.degrees),
            function(self.brightness),
            function(self.saturation),
            function(self.brightness_first),
            self.moves,
            self.jitters,
        )


def draw_weak(n: int, generator: torch.Generator, recipe: str | WeakRecipe = "fedperl") -> WeakDraw:
    """Return what a weak view does to each of `n` images, drawn from a generator on the CPU.

    Raises:
        ValueError: a recipe that has no entry in WEAK_RECIPES.
    """
    chosen = _recipe(recipe)
    horizontal, vertical, degrees, brightness, saturation, order = torch.rand(6, n, generator=generator)
    return WeakDraw(
        flip_horizontal=(horizontal < 0.5) & chosen.flips,
        flip_vertical=(vertical < 0.5) & chosen.flips,
        degrees=(2 * degrees - 1) * chosen.degrees,
        brightness=1 + (2 * brightness - 1) * chosen.brightness,
        saturation=1 + (2 * saturation - 1) * chosen.saturation,
        brightness_first=order < 0.5,
        moves=chosen.flips or chosen.degrees > 0,
        jitters=chosen.brightness > 0 or chosen.saturation > 0,
    )


def apply_weak(images: Tensor, drawn: WeakDraw) -> Tensor:
    """Return the weak views of images (n, 3, h, w); the images themselves, not a copy, if the recipe was "none".

    The rotation is bilinear, where torchvision's default is the nearest pixel: a small angle then moves an edge
    smoothly, and flip and rotation are one resampling. What comes from outside the image is black, its default too.

    Raises:
        ValueError: images that are not float32 of this shape, or a draw for other images or another device.
    """
    check(images, drawn.degrees)
    if not (drawn.moves or drawn.jitters):
        return images
    result = torch.empty_like(images)
    for rows in chunks(images):
        result[rows] = _apply(images[rows], drawn[rows])
    return result


def _apply(images: Tensor, drawn: WeakDraw) -> Tensor:
    result = images
    if drawn.moves:
        matrices = geometry.rotation(drawn.degrees)
        matrices = geometry.flipped(matrices, drawn.flip_horizontal, drawn.flip_vertical)
        result = geometry.resample(result, matrices)
    if drawn.jitters:
        result = _jitter(result, drawn)
    return result


def _jitter(images: Tensor, drawn: WeakDraw) -> Tensor:
    """Brightness before saturation where drawn so, else after: multiplying by one is cheaper than regrouping images."""
    one = torch.ones_like(drawn.brightness)
    result = colour.brightness(images, torch.where(drawn.brightness_first, drawn.brightness, one))
    result = colour.saturation(result, drawn.saturation)
    return colour.brightness(result, torch.where(drawn.brightness_first, one, drawn.brightness))


def _recipe(recipe: str | WeakRecipe) -> WeakRecipe:
    if isinstance(recipe, WeakRecipe):
        return recipe
    if recipe not in WEAK_RECIPES:
        raise ValueError(f"unknown weak recipe {recipe!r}, wanted one of {', '.join(WEAK_RECIPES)}")
    return WEAK_RECIPES[recipe]
