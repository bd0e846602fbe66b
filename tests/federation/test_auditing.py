"""The auditor in a run: committees swapped, rounds void, ledgers replayed; copies and impostors refused."""

import json
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedperl.config import load_config, resolve
from fedperl.errors import ConfigError
from fedperl.federation.auditing import Auditing, nearest
from fedperl.federation.averaging import Bounded, average
from fedperl.federation.known import Known
from fedperl.federation.ledger import Entry
from fedperl.federation.messages import TrainTask, Update
from fedperl.federation.screening import Screen, fingerprint, used_no_image
from fedperl.federation.server import Server
from fedperl.training import train
from tests.conftest import small_config, small_store
from tests.federation.test_server import answer, rounds, server
from tests.peers.test_auditor import Naive


def auditing(clients: int = 6, **sections: Any) -> Auditing:
    return Auditing(small_config(**sections), clients, {})


# Committees


def test_the_chosen_stay_where_nothing_is_solved_for() -> None:
    found = auditing().committee(0, [3, 1], [2, 4], dict.fromkeys(range(6), 1))
    assert (found.members, found.swapped) == ([3, 1], 0)


def test_the_next_similar_one_comes_in_where_they_would_be() -> None:
    audit, made = auditing(), dict.fromkeys(range(6), 1)
    audit.committee(0, [1, 2], [3, 4, 5], made)
    audit.committee(0, [2, 3], [1, 4, 5], made)
    found = audit.committee(0, [1, 3], [2, 4, 5], made)  # with {1, 2} and {2, 3} it would give all three
    assert (found.members, found.swapped) == ([1, 2], 1)  # which is known
    audit.committee(0, [1, 4], [], made)
    assert audit.committee(0, [3, 4], [], made).members == [3, 4]  # 1 + 4 less 1 + 2 plus 2 + 3
    found = audit.committee(0, [2, 4], [], made)
    assert (found.members, found.swapped) == ([], 2)


def test_committees_are_of_k_min_organisations() -> None:
    config = small_config(federation={"organisations": [[1, 2]], "cohort": 3})
    audit = Auditing(config, 6, {1: 1, 2: 1})
    assert audit.committee(0, [1, 2], [3], dict.fromkeys(range(6), 1)).members == [1, 3]
    three = Auditing(config.model_copy(update={"peers": config.peers.model_copy(update={"k_min": 3})}), 6, {1: 1, 2: 1})
    made = dict.fromkeys(range(6), 1)
    assert three.committee(0, [1, 2, 3], [4], made).members == [1, 3, 4]  # of 1, 2 and 3 nobody could solve for one
    assert three.committee(5, [1, 2, 3], [], made).members == []


def test_an_organisation_of_somebody_who_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"federation\.organisations names client 99; there are 5 clients"):
        train(small_config(federation={"organisations": [[0, 99]]}), tmp_path, store=small_store())


def test_committees_are_tried_in_order_and_none_ahead_of_time() -> None:
    def naive(pool: list[int], size: int, fewest: int) -> list[list[int]]:
        found = []
        for count in (size, size + 1, *range(size - 1, fewest - 1, -1)):
            places = sorted(combinations(range(len(pool)), count), key=lambda places: (sum(places), places))
            found += [[pool[place] for place in chosen] for chosen in places]
        return found

    for many, size in ((2, 2), (3, 2), (6, 2), (7, 4), (1, 2)):
        pool = list(range(10, 10 + many))
        assert list(nearest(pool, size, 2)) == naive(pool, size, 2)
    assert next(iter(nearest(list(range(100)), 30, 2))) == list(range(30))


def test_too_few_organisations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"audit\.coalition = 1: coalitions of 1 among 2 organisations"):
        auditing(2)


def test_aliases_neither_help_nor_hide_each_other(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"organisations": [[0, 1, 2]], "cohort": 6}, peers={"T": 2})
    rounds(s, 8)
    helped = 0
    for entry in s.ledger.entries():
        for release in entry.get("releases", []):
            own = {0, 1, 2} if release["to"] < 3 else {release["to"]}
            members = {k for k, _ in release["committee"]}
            assert not members & own
            assert not members or len({min(k, 3) if k < 3 else k for k in members}) >= 2
            helped += bool(members)
    assert helped


# A whole run against the naive auditor


