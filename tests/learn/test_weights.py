import ast
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import fedperl
from fedperl.errors import DataError
from fedperl.files import digest
from fedperl.learn import weights
from fedperl.learn.nets import build_net
from fedperl.learn.state import State, state_of
from fedperl.learn.weights import (
    default_imagenet_path,
    import_imagenet,
    load_backbone,
    load_model,
    read_metadata,
    resolve_weights,
    write_weights,
)

Answer = Callable[[BaseHTTPRequestHandler], None]


def published_name(name: str) -> str:
    """MONAI's `_blocks.STAGE.BLOCK.rest` is `_blocks.BLOCK.rest` in the published file."""
    parts = name.split(".")
    return ".".join(parts[:1] + parts[2:]) if parts[0] == "_blocks" else name


@pytest.fixture(scope="module", name="monai_state")
def _monai_state() -> State:
    """EfficientNet-B0 for 1000 classes, with counters that count and one tensor strided as the converter left it."""
    state = state_of(build_net("efficientnet_b0", 1000, seed=3))
    for name in state:
        if name.endswith("num_batches_tracked"):
            state[name] += 7
    state["_fc.weight"] = state["_fc.weight"].T.contiguous().T
    assert not state["_fc.weight"].is_contiguous()
    return state


@pytest.fixture(scope="module", name="published")
def _published(monai_state: State, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("published") / weights.IMAGENET.file
    torch.save({published_name(name): tensor for name, tensor in monai_state.items()}, path)
    return path


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDPERL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("no_proxy", "*")


def expect(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file be the one that was published."""
    monkeypatch.setattr(weights, "IMAGENET", replace(weights.IMAGENET, sha256=digest(path.read_bytes())[:8]))


def saved(state: object, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    torch.save(state, path)
    expect(path, monkeypatch)
    return path


# The published file


def test_the_record_is_monais() -> None:
    from monai.networks.nets.efficientnet import url_map

    record = weights.IMAGENET
    assert record.url == url_map["efficientnet-b0"]
    assert (record.file, record.sha256) == ("efficientnet-b0-355c32eb.pth", "355c32eb")


def test_imported_file_holds_every_tensor(
    published: Path, monai_state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expect(published, monkeypatch)
    out = import_imagenet(published, tmp_path / "new" / "folder" / "b0.safetensors")
    found = safetensors.torch.load_file(out)
    assert found.keys() == monai_state.keys()
    assert all(torch.equal(found[name], monai_state[name]) for name in found)
    sha256 = digest(published.read_bytes())
    assert read_metadata(out) == {"net": "efficientnet_b0", "from": weights.IMAGENET.url, "sha256": sha256}
    assert list(out.parent.iterdir()) == [out]


def test_everything_but_the_head_reaches_the_network(
    published: Path, monai_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect(published, monkeypatch)
    path = import_imagenet(published, default_imagenet_path())
    net, fresh = (build_net("efficientnet_b0", 8, seed=1) for _ in range(2))
    assert load_backbone(net, path, "efficientnet_b0") == digest(path.read_bytes())
    for name, tensor in net.state_dict().items():
        wanted = fresh.state_dict()[name] if name in ("_fc.weight", "_fc.bias") else monai_state[name]
        assert torch.equal(tensor, wanted), name


def test_as_monai_loads_it(published: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from monai.networks.nets import EfficientNetBN

    content = torch.load(published, weights_only=True)
    monkeypatch.setattr("monai.networks.nets.efficientnet.model_zoo.load_url", lambda *_, **__: content)
    monais = EfficientNetBN("efficientnet-b0", pretrained=True, num_classes=8).state_dict()
    expect(published, monkeypatch)
    net = build_net("efficientnet_b0", 8, seed=1)
    load_backbone(net, import_imagenet(published, tmp_path / "b0.safetensors"), "efficientnet_b0")
    assert all(torch.equal(net.state_dict()[n], monais[n]) for n in monais if not n.startswith("_fc."))


def test_older_files(monai_state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The format before zip archives, and no batch-norm counters."""
    path = tmp_path / "old.pth"
    state = {published_name(n): t for n, t in monai_state.items() if not n.endswith("num_batches_tracked")}
    torch.save(state, path, _use_new_zipfile_serialization=False)
    expect(path, monkeypatch)
    found = safetensors.torch.load_file(import_imagenet(path, tmp_path / "b0.safetensors"))
    assert found.keys() == monai_state.keys()
    assert found["_bn0.num_batches_tracked"] == 0
    assert torch.equal(found["_blocks.3.5._bn0.weight"], monai_state["_blocks.3.5._bn0.weight"])


def test_tensors_of_another_network(monai_state: State, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    state = {published_name(name): tensor for name, tensor in monai_state.items()}
    state["extra"] = state.pop("_conv_stem.weight")
    state["_bn0.bias"] = torch.zeros(5)
    state["_bn1.bias"] = torch.full((1280,), torch.nan)
    for block in range(4):
        del state[f"_blocks.{block}._bn1.weight"]
    path = saved(state, tmp_path / "b0.pth", monkeypatch)
    with pytest.raises(DataError) as error:
        import_imagenet(path, tmp_path / "out.safetensors")
    for part in (
        f"{path}: its tensors are not those of efficientnet_b0",
        "missing: _conv_stem.weight, _blocks.0.0._bn1.weight, _blocks.1.1._bn1.weight and 2 more",
        "unknown: 'extra'",
        "misshaped: _bn0.bias (5,) (wanted (32,))",
        "not finite: _bn1.bias",
    ):
        assert part in str(error.value)
    assert not (tmp_path / "out.safetensors").exists()


# Pickles


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def evil_pickle(tmp_path: Path, target: Path, *, archive: bool) -> Path:
    path = tmp_path / "evil.pth"
    torch.save({"_bn0.weight": Evil(target)}, path) if archive else path.write_bytes(pickle.dumps(Evil(target), 2))
    return path


def test_the_evil_pickles_are_evil(tmp_path: Path) -> None:
    for archive in (True, False):
        target = tmp_path / f"made_{archive}"
        path = evil_pickle(tmp_path, target, archive=archive)
        if archive:
            torch.load(path, weights_only=False)
        else:
            pickle.loads(path.read_bytes())  # noqa: S301
        assert target.exists()


@pytest.mark.parametrize("archive", [True, False])
def test_wrong_hash_is_refused_unopened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, archive: bool) -> None:
    target = tmp_path / "made"
    path = evil_pickle(tmp_path, target, archive=archive)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("opened"))
    found = digest(path.read_bytes())[:8]
    with pytest.raises(DataError, match=f"evil.pth: its SHA-256 begins with {found}; wanted 355c32eb: damaged, or"):
        import_imagenet(path, tmp_path / "out.safetensors")
    assert not target.exists()


@pytest.mark.parametrize("archive", [True, False])
def test_forged_hash_runs_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, archive: bool) -> None:
    target = tmp_path / "made"
    path = evil_pickle(tmp_path, target, archive=archive)
    expect(path, monkeypatch)
    with pytest.raises(DataError, match="evil.pth: not a plain dictionary of tensors") as error:
        import_imagenet(path, tmp_path / "out.safetensors")
    assert "weights_only" not in str(error.value)  # torch's advice would run it
    assert not target.exists()


