"""What `make golden` is made of: cases, parts, differences, declared changes."""

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from fedperl.config import methods
from golden.cases import Case, read_cases
from golden.changes import Change, declared_since, read_changes, unused
from golden.compare import differences
from golden.reader import read_parts
from golden.sides import Side, run_cases

TREE = Path(__file__).parents[2]


def test_every_method_that_ships_has_a_case() -> None:
    cases = read_cases(TREE / "golden" / "cases").values()
    assert {case.table["settings"]["method"] for case in cases if case.kind == "core"} >= set(methods())


def test_each_is_spread_out_to_every_combination(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_text(
        '[base]\ndoes = "train"\n[base.settings]\nthreads = 1\n'
        '[cases.a]\neach.method = ["x", "y"]\neach."peers.T" = [2, 3]\nsettings.privacy = "research"\n'
        '[cases.b]\nrefused = true\nparts = ["models"]\n'
    )
    cases = read_cases(tmp_path)
    assert list(cases) == ["a: x, T 2", "a: x, T 3", "a: y, T 2", "a: y, T 3", "b"]
    assert cases["a: y, T 2"].table == {
        "does": "train",
        "settings": {"threads": 1, "privacy": "research", "method": "y", "peers": {"T": 2}},
    }
    assert cases["b"].refused
    assert cases["b"].parts == ("models",)


def test_the_shipped_cases_are_toml_that_names_no_two_alike() -> None:
    for file in (TREE / "golden" / "cases").glob("*.toml"):
        tomllib.loads(file.read_text())
    assert len(read_cases(TREE / "golden" / "cases")) > 100


@pytest.mark.parametrize(
    ("before", "after", "close", "places"),
    [
        ({"a": [1, 2.0]}, {"a": [1, 2.0]}, None, []),
        ({"a": [1, 2.0]}, {"a": [1, 2.0 + 1e-12]}, None, ["a[1]"]),
        ({"a": [1, 2.0]}, {"a": [1, 2.0 + 1e-12]}, 1e-5, []),
        ({"a": 1.0}, {"a": 1.1}, 1e-5, ["a"]),
        ({"a": 1}, {"a": True}, None, ["a"]),
        ({"a": 1}, {"b": 1}, None, ["a", "b"]),
        ({"a": [1]}, {"a": [1, 1]}, None, ["a"]),
        (float("nan"), float("nan"), None, []),
        (np.arange(2.0), np.arange(2.0), None, []),
        (np.array([0.0]), np.array([-0.0]), None, [""]),
        (np.arange(2.0), np.array([0.0, 1.0 + 1e-6]), 1e-5, []),
        (np.arange(2, dtype=np.float32), np.arange(2.0), 1e-5, [""]),
        (np.array([1]), np.array([2]), 10.0, [""]),
    ],
)
def test_differences(before: object, after: object, close: float | None, places: list[str]) -> None:
    assert [place for place, _ in differences(before, after, close)] == places


def test_changes_are_those_that_the_commit_does_not_have() -> None:
    head = "| cases | part | why |\n|---|---|---|\n"
    old = "| `method: *` | models | a step less |\n"
    new = "| `hospital: ssfl` | ledger | names the screen |\n"
    assert declared_since(head + old, head + old + new) == [Change("hospital: ssfl", "ledger", "names the screen")]
    assert Change("method: *", "models", "").covers("method: uda", "models")
    assert not Change("method: *", "models", "").covers("method: uda", "bytes")
    assert unused(read_changes(old + new), [("method: uda", "models")]) == read_changes(new)
    with pytest.raises(ValueError, match="line 1"):
        read_changes("| `method: *` | models |\n")


def test_parts_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    round = {"round": 1, "bytes_up": 7, "seconds": {"training": 3.0}, "validation": {"0": {"accuracy": 0.5}}}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(round) + "\n")
    entry = {"previous": "", "entry": {"kind": "send", "releases": [{"to": 0, "bytes": 9}], "prints": {"0": "abc"}}}
    (tmp_path / "state" / "ledger.jsonl").write_text(json.dumps(entry) + "\n")
    (tmp_path / "results.json").write_text(json.dumps({"config": "abc", "test": 0.25, "totals": {"bytes_up": 7}}))
    (tmp_path / "curves.json").write_text(json.dumps({"sums": [1]}))
    assert read_parts(tmp_path) == {
        "bytes": [{"bytes_up": 7}, {"releases": [{"bytes": 9}]}, {"bytes_up": 7}],
        "ledger": [{"kind": "send", "releases": [{"to": 0}], "prints": {"0": "abc"}}],
        "metrics": [{"round": 1, "validation": {"0": {"accuracy": 0.5}}}],
        "results": {"test": 0.25, "totals": {}},
        "curves": {"sums": [1], "accuracy_over_rounds": {"0": [[1, 0.5]]}},
    }
    (tmp_path / "refused.txt").write_text("ConfigError: no\n\ntraceback")
    assert read_parts(tmp_path) == {"refused": "ConfigError: no"}


DRIVER = """
class REFUSAL(Exception):
    pass

def run(case, folder, scratch):
    if case["ends"] == "refused":
        raise REFUSAL("not so")
    if case["ends"] == "fails":
        raise KeyError("a fault of the driver")
    (folder / "results.json").write_text('{"test": 1}')
"""


def test_a_case_that_fails_is_no_refusal_and_leaves_nothing(tmp_path: Path) -> None:
    shutil.copytree(TREE / "golden", tmp_path / "tree" / "golden")
    (tmp_path / "tree" / "golden" / "driver.py").write_text(DRIVER)
    side = Side(tmp_path / "tree", tmp_path / "out")
    cases = {ends: Case(ends, "some", {"ends": ends}) for ends in ("well", "refused", "fails")}
    run_cases(side, [cases["well"], cases["refused"]], 1, lambda: None)
    assert read_parts(side.folder(cases["well"])) == {"results": {"test": 1}}
    assert read_parts(side.folder(cases["refused"])) == {"refused": "REFUSAL: not so"}
    with pytest.raises(RuntimeError, match=r"(?s)'fails'.*a fault of the driver"):
        run_cases(side, [cases["fails"]], 1, lambda: None)
    assert not side.folder(cases["fails"]).exists()
    assert len(list(side.out.iterdir())) == 2


@pytest.mark.parametrize("words", [["no_such_commit"], ["HEAD", "--only", "no such case"], ["HEAD", "--workers", "0"]])
def test_words_that_compare_nothing_are_refused(words: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", "golden", *words], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 2
    assert words[-1] in done.stderr
    assert "Traceback" not in done.stderr


def test_tables_of_a_page_lose_what_the_clock_says(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<table><tr><th>run</th><th>MB</th><th>all, s</th></tr><tr><td>a</td><td>1.5</td><td>3.2</td></tr></table>"
        "<table><tr><td>SHA-256 of results.json</td><td>abc</td></tr><tr><td>lr</td><td>0.1</td></tr></table>"
    )
    (tmp_path / "printed.txt").write_text("│ 0.5 │\nReport in x\n")
    assert read_parts(tmp_path) == {"tables": ["run | MB", "a | 1.5", "lr | 0.1", "│ 0.5 │"]}
