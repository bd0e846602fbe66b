"""Planted values, and what finds them again in bytes: plain, in base64 or hexadecimal, compressed, in other types."""

import base64
import binascii
import bz2
import contextlib
import io
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from fedperl.data.manifest import Manifest
from fedperl.data.partition import ClientPart, Partition, ServerPart
from fedperl.data.store import Store

CLASSES = ("A", "B", "C")
DEEPEST = 4
"""Layers of packing that are taken off."""
LARGEST = 2**26
COUNTED = 2
"""Clients whose counts are planted."""
WINDOW = 64
"""Values of a tensor that are looked for: in 16 bits, fewer could be the same by chance."""
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Canary:
    """Something of one client."""

    kind: str
    """`file`, `patient`, `count` or `tensor`."""
    owner: int
    name: str
    needles: tuple[bytes, ...] = ()
    number: int | None = None


# Planting


def planted_store(clients: int = 5, evaluated: int = 36, size: int = 16) -> Store:
    """A store in which every name, patient and per-class training count is found nowhere else by chance.

    The counts of the first two clients are primes of four digits; validation and test images are few, and as many of
    each class.
    """
    primes = prime_counts()
    names, labels, parts = list[str](), list[int](), list[ClientPart]()
    for client in range(clients):
        uses = []
        for part in ("labelled", "unlabelled"):
            counts = [next(primes) if client < COUNTED else 8 for _ in CLASSES]
            uses.append(_rows(names, labels, f"{part}{client}", np.repeat(range(3), counts).tolist()))
        uses += [_rows(names, labels, f"{part}{client}", [k % 3 for k in range(evaluated)]) for part in ("val", "tst")]
        parts.append(ClientPart(f"site{client}", *uses))
    server = ServerPart(validation=_rows(names, labels, "server", [k % 3 for k in range(12)]))
    generator, label = np.random.default_rng(0), np.array(labels, dtype=np.int64)
    pixels = generator.integers(0, 256, size=(len(names), 3, size, size), dtype=np.uint8)
    pixels[np.arange(len(names)), label % 3, : size // 2] = 250
    manifest = Manifest(
        CLASSES,
        np.array([f"{zlib.crc32(name.encode()):08x}datei.jpg" for name in names]),
        label,
        np.array([f"{zlib.crc32(name.encode()):08X}kranker" for name in names]),
        np.array(["planted"] * len(names)),
    )
    return Store(pixels, manifest, Partition(tuple(parts), server), {"source": "planted"})


def prime_counts() -> Iterator[int]:
    """Yield primes from 1,009 on, not all of them, so that few are near each other."""
    primes = (n for n in count(1009, 2) if all(n % k for k in range(3, 60, 2)))
    for place, prime in enumerate(primes):
        if place % 3 == 0:
            yield prime


def _rows(names: list[str], labels: list[int], part: str, drawn: list[int]) -> np.ndarray:
    start = len(names)
    names += [f"{part}n{number}x" for number in range(len(drawn))]
    labels += drawn
    return np.arange(start, len(names))


def canaries_of(store: Store) -> list[Canary]:
    """Return what is planted in a store: by client a few names and patients of every use, and each training count."""
    found = []
    for client, part in enumerate(store.partition.clients):
        for use in ("labelled", "unlabelled", "validation", "test"):
            for row in getattr(part, use)[[0, 7, -1]].tolist():
                name, patient = str(store.manifest.image[row]), str(store.manifest.group[row])
                found.append(Canary("file", client, name, (name.removesuffix(".jpg").encode(),)))
                found.append(Canary("patient", client, patient, (patient.encode(),)))
        for use in ("labelled", "unlabelled") if client < COUNTED else ():
            counts = np.bincount(store.manifest.label[getattr(part, use)], minlength=len(CLASSES))
            for place, number in enumerate(counts.tolist()):
                found.append(Canary("count", client, f"{number} {use} {CLASSES[place]}", number=number))
            weights = np.median(counts) / counts  # they tell the counts as well
            texts = [f"{weight:.8f}"[:-1].encode() for weight in weights if weight != 1]
            needles = (weights.tobytes(), weights.astype(np.float32).tobytes(), *texts)
            found.append(Canary("count", client, f"class weights of client {client}, {use}", needles))
    return found


def tensor_canaries(owner: int, round: int, state: Mapping[str, Tensor], start: Mapping[str, Tensor]) -> list[Canary]:
    """Return windows of a client's model and of its change, in several types, where it is not what it was sent."""
    found = []
    for name, tensor in state.items():
        if not tensor.is_floating_point() or tensor.numel() < WINDOW:
            continue
        ours, sent = tensor.flatten(), start[name].flatten()
        for place in {0, (len(ours) - WINDOW) // 2, len(ours) - WINDOW}:
            window = ours[place : place + WINDOW]
            changed = window.bfloat16() != sent[place : place + WINDOW].bfloat16()
            if int(changed.sum()) >= WINDOW // 4:
                change = window - sent[place : place + WINDOW]
                needles = tuple(as_bytes(values.to(kind)) for values in (window, change) for kind in TYPES)
                found.append(Canary("tensor", owner, f"{name}[{place}] of round {round}", needles))
    return found


def as_bytes(tensor: Tensor) -> bytes:
    """Return a tensor's memory."""
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


# Finding

LONG = 8
"""Bytes by which a needle is looked up; none is shorter."""
BETWEEN = b"\x00\xff" * LONG
"""Keeps contents apart that are searched as one."""


class Search:
    """Finds canaries in contents of any packing, all of them at once."""

    def __init__(self, canaries: Iterable[Canary]) -> None:
        self.canaries = list(canaries)
        needles = [(form, canary) for canary in self.canaries for form in forms(canary)]
        self.by_start: dict[int, list[tuple[bytes, Canary]]] = {}
        for needle, canary in needles:
            self.by_start.setdefault(int.from_bytes(needle[:LONG], "little"), []).append((needle, canary))
        self.starts = np.array(sorted(self.by_start), dtype=np.uint64)
        self.numbers = [canary for canary in self.canaries if canary.number is not None]
        self.known: dict[bytes, list[Canary]] = {}

    def __call__(self, content: bytes) -> list[Canary]:
        """Return those of the canaries that are in some content."""
        if content not in self.known:
            views = list(unpacked(content))
            found = self._by_bytes(BETWEEN.join([*views, b""])) | self._by_number(
                np.concatenate([*map(numbers_in, views)])
            )
            self.known[content] = [canary for canary in self.canaries if canary in found]
        return self.known[content]

    def _by_bytes(self, content: bytes) -> set[Canary]:
        found = set()
        for shift in range(LONG):
            words = np.frombuffer(content, np.uint64, (len(content) - shift) // LONG, shift)
            places = np.searchsorted(self.starts, words).clip(max=len(self.starts) - 1)
            for word in np.flatnonzero(self.starts[places] == words).tolist():
                start = shift + LONG * word
                for needle, canary in self.by_start[int(words[word])]:
                    if content.startswith(needle, start):
                        found.add(canary)
        return found

    def _by_number(self, numbers: np.ndarray) -> set[Canary]:
        return {canary for canary in self.numbers if (numbers == canary.number).any()}


def found_in(content: bytes, canaries: Iterable[Canary]) -> list[Canary]:
    """Return those of the canaries that are in some content, in whatever packing."""
    return Search(canaries)(content)


def forms(canary: Canary) -> tuple[bytes, ...]:
    """Return the needles, texts also in two bytes a letter, numbers in the types of eight bytes."""
    if canary.kind in ("file", "patient"):
        return (*canary.needles, *(needle.decode().encode("utf-16-le") for needle in canary.needles))
    if canary.number is not None:
        return np.float64(canary.number).tobytes(), np.int64(canary.number).tobytes()
    return canary.needles


def unpacked(content: bytes, depth: int = DEEPEST) -> Iterator[bytes]:
    """Yield the content, and what it holds in base64, hexadecimal, zlib, gzip, deflate, zip, bzip2 or xz."""
    yield content
    if depth and len(content) >= SHORTEST:
        for inner in _inside(content):
            yield from unpacked(inner, depth - 1)


SHORTEST = 24
"""Bytes or letters in which something could be packed."""
BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{24,}")
HEXADECIMAL = re.compile(rb"[0-9a-fA-F]{24,}")
PACKED: tuple[tuple[re.Pattern[bytes], Callable[[bytes], bytes]], ...] = (
    (re.compile(rb"\x78[\x01\x5e\x9c\xda]"), lambda data: zlib.decompressobj().decompress(data, LARGEST)),
    (re.compile(rb"\x1f\x8b\x08"), lambda data: zlib.decompressobj(31).decompress(data, LARGEST)),
    (re.compile(rb"BZh[1-9]1AY&SY"), lambda data: bz2.BZ2Decompressor().decompress(data, LARGEST)),
    (re.compile(rb"\xfd7zXZ\x00"), lambda data: lzma.LZMADecompressor().decompress(data, LARGEST)),
)


WRAPPED = re.compile(rb"\\[rn]|[\r\n]|\\(?=/)")
"""What may stand between the letters of base64: ends of lines, also written as such, and JSON's sign before a slash."""


def _inside(content: bytes) -> Iterator[bytes]:
    joined = WRAPPED.sub(b"", content)
    for run in (*BASE64.finditer(content), *(BASE64.finditer(joined) if joined != content else ())):
        letters = run.group().replace(b"-", b"+").replace(b"_", b"/")
        for start in range(4):
            piece = letters[start:]
            piece = piece[:-1] if len(piece) % 4 == 1 else piece  # one letter is no byte
            yield base64.b64decode(piece + b"=" * (-len(piece) % 4))
    for run in HEXADECIMAL.finditer(content):
        for start in range(2):
            piece = run.group()[start : start + (len(run.group()) - start) // 2 * 2]
            yield binascii.unhexlify(piece)
    for magic, unpack in PACKED:
        for match in magic.finditer(content):
            yield from _tried(unpack, content[match.start() :])
    yield from _tried(lambda data: zlib.decompressobj(-15).decompress(data, LARGEST), content)
    if b"PK\x03\x04" in content:
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(content)) as file:
            yield from [file.read(name) for name in file.namelist()]


def _tried(unpack: Callable[[bytes], bytes], data: bytes) -> Iterator[bytes]:
    try:
        out = unpack(data)
    except (zlib.error, OSError, EOFError, lzma.LZMAError):
        return
    if len(out) >= 8:  # a few bytes come of chance
        yield out


NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")


def numbers_in(content: bytes) -> np.ndarray:
    """Return every number of a text, of the tensors of a safetensors file and of its header, or of an npy file."""
    found = []
    if content[:6] == b"\x93NUMPY":
        found.append(np.load(io.BytesIO(content), allow_pickle=False).astype(np.float64).ravel())
    if content[8:9] == b"{":
        with contextlib.suppress(Exception):  # it is no such file
            found += [tensor.double().flatten().numpy() for tensor in load(content).values()]
            content = content[8 : 8 + int.from_bytes(content[:8], "little")]
    return np.concatenate([*found, np.array([float(text) for text in NUMBER.findall(content)], dtype=np.float64)])


def listed(canaries: Iterable[Canary]) -> str:
    """Return what was found, for a message."""
    return json.dumps([f"client {canary.owner}'s {canary.kind}: {canary.name}" for canary in canaries][:10], indent=1)
