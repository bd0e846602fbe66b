"""Every method that may run across sites gives the local engine's models, its sites opened anew for every message."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedperl.cli import main
from fedperl.config import dump, methods
from fedperl.data.partition import ClientPart
from fedperl.data.store import Store
from fedperl.engines.flower.exchange import Waiting
from fedperl.engines.flower.rules import check_deployable, config_of
from fedperl.engines.flower.server_app import SimulatedSites, serve
from fedperl.engines.flower.site import Asking, Site, answer, as_client
from fedperl.errors import ConfigError, RunError
from fedperl.evaluating import evaluate
from fedperl.federation.members import EVALUATED, told_part
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.wire import Parcel, read_evaluate
from fedperl.learn.weights import read_metadata
from fedperl.opening import open_store
from fedperl.predicting import open_predictor
from fedperl.settings import Config
from fedperl.training import train
from tests.test_methods import short as shorter

MODEL = "model.safetensors"
FEW, FEW_TO_VALIDATE = 9, 8
"""Of the drawn ten one has few images to test on: it is not asked at the end. Another has few to validate on."""

Fails = Callable[[str, Parcel, Asking], bool]
"""Whether a site fails with a message, by its kind."""


def short(method: str, **sections: Any) -> Config:
    """A short run of clients who have images enough to tell of."""
    return shorter(method, data={"scale": 0.06}, **sections)


def deployable(method: str) -> bool:
    try:
        check_deployable(short(method))
    except ConfigError:
        return False
    return True


@cache
def whole() -> Store:
    """Ten clients with images of two classes, and of a third with a few; the server's are as they were."""
    store = open_store(short("fedperl"))
    clients = list(store.partition.clients)
    clients[FEW] = replace(clients[FEW], test=clients[FEW].test[:8])
    clients[FEW_TO_VALIDATE] = replace(clients[FEW_TO_VALIDATE], validation=clients[FEW_TO_VALIDATE].validation[:8])
    label, own = np.array([1, 0, 1, 1, 1, 2, 2, 2])[store.manifest.label], store.partition.server.rows()
    label[own] = store.manifest.label[own]
    return replace(store, manifest=replace(store.manifest, label=label)).dealt(
        replace(store.partition, clients=tuple(clients))
    )


@cache
def told() -> Store:
    """What a local run is compared on: where a site evaluates something, no more than that."""

    def of(part: ClientPart) -> ClientPart:
        left = told_part(part, whole().manifest.label)
        kept = {name: rows for name in EVALUATED if len(rows := getattr(left, name))}
        return replace(part, **kept)

    return whole().dealt(replace(whole().partition, clients=tuple(map(of, whole().partition.clients))))


@cache
def part(number: int) -> Store:
    return as_client(whole().of_client(number), number)


class SitesHere:
    """A grid whose nodes are sites in this process, with a folder each."""

    def __init__(self, config: Config, folder: Path, fails: Fails = lambda *_: False) -> None:
        self.text, self.folder, self.open = dump(config), folder, dict[str, Message]()
        self.fails, self.answered, self.dies_after = fails, 0, -1
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1

    def get_node_ids(self) -> list[int]:
        return list(range(100, 110))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message {len(self.open)} to {message.metadata.dst_node_id}"
            self.open[message.metadata.message_id] = message
        return list(self.open)

    def pull_messages(self, names: Iterable[str]) -> Iterator[Message]:
        for name in list(names):
            message = self.open.pop(name)
            if self.answered == self.dies_after:
                raise KeyboardInterrupt
            self.answered += 1

            def do(parcel: Parcel, asked: Asking, kind: str = message.metadata.message_type) -> Parcel:
                if self.fails(kind.split(".")[0], parcel, asked):
                    raise OSError
                folder = self.folder / str(asked.client)
                site = Site(asked.client, part(asked.client), config_of(self.text), folder, folder / MODEL)
                what = {"query": site.about, "train": site.train, "evaluate": site.evaluate}[kind.split(".")[0]]
                return what(parcel, asked)

            yield Message(answer(message.content, do), reply_to=message)


def carry(grid: Any, config: Config, out: Path, *, resume: bool = False) -> dict[str, Any]:
    """Run the server over sites and return its results."""
    serve(grid, config, out, SimulatedSites(grid), Waiting(600, 0), resume=resume)
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


def model(folder: Path, name: str = "last") -> bytes:
    return (folder / "models" / f"{name}.safetensors").read_bytes()


def handed_out(folder: Path) -> dict[int, bytes]:
    """Return the model that each site was left with."""
    return {int(file.parent.name): file.read_bytes() for file in folder.glob(f"*/{MODEL}")}