@pytest.mark.parametrize("coalition", [1, 2])
def test_nothing_in_a_ledger_can_be_solved_for(coalition: int, tmp_path: Path) -> None:
    sections: dict[str, Any] = {"federation": {"cohort": 4, "quorum": 4}, "peers": {"T": 3, "k_min": 3}}
    s = server(tmp_path, clients=7, audit={"coalition": coalition}, **sections)
    off = server(tmp_path / "off", clients=7, privacy="research", **sections)
    for each in (s, off):
        rounds(each, 25)
    assert solved(s, coalition) == 0
    assert solved(off, coalition) > 0
    swaps = [entry for entry in s.ledger.entries() if entry["kind"] == "send"]
    assert any(release["committee"] for entry in swaps for release in entry["releases"])


def solved(s: Server, coalition: int) -> int:
    naive = Naive({k: k for k in range(7)}, coalition)
    for entry in s.ledger.entries():
        for release in entry.get("releases", []):
            if release["committee"]:
                naive.release({(k, made): Fraction(1) for k, made in release["committee"]}, release["to"])
        if entry["kind"] == "receive" and not entry["void"]:
            naive.release({(int(k), entry["round"]): Fraction(1) for k in entry["weights"]}, None)
    return sum(naive.solvable(rows, group) for group, rows in naive.sent.items())


def test_a_resumed_auditor_decides_as_the_one_that_went_on(tmp_path: Path) -> None:
    s = server(tmp_path, clients=8, federation={"cohort": 4})
    for round in range(1, 20):
        tasks = list(s.plan(round))
        again = Auditing(s.config, 8, {})
        before = [e for e in s.ledger.entries() if e["round"] < round]
        again.replay(before, s._made().items())
        for release in sent(s, round)["releases"]:  # as they were chosen, they may go out
            members = [k for k, _ in release["committee"]]
            if members:
                assert again.committee(release["to"], members, [], s._made()).members == members
        s.absorb(answer(task) for task in tasks)
        assert s.audit is not None
        replayed = Auditing(s.config, 8, {})
        replayed.replay(s.ledger.entries(), s._made().items())
        for client in range(8):
            others = [k for k in s._made() if k != client]
            for a in others:
                for b in others:
                    if a < b:
                        row = {(a, s._made()[a]): 1, (b, s._made()[b]): 1}
                        assert replayed.models.refuses(row, client) == s.audit.models.refuses(row, client)


def sent(s: Server, round: int) -> Entry:
    return next(e for e in s.ledger.entries() if e["kind"] == "send" and e["round"] == round)


def test_a_repeated_round_with_fewer_survivors_is_void(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 4})
    tasks = list(s.plan(1))
    s.absorb(answer(task) for task in tasks)
    ledger = s.ledger
    second = server(tmp_path / "second", federation={"cohort": 4})  # nothing was committed of the first life
    assert second.audit is not None
    second.audit.replay(ledger.entries(), [])
    summary = second.absorb(answer(task) for task in list(second.plan(1))[:3])
    assert summary.void  # the old model less the new one is the fourth client's
    assert second.model.round == 0
    assert not second.bank.records


def test_relations_are_audited_class_by_class(tmp_path: Path) -> None:
    audit = auditing()
    first = {0: [(1, 1), (2, 1), (3, 1)], 1: [(1, 1), (2, 1)]}
    assert audit.related(0, first) == first
    second = {0: [(1, 2), (2, 1), (3, 1)], 1: [(1, 2), (2, 2)]}
    found = audit.related(0, second)
    assert found[1] == second[1]  # both changed
    assert found.get(0) != second[0]  # one changed: the difference would be its own
    assert audit.related(0, {2: [(1, 1)]}) == {}


# Updates that hide nobody


def test_an_update_that_changes_nothing_hides_nobody(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 4})
    tasks = list(s.plan(1))
    null = replace(answer(tasks[0]), state={name: tensor.clone() for name, tensor in tasks[0].model.state.items()})
    null.state["bn.running_mean"] += 1.0  # statistics alone are no training
    summary = s.absorb([null, *(answer(task) for task in tasks[1:]), null])
    assert (summary.idle, summary.accepted) == ([tasks[0].client], sorted(summary.cohort))
    assert tasks[0].client not in s.bank.records
    assert tasks[0].client not in summary.weights
    assert not summary.void
    before = s.model
    tasks = list(s.plan(2))
    still = [replace(answer(t), state={n: x.clone() for n, x in t.model.state.items()}) for t in tasks]
    summary = s.absorb([*still[:2], *(answer(task) for task in tasks[2:])])  # two learnt something: too few
    assert (s.model is before, summary.void, summary.weights) == (True, False, {})
    s.teach = lambda state, _: {**state, "conv.weight": state["conv.weight"] + 1.0}
    s.absorb(replace(answer(t), state={n: x.clone() for n, x in t.model.state.items()}) for t in s.plan(3))
    assert torch.equal(s.model.state["conv.weight"], before.state["conv.weight"] + 1.0)  # the server goes on alone
    assert s.model.round == 3


