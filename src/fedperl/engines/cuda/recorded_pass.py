"""Passes in eval mode as CUDA graphs: recorded once for each size of batch, then played with one launch."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedperl.engines.cuda.captured import WARM, CudaGraphs, Record, Step
from fedperl.engines.cuda.kernels import PASS, first_line

EACH = 128
"""Batches are filled up to a multiple of so many images: a few graphs serve batches of every size."""

log = logging.getLogger(__name__)

Run = Callable[[Tensor], Tensor]
"""Images (n, 3, h, w) in, n rows out; no image changes what another gives."""


class PassGraphs:
    """Records passes as CUDA graphs, on a stream of its own: they may be wanted on the default one, which cannot be."""

    def __init__(self) -> None:
        self._graphs = CudaGraphs()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, step: Step) -> Step:
        """Return what plays a pass, on whatever stream is the current one then, with one launch."""
        with torch.cuda.stream(self._stream):
            return self._graphs(step)


@dataclass
class _Fixed:
    """Batches of one size: where their images are copied to, where the rows lie, and what plays the pass."""

    images: Tensor
    rows: Tensor | None = None
    passes: int = 0
    play: Step | None = None


class RecordedPasses:
    """The passes of one network, one at a time.

    A recorded pass finds what it reads of the network where it lay: another model that is copied there is seen, and
    with tensors that lie elsewhere all is recorded anew. What cannot be recorded is run operation by operation.
    """

    def __init__(self, net: nn.Module, record: Record) -> None:
        self._record: Record | None = record
        # parameters() and buffers() would take longer than a pass that is played
        self._tensors = [held for module in net.modules() for held in (module._parameters, module._buffers) if held]
        self._addresses: list[int] = []
        self._fixed: dict[tuple[object, ...], _Fixed] = {}

    def __call__(self, run: Run, images: Tensor) -> Tensor:
        """Return the rows of images, in memory of their own.

        Args:
            run: one pass of the network, the same in every call; the first ones of a size are its warm-up.
        """
        with torch.inference_mode(False), torch.no_grad():  # what is fixed is written again outside of inference
            addresses = [tensor.data_ptr() for held in self._tensors for tensor in held.values() if tensor is not None]
            if addresses != self._addresses:
                self._addresses, self._fixed = addresses, {}
            return torch.cat([self._rows(run, part) for part in torch.split(images, PASS)])

    def _rows(self, run: Run, images: Tensor) -> Tensor:
        fixed = self._fixed_for(images)
        fixed.images[: len(images)].copy_(images)  # what is left there of others before is computed for nothing
        if fixed.play is None and fixed.passes >= WARM and self._record is not None:
            fixed.play = self._recorded(self._record, partial(_pass, run, fixed))
        if fixed.play is None:
            _pass(run, fixed)
            fixed.passes += 1
        else:
            fixed.play()
        assert fixed.rows is not None
        return fixed.rows[: len(images)].clone()

    def _fixed_for(self, images: Tensor) -> _Fixed:
        shape = -(-len(images) // EACH) * EACH, *images.shape[1:]
        key = (*shape, images.dtype, images.device)
        if key not in self._fixed:
            empty = images.new_zeros(shape).contiguous(memory_format=torch.channels_last)
            self._fixed[key] = _Fixed(empty)
        return self._fixed[key]

    def _recorded(self, record: Record, step: Step) -> Step | None:
        try:
            return record(step)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {first_line(error)}"
            log.warning("passes are made operation by operation, since one could not be recorded: %s", why)
            self._record = None
            return None


def _pass(run: Run, fixed: _Fixed) -> None:
    found = run(fixed.images)
    if fixed.rows is None:
        fixed.rows = torch.empty_like(found)
    fixed.rows.copy_(found)
