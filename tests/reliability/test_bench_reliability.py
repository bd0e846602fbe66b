"""The scoreboard is of trials that were made: what it says of each way to federate is so."""

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from fedperl.benchmarking import reliability
from fedperl.benchmarking.reliability.columns import FINAL, Averaged, Bare, Column, Ours, columns
from fedperl.benchmarking.reliability.faults import Fault, faults, inject, undisturbed
from fedperl.benchmarking.reliability.inputs import BAD, SUSPECT, BadInput, given, judge
from fedperl.benchmarking.reliability.model_files import GUARDED, PLAIN, damaged_models
from fedperl.benchmarking.reliability.table import FAULTS, INPUTS, MODEL_FILES, RECOVERED, inputs_table, totals_table
from fedperl.benchmarking.reliability.toy import CLIENTS, ROUNDS, STEP, apart, expected, honest, initial, length
from fedperl.cli.bench import bench_app
from fedperl.learn.state import State

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"


def bad(name: str) -> BadInput:
    (found,) = [one for one in BAD if one.name == name]
    return found


# The toy


def test_honest_clients_move_as_far_and_not_all_the_same_way() -> None:
    start = initial()
    states = [honest(start, 3, client) for client in range(CLIENTS)]
    assert [apart(state, start) for state in states] == pytest.approx([STEP] * CLIENTS, rel=1e-4)
    assert all(apart(one, other) > STEP / 10 for place, one in enumerate(states) for other in states[:place])
    assert length(start) == pytest.approx(1.0)
    assert apart({"a": torch.tensor([float("nan")])}, {"a": torch.zeros(1)}) == float("inf")
    assert apart({"a": torch.zeros(2)}, {"a": torch.zeros(1)}) == float("inf")


def test_the_plain_loop_keeps_its_model_where_too_few_come() -> None:
    lost = {(ROUNDS, client): "lost" for client in range(3)}
    few = expected(lost, quorum=4)  # type: ignore[arg-type]
    assert apart(few, expected({(ROUNDS, client): "lost" for client in range(CLIENTS)}, quorum=1)) == 0
    assert apart(few, expected(lost, quorum=3)) > STEP / 4  # type: ignore[arg-type]


# Bad inputs


@pytest.mark.parametrize("column", columns(), ids=lambda column: column.name)
def test_every_bad_input_is_bad_and_the_honest_one_is_not(column: Column, tmp_path: Path) -> None:
    start, answers = given(BadInput("nothing"))
    mean = {name: torch.stack([state[name] for _, state, _ in answers]).mean(0) for name in start}
    found = column.average(start, answers, SUSPECT, tmp_path)
    assert found.refused == ""
    assert apart(found.model, mean) < STEP / 1000
    for one in BAD:
        _, spoilt = given(one)
        assert len(spoilt) != CLIENTS or any(
            images != 20 or apart(state, honest(start, 2, client)) > 0 or state["head.weight"].dtype != torch.float32
            for client, state, images in spoilt
        ), one.name


def test_ours_refuses_or_bounds_all(tmp_path: Path) -> None:
    found = {one.name: judge(Ours(), one) for one in BAD}
    assert {name: outcome for name, (outcome, _) in found.items() if outcome != "refused"} == {
        "0 images, said by all": "ended",  # there is nobody to train
        "the change times a million": "bounded",
        "one client alone answers": "void",
    }
    assert "there are 0 clients" in found["0 images, said by all"][1]
    assert "not finite" in found["one value is NaN"][1]
    assert "(1, 1)" in found["a tensor of shape (1, 1), which broadcasts"][1]


@pytest.mark.parametrize("column", columns()[1:], ids=lambda column: column.name)
def test_without_guards_the_model_is_what_it_is_said_to_be(column: Column, tmp_path: Path) -> None:
    """What is told as silently accepted was looked at: not a number, far away, or one client's own."""
    model: Callable[[str], State] = lambda name: column.average(*given(bad(name)), SUSPECT, tmp_path).model  # noqa: E731
    assert not model("one value is NaN")["head.weight"].isfinite().all()
    assert apart(model("the change times a million"), initial()) > 1000 * STEP
    alone = given(bad("one client alone answers"))[1][0][1]
    assert apart(model("one client alone answers"), alone) < STEP / 1000
    wrong, right = (
        model("a tensor of shape (1, 1), which broadcasts"),
        column.average(*given(BadInput("")), 0, tmp_path),
    )
    assert apart(wrong, right.model) > STEP / 100
    assert judge(column, bad("a tensor is missing"))[0] == "ended"


