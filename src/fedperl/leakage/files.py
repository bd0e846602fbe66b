"""Arrays that speak of single images, kept between starts of a measurement; readable for their owner alone."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open

from fedperl.errors import RunError
from fedperl.files import write_durably
from fedperl.learn.packing import packed

Arrays = dict[str, npt.NDArray[Any]]


def keep(path: Path, arrays: Arrays, origin: str) -> None:
    """Write arrays, and what they were made from."""
    tensors = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in arrays.items()}
    write_durably(path, packed(tensors, {"origin": origin}))


def kept(path: Path, origin: str) -> Arrays | None:
    """Return what was written, or None if nothing was.

    Raises:
        RunError: the file is damaged, or of other settings or images.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            if (file.metadata() or {}).get("origin") != origin:
                raise RunError(f"{path}: was made with other settings or images; choose another folder with --out")
            return {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read: {error}; delete it to have it made anew") from None
