"""Some numbers of every model that is sent, either way, kept for `fedperl privacy`: for research alone.

What is linear treats all coordinates alike: an attack on some of the real tensors is an attack on the real tensors.

All is in one file, a sequence of pieces, each a length and a safetensors file. A model is appended, durably, when it is
sent: nothing is written twice, and there are not thousands of small files. What a kill leaves torn at the end is cut
off. A repeated round appends its models again; the reader takes the last upload, and every release that differs: one
that happened is never forgotten.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch
from safetensors import SafetensorError
from torch import Tensor

from fedperl.errors import RunError
from fedperl.files import append_durably, write_durably
from fedperl.learn.packing import packed
from fedperl.learn.state import is_running_statistic
from fedperl.seeds import seed_for

FOLDER = "kept"
"""Where a run keeps it, in its folder `state`."""
FILE = "models.bin"
LENGTH = 8
"""Bytes of a piece's length."""
MOST = 4096
"""Coordinates that are read back: more make an attack no stronger, only slower."""

Vector = npt.NDArray[np.float32] | npt.NDArray[np.float64]


class KeptUploads:
    """Writes the same coordinates of every model; running statistics, which peers may lack, are left out."""

    def __init__(self, folder: Path, coordinates: int) -> None:
        """Go on with what the folder holds; its coordinates then stay as they were drawn.

        Args:
            coordinates: how many are drawn from the first model; with as many as it has, all are kept.
        Raises:
            ValueError: fewer than 1 coordinate.
            RunError: the folder holds something else.
        """
        if coordinates < 1:
            raise ValueError(f"coordinates = {coordinates}; wanted at least 1")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path = folder / FILE
        self.coordinates = coordinates
        self._places: dict[str, Tensor] = {}
        end = 0
        for piece in _pieces(self.path):
            if end == 0:
                self._places = {name: torch.from_numpy(at) for name, at in _load(piece, self.path).items()}
            end += LENGTH + len(piece)
        if self.path.exists():
            os.truncate(self.path, end)

    def upload(self, client: int, round: int, state: Mapping[str, Tensor]) -> None:
        """Keep what a client sent in a round, as it was banked and averaged."""
        self._keep(f"upload/{client}/{round}", state)

    def peer(self, client: int, round: int, state: Mapping[str, Tensor]) -> None:
        """Keep the anonymized peer that a client is sent in a round."""
        self._keep(f"peer/{client}/{round}", state)

    def model(self, round: int, state: Mapping[str, Tensor]) -> None:
        """Keep the global model that a round has made; 0 is the initial one."""
        self._keep(f"model/{round}", state)

    def forget(self, client: int) -> None:
        """Delete the uploads of a client that has withdrawn; what others were sent stays."""
        pieces, of = list(_pieces(self.path)), f"upload/{client}/"
        left = [p for p in pieces if not any(name.startswith(of) for name in _load(p, self.path))]
        if len(left) < len(pieces):
            write_durably(self.path, b"".join(map(_framed, left)))

    def _keep(self, name: str, state: Mapping[str, Tensor]) -> None:
        if not self._places:
            self._places = _drawn(state, self.coordinates)
            append_durably(self.path, _framed(packed(self._places)))
        parts = [
            state[tensor].detach().flatten()[at.to(state[tensor].device)].cpu()
            if tensor in state
            else torch.full(at.shape, torch.nan)
            for tensor, at in self._places.items()
        ]
        vector = torch.cat([part if part.dtype == torch.float64 else part.float() for part in parts])
        append_durably(self.path, _framed(packed({name: vector})))


@dataclass(frozen=True)
class Kept:
    """What was kept of a run: one vector a model, the same coordinates in all; not a number where a peer lacks one."""

    uploads: dict[tuple[int, int], Vector] = field(default_factory=dict)
    """By client and round."""
    peers: dict[tuple[int, int], list[Vector]] = field(default_factory=dict)
    """By receiver and round: one, or more if the round was repeated and did not come out the same."""
    models: dict[int, list[Vector]] = field(default_factory=dict)
    """By round, in the same way."""


def read_kept(folder: Path, most: int = MOST) -> Kept | None:
    """Return what a run has kept, or None if it has kept nothing.

    Args:
        most: coordinates that are read; of more, some at equal distances.
    Raises:
        RunError: the file is not what was written.
    """
    path, kept = folder / FILE, Kept()
    if not path.exists():
        return None
    pieces = _pieces(path)
    total = sum(at.size for at in _load(next(pieces, b""), path).values())
    readers: dict[str, Callable[..., None]] = {
        "upload": lambda vector, client, round: kept.uploads.update({(client, round): vector}),
        "peer": lambda vector, client, round: _add(kept.peers.setdefault((client, round), []), vector),
        "model": lambda vector, round: _add(kept.models.setdefault(round, []), vector),
    }
    for piece in pieces:
        for name, vector in _load(piece, path).items():
            kind, *numbers = name.split("/")
            try:
                if vector.shape != (total,):
                    raise ValueError(f"found shape {vector.shape}, wanted {(total,)}")
                readers[kind](vector[:: -(-total // most)].copy(), *map(int, numbers))
            except (KeyError, TypeError, ValueError) as error:
                raise RunError(f"{path}: {name!r} is nothing that is kept of a model: {error}") from None
    return kept


def _add(versions: list[Vector], vector: Vector) -> None:
    if not any(np.array_equal(vector, version, equal_nan=True) for version in versions):
        versions.append(vector)


def _drawn(state: Mapping[str, Tensor], coordinates: int) -> dict[str, Tensor]:
    """Return places in the flattened tensors, by name, drawn from the schema alone."""
    schema = {n: t.numel() for n, t in sorted(state.items()) if t.is_floating_point() and not is_running_statistic(n)}
    total, ends = sum(schema.values()), np.cumsum(list(schema.values()))
    chosen = np.arange(total)
    if coordinates < total:
        generator = np.random.default_rng(seed_for(0, "kept coordinates", str(schema)))
        chosen = np.sort(generator.choice(total, coordinates, replace=False))
    of = np.searchsorted(ends, chosen, side="right")
    places = {name: chosen[of == i] - (ends[i] - schema[name]) for i, name in enumerate(schema)}
    return {name: torch.from_numpy(at) for name, at in places.items() if at.size}


def _framed(piece: bytes) -> bytes:
    return len(piece).to_bytes(LENGTH, "little") + piece


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the whole pieces of a file; a torn last one is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        while len(head := file.read(LENGTH)) == LENGTH:
            length = int.from_bytes(head, "little")
            if file.tell() + length > path.stat().st_size:
                return
            yield file.read(length)


def _load(piece: bytes, path: Path) -> dict[str, npt.NDArray[np.float64]]:
    try:
        return dict(sorted(safetensors.numpy.load(piece).items()))
    except SafetensorError as error:
        raise RunError(f"{path}: a piece of it cannot be read: {error}") from None
