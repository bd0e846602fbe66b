"""`fedperl paper` from the command to the files, on runs of seconds; the whole of it in the slow tier."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fedperl.config import config_hash, resolve
from fedperl.errors import ConfigError, RunError
from fedperl.paper.artefacts import ARTEFACTS
from fedperl.paper.making import MADE, make_paper, plan_paper, progress
from fedperl.paper.runs import TASKS, Scale, find_scale, paper_runs
from fedperl.suite import Suite, plan_of
from tests.conftest import small_store

SHORT = """
about = "Seconds: for tests."
[settings]
threads = 1
data = { size = 16, scale = 0.004 }
model = { net = "small_cnn" }
objective = { class_weights = "none" }
peers = { warmup = 1 }
federation = { rounds = 5, steps = 1, batch = 4 }
[methods.fedirm.objective]
start = 1
[poc.all]
threads = 1
data = { size = 16, scale = 0.004 }
model = { net = "small_cnn" }
peers = { warmup = 1 }
federation = { rounds = 2, steps = 1, batch = 4 }
partition = { kind = "iid", clients = 4 }
optimizer = { kind = "adam" }
"""


@pytest.fixture(name="short", scope="module")
def _short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("paper") / "short.toml"
    path.write_text(SHORT)
    return path


@pytest.fixture(name="made", scope="module")
def _made(short: Path) -> Path:
    """Two figures and what they are made from."""
    command = [sys.executable, "-m", "fedperl", "paper", "figure2", "early_late", "--scale", str(short), "--out"]
    done = subprocess.run([*command, str(short.parent / "runs")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Seconds: for tests." in done.stdout
    return short.parent / "runs"


def test_a_figure_is_written_in_each_of_its_forms(made: Path) -> None:
    names = {path.name for path in (made / MADE).iterdir()}
    wanted = {f"{name}.{kind}" for name in ("figure2", "early_late") for kind in ("svg", "png", "tex", "md", "csv")}
    assert names == wanted | {f"figure2-early_late.{kind}" for kind in ("html", "md", "tex")}
    page = (made / MADE / "figure2-early_late.html").read_text()
    assert "Seconds: for tests." in page
    assert page.count("data:image/svg+xml;base64,") == 2
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert (made / MADE / "figure2.png").read_bytes().startswith(b"\x89PNG")
    assert "Seconds: for tests." in (made / MADE / "figure2.tex").read_text()


def test_the_same_command_trains_nothing_twice_and_writes_the_same(made: Path, short: Path) -> None:
    before = {path: path.read_bytes() for path in (made / MADE).iterdir()}
    results = {path: path.stat().st_mtime_ns for path in made.rglob("results.json")}
    assert len(results) == 3
    paper = plan_paper(["figure2", "early_late"], scale=str(short), out=made)
    assert [(one.name, done, every) for one, done, every in progress(paper)] == [
        ("figure2", 2, 2),
        ("early_late", 1, 1),
    ]
    told: list[str] = []
    make_paper(paper, say=told.append)
    assert len(told) == 2
    assert {path: path.stat().st_mtime_ns for path in made.rglob("results.json")} == results
    assert {path: path.read_bytes() for path in (made / MADE).iterdir()} == before


def test_drawn_images_that_were_deleted_are_drawn_again(made: Path, short: Path) -> None:
    before = (made / MADE / "figure2.csv").read_bytes()
    (made / "_images").rename(made / "_elsewhere")
    make_paper(plan_paper(["figure2", "early_late"], scale=str(short), out=made))
    assert (made / MADE / "figure2.csv").read_bytes() == before
    (made / "_elsewhere").rename(made / "_images")


def test_other_settings_are_refused_and_nothing_is_lost(made: Path, short: Path) -> None:
    paper = plan_paper(["early_late"], scale=str(short), out=made, overrides=["optimizer.lr=0.5"])
    assert "optimizer.lr=0.5" in paper.about
    with pytest.raises(RunError, match="optimizer.lr"):
        make_paper(paper)
    assert (made / MADE / "figure2-early_late.html").exists()


def test_a_damaged_run_is_named_and_the_rest_is_made(made: Path, short: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "runs")
    (tmp_path / "runs/server-ssfl/seed-1/curves.json").write_text("{}")
    paper = plan_paper(["figure2", "early_late"], scale=str(short), out=tmp_path / "runs")
    with pytest.raises(RunError, match=r"not made: figure2; server: SSFL: .*curves.json"):
        make_paper(paper)
    assert "early_late" in (tmp_path / "runs" / MADE / "figure2-early_late.html").read_text()


def test_what_is_missing_is_said_before_training(short: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(f'unseen = "{tmp_path}/nothere"\n{short.read_text()}')
    with pytest.raises(ConfigError, match="nothere"):
        make_paper(plan_paper(["table9"], scale=str(tmp_path / "own.toml"), out=tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


def test_all_that_is_missing_is_said_at_once(short: Path, tmp_path: Path) -> None:
    net = 'model = { net = "small_cnn"'
    text = short.read_text().replace(net, f'{net}, weights = "nowhere/a.safetensors"', 1)
    text += '[methods.ssfl]\nmodel.weights = "nowhere/b.safetensors"\n[methods.upper]\ndata.source = "nowhere/store"\n'
    (tmp_path / "own.toml").write_text(f'unseen = "{tmp_path}/nothere"\n{text}')
    with pytest.raises(ConfigError, match="a.safetensors") as error:
        make_paper(plan_paper(["table2", "table9"], scale=str(tmp_path / "own.toml"), out=tmp_path / "runs"))
    assert all(missing in str(error.value) for missing in ("b.safetensors", "nowhere/store", "nothere"))
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "text",
    [
        "peers.T=3",
        "scenario.labels=clients",
        "federation.cohort = 2",
        "federation={cohort=5}",
        "federation={rounds=3, exclude=[1]}",
        " peers = { T = 4 }",
    ],
)
def test_what_makes_one_row_another_cannot_be_set(short: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="a row of the tables"):
        plan_paper(["table2"], scale=str(short), overrides=[text])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[methods.fedirmm]", "did you mean 'fedirm'"),
        ("[poc.cifar10_idd]", "did you mean 'cifar10_iid'"),
        ("outlier = 10", "none of the 10 clients"),
    ],
)
def test_a_scale_that_means_nothing_is_refused(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "own.toml").write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=message):
        find_scale(str(tmp_path / "own.toml"))


@pytest.mark.slow
def test_what_failed_is_named_and_the_rest_is_made(short: Path, tmp_path: Path) -> None:
    """Clients that are excluded from a federation of ten cannot have the labels: the scenario of few fails."""
    text = short.read_text() + "\n[methods.fedirm.federation]\nexclude = [1]\n"
    (tmp_path / "broken.toml").write_text(text)
    paper = plan_paper(["figure8", "early_late"], scale=str(tmp_path / "broken.toml"), out=tmp_path / "runs")
    few = [point for point in paper.plan.points if point.run.name in ("FedPerl T=2", "few: FedIRM 30%")]
    small = type(paper)(
        paper.artefacts, type(paper.plan)(paper.plan.suite, few, paper.plan.out), paper.scale, paper.about
    )
    with pytest.raises(RunError, match=r"not made: figure8; few: FedIRM 30%.*labelled_clients"):
        make_paper(small)
    assert (tmp_path / "runs" / MADE / "early_late.svg").exists()


@pytest.mark.parametrize("scale", ["tiny", "small", "full"])
def test_every_run_of_every_scale_resolves_and_each_is_its_own(scale: str, tmp_path: Path) -> None:
    size = find_scale(scale)
    runs = paper_runs(size)
    plan = plan_of(Suite(name="x", baseline="SSFL", seeds=(1,), runs=tuple(runs.values())), tmp_path, scale)
    hashes: dict[str, str] = {}
    for job in plan.jobs:
        same = hashes.setdefault(config_hash(job.config), job.name)
        assert same == job.name, f"{same} and {job.name} are one run under two names"
    wanted = {run for one in ARTEFACTS.values() for run in one.runs}
    assert wanted == set(runs), "a run that no table or figure uses, or the other way round"


def test_settings_of_the_papers_rows() -> None:
    runs = paper_runs(Scale())
    assert runs["gated similarity 95"].settings["gate"] == {"rho": 0.95}
    assert runs["raw gated validation 75"].method == "fedperl_gated_validation_raw"
    assert runs["FedPerl raw T=4"].settings["peers"] == {"T": 4}
    assert runs["server: FedMatch+"].settings["scenario"] == {"labels": "server"}
    assert runs["without outlier: Upper"].settings["federation"] == {"exclude": [8]}
    assert runs["few: FedIRM 100%"].settings["federation"] == {"cohort": 10, "quorum": 2}
    assert runs["few: FedPerl 30%"].settings["federation"] == {"cohort": 3, "quorum": 2}


@pytest.mark.parametrize(
    ("names", "scale", "message"),
    [
        (["tabel2"], "tiny", "did you mean 'table2'"),
        (["all"], "tinny", "did you mean 'tiny'"),
        (["all"], "missing.toml", "no such file"),
    ],
)
def test_unknown_names(names: list[str], scale: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_paper(names, scale=scale)


def test_a_scale_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("abuot = 'x'\n")
    with pytest.raises(ConfigError, match="abuot"):
        plan_paper(["all"], scale=str(tmp_path / "own.toml"))


def test_seeds_of_a_scale_are_checked(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("seeds = [-1]\n")
    with pytest.raises(ConfigError, match="seeds"):
        plan_paper(["figure2"], scale=str(tmp_path / "own.toml"))


def test_a_federation_of_three_has_rounds_of_two() -> None:
    runs = paper_runs(Scale(clients=3, outlier=None))
    assert runs["few: FedPerl 30%"].settings["federation"] == {"cohort": 2, "quorum": 2}


def test_the_full_scale_names_the_store_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fedperl", "paper", "early_late", "--seeds", "1", "--quiet"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "stores/skin224: not a store, store.json is missing" in done.stderr
    assert "Traceback" not in done.stderr
    small_store().save(tmp_path / "stores" / "skin224")
    with pytest.raises(
        ConfigError, match="stores/skin224: holds images of 16 px; the scale's runs have data.size = 224"
    ):
        make_paper(plan_paper(["early_late"], scale="full"), workers=1, say=print)


def works(group: int) -> bool:
    """Return whether there is a process of a group that has not ended."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state != "Z":
                return True
    return False