@pytest.mark.parametrize(
    "content",
    [
        [torch.ones(2)],
        {"a": 3},
        {1: torch.ones(2)},
        {"_bn0.bias": torch.ones(32).to_sparse()},
        {"_bn0.bias": torch.ones(32, device="meta")},
    ],
)
def test_only_plain_tensors(content: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = saved(content, tmp_path / "odd.pth", monkeypatch)
    with pytest.raises(DataError, match="not a plain dictionary of tensors"):
        import_imagenet(path, tmp_path / "out.safetensors")


def unpickles(path: Path) -> list[str]:
    """Where a file of source code may open a pickle."""
    found = []
    modules = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("torch.load", "torch.jit.load", "torch.hub"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in modules]
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            found += (
                names if node.module in modules or (node.module == "torch" and {"load", "hub"} & set(names)) else []
            )
        if isinstance(node, ast.keyword) and ast.unparse(node) in ("allow_pickle=True", "weights_only=False"):
            found.append(ast.unparse(node))
    return found


def test_one_place_opens_a_pickle() -> None:
    root = Path(fedperl.__file__).parent
    found = {str(path.relative_to(root)): hits for path in root.rglob("*.py") if (hits := unpickles(path))}
    assert found == {"learn/weights.py": ["torch.load"]}
    assert unpickles(Path(__file__)).count("torch.load") > 1  # it does see them


# The download


@pytest.fixture(name="serve")
def _serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], str]]:
    servers = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        url = f"http://127.0.0.1:{server.server_port}/{weights.IMAGENET.file}"
        monkeypatch.setattr(weights, "IMAGENET", replace(weights.IMAGENET, url=url))
        return url

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def answer_with(content: bytes, length: int | None) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        if length is not None:
            request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(content)

    return answer