class Deaf(Ours):
    """Ours, if it said of nobody that he was left out."""

    def average(self, *given: Any) -> Averaged:
        return Averaged(super().average(*given).model)


def test_what_is_not_named_counts_as_accepted(tmp_path: Path) -> None:
    assert judge(Deaf(), bad("one value is NaN"))[0] == "accepted"


# Faults


def one_of(name: str) -> Fault:
    return next(fault for fault in faults() if fault.name == name)


@pytest.mark.parametrize(
    ("column", "name", "outcome"),
    [
        (Ours(), "five of six answers are lost", "survived"),
        (Ours(), "the server is killed while it writes", "survived"),
        (Bare(), "five of six answers are lost", "corrupted"),
        (Bare(), "the server is killed while it writes", "crashed"),
    ],
)
def test_faults_end_as_they_are_told(column: Column, name: str, outcome: str, tmp_path: Path) -> None:
    clean = undisturbed(column, tmp_path / "clean")
    found = inject(column, one_of(name), clean, tmp_path / "fault")
    assert found is not None
    assert found.outcome == outcome
    assert found.restarted == ("killed" in name)
    assert found.same == (found.restarted and outcome == "survived")
    assert (tmp_path / "clean" / FINAL).read_bytes() == clean.model


def test_another_model_at_the_end_is_a_silent_corruption(tmp_path: Path) -> None:
    column = Ours()
    clean = undisturbed(column, tmp_path / "clean")
    other = type(clean)(clean.model[:-1] + b"\0", clean.record, clean.moments)
    found = inject(column, one_of("the server is killed"), other, tmp_path / "fault")
    assert found is not None
    assert found.outcome == "corrupted"


def test_what_writes_nothing_cannot_have_its_files_damaged(tmp_path: Path) -> None:
    column = Bare()
    column.writes = False
    clean = undisturbed(column, tmp_path / "clean")
    assert inject(column, one_of("the disk is full"), clean, tmp_path / "fault") is None
    names = [fault.name for fault in faults()]
    assert len(names) >= 80
    assert len(set(names)) == 11


def test_damaged_model_files(tmp_path: Path) -> None:
    found = damaged_models(tmp_path, 60)
    assert found[GUARDED] == {"refused": 60}
    assert found[PLAIN]["accepted"] > 0
    assert found[PLAIN].total() == 60


# The command and the document


def rendered(table: Any) -> str:
    out = StringIO()
    Console(file=out, width=130).print(table)
    return out.getvalue()


@pytest.mark.slow
def test_the_command_prints_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [one_of("a client's answer is lost"), one_of("the server is killed")]
    monkeypatch.setattr(reliability, "faults", lambda: iter(few))
    monkeypatch.setattr(reliability, "FILES", 20)
    said = CliRunner().invoke(bench_app, ["reliability", "--json"])
    assert said.exit_code == 0, said.output
    found = json.loads(said.output)
    ours = found["totals"]["fedperl"]
    assert ours["faults"] == {
        "injected": 2, "survived": 2, "stopped": 0, "crashed": 0, "corrupted": 0,
        "restarted": 1, "same": 1, "repeated": ours["faults"]["repeated"],
    }  # fmt: skip
    assert ours["inputs"] == {
        "tried": len(BAD), "refused": len(BAD) - 3, "void": 1, "bounded": 1, "ended": 1, "accepted": 0
    }  # fmt: skip
    assert found["model_files"]["fedperl"] == {"refused": 20}
    text = rendered(totals_table(found))
    for row in (*FAULTS, *INPUTS, *MODEL_FILES, RECOVERED):
        assert row in text


def test_the_document_has_the_tables_as_printed() -> None:
    """What does not depend on the moment of a kill is there word for word; of the rest, every row."""
    text = DOCUMENT.read_text()
    for row in (*FAULTS, *INPUTS, *MODEL_FILES, RECOVERED, *{fault.name for fault in faults()}):
        assert row in text, row
    if len(tried := columns()) == 3:
        outcomes = {c.name: {one.name: {"outcome": judge(c, one)[0]} for one in BAD} for c in tried}
        table = rendered(inputs_table({"columns": [column.name for column in tried], "inputs": outcomes}))
        assert "\n".join(line.rstrip() for line in table.strip().splitlines()) in text
