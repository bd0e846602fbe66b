"""A real federation on loopback: the model of the local engine, byte for byte; strangers refused; faults survived."""

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedperl import training
from fedperl.config import load_config
from fedperl.data.store import Store
from fedperl.engines.flower.forgetting import MEMBERS, forget
from fedperl.engines.flower.keys import make_authority, make_site_keys
from fedperl.engines.flower.numbering import numbers_of
from fedperl.engines.flower.server_folder import ServerFolder
from fedperl.engines.flower.site_folder import free_port
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.errors import BusyError, ConfigError
from fedperl.federation.members import told_part
from fedperl.federation.messages import Failure, TrainTask, Update
from fedperl.files import lock
from fedperl.opening import open_store
from fedperl.training import train
from tests.flower.federation import Federation, accepted, wait

pytestmark = pytest.mark.flower
SITES = range(5)
PLANTED = "mueller_hans_1953"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    found = Federation(tmp_path_factory.mktemp("federation"))
    try:
        found.call("data", "deal", str(found.config), "--out", "stores")
        found.start_server()
        for number in SITES:
            store = found.root / "stores" / PLANTED / f"client_{number}"
            shutil.copytree(found.root / "stores" / f"client_{number}", store)
            found.add_site(number, store)
        for number in SITES:
            found.join(number)
        found.wait_for_sites(len(SITES))
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def local(federation: Federation, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of the local engine with the same configuration, on those images that sites evaluate models on."""
    federation.write_config(own_share=0.5)
    out, config = tmp_path_factory.mktemp("local") / "run", load_config(federation.config)
    store = open_store(config)
    clients = tuple(told_part(part, store.manifest.label) for part in store.partition.clients)
    train(config, out, store=store.dealt(replace(store.partition, clients=clients)))
    return out


def test_the_model_is_the_local_engines(federation: Federation, local: Path) -> None:
    federation.begin()
    assert federation.ended(400) == 0, federation.log("run")
    out = federation.server / "runs" / "run"
    for name in ("last", "global_best"):
        assert (out / "models" / f"{name}.safetensors").read_bytes() == (
            local / "models" / f"{name}.safetensors"
        ).read_bytes()
    ours, theirs = lines(out), lines(local)
    assert [line["committees"] for line in ours] == [line["committees"] for line in theirs]
    assert any(committee for line in ours for committee in line["committees"].values())
    releases = [release for entry in entries(out) for release in entry.get("releases", [])]
    assert {len(release["committee"]) for release in releases} == {0, 2}
    for line, other in zip(ours, theirs, strict=True):
        assert line["validation"] == {client: pytest.approx(found) for client, found in other["validation"].items()}
    assert "online" in federation.status()["clients"]["0"]
    results = json.loads((out / "results.json").read_text())
    assert set(results["test"]["last"]) == {str(number) for number in SITES}
    for counts in json.loads((out / "curves.json").read_text())["sums"].values():
        rows = [sum(row) for row in counts["test"]["confusion"]]
        assert all(row == 0 or row >= 10 for row in rows)
        assert any(row == 0 for row in rows)
    page = federation.call("report", str(out), "--out", "page.html", check=False)
    assert page.returncode == 0, page.stderr
    assert {path.stem for path in (out / "models").glob("*.safetensors")} == {"last", "global_best"}
    run = json.loads((out / "state" / MEMBERS).read_text())["run"]
    for number in SITES:  # each has the model that it uses, with its own share
        model = federation.root / f"site_{number}" / "models" / f"run_{run}.safetensors"
        assert model.read_bytes() == (local / "models" / f"client_{number}_best.safetensors").read_bytes()


def test_strangers_are_refused(federation: Federation, tmp_path: Path) -> None:
    before, activated = federation.status()["clients"], federation.log("server").count("Activated node_id")
    make_site_keys(tmp_path / "stranger")
    make_authority(tmp_path / "other", ["localhost", "127.0.0.1"])
    site = federation.root / "site_0"

    def with_keys(key: Path, ca: Path) -> tuple[str, ...]:
        return ("--root-certificates", str(ca), "--auth-supernode-private-key", str(key))

    cases = {
        "Failed to activate SuperNode": with_keys(tmp_path / "stranger" / "site.key", site / "ca.crt"),
        "CERTIFICATE_VERIFY_FAILED": with_keys(site / "site.key", tmp_path / "other" / "ca.crt"),
        "Connection attempt failed": ("--insecure",),
    }
    supernodes_say(federation, tmp_path, cases)
    assert federation.status()["clients"] == before
    assert federation.log("server").count("Activated node_id") == activated
    assert b"200" not in in_plain_text(federation.port)


def test_a_registration_and_a_removal_that_were_cut_short_are_done_again(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_site_keys(tmp_path)
    folder, before = ServerFolder(federation.server), ServerFolder(federation.server).roster()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_write_roster", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.register(tmp_path / "site.pub", 40)
    assert folder.roster() == before
    assert folder.register(tmp_path / "site.pub", 40) == 40
    assert folder.online()[40] is False
    with pytest.raises(ConfigError, match="registered already, as client 40"):
        folder.register(tmp_path / "site.pub")
    with lock(folder.path / "roster.lock"), pytest.raises(BusyError):
        folder.register(tmp_path / "site.pub")
    with monkeypatch.context() as patch:
        patch.setattr(folder, "_write_roster", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.remove(40)
    assert 40 in folder.roster()
    folder.remove(40)
    assert folder.roster() == before
    assert not list(folder.path.glob("registering_*"))


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_the_proxy_lets_only_sites_in(federation: Federation) -> None:
    folder = ServerFolder(federation.server)
    conf = (folder.path / "nginx.conf").read_text()
    port = folder.address().public
    nginx = subprocess.Popen(
        ["nginx", "-c", str(folder.path / "nginx.conf"), "-g", "daemon off;"], start_new_session=True
    )
    trust = ssl.create_default_context(cafile=str(folder.keys / "ca.crt"))

    def status_of(path: str) -> int:
        asked = urllib.request.Request(f"https://localhost:{port}{path}", data=b"" if "/v1/" in path else None)
        asked.add_header("Content-Type", "application/protobuf")
        try:
            with urllib.request.urlopen(asked, context=trust, timeout=300) as found:
                return int(found.status)
        except urllib.error.HTTPError as error:
            return error.code

    def listens() -> bool:
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait(listens, 20, conf)
        assert status_of("/health") == 200
        assert status_of("/v1/fleet/activate-node") == 401
        for closed in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/", "/docs"):
            assert status_of(closed) == 403
        assert status_of("/v1/fleet/../control/list-runs") == 403
        assert status_of("/v1/fleet/..%2fcontrol/list-runs") in (400, 401, 403, 404)
    finally:
        os.killpg(nginx.pid, signal.SIGTERM)
        nginx.wait(300)


def test_a_slow_site_is_not_waited_for_and_one_that_leaves_is_forgotten(federation: Federation, tmp_path: Path) -> None:
    federation.write_config("leaving", rounds=4, cohort=4)
    plan = cohorts(federation, tmp_path / "plan")
    (slow,) = set(SITES) - set(plan[1])
    leaver = plan[1][0]
    federation.begin("--deadline", "60", "--patience", "120")
    wait((federation.out / "state" / MEMBERS).exists, 90, "the sites tell of themselves")
    run = json.loads((federation.out / "state" / MEMBERS).read_text())["run"]
    group = federation.processes[f"site_{slow}"].pid
    try:
        with lock(federation.root / f"site_{slow}" / "state" / run / "lock"):  # its first training waits
            federation.wait_for_round(1)
            bank = federation.out / "state" / "bank"
            assert list(bank.glob(f"client-{leaver:05d}-*"))
            wait(lambda: asked_to_train(federation, slow), 90, f"a task for client {slow}")
            os.killpg(group, signal.SIGSTOP)
        federation.call("site", "leave", f"site_{leaver}", "--wait", "500")
        wait(lambda: not list(bank.glob(f"client-{leaver:05d}-*")), 90, "the bank forgets")
        wait(lambda: any(line["rejected"] for line in federation.metrics()), 90, "the deadline")
        os.killpg(group, signal.SIGCONT)
        assert federation.ended(300) == 0, federation.log("run")
        found = federation.metrics()
        waited = next(line for line in found if slow in line["cohort"])
        assert waited["rejected"][str(slow)] == "no update came back"
        assert leaver not in found[3]["cohort"]
        assert str(leaver) not in found[3]["validation"]
        assert [entry["client"] for entry in entries(federation.out) if entry["kind"] == "withdraw"] == [leaver]
        results = json.loads((federation.out / "results.json").read_text())
        assert set(results["test"]["last"]) == {str(number) for number in SITES if number != leaver}
        assert not (federation.root / f"site_{leaver}" / "state").exists()
    finally:  # the next test wants all sites, whatever became of this one
        os.killpg(group, signal.SIGCONT)
        federation.kill(f"site_{leaver}", signal.SIGTERM)
        federation.join(leaver)
        federation.wait_for_sites(len(SITES), 120)


def test_sites_have_other_numbers_in_a_hospitals_run(federation: Federation) -> None:
    federation.write_config("hospital", rounds=3, cohort=5, privacy="hospital")
    federation.begin()
    assert federation.ended(300) == 0, federation.log("run")
    numbers = numbers_of(federation.out)
    assert sorted(numbers) == sorted(numbers.values()) == list(SITES)
    said = json.loads((federation.out / "state" / MEMBERS).read_text())["members"]
    for number in SITES:
        store = Store.open(federation.root / "stores" / f"client_{number}")
        (part,) = store.partition.clients
        assert said[str(numbers[number])]["labelled"] == len(part.labelled)
        assert said[str(numbers[number])]["unlabelled"] == len(part.unlabelled)
    assert all(line["accepted"] == list(SITES) for line in federation.metrics())
    releases = [release for entry in entries(federation.out) for release in entry.get("releases", [])]
    sizes = {len(release["committee"]) for release in releases}
    assert {0} < sizes <= {0, 3, 4}  # a pair that knows its own two of five is sent the mean of all others
    assert not any("committees" in line for line in federation.metrics())
    assert federation.out.stat().st_mode & 0o777 == 0o700
    taken = federation.server / "runs"
    bank = federation.out / "state" / "bank"
    assert sum("its model and profile are deleted" in one.said for one in forget(taken, 3)) >= 1
    assert not list(bank.glob(f"client-{numbers[3]:05d}-*"))
    assert len(list(bank.glob("client-*"))) == len(SITES) - 1


def test_flowers_simulation_gives_the_same_bytes(local: Path, tmp_path: Path) -> None:
    config = load_config(local / "config.toml", ["engine=flower-simulation"])
    results = train(config, tmp_path / "run")
    for path in (local / "models").glob("*.safetensors"):  # with those that each client uses
        assert (tmp_path / "run" / "models" / path.name).read_bytes() == path.read_bytes()
    assert results["peer_frequency"] == json.loads((local / "results.json").read_text())["peer_frequency"]


class Missing(LocalExchange):
    """The local engine in which some updates simply never came."""

    came: dict[int, list[int]]

    def train(self, tasks: Iterable[TrainTask]) -> Iterator[Update | Failure]:
        yield from super().train(task for task in tasks if task.client in self.came[task.round])


@pytest.mark.slow
def test_faults_cost_only_the_updates_they_hit(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation.write_config("faults", cohort=4)
    plan = cohorts(federation, tmp_path / "plan")
    hurried = ("--deadline", "60", "--patience", "120")
    federation.begin(*hurried)
    federation.wait_for_round(1)

    # Round 2: a site is killed while it trains; three of four are left. It comes back at once.
    first = plan[2][0]
    wait(lambda: training_now(federation, 2), 60, "round 2")
    federation.kill(f"site_{first}")
    federation.join(first)
    federation.wait_for_round(2)

    # Round 3: the program that serves the run is killed.
    wait(lambda: training_now(federation, 3), 60, "round 3")
    os.kill(federation.serving_pid(), signal.SIGKILL)
    assert federation.ended(120) == 2
    assert "--resume" in federation.log("run")
    assert "interrupted" in federation.status()["runs"]["faults"]["line"]
    federation.begin("--resume", *hurried)
    federation.wait_for_round(3)

    # Round 4: the SuperLink is killed, with everything that it started.
    wait(lambda: training_now(federation, 4), 60, "round 4")
    federation.kill("server")
    assert federation.ended(180) == 2
    federation.start_server()
    federation.wait_for_sites(len(SITES), 90)

    # Round 4 again, from the checkpoint; round 5: two sites are gone, and two are too few.
    federation.begin("--resume", *hurried)
    federation.wait_for_round(4)
    gone = plan[5][:2]
    wait(lambda: training_now(federation, 5), 60, "round 5")
    for number in gone:
        federation.kill(f"site_{number}")
    federation.wait_for_round(5)
    for number in gone:
        federation.join(number)

    # Round 6: a site cannot read its images; the path of the file, which names a patient, is in its error.
    failing = next(number for number in plan[6] if number not in gone)
    store = federation.root / "stores" / PLANTED / f"client_{failing}" / "images.npy"
    store.rename(store.with_suffix(".away"))
    federation.wait_for_round(6)
    store.with_suffix(".away").rename(store)
    assert federation.ended(300) == 0, federation.log("run")

    found = federation.metrics()
    took = accepted(found)
    assert took[1] == sorted(plan[1])
    assert took[2] == sorted(set(plan[2]) - {first})
    for round in (3, 4):  # a site may be late: killed before, or still waiting for what the dead program was sending
        assert len(took[round]) >= 3
    assert found[4]["void"]
    assert not set(gone) & set(took[5])
    assert failing not in took[6]
    assert "DataError" in found[5]["rejected"][str(failing)]
    assert PLANTED in federation.log(f"site_{failing}")
    assert PLANTED.encode() not in federation.bytes_of_server()

    def exchange(config: Any, classes: int, *rest: Any) -> LocalExchange:
        clients, folder, watch = rest
        missing = Missing(clients, folder.client_states, PastStates(folder.past_states), watch)
        missing.came = took
        return missing

    monkeypatch.setattr(training, "_exchange", exchange)
    train(load_config(federation.config), tmp_path / "survivors")
    assert (federation.out / "models" / "last.safetensors").read_bytes() == (
        tmp_path / "survivors" / "models" / "last.safetensors"
    ).read_bytes()


def cohorts(federation: Federation, out: Path) -> dict[int, list[int]]:
    """Return the cohort of each round: who is asked depends on the seed alone."""
    train(load_config(federation.config), out)
    return {line["round"]: line["cohort"] for line in lines(out)}


def training_now(federation: Federation, round: int) -> bool:
    """Return whether the tasks of a round are out."""
    return any(entry["kind"] == "send" and entry["round"] == round for entry in entries(federation.out))


def asked_to_train(federation: Federation, client: int) -> bool:
    """Return whether a task for a client has gone out."""
    return any(release["to"] == client for entry in entries(federation.out) for release in entry.get("releases", []))


def entries(out: Path) -> list[dict[str, Any]]:
    """Return what the ledger says."""
    ledger = out / "state" / "ledger.jsonl"
    return [json.loads(line)["entry"] for line in ledger.read_text().splitlines()] if ledger.exists() else []


def supernodes_say(federation: Federation, home: Path, cases: dict[str, tuple[str, ...]]) -> None:
    """Start a SuperNode with the arguments of each case, and wait until each says what is wanted of it."""
    from fedperl.engines.flower.environment import environment

    started = []
    for number, case in enumerate(cases.values()):
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{federation.port}", "--port", str(free_port()), *case]
        with (home / f"{number}.log").open("wb") as log:
            started.append(
                subprocess.Popen(
                    command,
                    env=environment(home / f"flower_{number}"),
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
    try:
        for number, said in enumerate(cases):
            wait(partial(says, home / f"{number}.log", said), 60, said)
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def says(log: Path, text: str) -> bool:
    """Return whether a log has a text."""
    return text in log.read_text(errors="replace")


def in_plain_text(port: int) -> bytes:
    """Return what the server answers to a request without TLS."""
    with socket.create_connection(("127.0.0.1", port), timeout=300) as line:
        line.sendall(b"POST /v1/fleet/activate-node HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            return line.recv(200)
        except OSError:
            return b""


def lines(out: Path) -> list[dict[str, Any]]:
    """Return the rounds of a run."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
