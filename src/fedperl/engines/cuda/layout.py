"""What the kernels need to know of a MONAI EfficientNet: the layers of each block by name, paddings and rates."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from fedperl.engines.cuda.kernels_depthwise import Window
from fedperl.engines.cuda.kernels_stem import TAPS

STEM_KERNEL, STEM_STRIDE = 3, 2


@dataclass(frozen=True)
class Padding:
    """Zeros around an image: above and below, left and right, as the network's own modules have them."""

    rows: tuple[int, int] = (0, 0)
    columns: tuple[int, int] = (0, 0)

    @property
    def first(self) -> tuple[int, int]:
        """Rows above and columns to the left."""
        return self.rows[0], self.columns[0]

    def out(self, size: tuple[int, int], kernel: int, stride: int) -> tuple[int, int]:
        """Return the size of a convolution's output."""
        height, width = (
            (length + sum(padding) - kernel) // stride + 1
            for length, padding in zip(size, (self.rows, self.columns), strict=True)
        )
        return height, width


@dataclass(frozen=True)
class BlockLayout:
    """One block. The stem's convolution is taken for the expansion of the first block, which has none.

    Attributes:
        first, first_norm: the convolution whose activated output the depthwise one reads, and its norm.
        prefix: of the names of all other layers.
        width: of the input of the first convolution, as the kernels see it.
        rate: of drop-connect; 0 without a skip.
    """

    first: str
    first_norm: str
    prefix: str
    width: int
    channels: int
    out: int
    kernel: int
    stride: int
    padding: Padding
    skip: bool
    rate: float

    def window(self, size: tuple[int, int]) -> Window:
        """Return the depthwise convolution's geometry for an input of a size."""
        out = self.padding.out(size, self.kernel, self.stride)
        return Window(self.kernel, self.stride, self.padding.first, size, out)


@dataclass(frozen=True)
class NetLayout:
    """The whole network up to the pooled features; `eps` is that of every norm."""

    stem: Padding
    blocks: tuple[BlockLayout, ...]
    eps: float


def net_layout(net: nn.Module) -> NetLayout:
    """Return the layout of a MONAI EfficientNet.

    Raises:
        ValueError: the network is not one, or has layers the kernels are not written for.
    """
    if not all(hasattr(net, name) for name in ("_conv_stem", "_blocks", "_conv_head", "_fc")):
        raise ValueError(f"{type(net).__name__} is not MONAI's EfficientNet")
    found: list[BlockLayout] = []
    modules = dict(net.named_modules())
    for name, module in modules.items():
        if name.startswith("_blocks.") and name.count(".") == 2:
            found.append(_block(name, module, first=not found))
    norms = {module.eps for module in modules.values() if isinstance(module, nn.BatchNorm2d)}
    if len(norms) != 1:
        raise ValueError(f"batch norms of several eps, {sorted(norms)}; wanted one")
    return NetLayout(_padding(modules["_conv_stem_padding"]), tuple(found), norms.pop())


def _block(name: str, module: Any, *, first: bool) -> BlockLayout:
    if first != (module.expand_ratio == 1) or not module.has_se:
        raise ValueError(f"{name} is not built as in EfficientNet-B0")
    skip = bool(module.id_skip) and module.stride == 1 and module.in_channels == module.out_channels
    if first and skip:
        raise ValueError(f"{name} has a skip; the first block of EfficientNet-B0 has none")
    depthwise = module._depthwise_conv
    return BlockLayout(
        first="_conv_stem" if first else f"{name}._expand_conv",
        first_norm="_bn0" if first else f"{name}._bn0",
        prefix=name,
        width=TAPS if first else module.in_channels,
        channels=depthwise.out_channels,
        out=module.out_channels,
        kernel=depthwise.kernel_size[0],
        stride=module.stride,
        padding=_padding(module._depthwise_conv_padding),
        skip=skip,
        rate=float(module.drop_connect_rate or 0.0) if skip else 0.0,
    )


def _padding(module: nn.Module) -> Padding:
    """Return what a padding module adds; an identity adds nothing."""
    given = getattr(module, "padding", (0, 0, 0, 0))
    left, right, above, below = given
    return Padding((above, below), (left, right))
