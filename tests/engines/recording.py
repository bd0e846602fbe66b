"""What a CUDA graph does, on the CPU: the operations of a step are noted once and done again, without its Python.

As in a graph, numbers are those of the recording, tensors are places in memory, and what would have to wait for a value
(to read it, or to know a shape) is refused while recording.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
MASKS = (torch.bool, torch.uint8)


class NotRecordable(RuntimeError):
    """A step asks for a value that is known only when it is played."""


def recorded(step: Callable[[], None]) -> Callable[[], None]:
    """Take the step once, and return what takes it again."""
    noting = _Noting()
    with _AsOnTheDevice(), noting:
        step()
    return noting.play


class _AsOnTheDevice(TorchFunctionMode):
    """The one function of our steps that looks at values on a CPU, to check them, and does not on a GPU."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.nn.functional.one_hot:
            labels, classes = args
            return torch.zeros(*labels.shape, classes, dtype=torch.int64).scatter_(-1, labels.unsqueeze(-1), 1)
        return function(*args, **(kwargs or {}))


class _Noting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each call with the tensors themselves, which stay alive: nothing else is ever put in their place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if reason := _refused(function, args):
            raise NotRecordable(f"{function}: {reason}")
        out = function(*args, **kwargs)
        self.calls.append((function, args, kwargs, _of(out)))
        return out

    def play(self) -> None:
        """Make all calls again, and put what they return where it was returned first."""
        with torch.no_grad():
            for function, args, kwargs, places in self.calls:
                for place, value in zip(places, _of(function(*args, **kwargs)), strict=True):
                    if place.data_ptr() != value.data_ptr():  # neither changed in place nor a view
                        place.copy_(value)


def _refused(function: Any, args: Any) -> str:
    if torch.Tag.data_dependent_output in function.tags:
        return "reads a value"
    if function is aten.lift_fresh.default:
        return "copies a value from the host"
    if function in (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default):
        return "a mask in the place of positions" if any(t.dtype in MASKS for t in _of(args[1])) else ""
    return "a shape depends on values" if torch.Tag.dynamic_output_shape in function.tags else ""


def _of(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    leaves: Iterable[Any] = tree_leaves(values)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]
