"""Where a lesion lies in its photograph, and the one brush all structures are painted with: the Gaussian splat.

The image spans [-1, 1] in both directions whatever its size in pixels; a lesion lives in its own frame, radius 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedperl.data.dermsim.tape import Array, Index

FOOTPRINT = 0.35  # standard deviation of a pixel's own blur, in pixels: keeps thin things from aliasing


def pixel_axis(size: int) -> Array:
    """Return the centres of the pixels along one axis, in [-1, 1]."""
    return ((np.arange(size, dtype=np.float32) + 0.5) * (2.0 / size) - 1.0).astype(np.float32)


def _bell(distance: Array, sharpness: Array) -> Array:
    """Return exp(-(distance * sharpness)^2), written over distance: this is where most of the time goes."""
    distance *= sharpness
    np.square(distance, out=distance)
    np.negative(distance, out=distance)
    # The floor keeps products of far tails from becoming denormal numbers, which are very slow.
    np.maximum(distance, np.float32(-30.0), out=distance)
    return np.exp(distance, out=distance)


def splat(x: Array, y: Array, sigma: Array, weight: Array, size: int, dimension: int = 0) -> Array:
    """Return the sum of Gaussian spots at image coordinates, (n, size, size).

    A round Gaussian is a product of two one-dimensional ones, so K spots cost one (size x K) by (K x size) product.

    Args:
        x, y, sigma, weight: (n, K); sigma and weight may be (n, 1).
        dimension: how many dimensions a spot loses height in when it is thinner than a pixel: 2 for separate
            dots, 1 for spots strung along a line, 0 for smooth fields.
    """
    axis = pixel_axis(size)
    blurred = np.sqrt(sigma**2 + np.float32((FOOTPRINT * 2.0 / size) ** 2))
    weight = weight * (sigma / blurred) ** dimension
    sharpness = np.float32(0.70710678) / blurred
    horizontal = _bell(axis - x[:, :, None], sharpness[:, :, None])  # (n, K, size)
    vertical = _bell(axis[:, None] - y[:, None, :], sharpness[:, None, :])  # (n, size, K)
    vertical *= weight[:, None, :]
    total: Array = np.matmul(vertical, horizontal)
    return total


@dataclass(frozen=True)
class Canvas:
    """The pixels of n images as seen from the lesions: centre, turn, mirror and radius of each, all (n,)."""

    size: int
    centre_x: Array
    centre_y: Array
    angle: Array
    mirror: Array
    radius: Array

    def rows(self, index: Index) -> Canvas:
        """Return the canvas of some of the images."""
        part = Canvas(
            self.size,
            self.centre_x[index],
            self.centre_y[index],
            self.angle[index],
            self.mirror[index],
            self.radius[index],
        )
        part.__dict__["frame"] = (self.frame[0][index], self.frame[1][index])  # spare the work of finding it again
        return part

    @cached_property
    def frame(self) -> tuple[Array, Array]:
        """The lesion-frame coordinates of every pixel, two arrays (n, size, size)."""
        axis = pixel_axis(self.size)
        right = (axis[None, None, :] - self.centre_x[:, None, None]) / self.radius[:, None, None]
        below = (axis[None, :, None] - self.centre_y[:, None, None]) / self.radius[:, None, None]
        cosine, sine = np.cos(self.angle)[:, None, None], np.sin(self.angle)[:, None, None]
        return (cosine * right + sine * below) * self.mirror[:, None, None], cosine * below - sine * right

    def spots(self, x: Array, y: Array, sigma: Array, weight: Array, dimension: int = 2) -> Array:
        """Return Gaussian spots given in the lesion frame, (n, size, size); arguments (n, K) as in `splat`."""
        cosine, sine = np.cos(self.angle)[:, None], np.sin(self.angle)[:, None]
        mirrored, radius = x * self.mirror[:, None], self.radius[:, None]
        right = self.centre_x[:, None] + radius * (cosine * mirrored - sine * y)
        below = self.centre_y[:, None] + radius * (sine * mirrored + cosine * y)
        return splat(right, below, sigma * radius, weight, self.size, dimension)