def validating() -> set[int]:
    """Return the clients that tell of their validation images: at the others no class has enough of them."""
    return set(range(10)) - {FEW, FEW_TO_VALIDATE}


def best_rounds(out: Path) -> dict[int, int]:
    """Return the round of each client's best model, looked up line by line; of equals the last."""
    found: dict[int, tuple[float, int]] = {}
    made = 0
    for line in map(json.loads, (out / "metrics.jsonl").read_text().splitlines()):
        made = made if line["void"] else line["round"]
        for client, numbers in line["validation"].items():
            found[int(client)] = max(found.get(int(client), (-1.0, 0)), (numbers["accuracy"], made))
    return {client: round for client, (_, round) in found.items()}


def check_handed_out(folder: Path, config: Config) -> None:
    """Check that every site has the model that is the local engine's for it, and its server none that is another."""
    found, last = handed_out(folder / "sites"), config.federation.rounds
    assert found.keys() == set(range(10)) - {FEW}
    for client, content in found.items():
        if client in validating():
            assert content == model(folder / "local", f"client_{client}_best")
        else:
            assert read_metadata(folder / "sites" / str(client) / MODEL)["round"] == str(last)
    on_server = {path.stem for path in (folder / "across" / "models").glob("client_*")}
    if config.federation.personal:
        assert not on_server
    else:
        assert on_server == {f"client_{client}_best" for client in validating()}
        assert all(model(folder / "across", f"client_{k}_best") == found[k] for k in validating())


@pytest.mark.parametrize(("excluded", "numbers"), [((), (4, 3)), (tuple(range(3, 10)), (3, 3))], ids=["ten", "three"])
def test_numbers_that_are_not_written_follow_the_sites(
    excluded: tuple[int, ...], numbers: tuple[int, int], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = short("fedperl", federation={"rounds": 2, "cohort": "auto", "quorum": "auto", "exclude": list(excluded)})
    train(config, tmp_path / "local", store=told())
    carry(SitesHere(config, tmp_path / "sites"), config, tmp_path / "across")
    assert model(tmp_path / "across") == model(tmp_path / "local")
    written = RunFolder(tmp_path / "across").read_config().federation
    assert (written.cohort, written.quorum) == numbers
    assert ("lost answer" in caplog.text) == bool(excluded)
    two = config.changed(federation=config.federation.changed(exclude=tuple(range(2, 10))))
    with pytest.raises(RunError, match="2 of 2 registered clients take part; wanted 3"):
        carry(SitesHere(two, tmp_path / "two"), two, tmp_path / "few")


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in methods() if deployable(name)])
def test_a_method_gives_the_local_engines_models(method: str, tmp_path: Path) -> None:
    config = short(method)
    train(config, tmp_path / "local", store=told())
    carry(SitesHere(config, tmp_path / "sites"), config, tmp_path / "across")
    assert model(tmp_path / "across") == model(tmp_path / "local")
    check_handed_out(tmp_path, config)


@pytest.mark.flower
@pytest.mark.parametrize(
    ("method", "federation"),
    [
        ("fedperl", {"own_share": 0.5}),
        ("fedperl", {"own_share": "validation"}),
        ("fedperl", {"batch_norm": "local"}),
        ("fedperl", {}),
        pytest.param("fedmatch_pa", {"batch_norm": "local", "sparse": 0.0}, marks=pytest.mark.slow),
        pytest.param("ssfl", {"own_share": 0.3, "running_average": 0.5, "validate_every": 3}, marks=pytest.mark.slow),
    ],
    ids=["own share", "chosen share", "batch norm", "nothing", "decomposed", "running average"],
)
def test_a_site_is_left_with_the_model_that_it_tested(method: str, federation: dict[str, Any], tmp_path: Path) -> None:
    """Over more rounds than a site keeps whole states of."""
    federation = federation | {"rounds": 9, "cohort": 7, "steps": 6}
    config = short(method, seed=0, federation=federation, optimizer={"lr": 1e-2})
    results = train(config, tmp_path / "local", store=told())
    carried = carry(SitesHere(config, tmp_path / "sites"), config, tmp_path / "across")
    assert model(tmp_path / "across") == model(tmp_path / "local")
    check_handed_out(tmp_path, config)
    chosen = carried["test"]["per_client_best"]
    rounds = {int(client): int(numbers["round"]) for client, numbers in chosen.items()}
    assert rounds == best_rounds(tmp_path / "across")
    assert len(set(rounds.values())) > 1
    for client, numbers in chosen.items():
        assert numbers["accuracy"] == results["test"]["per_client_best"][client]["accuracy"]
        assert open_predictor(tmp_path / "sites" / client / MODEL).round == numbers["round"]
    states = [list(folder.glob("*/past/round-*")) for folder in (tmp_path / "sites").iterdir()]
    most = max(map(len, states))
    assert most == 0 if not config.federation.personal else 4 <= most < 8  # 4 whole ones, `global_best`'s, its own


