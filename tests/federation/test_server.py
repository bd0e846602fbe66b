"""Plan and absorb without any training: clients answer with the received model, moved a little."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.errors import ConfigError
from fedperl.evaluate import GroupCounts, binned_sums
from fedperl.federation.aggregate import coarse
from fedperl.federation.known import PROFILE
from fedperl.federation.ledger import Ledger, peer_frequency
from fedperl.federation.messages import Evaluation, Failure, TrainTask, Update
from fedperl.federation.server import Server
from fedperl.federation.state_files import StateFiles
from fedperl.learn.state import State
from fedperl.peers import AnonymizedPeer, RawPeers, committee_mean, profile, similarity_matrix, top_peers
from tests.conftest import small_config

INITIAL: State = {
    "conv.weight": torch.arange(12.0).reshape(4, 3),
    "bn.running_mean": torch.zeros(4),
    "bn.running_var": torch.ones(4),
    "bn.num_batches_tracked": torch.tensor(0),
}


def server(folder: Path, clients: int = 6, score: Any = None, **sections: Any) -> Server:
    ledger = Ledger(folder / "ledger.jsonl")
    ledger.open()
    config = small_config(**sections)
    return Server(
        config, [10 + k for k in range(clients)], 2, INITIAL, StateFiles(folder / "bank", "client"), ledger, score
    )


def answer(task: TrainTask, move: Callable[[State], None] = lambda state: None) -> Update:
    generator = torch.Generator().manual_seed(1000 * task.round + task.client)
    state = {
        name: t + 0.1 * torch.randn(t.shape, generator=generator) if t.is_floating_point() else t + 1 + task.client
        for name, t in task.model.state.items()
    }
    move(state)
    return Update(task.run, task.round, task.client, state, {"loss": 1.0})


def rounds(s: Server, n: int) -> None:
    for r in range(s.model.round + 1, s.model.round + n + 1):
        s.absorb(answer(task) for task in s.plan(r))


def test_average_is_the_mean_of_the_accepted(tmp_path: Path) -> None:
    s = server(tmp_path)
    updates = [answer(task) for task in s.plan(1)]
    summary = s.absorb(reversed(updates))  # the order of arrival does not matter
    assert summary.accepted == sorted(summary.cohort)
    assert not summary.void
    for name, tensor in s.model.state.items():
        stacked = torch.stack([u.state[name] for u in updates])
        if tensor.is_floating_point():
            assert torch.allclose(tensor, stacked.double().mean(0).float(), atol=1e-6)
        else:
            assert tensor == stacked.max()
            assert tensor.dtype == torch.int64
    assert sorted(s.bank.records) == summary.accepted


def test_weights_by_size(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"weights": "size"})
    updates = [answer(task) for task in s.plan(1)]
    s.absorb(updates)
    sizes = coarse([10.0 + u.client for u in updates])
    expected = sum(w * u.state["conv.weight"].double() for w, u in zip(sizes, updates, strict=True)) / sum(sizes)
    assert torch.allclose(s.model.state["conv.weight"].double(), expected, atol=1e-6)  # type: ignore[arg-type]


def _put(name: str, tensor: Any) -> Callable[[State], None]:
    return lambda state: state.__setitem__(name, tensor)


FAULTS = {
    "is missing": lambda state: state.pop("conv.weight"),
    "is not part of the model": _put("extra", torch.zeros(1)),
    "has shape (1, 3); wanted (4, 3)": _put("conv.weight", torch.zeros(1, 3)),
    "is torch.float64; wanted torch.float32": _put("conv.weight", torch.zeros(4, 3, dtype=torch.float64)),
    "is torch.float32; wanted torch.int64": _put("bn.num_batches_tracked", torch.tensor(1.0)),
    "tensor 'bn.running_mean' has values that are not finite": _put(
        "bn.running_mean", torch.tensor([0.0, float("nan"), 0.0, 0.0])
    ),
    "values that are not finite": _put("conv.weight", torch.full((4, 3), float("inf"))),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_bad_updates_are_rejected_named_and_the_rest_goes_on(tmp_path: Path, fault: str) -> None:
    s = server(tmp_path, federation={"cohort": 4})
    tasks = list(s.plan(1))
    bad = tasks[1].client
    summary = s.absorb(answer(t, FAULTS[fault]) if t.client == bad else answer(t) for t in tasks)
    assert fault in summary.rejected[bad]
    assert bad not in summary.accepted
    assert bad not in s.bank.records
    assert s.model.round == 1
    assert all(torch.isfinite(t).all() for t in s.model.state.values())


def test_profiles_do_not_depend_on_the_order_of_an_updates_tensors(tmp_path: Path) -> None:
    one, other = server(tmp_path / "a"), server(tmp_path / "b")
    one.absorb(answer(task) for task in one.plan(1))
    updates = [answer(task) for task in other.plan(1)]
    other.absorb(Update(u.run, 1, u.client, dict(reversed(u.state.items())), {}) for u in updates)
    for client, known in one.known.items():
        assert known.profile.tolist() == other.known[client].profile.tolist()


def test_too_few_leave_the_old_model(tmp_path: Path) -> None:
    s = server(tmp_path)
    rounds(s, 1)
    before, banked = s.model, dict(s.bank.records)
    tasks = list(s.plan(2))
    summary = s.absorb([answer(tasks[0]), answer(tasks[1])])
    assert summary.void
    assert summary.rejected == {tasks[2].client: "no update came back"}
    assert s.model is before
    assert s.bank.records == banked


def test_answers_to_other_rounds_runs_and_clients_are_refused(tmp_path: Path) -> None:
    s = server(tmp_path)
    tasks = list(s.plan(1))
    good = [answer(t) for t in tasks]
    stranger = next(k for k in range(6) if k not in [t.client for t in tasks])
    late = Update(s.run, 0, good[0].client, good[0].state, {})
    foreign = Update("other", 1, good[0].client, good[0].state, {})
    uninvited = Update(s.run, 1, stranger, good[0].state, {})
    summary = s.absorb([late, foreign, good[1], good[2], good[1], uninvited])
    assert summary.accepted == sorted([good[1].client, good[2].client])
    assert summary.rejected[stranger] == f"client {stranger} has no task in this round"
    assert summary.rejected[good[1].client] == "a second update in one round"
    assert summary.rejected[good[0].client].startswith("it answers run other")


def test_committees_are_the_most_similar_of_the_bank_at_the_start(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "quorum": 6})
    rounds(s, 2)
    known = {k: {n: s.bank.get(k)[n] for n in INITIAL} for k in range(6)}
    matrix = similarity_matrix(np.stack([profile(known[k]) for k in range(6)]))
    for task in s.plan(3):
        expected = top_peers(matrix, task.client, 2)
        assert s._summary.committees[task.client] == expected
        mean = committee_mean([known[k] for k in sorted(expected)], "receiver")
        assert isinstance(task.peer, AnonymizedPeer)
        assert task.peer.state.keys() == {"conv.weight"}
        assert torch.equal(task.peer.state["conv.weight"], mean["conv.weight"])


def test_no_peer_in_warm_up_though_everyone_is_known(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "quorum": 6}, peers={"warmup": 3})
    for r in range(1, 6):
        tasks = list(s.plan(r))
        assert all((task.peer is not None) == (r > 3) for task in tasks)
        s.absorb(answer(task) for task in tasks)


def test_no_peer_in_warm_up_or_with_few_profiles_or_for_a_newcomer(tmp_path: Path) -> None:
    s = server(tmp_path, clients=20, peers={"warmup": 3, "min_profiles": 4})
    for r in range(1, 4):
        tasks = list(s.plan(r))
        assert all(task.peer is None for task in tasks)
        s.absorb(answer(task) for task in tasks)
    for task in s.plan(4):
        assert (task.peer is not None) == (task.client in s.known)
    few = server(tmp_path / "few", clients=20, peers={"warmup": 0, "min_profiles": 7})
    for r in range(1, 8):
        before = len(few.known)
        tasks = list(few.plan(r))
        assert before >= 7 or all(task.peer is None for task in tasks)
        few.absorb(answer(task) for task in tasks)


def test_old_and_excluded_models_do_not_help(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6}, peers={"exclude": [3], "max_age": 2})
    rounds(s, 2)
    for r in (3, 4, 5):
        tasks = list(s.plan(r))
        for task in tasks:
            members = s._summary.committees[task.client]
            assert 3 not in members
            assert all(r - s.bank.records[k].round <= 2 for k in members)
        s.absorb([answer(t) for t in tasks if t.client < 3])


def test_random_selector_and_unprofiled_random(tmp_path: Path) -> None:
    s = server(tmp_path, clients=12, peers={"selector": "random", "T": 3})
    rounds(s, 4)
    drawn = {task.client: s._summary.committees[task.client] for task in s.plan(5)}
    assert all(len(set(members)) == 3 and client not in members for client, members in drawn.items())
    newcomers = server(tmp_path / "n", clients=30, peers={"unprofiled": "random"})
    rounds(newcomers, 3)
    assert all(task.peer is not None for task in newcomers.plan(4))


def test_raw_peers_only_in_research(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="privacy = 'research'"):
        small_config(peers={"anonymize": False})
    s = server(tmp_path, privacy="research", peers={"anonymize": False, "T": 1}, federation={"cohort": 6, "quorum": 6})
    rounds(s, 2)
    task = next(s.plan(3))
    assert isinstance(task.peer, RawPeers)
    (member,) = s._summary.committees[task.client]
    assert torch.equal(task.peer.states[0]["conv.weight"], s.bank.get(member)["conv.weight"])
    assert PROFILE not in task.peer.states[0]


def sequence(s: Server, r: int) -> Iterable[tuple[TrainTask, set[int]]]:
    def trained() -> Iterable[Update]:
        for task in s.plan(r):
            fresh = {k for k, record in s.bank.records.items() if record.round == r}
            seen.append((task, fresh))
            yield answer(task)

    seen: list[tuple[TrainTask, set[int]]] = []
    s.absorb(trained())
    return seen


def test_without_snapshot_a_client_sees_those_trained_before_it_in_the_round(tmp_path: Path) -> None:
    everyone = {"cohort": 6, "quorum": 6}
    snapshot = server(tmp_path / "a", federation=everyone)
    leaking = server(tmp_path / "b", privacy="research", federation=everyone, peers={"snapshot": False})
    for s in (snapshot, leaking):
        rounds(s, 2)
    assert all(not fresh for _, fresh in sequence(snapshot, 3))
    for place, (_, fresh) in enumerate(sequence(leaking, 3)):
        assert len(fresh) == place
    releases = [e for e in leaking.ledger.entries() if e["round"] == 3 and e["kind"] == "send"]
    used = [made for e in releases for r in e["releases"] for _, made in r["committee"]]
    assert 3 in used  # the leak is in the ledger too


def test_server_score_is_appended_to_the_profile(tmp_path: Path) -> None:
    s = server(tmp_path, score=lambda state: (0.25, 1.5), profile={"server_score": True})
    rounds(s, 1)
    for features in (known.profile for known in s.known.values()):
        assert features[-2:].tolist() == [0.25, 1.5]
        assert len(features) == 2 * 3 + 2
    with pytest.raises(ConfigError, match="ask for accuracy on the server"):
        rounds(server(tmp_path / "x", profile={"server_score": True}), 1)


def test_release_is_in_the_ledger_before_the_task_is_handed_out(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "quorum": 6})
    rounds(s, 2)
    s.plan(3)  # nothing taken from it yet
    last = list(s.ledger.entries())[-1]
    assert last["kind"] == "send"
    assert last["round"] == 3
    for release in last["releases"]:
        assert [k for k, _ in release["committee"]] == s._summary.committees[release["to"]]
        assert all(made == 2 for _, made in release["committee"])
    frequency = peer_frequency(s.ledger.entries())
    assert sum(n for row in frequency.values() for n in row.values()) == 2 * 6 * 2


def test_bytes_are_counted(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 6, "quorum": 6})
    rounds(s, 1)
    summary = s.absorb(answer(t) for t in s.plan(2))
    model, peer = 4 * (12 + 4 + 4) + 8, 4 * 12
    assert summary.bytes_up == 6 * model
    assert summary.bytes_down == 6 * (model + peer)


@pytest.mark.parametrize(
    ("sections", "message"), [({"federation": {"cohort": 9}}, "cohort = 9"), ({"peers": {"T": 6}}, "T = 6")]
)
def test_more_than_there_are_clients_is_refused(tmp_path: Path, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        server(tmp_path, **sections)


@given(st.integers(2, 5), st.integers(1, 6), st.sets(st.integers(0, 5)), st.integers(0, 3))
def test_no_anonymized_peer_of_fewer_than_two(
    tmp_path_factory: pytest.TempPathFactory, T: int, max_age: int, exclude: set[int], lost: int
) -> None:
    peers = {"T": T, "max_age": max_age, "exclude": sorted(exclude), "warmup": 0, "min_profiles": 2}
    s = server(tmp_path_factory.mktemp("h"), privacy="research", federation={"quorum": 1}, peers=peers)
    for r in range(1, 8):
        tasks = list(s.plan(r))
        for task in tasks:
            members = s._summary.committees[task.client]
            assert len(members) != 1
            assert len(set(members)) == len(members)
            assert task.client not in members
            assert (task.peer is None) == (not members)
        s.absorb(answer(t) for t in tasks[: max(1, 3 - lost)])


def test_the_schedule_reaches_the_clients(tmp_path: Path) -> None:
    s = server(tmp_path, optimizer={"schedule": "cosine", "lr": 0.5})
    rates = []
    for r in range(1, 5):
        tasks = list(s.plan(r))
        rates.append(tasks[0].settings.optimizer.lr)
        s.absorb(answer(t) for t in tasks)
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 0.5
    assert rates[-1] < 0.1


def test_failures_and_odd_tensors_are_rejected(tmp_path: Path) -> None:
    s = server(tmp_path, federation={"cohort": 5})
    t = list(s.plan(1))
    sparse = answer(t[1], _put("conv.weight", torch.zeros(4, 3).to_sparse()))
    meta = answer(t[2], _put("conv.weight", torch.zeros(4, 3, device="meta")))
    failed = Failure(s.run, 1, t[0].client, "OSError")
    summary = s.absorb([failed, sparse, meta, answer(t[3]), answer(t[4])])
    assert summary.rejected[t[0].client] == "it failed with OSError"
    assert all("wanted a dense tensor on cpu" in summary.rejected[x.client] for x in (sparse, meta))
    assert len(summary.accepted) == 2


def test_only_allowed_numbers_cross() -> None:
    for value in (float("nan"), float("inf"), "yes", [1.0], True, None):
        with pytest.raises(ValueError, match="finite numbers alone"):
            Update("r", 1, 0, {}, {"loss": value})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="may not carry melanoma_count"):
        Update("r", 1, 0, {}, {"melanoma_count": 7.0})
    with pytest.raises(ValueError, match="may not carry probabilities"):
        Evaluation("r", 1, 0, "test", {"probabilities": 0.1})
    for name, value, wanted in (
        ("temperature", 0.001, "0.01 to 100"),
        ("temperature", -1.0, "0.01 to 100"),
        ("temperature", 101.0, "0.01 to 100"),
        ("ece_scaled", 1.1, "a share, 0 to 1"),
        ("nll_scaled", -0.1, "0 to inf"),
        ("brier_scaled", 2.1, "0 to 2"),
    ):
        with pytest.raises(ValueError, match=f"an evaluation carries {name} = {value}; wanted {wanted}"):
            Evaluation("r", 1, 0, "test", {name: value})
    Evaluation("r", 1, 0, "test", {"temperature": 100.0, "ece_scaled": 1 + 1e-15, "nll_scaled": 0.0})


def test_only_groups_that_fit_the_counts_cross() -> None:
    truth = np.arange(40) % 2
    sums = binned_sums(truth, np.eye(2)[truth])
    fine = GroupCounts({"male": np.diag([10, 10])}, 0)
    assert Evaluation("r", 1, 0, "test", {}, sums, {"sex": fine}).groups["sex"].images == 20
    with pytest.raises(ValueError, match="groups by age, sex, body_site, skin_type, .* found 'name'$"):
        Evaluation("r", 1, 0, "test", {}, sums, {"name": fine})
    with pytest.raises(ValueError, match="found 'sex' without those"):
        Evaluation("r", 1, 0, "test", {}, None, {"sex": fine})
    for bad in (np.diag([5, 4]), np.diag([10, 21]), np.array([[0, 10], [0, 0]])):
        with pytest.raises(ValueError, match=r"at least 10|more than there are"):
            Evaluation("r", 1, 0, "test", {}, sums, {"sex": GroupCounts({"male": bad}, 0)})


def test_size_sampling_prefers_large_clients(tmp_path: Path) -> None:
    config = small_config(privacy="research", federation={"cohort": 1, "quorum": 1, "client_sampling": "size"})
    ledger = Ledger(tmp_path / "l")
    ledger.open()
    s = Server(config, [1000, 10, 10, 10, 10], 2, INITIAL, StateFiles(tmp_path / "b", "c"), ledger)
    drawn = [s._draw_cohort(r)[0] for r in range(200)]
    assert drawn.count(0) > 170