@pytest.mark.slow
def test_all_of_it_survives_a_kill(tmp_path: Path) -> None:
    """Every table and figure, the command killed in the middle and given again."""
    (tmp_path / "short.toml").write_text(SHORT)
    command = [sys.executable, "-m", "fedperl", "paper", "all", "--scale", str(tmp_path / "short.toml")]
    command += ["--out", str(tmp_path / "runs")]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(list(tmp_path.glob("runs/*/seed-1/results.json"))) < 3:
        assert first.poll() is None
        time.sleep(0.5)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    until = time.monotonic() + 300
    while works(first.pid):  # a worker ends by itself, with the round it is in
        assert time.monotonic() < until
        time.sleep(0.1)
    there = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/seed-1/results.json")}
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(path.stat().st_mtime_ns == made for path, made in there.items())
    folder = tmp_path / "runs" / MADE
    for one in ARTEFACTS.values():
        assert (folder / f"{one.name}.md").stat().st_size > 100
        assert (folder / f"{one.name}.tex").exists()
    (answers,) = (tmp_path / "runs/ssfl/seed-1/evaluations").glob("paper-*-global_best.json")
    assert json.loads(answers.read_text())["images"] == 2000


def test_settings_of_the_proof_of_concept_by_task_and_method() -> None:
    poc = {"all": {"seed": 1}, "fmnist_noniid": {"seed": 2}, "upper": {"seed": 3}, "fmnist_noniid upper": {"seed": 4}}
    runs = paper_runs(Scale(poc=poc))
    names = [f"{task}: {row}" for task in TASKS for row in ("FedAvg-SL", "FedMatch")]
    found = {name: runs[name].settings["seed"] for name in names}
    assert found == {
        "cifar10_iid: FedAvg-SL": 3,
        "cifar10_iid: FedMatch": 1,
        "cifar10_noniid: FedAvg-SL": 3,
        "cifar10_noniid: FedMatch": 1,
        "fmnist_noniid: FedAvg-SL": 4,
        "fmnist_noniid: FedMatch": 2,
    }


def test_the_full_proof_of_concept_is_fedmatchs() -> None:
    runs = paper_runs(find_scale("full"))
    for name in (name for name in runs if name.split(": ")[0] in TASKS):
        config = resolve(runs[name].settings | {"method": runs[name].method})
        stream, all_labels = name.startswith("fmnist"), name.endswith("-SL")
        federation = config.federation
        assert (federation.rounds, federation.cohort) == ((100, 10) if stream else (200, 5))
        assert federation.steps == ((68 if stream else 54) if all_labels else 5)
        assert (federation.batch, federation.unlabelled_batch) == (10, 125 if stream else 98)
        assert config.objective.labelled_weight == (1 if all_labels else 10)
        assert (config.optimizer.kind, config.optimizer.lr, config.optimizer.momentum) == ("sgd", 1e-3, 0)
        assert (config.model.net, config.model.init_scale, config.views.weak) == ("resnet9", 1.2, "none")
        assert config.objective.tau == (0.8 if "UDA" in name else 0.85)
        assert config.peers.every == 1
        assert config.objective.decomposed == ("FedMatch" in name or "sigma" in name)