def test_nothing_personal_is_in_the_global_models(tmp_path: Path) -> None:
    for name, federation in (("plain", {}), ("own", {"own_share": 0.5})):
        config = short("fedperl", federation=federation | {"cohort": 10})
        carry(SitesHere(config, tmp_path / name), config, tmp_path / f"across {name}")
    assert model(tmp_path / "across plain") == model(tmp_path / "across own")
    plain, own = (handed_out(tmp_path / name) for name in ("plain", "own"))
    assert all(plain[client] != own[client] for client in validating())


def test_the_servers_choice_counts_where_it_has_missed_a_validation(tmp_path: Path) -> None:
    """A site alone would take a model that it found better, but of which the run's results do not speak."""

    def fails(kind: str, parcel: Parcel, asked: Asking) -> bool:
        return kind == "evaluate" and not (task := read_evaluate(parcel)).full and task.round != 1 + asked.client % 2

    config = short("fedperl", federation={"own_share": 0.5})
    carried = carry(SitesHere(config, tmp_path / "sites", fails), config, tmp_path / "across")
    assert carried["test"]["per_client_best"].keys() == {str(client) for client in validating()}
    for client, round in best_rounds(tmp_path / "across").items():
        assert round == 1 + client % 2
        assert read_metadata(tmp_path / "sites" / str(client) / MODEL)["round"] == str(round)


def test_a_server_that_dies_and_goes_on_leaves_the_same_models(tmp_path: Path) -> None:
    """In a round, in a validation, and between two of the last evaluations."""
    config = short("fedperl", federation={"own_share": 0.5, "rounds": 7, "cohort": 7})
    train(config, tmp_path / "local", store=told())
    grid = SitesHere(config, tmp_path / "sites")
    a_round = config.cohort + len(validating())
    for messages in (10 + 2 * a_round + 3, 3 * a_round, 3 * a_round):
        grid.dies_after = grid.answered + messages
        with pytest.raises(KeyboardInterrupt):
            carry(grid, config, tmp_path / "across", resume=True)
        grid.open.clear()
    assert not (tmp_path / "across" / "results.json").exists()
    grid.dies_after = -1
    carry(grid, config, tmp_path / "across", resume=True)
    assert model(tmp_path / "across") == model(tmp_path / "local")
    check_handed_out(tmp_path, config)


def test_a_site_that_cannot_write_its_model_says_so(tmp_path: Path) -> None:
    config = short("fedperl", federation={"own_share": 0.5})
    grid = SitesHere(config, tmp_path / "sites")
    (tmp_path / "sites" / "3" / MODEL).mkdir(parents=True)
    with pytest.raises(RunError, match=r"not tested by client 3 \(DataError\)"):
        carry(grid, config, tmp_path / "across")
    (tmp_path / "sites" / "3" / MODEL).rmdir()
    carry(grid, config, tmp_path / "across", resume=True)
    assert handed_out(tmp_path / "sites").keys() == set(range(10)) - {FEW}


def test_of_a_run_across_sites_it_is_not_known_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its own images are refused as any others, until whoever asks vouches for them; then nothing was checked."""
    config, out = short("fedperl", federation={"rounds": 1}), tmp_path / "across"
    carry(SitesHere(config, tmp_path / "sites"), config, out)
    with pytest.raises(RunError, match=r"partition\.csv: lists no image.*--trust-unseen"):
        evaluate(out, whole())
    part(1).save(tmp_path / "store")
    monkeypatch.setattr("sys.argv", ["fedperl", "evaluate", str(out), "--data", str(tmp_path / "nothing there")])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "--trust-unseen" in capsys.readouterr().err  # before an archive is looked for
    monkeypatch.setattr(
        "sys.argv", ["fedperl", "evaluate", str(out), "--data", str(tmp_path / "store"), "--trust-unseen"]
    )
    with pytest.raises(SystemExit) as stopped:
        main()
    assert not stopped.value.code
    assert "Not checked" in capsys.readouterr().out
    (file,) = (out / "evaluations").iterdir()
    found = json.loads(file.read_text())
    assert found["left_out_as_seen"] is None
    assert found["images"] == (part(1).manifest.label >= 0).sum()


def test_refused_are_those_with_raw_peers_or_without_a_server() -> None:
    refused = {name for name in methods() if not deployable(name)}
    assert refused == {name for name in methods() if (c := short(name)).raw_peers or c.federation.alone}
    assert {"fedperl_raw", "fedmatch", "local_lower"} <= refused
