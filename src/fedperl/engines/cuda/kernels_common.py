"""What all kernels share: how one is declared, the activation, and pieces of matrix products.

Activations are (rows, channels), channels contiguous and a multiple of 8; arithmetic is in float32. What a launch
gives as a tensor is inside a kernel the address of its first element.
"""

import fcntl
import hashlib
import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from fedperl import __version__

REHEARSED: ContextVar[list[Any] | None] = ContextVar("rehearsed", default=None)


class Kernel:
    """A Triton kernel that is compiled once for all values of its whole numbers; `kernel[grid](...)` launches it."""

    def __init__(self, function: Callable[..., None]) -> None:
        parameters = inspect.signature(function).parameters
        whole = [name for name in parameters if parameters[name].annotation is int]
        self.compiled = triton.jit(function, do_not_specialize=whole)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        rehearsed = REHEARSED.get()
        if rehearsed is None:
            return self.compiled[grid]
        return lambda *given, **named: rehearsed.append(self.compiled.warmup(*given, grid=grid, **named))


kernel = Kernel


@contextmanager
def rehearsal(device: torch.device) -> Iterator[None]:
    """Compile what is launched inside and load it to the device, many kernels at a time; run none of it."""
    found: list[Any] = []
    token = REHEARSED.set(found)
    try:
        with ThreadPoolExecutor(initializer=torch.cuda.set_device, initargs=(device,)) as pool:
            with triton.AsyncCompileMode(pool):
                yield
            list(pool.map(_load, {id(one): one for one in found}.values()))
    finally:
        REHEARSED.reset(token)


@contextmanager
def one_compiles(*what: object) -> Iterator[None]:
    """Let no two processes fill Triton's folder of compiled kernels at once; wait no more once this was compiled.

    Processes that filled it together have been given each other's launchers ("function takes exactly 27 arguments (26
    given)"), and those that wait are not slower: they find there what they would have compiled, too.
    """
    folder = Path(triton.knobs.cache.dir)
    about = what, __version__, triton.__version__, torch.__version__, _kernels(), _device()
    done = folder / f"fedperl-{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}"
    with ExitStack() as held:
        if not done.exists():
            with suppress(OSError):  # of a folder that cannot be used, or has no locks: Triton will say what is wrong
                folder.mkdir(parents=True, exist_ok=True)
                file = held.enter_context((folder / "fedperl.lock").open("ab"))
                fcntl.flock(file, fcntl.LOCK_EX)
                if done.exists():
                    fcntl.flock(file, fcntl.LOCK_UN)
        yield
        with suppress(OSError):
            done.touch()


@cache
def _kernels() -> str:
    """Return a digest of the files that kernels are compiled from."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"


def _load(compiled: Any) -> None:
    """Make a compiled kernel's launcher, which takes a C compiler as long as the kernel itself may have taken."""
    ready = compiled.result() if hasattr(compiled, "result") else compiled
    getattr(ready, "run")  # noqa: B009 - made when it is first asked for


def inline(function: Callable[..., Any]) -> Any:
    """Return the function as a piece that kernels are compiled with."""
    return triton.jit(function)


@inline
def sigmoid(y: tl.tensor) -> tl.tensor:
    """Return 1 / (1 + exp(-y)); a square of 1 / sqrt takes fewer instructions than a division, and is as exact."""
    root = tl.rsqrt(1.0 + tl.exp(-y))
    return root * root


@inline
def silu(y: tl.tensor) -> tl.tensor:
    """Return y sigmoid(y)."""
    return y * sigmoid(y)


@inline
def silu_slope(y: tl.tensor) -> tl.tensor:
    """Return the derivative of silu at y."""
    share = sigmoid(y)
    return share * (1.0 + y * (1.0 - share))


@inline
def norm_row(
    stats: tl.tensor, row: tl.constexpr, group: tl.tensor, length: tl.tensor, channel: tl.tensor, inside: tl.tensor
) -> tl.tensor:
    """Return one of a batch norm's four rows (0 mean, 1 1/std, 2 scale, 3 shift) for a block of channels."""
    return tl.load(stats + (group * 4 + row) * length + channel, mask=inside, other=0.0)


@inline
def weight_tiles(
    weight: tl.tensor, channel: tl.tensor, inside: tl.tensor, width: tl.tensor, BK: tl.constexpr, KB: tl.constexpr
) -> tl.tuple:
    """Return the tiles (channels, BK) of a weight matrix (channels, width) that a block of channels needs."""
    tiles: tl.tuple = ()
    for block in tl.static_range(KB):
        k = block * BK + tl.arange(0, BK)
        mask = inside[:, None] & (k < width)[None, :]
        tiles += (tl.load(weight + channel[:, None] * width + k[None, :], mask=mask, other=0.0),)
    return tiles


@inline
def row_tile(
    x: tl.tensor, row: tl.tensor, inside: tl.tensor, width: tl.tensor, block: tl.tensor, BK: tl.constexpr
) -> tl.tensor:
    """Return the tile (rows, BK) of one block of columns; zero outside."""
    k = block * BK + tl.arange(0, BK)
    mask = inside[:, None] & (k < width)[None, :]
    return tl.load(x + row[:, None] * width + k[None, :], mask=mask, other=0.0)


@inline
def row_tiles(
    x: tl.tensor, row: tl.tensor, inside: tl.tensor, width: tl.tensor, BK: tl.constexpr, KB: tl.constexpr
) -> tl.tuple:
    """Return the tiles (rows, BK) of all blocks of columns."""
    tiles: tl.tuple = ()
    for block in tl.static_range(KB):
        tiles += (row_tile(x, row, inside, width, block, BK),)
    return tiles


@inline
def product(inputs: tl.tuple, weights: tl.tuple, KB: tl.constexpr) -> tl.tensor:
    """Return x W^T for a tile of rows and the channels of the weight tiles, in float32."""
    z = tl.dot(inputs[0], tl.trans(weights[0]), input_precision="tf32x3")
    for block in tl.static_range(1, KB):
        z = tl.dot(inputs[block], tl.trans(weights[block]), z, input_precision="tf32x3")
    return z


@inline
def pointwise(
    x: tl.tensor,
    row: tl.tensor,
    inside: tl.tensor,
    width: tl.tensor,
    weights: tl.tuple,
    BK: tl.constexpr,
    KB: tl.constexpr,
) -> tl.tensor:
    """Return x W^T for rows of x that are used for nothing else."""
    return product(row_tiles(x, row, inside, width, BK, KB), weights, KB)


@inline
def active_gradient(
    d_active: tl.tensor,
    first: tl.tensor,
    row: tl.tensor,
    present: tl.tensor,
    channels: tl.tensor,
    channel: tl.tensor,
    inside: tl.tensor,
    pixels: tl.tensor,
    HEAD: tl.constexpr,
) -> tl.tensor:
    """Return the gradient of the activated tensor for a tile; at the head it is that of the mean over pixels."""
    mask = present[:, None] & inside[None, :]
    if HEAD:
        image = (first + row) // pixels
        return tl.load(d_active + image[:, None] * channels + channel[None, :], mask=mask, other=0.0) / pixels
    source = d_active + first * channels + row[:, None] * channels + channel[None, :]
    return tl.load(source, mask=mask, other=0.0).to(tl.float32)