def test_a_client_that_used_no_image_is_idle_though_its_weights_decayed(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 4})
    tasks = list(s.plan(1))
    numbers = {"loss": 0.01, "loss_unlabelled": 0.0, "loss_consistency": 0.0, "accepted": 0.0, "loss_proximal": 0.01}
    decayed = {n: x * 0.99 if x.is_floating_point() else x for n, x in tasks[0].model.state.items()}
    same = [replace(answer(task), state=dict(decayed), numbers=dict(numbers)) for task in tasks[:2]]
    summary = s.absorb([*same, *(answer(task) for task in tasks[2:])])
    assert (summary.idle, summary.rejected) == (sorted(task.client for task in tasks[:2]), {})
    assert set(s.bank.records) == set()  # two are too few
    assert used_no_image(numbers)
    assert not used_no_image(numbers | {"loss_consistency": 0.1})
    assert not used_no_image({"loss": 0.0})  # an objective of one's own


def test_another_answer_to_a_repeated_round_is_refused(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 5})
    first = [answer(task) for task in s.plan(1)]
    s.absorb(first)
    for repeats, rejected in ((True, 1), (False, 0)):
        second = server(tmp_path / str(repeats), federation={"cohort": 5})
        second.screen = Screen(repeats=repeats)
        second.screen.replay(s.ledger.entries())
        assert second.audit is not None
        second.audit.replay(s.ledger.entries(), [])
        tasks = {task.client: task for task in second.plan(1)}
        other = {n: x + 0.01 if x.is_floating_point() else x for n, x in first[0].state.items()}
        summary = second.absorb([replace(first[0], state=other), *first[1:]])
        assert len(summary.rejected) == rejected
        assert all("answered this round otherwise before" in why for why in summary.rejected.values())
        assert set(summary.rejected) <= tasks.keys()


@pytest.mark.parametrize(
    "which", ["another's of this round", "another's of an earlier one", "an earlier global model", "a running mean"]
)
def test_copies_are_refused(which: str, tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "running_average": 0.5})
    first = {task.client: answer(task) for task in s.plan(1)}
    s.absorb(first.values())
    one = dict(s.model.state)
    s.absorb(answer(task) for task in s.plan(2))
    resumed = server(tmp_path / "resumed", federation={"cohort": 6})
    assert resumed.screen is not None
    resumed.ledger, resumed.bank = s.ledger, s.bank
    resumed.restore(s.model)
    s.screen = resumed.screen  # what the ledger tells is enough
    tasks = list(s.plan(3))
    honest = [answer(task) for task in tasks]
    thief, robbed = honest[0], honest[1]
    stolen = {
        "another's of this round": robbed.state,
        "another's of an earlier one": first[robbed.client].state,
        "an earlier global model": one,
        "a running mean": s.shown.state,
    }[which]
    summary = s.absorb([*honest[1:], replace(thief, state=dict(stolen))])
    assert summary.rejected == {thief.client: "it is a copy of a model that was sent before"}


def test_the_same_upload_again_in_a_repeated_round_is_no_copy(tmp_path: Path) -> None:
    s = server(tmp_path)
    updates = [answer(task) for task in s.plan(1)]
    screen = Screen()
    screen.begin(s.model.state)
    assert screen.find_fault(updates[0]) is None
    assert screen.find_fault(updates[0]) is None
    assert screen.find_fault(replace(updates[0], round=2)) is not None
    assert fingerprint(updates[0].state) != fingerprint(updates[1].state)


