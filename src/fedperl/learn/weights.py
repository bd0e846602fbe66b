"""Backbone weights: the published ImageNet file made into safetensors once, and safetensors into a network.

The published file is a pickle, which can run code when opened: this is the only module that opens one.
"""

import io
import json
import os
import re
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedperl.errors import DataError
from fedperl.files import PRIVATE, digest, sync_folder, write_durably
from fedperl.learn.nets import build_net
from fedperl.learn.packing import packed
from fedperl.learn.state import State, load_into, state_of

SIZE_CAP = 64 * 2**20
CHUNK = 2**18
TIMEOUT_S = 30.0
READABLE = 0o644
METADATA = "__metadata__"
HEADS = ("_fc.", "head.")
"""How the names of the last linear layer begin, in EfficientNet-B0 and in our own networks."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that have arrived, and with those expected where the server says."""


@dataclass(frozen=True)
class Published:
    """A published file of weights; the part of its SHA-256 that its publisher put into its name is all there is."""

    net: str
    classes: int
    url: str
    sha256: str

    @property
    def file(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


IMAGENET = Published(
    net="efficientnet_b0",
    classes=1000,
    url="https://github.com/lukemelas/EfficientNet-PyTorch/releases/download/1.0/efficientnet-b0-355c32eb.pth",
    sha256="355c32eb",
)


def default_imagenet_path() -> Path:
    """Return where the imported ImageNet weights are kept: $FEDPERL_HOME, or else the user's cache folder."""
    if home := os.environ.get("FEDPERL_HOME"):
        folder = Path(home)
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedperl"
    return folder / "weights" / f"{IMAGENET.net}_imagenet.safetensors"


def resolve_weights(setting: str) -> Path | None:
    """Return the file that a setting means: `none`, `imagenet` or a path."""
    if setting == "none":
        return None
    return default_imagenet_path() if setting == "imagenet" else Path(setting)


def import_imagenet(path: Path | None, out: Path, *, progress: Progress | None = None) -> Path:
    """Write the published ImageNet weights of EfficientNet-B0 as safetensors and return where.

    Eight hexadecimal digits of a hash tell a wrong or damaged file, but could be forged: the pickle is read as plain
    tensors alone, and these must be the network's. The bytes checked are the bytes read: they stay in memory.

    Args:
        path: the published file; None downloads it.
        out: the safetensors file to write; its folder is made.
        progress: follows the download.
    Raises:
        DataError: the file cannot be fetched or read, is another, or its tensors are not the network's.
    """
    content = _download(IMAGENET.url, progress) if path is None else _read(path, SIZE_CAP)
    where = IMAGENET.url if path is None else str(path)
    sha256 = digest(content)
    if not sha256.startswith(IMAGENET.sha256):
        found = f"its SHA-256 begins with {sha256[: len(IMAGENET.sha256)]}; wanted {IMAGENET.sha256}"
        raise DataError(f"{where}: {found}: damaged, or not {IMAGENET.file}")
    wanted = state_of(build_net(IMAGENET.net, IMAGENET.classes, seed=0))
    state = _in_monai_names(_unpickle(content, where), wanted)
    _check(where, state, wanted, IMAGENET.net)
    write_weights(out, state, {"net": IMAGENET.net, "from": IMAGENET.url, "sha256": sha256}, mode=READABLE)
    return out


def write_weights(path: Path, state: Mapping[str, Tensor], metadata: dict[str, str], *, mode: int = PRIVATE) -> None:
    """Write a state as safetensors, durably, making the folder; the same input gives the same bytes.

    Raises:
        DataError: the file cannot be written.
    """
    content = packed(state, metadata)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, content, mode=mode)
        sync_folder(path.parent)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}") from None


def read_metadata(path: Path) -> dict[str, str]:
    """Return what a safetensors file says of itself, without reading its tensors.

    Raises:
        DataError: the file cannot be read, or is not safetensors.
    """
    try:
        path.open("rb").close()  # safetensors would say of any file it may not read that there is none
        with safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, ValueError) as error:  # of a name that no file can have, ValueError
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except SafetensorError:
        raise DataError(f"{path}: not a safetensors file") from None


def load_backbone(net: nn.Module, path: Path, net_name: str) -> str:
    """Copy a file of weights into the network, the head apart, and return the file's SHA-256.

    A head speaks of the classes it was trained on, which may be others even where they are as many: the network keeps
    its own.

    Raises:
        DataError: as `load_model`.
    """
    return _load(net, path, net_name, lambda name: not name.startswith(HEADS))


