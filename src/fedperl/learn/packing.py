"""A state as the bytes of a safetensors file.

The library's own writer makes several Python objects a tensor, all the while holding Python's lock, and orders its
metadata at random: too slow beside training, and another hash at every writing.
"""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
ALIGNED = 8


def packed(state: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the file's content; the same state gives the same bytes, wherever its tensors lie.

    Raises:
        ValueError: a tensor of a type that such a file cannot hold.
    """
    groups: dict[tuple[int, str, str], list[str]] = {}
    for name in sorted(state):
        tensor = state[name]
        if tensor.dtype not in TYPES:
            raise ValueError(f"tensor {name!r} is {tensor.dtype}; wanted one of {', '.join(map(str, TYPES))}")
        groups.setdefault((-tensor.element_size(), TYPES[tensor.dtype], str(tensor.device)), []).append(name)
    header: dict[str, object] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    parts, begin = [], 0
    for (_, kind, _), names in sorted(groups.items()):  # the widest first, so that each lies at a multiple of its size
        flat = torch.cat([state[name].detach().flatten() for name in names]).cpu()
        for name in names:
            end = begin + state[name].numel() * flat.element_size()
            header[name] = {"dtype": kind, "shape": list(state[name].shape), "data_offsets": [begin, end]}
            begin = end
        parts.append(flat.view(torch.uint8).numpy().data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNED)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