def test_an_impostor_is_banked_and_never_helps(tmp_path: Path) -> None:
    s = server(tmp_path, clients=6, federation={"cohort": 6})
    rounds(s, 3)
    tasks = list(s.plan(4))
    s.absorb(impostor(task) if task.client == 2 else answer(task) for task in tasks)
    assert s.known[2].screened
    assert not any(about.screened for k, about in s.known.items() if k != 2)
    for task in s.plan(5):
        assert 2 not in s._summary.committees[task.client]
    s.restore(s.model)  # from the bank's files
    assert s.known[2].screened
    research = server(tmp_path / "research", privacy="research", federation={"cohort": 6})
    rounds(research, 3)
    research.absorb(impostor(task) if task.client == 2 else answer(task) for task in research.plan(4))
    assert not research.known[2].screened


def impostor(task: TrainTask) -> Update:
    """The weights of the global model in another order: nearly its profile, and nothing of what it knows."""
    update = answer(task)
    weight = update.state["conv.weight"]
    order = torch.randperm(weight.numel(), generator=torch.Generator().manual_seed(1))
    update.state["conv.weight"] = weight.flatten()[order].reshape(weight.shape)
    return update


def test_clipped_updates_are_what_is_averaged_banked_and_audited(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 5, "robust": "clip"})
    tasks = list(s.plan(1))
    start = s.model.state["conv.weight"].double()
    updates = [answer(task) for task in tasks]
    updates[0].state["conv.weight"] = tasks[0].model.state["conv.weight"] + 1e6
    s.absorb(updates)
    moves = sorted(float((u.state["conv.weight"].double() - start).norm()) for u in updates)
    banked = s.bank.get(tasks[0].client)["conv.weight"].double()
    assert float((banked - start).norm()) == pytest.approx(moves[2], rel=1e-5)
    mean = torch.stack([s.bank.get(t.client)["conv.weight"].double() for t in tasks]).mean(0)
    assert torch.allclose(s.model.state["conv.weight"].double(), mean, atol=1e-5)


@pytest.mark.parametrize("robust", ["trimmed_mean", "multi_krum"])
def test_robust_averages_in_a_run(robust: str, tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "quorum": 5, "robust": robust})
    tasks = list(s.plan(1))
    updates = [answer(task) for task in tasks]
    updates[0].state["conv.weight"] = tasks[0].model.state["conv.weight"] + 5.0
    summary = s.absorb(updates)
    assert not summary.void
    assert (tasks[0].client in summary.weights) == (robust == "trimmed_mean")
    assert s.absorb(answer(t) for t in list(s.plan(2))[:4]).void  # too few to leave any out


@pytest.mark.parametrize("aggregator", ["similarity", "distance", "fedavg"])
def test_shares_in_an_audited_average_are_coarse(aggregator: str, tmp_path: Path) -> None:
    """Nearly equal ones hide nothing from a least-squares attacker, and all from exact algebra."""
    s = server(tmp_path, federation={"aggregator": aggregator, "weights": "size", "cohort": 4})
    rounds(s, 4)
    shares = [w for e in s.ledger.entries() if e["kind"] == "receive" for w in e["weights"].values()]
    assert len(shares) == 16
    assert all(16 * share == pytest.approx(round(16 * share)) for share in shares)


@pytest.mark.parametrize(("trusted", "made"), [(2, False), (3, True)])
def test_an_average_of_too_few_trusted_ones_is_none(trusted: int, made: bool) -> None:
    config = small_config(scenario={"labels": "server"}, federation={"cohort": 6, "robust": "fltrust"})
    states = {k: {"w": torch.full((3,), float(k))} for k in range(5)}
    updates = Bounded(states, dict.fromkeys(range(trusted), 1.0))
    known = {k: Known(np.zeros(2)) for k in states}
    assert (average(config, updates, [9] * 5, [True] * 5, known, 1) is not None) is made
    research = config.model_copy(update={"privacy": "research"})
    assert average(research, updates, [9] * 5, [True] * 5, known, 1) is not None


