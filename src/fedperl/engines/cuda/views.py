"""The views of a client's images, made by kernels of our own: what learn/steps.py's EagerViews makes in torch.

What the kernels are told of each image is worked out on the host for all steps of a round, and copied once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedperl.data.views import Operation, StrongDraw, WeakDraw, draw_strong, draw_weak, geometry
from fedperl.engines.cuda.kernels_common import rehearsal
from fedperl.engines.cuda.kernels_strong import OF_THE_WHOLE, strong
from fedperl.engines.cuda.kernels_views import weak
from fedperl.learn.local_images import LocalImages
from fedperl.settings import Views

ENOUGH = 64
"""Images among which every kind of operation is drawn in every slot, as good as surely."""

Make = Callable[[Tensor, slice], Tensor]
"""From images, and the rows of the draw that are theirs, their views."""


class KernelViews:
    """Makes weak views with one launch each, strong ones with two at most an operation; in channels_last memory."""

    def __init__(self, data: LocalImages, rows: Tensor, draws: Sequence[WeakDraw | StrongDraw]) -> None:
        height, width = data.images.shape[-2:]
        self._data, self._rows = data, rows
        self._makes = [_make(draw, height, width, data.device) for draw in draws]

    def __call__(self, part: slice) -> list[Tensor]:
        """Return each draw's views of the images at some of the rows."""
        images = self._data.pixels(self._rows[part])
        return [make(images, part) for make in self._makes]


def views_of(images: Tensor, drawn: WeakDraw | StrongDraw) -> Tensor:
    """Return what `apply_weak` or `apply_strong` returns, of uint8 or float32 images (n, 3, h, w); always a copy.

    Raises:
        ValueError: images of another shape or type, or a draw for other images.
    """
    if images.ndim != 4 or images.shape[1] != 3 or images.dtype not in (torch.uint8, torch.float32):
        given = f"{images.dtype} {tuple(images.shape)}"
        raise ValueError(f"images must be uint8 or float32 of the shape (n, 3, h, w), was given {given}")
    if len(images) != len(drawn):
        raise ValueError(f"was given {len(images)} images and a draw for {len(drawn)}, wanted as many of both")
    return _make(drawn, images.shape[2], images.shape[3], images.device)(images, slice(0, len(images)))


def prepare(views: Views, size: int, device: torch.device) -> None:
    """Compile the kernels of such views, many at a time, before the first are made."""
    images, generator = torch.empty(ENOUGH, 3, size, size, dtype=torch.uint8, device=device), torch.Generator()
    with torch.cuda.device(images.device), rehearsal(images.device):
        views_of(images, draw_weak(ENOUGH, generator, views.weak))
        views_of(images, draw_strong(ENOUGH, generator, views.strong, operations=views.operations))


def _make(drawn: WeakDraw | StrongDraw, height: int, width: int, device: torch.device) -> Make:
    """Return what makes the views of a draw; what it is told of each image is on its way to the device."""
    if isinstance(drawn, WeakDraw):
        entries, moves, jitters = _on(device, _weak_table(drawn.to("cpu"), height, width)), drawn.moves, drawn.jitters
        return lambda images, part: weak(images, entries, moves, jitters, part.start)
    table = _on(device, _strong_table(drawn.to("cpu"), height, width))
    whole = torch.isin(drawn.operation, torch.tensor(OF_THE_WHOLE))
    return lambda images, part: strong(images, table, whole[part].any(0).tolist(), part.start)


def _weak_table(drawn: WeakDraw, height: int, width: int) -> Tensor:
    """Return (n, 9): the matrix, brightness where it comes first, saturation, brightness where it comes last."""
    matrices = geometry.flipped(geometry.rotation(drawn.degrees), drawn.flip_horizontal, drawn.flip_vertical)
    one = torch.ones_like(drawn.brightness)
    first = torch.where(drawn.brightness_first, drawn.brightness, one)
    last = torch.where(drawn.brightness_first, one, drawn.brightness)
    factors = torch.stack([first, drawn.saturation, last], dim=1)
    return torch.cat([_in_half_sides(matrices, height, width).flatten(1), factors], dim=1)


def _strong_table(drawn: StrongDraw, height: int, width: int) -> Tensor:
    """Return (slots, n, 8): the operation, its value, and the matrix, which only the five that move an image have."""
    operation, value = drawn.operation.t().flatten(), drawn.value.t().flatten()
    of_each = torch.stack(
        [
            geometry.rotation(value),
            geometry.shear_x(value, height),
            geometry.shear_y(value, width),
            geometry.translation_x(value, width),
            geometry.translation_y(value, height),
        ]
    )  # in the order of Operation
    which = (operation - Operation.ROTATE).clamp(0, len(of_each) - 1)
    matrices = _in_half_sides(of_each[which, torch.arange(len(value))], height, width).flatten(1)
    table = torch.cat([operation[:, None].to(torch.float32), value[:, None], matrices], dim=1)
    return table.view(*drawn.operation.t().shape, -1)


def _in_half_sides(matrices: Tensor, height: int, width: int) -> Tensor:
    """Return the matrices with places that go from -1 to 1 over the side, as the sampling grid of data/views."""
    return torch.stack([matrices[:, 0] * (2 / width), matrices[:, 1] * (2 / height)], dim=1)


def _on(device: torch.device, table: Tensor) -> Tensor:
    """Return the table on the device, through memory that it can read by itself: the host does not wait for it."""
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table.to(device)