def load_model(net: nn.Module, path: Path, net_name: str) -> str:
    """Copy a whole model, head included, into the network and return the file's SHA-256.

    Raises:
        DataError: the file is missing, is not safetensors, is of another network, lacks or adds a tensor, or has one
            of another shape or type or with values that are not finite. The network is then as it was.
    """
    return _load(net, path, net_name, lambda name: True)


def _load(net: nn.Module, path: Path, net_name: str, wants: Callable[[str], bool]) -> str:
    content = _read(path)
    try:
        state = safetensors.torch.load(content)
    except (SafetensorError, KeyError):  # KeyError: an element type that torch does not have
        raise DataError(f"{path}: not a safetensors file") from None
    found = (_header(content).get(METADATA) or {}).get("net")
    if found != net_name:
        raise DataError(f"{path}: metadata: net is {found!r}; wanted {net_name!r}")
    state = {name: tensor for name, tensor in state.items() if wants(name)}
    wanted = {name: tensor for name, tensor in net.state_dict().items() if wants(name)}
    _check(str(path), state, wanted, net_name)
    load_into(net, state)
    return digest(content)


def _check(where: str, state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], net: str) -> None:
    """Refuse a state whose names, shapes or types are not those wanted, or whose values are not finite."""
    both = [name for name in wanted if name in state]
    faults = {
        "missing": [name for name in wanted if name not in state],
        "unknown": [repr(name) for name in sorted(state) if name not in wanted],
        "misshaped": [
            f"{name} {tuple(state[name].shape)} (wanted {tuple(wanted[name].shape)})"
            for name in both
            if state[name].shape != wanted[name].shape
        ],
        "of another type": [
            f"{name} {state[name].dtype} (wanted {wanted[name].dtype})"
            for name in both
            if state[name].dtype != wanted[name].dtype
        ],
        "not finite": [
            name for name in both if state[name].dtype == wanted[name].dtype and not torch.isfinite(state[name]).all()
        ],
    }
    if any(faults.values()):
        said = "; ".join(f"{fault}: {_some(names)}" for fault, names in faults.items() if names)
        raise DataError(f"{where}: its tensors are not those of {net}: {said}")


def _some(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _in_monai_names(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> State:
    """Return the published tensors under MONAI's names, which put the stage before a block's number.

    Batch norm's counters are no weights, and files older than they are lack them: they begin at zero then.
    """
    ours = {re.sub(r"^_blocks\.\d+\.(\d+\.)", r"_blocks.\1", name): name for name in wanted}
    counters = {name: tensor for name, tensor in wanted.items() if name.endswith(".num_batches_tracked")}
    return counters | {ours.get(name, name): tensor for name, tensor in state.items()}


def _unpickle(content: bytes, where: str) -> State:
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # anything may come of hostile bytes; torch's own message advises to let them run
        raise DataError(f"{where}: not a plain dictionary of tensors ({type(error).__name__})") from None
    if not isinstance(state, dict) or not all(isinstance(n, str) and _is_plain(t) for n, t in state.items()):
        raise DataError(f"{where}: not a plain dictionary of tensors; found a {type(state).__name__}")
    return dict(state)


def _is_plain(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout == torch.strided and value.device.type == "cpu"


def _read(path: Path, cap: int | None = None) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read() if cap is None else file.read(cap + 1)
    except (OSError, ValueError) as error:
        todo = "; `fedperl weights import` makes it" if path == default_imagenet_path() else ""
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{todo}") from None
    if cap is not None and len(content) > cap:
        raise DataError(f"{path}: more than {cap} bytes; wanted {IMAGENET.file}")
    return content


def _download(url: str, progress: Progress | None) -> bytes:
    content = bytearray()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            total = response.length
            while chunk := response.read(CHUNK):
                content += chunk
                if len(content) > SIZE_CAP:
                    raise OSError(f"it sends more than {SIZE_CAP} bytes")
                if progress is not None:
                    progress(len(content), total)
        if total is not None and len(content) < total:
            raise OSError(f"it sent {len(content)} of {total} bytes")
    except (OSError, HTTPException) as error:
        elsewhere = f"fetch {IMAGENET.file} on another machine and give its path to `fedperl weights import`"
        raise DataError(f"{url}: cannot be downloaded: {error}; without a network, {elsewhere}") from None
    return bytes(content)


def _header(content: bytes) -> dict[str, dict[str, str]]:
    """Return the JSON header of a valid safetensors file."""
    header: dict[str, dict[str, str]] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header