def test_fltrust_takes_those_that_point_where_the_server_does(tmp_path: Path) -> None:
    s = server(tmp_path, scenario={"labels": "server"}, federation={"cohort": 6, "robust": "fltrust"})
    s.teach = lambda state, _: {**state, "conv.weight": state["conv.weight"] + 0.1}

    def moved(task: TrainTask, by: float) -> Update:
        update = answer(task)
        update.state["conv.weight"] = task.model.state["conv.weight"] + by + 0.01 * update.state["conv.weight"]
        return update

    tasks = list(s.plan(1))
    bad = tasks[0].client
    summary = s.absorb(moved(task, -1.0 if task.client == bad else 1.0) for task in tasks)
    assert sorted(summary.weights) == sorted(task.client for task in tasks if task.client != bad)
    assert [k for k, about in s.known.items() if about.screened] == [bad]
    assert not summary.void
    assert s.absorb(moved(task, -1.0) for task in s.plan(2)).void  # nobody may be trusted
    assert s.model.round == 1


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["audit.coalition=0"], "clients could solve for each other's models from their peers"),
        (["federation.quorum=2"], r"federation\.quorum = 2: .* wanted at least 3"),
        (["audit.coalition=2", "federation.quorum=3"], r"quorum = 3: .* wanted at least 4"),
        (["federation.cohort=2"], r"quorum = 3, as privacy = 'recommended' asks for, .*cohort = 2"),
        (["audit.coalition=2", "federation.cohort=5", "federation.quorum=4"], r"k_min = 2 with audit.coalition = 2"),
        (["peers.k_min=3"], "nobody would ever get a peer"),
        (["audit.keep_uploads=100"], "keeps every client's models"),
        (["federation.organisations=[[0, 1], [1, 2]]"], "wanted each client once"),
        (["privacy=hospital", "federation.cohort=4"], r"federation\.cohort = 4 under privacy = 'hospital'"),
        (["privacy=hospital", "peers.k_min=2"], r"k_min = 2 .* wanted at least 3"),
        (["privacy=hospital", "federation.quorum=3"], r"quorum = 3: .* wanted at least 4"),
        (["privacy=hospital", "audit.coalition=1"], r"audit\.coalition = 1 under privacy = 'hospital'"),
        (["privacy=hospital", "audit.coalition=0", "method=ssfl"], "audit.coalition = 0"),
        (["privacy=hospital", "federation.robust=none"], "wanted 'clip' or stronger"),
        (["privacy=hospital", "peers.batch_norm=mean"], "wanted 'receiver' or 'recalibrate'"),
        (["federation.robust=trimmed_mean", "federation.quorum=4"], "wanted a quorum of at least 5"),
        (["federation.robust=multi_krum", "federation.quorum=4"], "wanted a quorum of at least 5"),
        (["federation.robust=multi_krum", "federation.cohort=4"], r"quorum = 5, as federation\.robust = 'multi_krum'"),
        (["peers.k_min=1"], r"peers\.k_min = 1: .* wanted at least 2, or privacy = 'research'"),
        (["federation.robust=fltrust"], r"wanted scenario\.labels = 'server'"),
        (["federation.robust=clip", "peers.snapshot=false", "privacy=research"], r"peers\.snapshot = true"),
        (["peers.snapshot=false"], r"peers\.snapshot = false: a client could be sent"),
        (["peers.batch_norm=moment_match"], r"peers\.batch_norm = 'moment_match'"),
    ],
)
def test_settings_by_which_clients_could_solve_for_each_other(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


def test_presets_of_privacy() -> None:
    hospital = load_config(None, ["privacy=hospital"])
    assert (hospital.cohort, hospital.quorum, hospital.federation.robust) == (5, 4, "clip")
    assert (hospital.peers.T, hospital.peers.k_min, hospital.coalition) == (3, 3, 2)
    assert load_config(None, ["privacy=hospital", "peers.T=5"]).peers.T == 5
    assert load_config().coalition == 1
    for preset in ("paper", "authors_code"):
        paper = load_config(None, [f"preset={preset}"])
        assert (paper.privacy, paper.coalition) == ("research", 0)
    assert resolve({"privacy": "research", "audit": {"coalition": 1}}).coalition == 1


def test_who_helped_whom_stays_in_state_in_a_hospital(tmp_path: Path) -> None:
    config = small_config(privacy="hospital", federation={"cohort": 5, "rounds": 4})
    tmp_path.chmod(0o755)
    results = train(config, tmp_path)
    assert tmp_path.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    kept = [path for path in (tmp_path / "state").rglob("*") if path.is_file() and path.name != "lock"]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert results["totals"]["with_peer"] > 0
    assert results["peer_frequency"] == {}
    who = {"committees", "kept", "similarity", "swapped", "weights"}
    assert not any(line.keys() & who for line in lines)
    research = train(small_config(privacy="research", federation={"rounds": 3}), tmp_path / "open")
    told = [json.loads(line) for line in (tmp_path / "open" / "metrics.jsonl").read_text().splitlines()]
    assert all(line.keys() > who for line in told)
    assert any(line["similarity"] for line in told)
    assert research["peer_frequency"]
