"""Numbers that mean nothing outside of one run: drawn once, kept from others, and the same clients are meant."""

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedperl.config import load_config
from fedperl.engines.flower.forgetting import MEMBERS, takes_part
from fedperl.engines.flower.numbering import draw_numbers, numbers_of, registered_number, renumbered
from fedperl.engines.flower.standing import lagging
from fedperl.errors import RunError
from fedperl.federation.run_folder import RunFolder

REGISTERED = [0, 1, 2, 5, 9, 11]


def test_every_run_draws_its_own_once_and_keeps_it_to_itself(tmp_path: Path) -> None:
    found = {tuple(draw_numbers(tmp_path / str(run), REGISTERED).items()) for run in range(6)}
    assert len(found) > 1
    for numbers in map(dict, found):
        assert sorted(numbers) == sorted(numbers.values()) == REGISTERED
        assert [registered_number(numbers, numbers[number]) for number in REGISTERED] == REGISTERED
        assert registered_number(numbers, 4) == 4
    first = numbers_of(tmp_path / "0")
    (tmp_path / "0" / "config.toml").touch()  # it has begun
    assert draw_numbers(tmp_path / "0", [*REGISTERED, 12]) == first
    assert (tmp_path / "0" / "state" / "numbers.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "0" / "state").stat().st_mode & 0o777 == 0o700
    assert numbers_of(tmp_path / "none") == {}
    draw_numbers(tmp_path / "few", [0])
    assert sorted(draw_numbers(tmp_path / "few", REGISTERED)) == REGISTERED  # nothing was made of the first start


@pytest.mark.parametrize("text", ["{", "[]", '{"0": "a"}', '{"0": 1, "1": 1}', '{"0": 1}'])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "numbers.json").write_text(text)
    with pytest.raises(RunError, match="numbers.json"):
        numbers_of(tmp_path)


def test_every_setting_that_names_clients_means_the_same_ones() -> None:
    config = load_config(
        None,
        [
            "federation.exclude=[2, 7]",
            "federation.organisations=[[0, 5], [9, 11]]",
            "peers.exclude=[1]",
            "scenario.labelled_clients=[1, 9]",
        ],
    )
    found = renumbered(config, {0: 5, 5: 11, 11: 0, 9: 9, 1: 2, 2: 1})
    assert found.federation.exclude == (1, 7)
    assert found.federation.organisations == ((0, 9), (5, 11))
    assert found.peers.exclude == (2,)
    assert found.scenario.labelled_clients == (2, 9)
    assert renumbered(config, {}) == config


def test_the_operator_is_told_the_registered_number() -> None:
    lines = [{"cohort": [3, 4], "rejected": {"3": "no update came back"}} for _ in range(2)]
    assert lagging(lines, {1: 3, 3: 1}) == ["client 1: no update in its last 2 tasks (no update came back)"]


def test_who_takes_part_is_asked_by_the_number_in_the_run(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.state.mkdir()
    (folder.state / MEMBERS).write_text(json.dumps({"run": "a", "members": {"3": {}}}))
    assert takes_part(folder, 3)
    assert not takes_part(folder, 1)
