"""The example of docs/extending.md, as printed there."""

import re
from pathlib import Path

import pytest

from fedperl.config import load_config
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.settings import Config
from fedperl.training import train

TEXT = (Path(__file__).parents[1] / "docs" / "extending.md").read_text()
SMALL = ["threads=1", "data.size=16", "model.net=small_cnn", "federation.rounds=3", "federation.steps=2"]
SMALL += ["federation.batch=4", "peers.warmup=1", "optimizer.lr=0.001"]


def block(name: str) -> str:
    """Return the code block of the page that names a file in its first line."""
    found = [b for b in re.findall(r"```\w+\n(.*?)```", TEXT, re.DOTALL) if b.startswith(f"# {name}")]
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(name="here")
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("entropy.py", "entropy.toml", "fedperl_strict.toml"):
        (tmp_path / name).write_text(block(name))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def config(here: Path, name: str = "entropy.toml", *more: str) -> Config:
    return load_config(here / name, [*SMALL, *more])


def test_the_example_is_of_thirty_lines_and_trains(here: Path, store: Store) -> None:
    assert len(block("entropy.py").splitlines()) <= 30
    one = train(config(here), here / "one", store=store)
    assert one["totals"]["with_peer"] > 0
    assert one["totals"]["rejected"] == 0
    other = train(config(here, "entropy.toml", "objective.options.weight=0.0"), here / "other", store=store)
    assert (here / "one/models/last.safetensors").read_bytes() != (here / "other/models/last.safetensors").read_bytes()
    assert other["totals"]["rejected"] == 0


def test_the_composition_trains(here: Path, store: Store) -> None:
    strict = config(here, "fedperl_strict.toml")
    assert (strict.peers.policy, strict.objective.thresholds, strict.gate.rho) == (
        "gated_similarity",
        "class_aware",
        0.9,
    )
    assert train(strict, here / "run", store=store)["totals"]["rejected"] == 0


def test_a_changed_file_is_not_gone_on_with(here: Path, store: Store) -> None:
    class Stopped(Exception):
        pass

    def stop(_: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        train(config(here), here / "run", store=store, watchers=[stop])
    source = (here / "entropy.py").read_text()
    (here / "entropy.py").write_text(source + "# changed\n")
    with pytest.raises(RunError, match="cannot go on"):
        train(config(here), here / "run", store=store, resume=True)
    (here / "entropy.py").write_text(source)
    train(config(here), here / "run", store=store, resume=True)


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        ("missing.py:Entropy", None, "missing.py cannot be read: No such file"),
        ("broken.py:Entropy", "import nothing_of_this_name\n", "broken.py cannot be run: ModuleNotFoundError"),
        ("empty.py:Entropy", "Entropy = 3\n", "empty.py has no class Entropy derived from Objective"),
    ],
)
def test_bad_files_are_named_before_the_first_round(
    here: Path, store: Store, kind: str, content: str | None, message: str
) -> None:
    if content is not None:
        (here / kind.partition(":")[0]).write_text(content)
    with pytest.raises(ConfigError, match=message):
        train(config(here, "entropy.toml", f"objective.kind={kind}"), here / "run", store=store)
    assert not (here / "run" / "config.toml").exists()


def test_an_unknown_kind_and_options_that_nobody_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'fixmatch'"):
        load_config(None, ["objective.kind=fixmach"])
    with pytest.raises(ConfigError, match=r"objective\.options are for an objective from a file"):
        load_config(None, ["objective.options.weight=1.0"])


BROKEN = """
import torch
from fedperl.learn.objectives import Losses, Objective

class Own(Objective):
    views = frozenset({VIEWS})

    def {NAME}(self, net, batch):
        {BODY}
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('x')", "no client has sent an update that could be used .*it failed with KeyError"),
        ("t = net(batch.labelled).sum(); return Losses(t, {'my_number': t.detach()})", "it failed with ValueError"),
        ("t = net(batch.labelled).sum() * float('nan'); return Losses(t, {})", "not finite"),
    ],
)
def test_a_run_in_which_nobody_can_train_ends_with_the_reason(
    here: Path, store: Store, body: str, message: str
) -> None:
    text = BROKEN.replace("{VIEWS}", "{'labelled'}").replace("{NAME}", "__call__").replace("{BODY}", body)
    (here / "own.py").write_text(text)
    with pytest.raises(RunError, match=message):
        train(config(here, "entropy.toml", "objective.kind=own.py:Own"), here / "run", store=store)
    assert not (here / "run" / "results.json").exists()


@pytest.mark.parametrize(
    ("views", "name", "message"),
    [("{'labelled', 'wek'}", "__call__", "views has 'wek'"), ("{'labelled'}", "other", "it has no __call__")],
)
def test_a_misspelt_view_or_method_is_refused(here: Path, store: Store, views: str, name: str, message: str) -> None:
    text = BROKEN.replace("{VIEWS}", views).replace("{NAME}", name).replace("{BODY}", "pass")
    (here / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=message):
        train(config(here, "entropy.toml", "objective.kind=own.py:Own"), here / "run", store=store)
