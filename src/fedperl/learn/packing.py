"""A state as the bytes of a safetensors file.

The library's own writer makes several Python objects a tensor, all the while holding Python's lock, and orders its
metadata at random: too slow beside training, and another hash at every writing.
"""

import json
from collections.abc import Mapping
from typing import IO

import torch
from torch import Tensor

TYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip
ALIGNED = 8
METADATA = "__metadata__"


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
    header: dict[str, object] = {METADATA: dict(sorted(metadata.items()))} if metadata else {}
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


def packed_part(file: IO[bytes], prefix: str) -> bytes:
    """Return the content of a file of those tensors alone whose names start with a prefix; no other is read.

    Raises:
        ValueError: the file is none of safetensors.
    """
    try:
        size = file.seek(0, 2)
        file.seek(0)
        length = min(int.from_bytes(file.read(8), "little"), size)
        header = json.loads(file.read(length))
        found, parts, begin = {}, [], 0
        for name in sorted(name for name in header if name.startswith(prefix) and name != METADATA):
            start, end = header[name]["data_offsets"]
            file.seek(8 + length + start)
            parts.append(file.read(min(end - start, size)))
            found[name] = header[name] | {"data_offsets": [begin, begin := begin + len(parts[-1])]}
    except (OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no safetensors file: {error!r}") from None
    text = json.dumps(found, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