def test_download(
    published: Path, serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = published.read_bytes()
    expect(published, monkeypatch)
    url = serve(answer_with(content, len(content)))
    steps: list[tuple[int, int | None]] = []
    out = import_imagenet(None, tmp_path / "down", progress=lambda done, total: steps.append((done, total)))
    here = tmp_path / "here"
    import_imagenet(published, here)
    assert out.read_bytes() == here.read_bytes()
    assert steps[-1] == (len(content), len(content))
    assert steps == sorted(steps)
    assert len(steps) > 3
    assert read_metadata(out)["from"] == url


def test_download_of_something_else(serve: Callable[[Answer], str], tmp_path: Path) -> None:
    url = serve(answer_with(b"<html>log in first</html>", None))
    with pytest.raises(DataError, match=f"{url}: its SHA-256 begins with"):
        import_imagenet(None, tmp_path / "out")


def test_download_of_too_much(serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hung_up = threading.Event()

    def pour(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        try:
            for _ in range(1000):  # much more than the cap and than any buffer between, yet not without end
                request.wfile.write(bytes(2**16))
        except OSError:
            hung_up.set()

    serve(pour)
    monkeypatch.setattr(weights, "SIZE_CAP", 2**20)
    with pytest.raises(DataError, match="sends more than 1048576 bytes.*give its path to `fedperl weights import`"):
        import_imagenet(None, tmp_path / "out")
    assert hung_up.wait(300)


def test_download_refused_cut_or_stalled(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told = threading.Event()

    def stall(_: BaseHTTPRequestHandler) -> None:
        told.wait(300)

    answers: dict[str, tuple[Answer, float]] = {
        "404": (lambda request: request.send_error(404), 300.0),
        "sent 3 of 10 bytes|IncompleteRead": (answer_with(b"abc", 10), 300.0),
        "timed out": (stall, 0.2),
    }
    for message, (answer, seconds) in answers.items():
        monkeypatch.setattr(weights, "TIMEOUT_S", seconds)
        url = serve(answer)
        with pytest.raises(DataError, match=f"{url}: cannot be downloaded: .*({message})") as error:
            import_imagenet(None, tmp_path / "out")
        assert "fetch efficientnet-b0-355c32eb.pth on another machine" in str(error.value)
    told.set()
    assert list(tmp_path.iterdir()) == []


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.server_close()
    url = f"http://127.0.0.1:{server.server_port}/b0.pth"
    monkeypatch.setattr(weights, "IMAGENET", replace(weights.IMAGENET, url=url))
    with pytest.raises(DataError, match="cannot be downloaded: .*refused.*without a network, fetch b0.pth"):
        import_imagenet(None, tmp_path / "out")


def test_unusable_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere.pth: cannot be read: No such file"):
        import_imagenet(tmp_path / "nowhere.pth", tmp_path / "out")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        import_imagenet(tmp_path, tmp_path / "out")
    monkeypatch.setattr(weights, "SIZE_CAP", 10)
    (tmp_path / "large.pth").write_bytes(bytes(11))
    with pytest.raises(DataError, match="large.pth: more than 10 bytes; wanted efficientnet-b0-355c32eb.pth"):
        import_imagenet(tmp_path / "large.pth", tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file/out: cannot be written"):
        write_weights(tmp_path / "file" / "out", {"a": torch.ones(1)}, {})


# Safetensors into a network


@pytest.mark.parametrize(("name", "classes"), [("small_cnn", 5), ("small_cnn", 3), ("resnet9", 3)])
def test_round_trip(name: str, classes: int, tmp_path: Path) -> None:
    """The backbone comes without the head, be there as many classes or others; a whole model with it."""
    path, given, net = tmp_path / "net.safetensors", build_net(name, 5, seed=1), build_net(name, classes, seed=2)
    write_weights(path, given.state_dict(), {"net": name, "from": "a test"})
    fresh = state_of(net)
    assert load_backbone(net, path, name) == digest(path.read_bytes())
    for key, tensor in net.state_dict().items():
        source = fresh if key.startswith("head.") else given.state_dict()
        assert torch.equal(tensor, source[key]), key
    if classes == 5:
        assert load_model(net, path, name) == digest(path.read_bytes())
        assert all(torch.equal(tensor, given.state_dict()[key]) for key, tensor in net.state_dict().items())


def test_the_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    state = {name: torch.arange(3.0) for name in "badc"}
    metadata = {"net": "x", "from": 'Zürich "1"', "sha256": "0", "classes": "3", "epochs": "4"}
    for number in range(20):
        write_weights(tmp_path / str(number), state, metadata)
        metadata = dict(reversed(metadata.items()))
    assert len({(tmp_path / str(number)).read_bytes() for number in range(20)}) == 1
    assert int.from_bytes((tmp_path / "0").read_bytes()[:8], "little") % 8 == 0  # aligned, as safetensors wants it
    assert read_metadata(tmp_path / "0") == metadata
    assert all(torch.equal(t, torch.arange(3.0)) for t in safetensors.torch.load_file(tmp_path / "0").values())


def test_writes_any_tensor_privately(tmp_path: Path) -> None:
    """Strided, shared and trained tensors; readable by their owner alone, as a client's model must be."""
    base = torch.arange(6.0).view(2, 3)
    state: dict[str, Tensor] = {"a": base.T, "b": base, "c": torch.nn.Parameter(base[0])}
    write_weights(tmp_path / "w", state, {})
    found = safetensors.torch.load_file(tmp_path / "w")
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert (tmp_path / "w").stat().st_mode & 0o777 == 0o600


def without(state: State) -> None:
    del state["features.0.weight"]


def with_more(state: State) -> None:
    state["features.99.weight"] = torch.ones(1)


def more_head(state: State) -> None:
    state["head.scale"] = torch.ones(1)


def other_shape(state: State) -> None:
    state["features.0.weight"] = state["features.0.weight"][:3]


def other_type(state: State) -> None:
    state["features.0.weight"] = state["features.0.weight"].half()


def nan(state: State) -> None:
    state["features.0.weight"][0, 0, 0, 0] = torch.nan


def half_a_head(state: State) -> None:
    del state["head.bias"]


def wider_head(state: State) -> None:
    state["head.weight"] = torch.ones(5, 300)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without, "missing: features.0.weight$"),
        (with_more, "unknown: 'features.99.weight'$"),
        (more_head, "unknown: 'head.scale'$"),
        (other_shape, r"misshaped: features.0.weight \(3, 3, 3, 3\) \(wanted \(24, 3, 3, 3\)\)$"),
        (other_type, r"of another type: features.0.weight torch.float16 \(wanted torch.float32\)$"),
        (nan, "not finite: features.0.weight$"),
        (half_a_head, "missing: head.bias"),
        (wider_head, r"misshaped: head.weight \(5, 300\)"),
    ],
)
def test_refused_tensors(change: Callable[[State], None], message: str, tmp_path: Path) -> None:
    path, state = tmp_path / "net.safetensors", state_of(build_net("small_cnn", 5, seed=1))
    change(state)
    write_weights(path, state, {"net": "small_cnn"})
    net = build_net("small_cnn", 5, seed=2)
    before = state_of(net)
    with pytest.raises(DataError, match="net.safetensors: its tensors are not those of small_cnn: .*" + message):
        load_model(net, path, "small_cnn")
    if "head" not in message:
        with pytest.raises(DataError, match=message):
            load_backbone(net, path, "small_cnn")
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_refused_files(tmp_path: Path) -> None:
    net, path = build_net("small_cnn", 5, seed=1), tmp_path / "net.safetensors"
    with pytest.raises(DataError, match="net.safetensors: cannot be read: No such file or directory$"):
        load_backbone(net, path, "small_cnn")
    with pytest.raises(DataError, match="No such file or directory; `fedperl weights import` makes it"):
        load_backbone(net, default_imagenet_path(), "small_cnn")
    odd_type = b'{"a":{"dtype":"F4","shape":[8],"data_offsets":[0,4]}}'
    for content in (b"", b"\x80\x02}.", bytes(100), len(odd_type).to_bytes(8, "little") + odd_type + bytes(4)):
        path.write_bytes(content)
        with pytest.raises(DataError, match="net.safetensors: not a safetensors file"):
            load_backbone(net, path, "small_cnn")
    write_weights(path, net.state_dict(), {"net": "resnet9"})
    with pytest.raises(DataError, match="net.safetensors: metadata: net is 'resnet9'; wanted 'small_cnn'"):
        load_backbone(net, path, "small_cnn")
    safetensors.torch.save_file(net.state_dict(), path)
    with pytest.raises(DataError, match="net is None; wanted 'small_cnn'"):
        load_backbone(net, path, "small_cnn")


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    with pytest.raises(DataError, match="net.safetensors: cannot be read: No such file"):
        read_metadata(path)
    with pytest.raises(DataError, match="cannot be read|not a safetensors file"):
        read_metadata(tmp_path)
    path.write_bytes(bytes(100))
    with pytest.raises(DataError, match="net.safetensors: not a safetensors file"):
        read_metadata(path)
    write_weights(path, {"a": torch.ones(1)}, {"net": "small_cnn", "classes": '["MEL", "NV"]'})
    assert read_metadata(path) == {"net": "small_cnn", "classes": '["MEL", "NV"]'}
    safetensors.torch.save_file({"a": torch.ones(1)}, path)
    assert read_metadata(path) == {}


def test_behind_the_input_scale(tmp_path: Path) -> None:
    path, given = tmp_path / "net.safetensors", build_net("small_cnn", 5, seed=1)
    write_weights(path, given.state_dict(), {"net": "small_cnn"})
    net = build_net("small_cnn", 5, seed=2, input_scale="imagenet")
    load_model(net, path, "small_cnn")
    assert all(torch.equal(tensor, given.state_dict()[name]) for name, tensor in net.state_dict().items())


# Where


def test_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = "weights/efficientnet_b0_imagenet.safetensors"
    assert default_imagenet_path() == tmp_path / "home" / file
    monkeypatch.setenv("FEDPERL_HOME", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert default_imagenet_path() == tmp_path / "cache" / "fedperl" / file
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_imagenet_path() == tmp_path / ".cache" / "fedperl" / file
    assert resolve_weights("none") is None
    assert resolve_weights("imagenet") == default_imagenet_path()
    assert resolve_weights("some/net.safetensors") == Path("some/net.safetensors")
