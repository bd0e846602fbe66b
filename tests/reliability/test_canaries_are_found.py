"""The search finds what is planted, however it is packed: a search that cannot find anything shows nothing."""

import base64
import bz2
import gzip
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedperl.learn.packing import packed
from tests.reliability.canaries import Canary, as_bytes, canaries_of, found_in, planted_store, tensor_canaries

STORE = planted_store(clients=2)
PLANTED = canaries_of(STORE)
FILE = next(canary for canary in PLANTED if canary.kind == "file")
COUNT = next(canary for canary in PLANTED if canary.kind == "count")
GENERATOR = torch.Generator().manual_seed(0)
START = {"weight": torch.randn(40, 30, generator=GENERATOR)}
MODEL = {"weight": START["weight"] + 0.1 * torch.randn(40, 30, generator=GENERATOR)}
TENSORS = tensor_canaries(0, 1, MODEL, START)


def deflated(content: bytes) -> bytes:
    made = zlib.compressobj(wbits=-15)
    return made.compress(content) + made.flush()


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("inside", content)
    return out.getvalue()


PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda content: content,
    "base64, first alignment": base64.b64encode,
    "base64, second": lambda content: base64.b64encode(b"." + content),
    "base64, third": lambda content: base64.b64encode(b".." + content),
    "base64 for addresses": base64.urlsafe_b64encode,
    "base64 amid a text": lambda content: b'{"page": "' + base64.b64encode(content) + b'"}',
    "base64 in lines": base64.encodebytes,
    "base64 in lines, in JSON": lambda content: json.dumps(base64.encodebytes(content).decode()).encode(),
    "base64 with JSON's slashes": lambda content: base64.b64encode(content).replace(b"/", b"\\/"),
    "hexadecimal": lambda content: content.hex().encode(),
    "hexadecimal, shifted": lambda content: b"x a" + content.hex().upper().encode() + b"z",
    "zlib": zlib.compress,
    "zlib, fast": lambda content: zlib.compress(content, 1),
    "zlib, best": lambda content: zlib.compress(content, 9),
    "zlib amid bytes": lambda content: bytes(range(200)) + zlib.compress(content) + b"more",
    "gzip": gzip.compress,
    "deflate": deflated,
    "zip": zipped,
    "zip behind bytes": lambda content: bytes(range(200)) + zipped(content),
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "base64 of gzip": lambda content: b'"' + base64.b64encode(gzip.compress(content)) + b'"',
    "gzip of hexadecimal": lambda content: gzip.compress(content.hex().encode()),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_in_every_packing(packing: str) -> None:
    filler = np.random.default_rng(0).bytes(300)
    for canary, content in (
        (FILE, FILE.name.encode()),
        (FILE, b"\\\\server\\" + FILE.name.encode("utf-16-le")),
        (COUNT, b"of this class there are %d images at client 0" % int(COUNT.number or 0)),
        (COUNT, packed({"counts": torch.tensor([3, int(COUNT.number or 0)])})),
        (TENSORS[0], b"x" + packed(MODEL)),
        (TENSORS[0], packed({"w": MODEL["weight"].double()})),
        (TENSORS[0], packed({"change": MODEL["weight"] - START["weight"]})),
        (TENSORS[0], as_bytes(MODEL["weight"].bfloat16())),
        (TENSORS[0], as_bytes(MODEL["weight"].half())),
    ):
        pieces = (content, b" ", filler) if canary is not COUNT else (content,)  # a number has edges
        assert canary in found_in(PACKINGS[packing](b"".join(pieces)), [canary])
    assert not found_in(PACKINGS[packing](filler), [FILE, COUNT, *TENSORS])


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_a_count_in_tensors_of_every_type_and_in_json(kind: torch.dtype) -> None:
    number = int(COUNT.number or 0)
    assert found_in(packed({"a": torch.tensor([1, number, 2]).to(kind)}), [COUNT])
    assert found_in(json.dumps({"a": [1, float(number)]}).encode(), [COUNT])
    assert not found_in(json.dumps({"a": [1, number + 1, number * 10, number / 1e4]}).encode(), [COUNT])
    weights = next(canary for canary in PLANTED if canary.name.startswith("class weights"))
    counts = [int(canary.number or 0) for canary in PLANTED[24:27]]
    made = torch.tensor(counts).median() / torch.tensor(counts)
    assert found_in(packed({"w": made}), [weights])
    assert found_in(json.dumps({"w": made.double().tolist()}).encode(), [weights])
    assert found_in(json.dumps({"w": float(made[0])}).encode(), [weights])
    assert not found_in(packed({"w": made[[1, 0, 2]]}), [weights])


def test_every_client_has_every_kind_and_all_differ() -> None:
    assert {(canary.kind, canary.owner) for canary in PLANTED} == {
        (kind, client) for kind in ("file", "patient", "count") for client in range(2)
    }
    assert len({canary.name for canary in PLANTED}) == len(PLANTED)
    assert len(TENSORS) == 3
    assert not tensor_canaries(0, 1, START, START)
    unchanged = {"weight": START["weight"].clone()}
    unchanged["weight"][:30] = MODEL["weight"][:30]
    assert len(tensor_canaries(0, 1, unchanged, START)) == 2


def test_another_models_windows_are_not_found() -> None:
    other = {"weight": (START["weight"] + MODEL["weight"]) / 2}
    assert not found_in(packed(other), TENSORS)
    assert isinstance(TENSORS[0], Canary)
