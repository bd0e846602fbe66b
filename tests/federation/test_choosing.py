"""Who helps whom, as the server puts selector, policy and committee together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedperl import train
from fedperl.errors import ConfigError
from fedperl.federation.choosing import choose_committees
from fedperl.federation.known import Known, model_of
from fedperl.federation.messages import TrainTask, Update
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.peers import AnonymizedPeer, RawPeers, similarity_matrix
from fedperl.settings import Config, research_note
from tests.conftest import small_config, small_store
from tests.federation.test_server import answer, rounds, server

CLIENTS = 8


def known(seed: int = 0, **parts: Any) -> dict[int, Known]:
    generator = np.random.default_rng(seed)
    found = {}
    for client in range(CLIENTS):
        own = {name: values[client] for name, values in parts.items()}
        found[client] = Known(generator.normal(size=6), generator.normal(size=3), **own)
    return found


def choose(config: Config, about: dict[int, Known], round: int = 5) -> dict[int, list[int]]:
    made = dict.fromkeys(about, 1)
    return choose_committees(config, about, made, list(range(CLIENTS)), round).committees


def naive(about: dict[int, Known], client: int, T: int) -> list[int]:
    matrix = similarity_matrix([about[k].profile for k in sorted(about)])
    return sorted((k for k in about if k != client), key=lambda k: (-matrix[client, k], k))[:T]


def test_gated_similarity_keeps_the_best_above_the_gate() -> None:
    about = known()
    matrix = similarity_matrix([about[k].profile for k in range(CLIENTS)])
    config = small_config(peers={"policy": "gated_similarity", "T": 3}, gate={"rho": 0.75})
    chosen = choose(config, about)
    sizes = set()
    for client in range(CLIENTS):
        kept = [k for k in naive(about, client, 3) if matrix[client, k] >= 0.75]
        assert chosen.get(client, []) == (kept if len(kept) >= 2 else [])
        sizes.add(len(kept))
    assert len(sizes) > 2  # the gate tells them apart
    raw = small_config(
        peers={"policy": "gated_similarity", "T": 3, "anonymize": False}, gate={"rho": 0.75}, privacy="research"
    )
    assert any(len(members) < 3 for members in choose(raw, about).values())


def test_what_a_gate_would_have_to_lie_among_is_told() -> None:
    """The similarities of the T candidates, whether or not a policy keeps them."""
    about = known()
    matrix = similarity_matrix([about[k].profile for k in range(CLIENTS)])
    made, cohort = dict.fromkeys(about, 1), [2, 5]
    for policy in ("all", "gated_similarity"):
        config = small_config(peers={"policy": policy, "T": 3}, gate={"rho": 0.99})
        found = choose_committees(config, about, made, cohort, 5).similarity
        assert found == {
            client: pytest.approx([matrix[client, k] for k in naive(about, client, 3)], abs=5e-5) for client in cohort
        }
    drawn = small_config(peers={"selector": "random"})
    assert choose_committees(drawn, about, made, cohort, 5).similarity == {}


@pytest.mark.parametrize("scale", ["absolute", "relative_to_best", "minmax"])
def test_gated_validation_after_the_selector(scale: str) -> None:
    scores = [0.3, 0.9, 0.5, 0.7, 0.6, 0.8, 0.4, 0.2]
    about = known(score=scores)
    config = small_config(peers={"policy": "gated_validation", "T": 4}, gate={"rho": 0.6, "scale": scale})
    seen = {
        "absolute": scores,
        "relative_to_best": [s / 0.9 for s in scores],
        "minmax": [(s - 0.2) / 0.7 for s in scores],
    }[scale]
    chosen = choose(config, about)
    for client in range(CLIENTS):
        kept = [k for k in naive(about, client, 4) if seen[k] >= 0.6]
        assert chosen.get(client, []) == (kept if len(kept) >= 2 else [])


def test_validation_keeps_those_at_least_as_good() -> None:
    about = known(score=[0.3, 0.9, 0.5, 0.7, 0.6, 0.8, 0.4, 0.2])
    chosen = choose(small_config(peers={"policy": "validation", "T": 4}), about)
    for client in range(CLIENTS):
        kept = [k for k in naive(about, client, 4) if (about[k].score or 0) >= (about[client].score or 0)]
        assert chosen.get(client, []) == (kept if len(kept) >= 2 else [])
    assert 1 not in chosen  # nobody is as good as the best


def test_predictions_are_the_nearest_embeddings() -> None:
    about = known()
    chosen = choose(small_config(peers={"selector": "predictions", "T": 3}), about)
    for client in range(CLIENTS):
        own = about[client].embedding

        def far(k: int, own: Any = own) -> float:
            return float(np.linalg.norm(about[k].embedding - own))

        assert chosen[client] == sorted((k for k in about if k != client), key=far)[:3]
    assert chosen != choose(small_config(peers={"T": 3}), about)


def test_every_h_rounds_and_not_between() -> None:
    config = small_config(peers={"every": 10, "warmup": 0})
    for round in (1, 9, 10, 11, 20):
        assert bool(choose(config, known(), round)) == (round % 10 == 0)


def test_sizes_by_community() -> None:
    """Two groups of profiles, four and three clients, and one that is like nobody."""
    generator = np.random.default_rng(1)
    centres = [generator.normal(size=40) for _ in range(3)]
    groups = [0, 0, 0, 0, 1, 1, 1, 2]
    about = {k: Known(centres[g] + 0.05 * generator.normal(size=40)) for k, g in enumerate(groups)}
    chosen = choose(small_config(peers={"T": 5, "sizes": "spectral_gap"}), about)
    assert {client: len(members) for client, members in chosen.items()} == dict.fromkeys(range(4), 3) | dict.fromkeys(
        range(4, 7), 2
    )


def scored(task: TrainTask, accuracy: float) -> Update:
    update = answer(task)
    return Update(update.run, update.round, update.client, update.state, {"loss": 1.0, "accuracy": accuracy})


def test_scores_come_from_the_clients_or_from_the_server_and_survive_a_restart(tmp_path: Path) -> None:
    gate = {"metric": "own_val_acc"}
    s = server(tmp_path / "own", peers={"policy": "validation"}, gate=gate)
    tasks = list(s.plan(1))
    assert {task.settings.report for task in tasks} == {"validation"}
    s.absorb(scored(task, task.client / 10) for task in tasks)
    assert {client: about.score for client, about in s.known.items()} == {t.client: t.client / 10 for t in tasks}
    again = server(tmp_path / "own", peers={"policy": "validation"}, gate=gate)
    again.bank.restore(s.bank.to_json())
    again.restore(s.model)
    assert {c: about.score for c, about in again.known.items()} == {c: about.score for c, about in s.known.items()}

    at_server = server(tmp_path / "server", score=lambda _: (0.5, 1.0), peers={"policy": "gated_validation"})
    tasks = list(at_server.plan(1))
    assert {task.settings.report for task in tasks} == {"none"}
    at_server.absorb(scored(task, 0.9) for task in tasks)
    assert {about.score for about in at_server.known.values()} == {0.5}
    assert {task.settings.report for task in server(tmp_path / "no", peers={}).plan(1)} == {"none"}


def test_an_accuracy_beyond_1_is_no_accuracy(tmp_path: Path) -> None:
    task = next(iter(server(tmp_path).plan(1)))
    with pytest.raises(ValueError, match="wanted a share"):
        scored(task, 1.5)


# Relations, warm-up, predecessor


def related(task: TrainTask, matrix: torch.Tensor | None) -> Update:
    update = answer(task)
    return Update(update.run, update.round, update.client, update.state, update.numbers, matrix)


def irm(folder: Path, **sections: Any) -> Server:
    s = server(folder, method="fedirm", objective={"start": 0}, **sections)
    s.classes = 3
    return s


def test_relations_of_two_clients_are_passed_on_and_one_alone_is_not(tmp_path: Path) -> None:
    s = irm(tmp_path)
    rows = torch.softmax(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), dim=1)
    first = list(s.plan(1))
    assert all(task.relation is None for task in first)
    s.absorb(related(task, rows if task is first[0] else None) for task in first)
    second = list(s.plan(2))
    assert all(task.relation is None for task in second)
    senders = [task for task in second if task.client != first[0].client][:2]
    s.absorb(related(task, 0.5 * rows + 0.5 / 3 if task in senders else None) for task in second)
    s.unlabelled[5] = False
    for task in s.plan(3):
        others = [a.relation for k, a in sorted(s.known.items()) if a.relation is not None and k != task.client]
        if len(others) < 2 or task.client == 5:
            assert task.relation is None
            continue
        assert torch.allclose(task.relation, torch.stack(others).mean(0), atol=1e-6)  # type: ignore[arg-type]
    *_, sent = (entry for entry in s.ledger.entries() if entry["kind"] == "send")
    named = {release["to"]: release.get("relation", {}) for release in sent["releases"]}
    holders = [k for k, about in sorted(s.known.items()) if about.relation is not None]
    assert any(named.values())
    for client, by_class in named.items():
        assert by_class.keys() in (set(), {"0", "1", "2"})
        for members in by_class.values():
            assert [k for k, _ in members] == [k for k in holders if k != client]
    alone = irm(tmp_path / "research", privacy="research")
    tasks = list(alone.plan(1))
    alone.absorb(related(task, rows if task is tasks[0] else None) for task in tasks)
    for task in alone.plan(2):
        assert (task.relation is None) == (task.client == tasks[0].client)  # nobody gets its own back


def test_bad_and_unwanted_relations_are_rejected(tmp_path: Path) -> None:
    s = irm(tmp_path)
    tasks = list(s.plan(1))
    summary = s.absorb(related(task, torch.ones(3, 3) if task is tasks[0] else None) for task in tasks)
    assert "neither probabilities nor unknown" in summary.rejected[tasks[0].client]
    plain = server(tmp_path / "plain")
    tasks = list(plain.plan(1))
    summary = plain.absorb(related(task, torch.eye(3) if task is tasks[0] else None) for task in tasks)
    assert "does not ask for" in summary.rejected[tasks[0].client]


def test_before_the_start_only_clients_with_labels_train(tmp_path: Path) -> None:
    two: dict[str, Any] = {"federation": {"cohort": 3, "quorum": 2}, "audit": {"coalition": 0}}
    s = server(tmp_path, method="fedirm", objective={"start": 2}, **two)
    s.labelled = [k in (1, 4) for k in range(6)]
    for round in (1, 2):
        assert sorted(task.client for task in s.plan(round)) == [1, 4]
        assert not s.absorb(answer(task) for task in s.plan(round)).void
    assert len(list(s.plan(3))) == 3
    few = [k in (1, 4) for k in range(6)]
    three = small_config(method="fedirm", objective={"start": 2})  # of two clients each could solve for the other
    with pytest.raises(ConfigError, match=r"2 have some; wanted at least federation\.quorum = 3"):
        Server(three, s.sizes, 2, s.model.state, s.bank, s.ledger, labelled=few)
    research = small_config(method="fedirm", objective={"start": 2}, privacy="research")
    Server(research, s.sizes, 2, s.model.state, s.bank, s.ledger, labelled=few)


def test_every_few_rounds_the_model_is_averaged_with_its_predecessor(tmp_path: Path) -> None:
    s, plain = (server(tmp_path / str(n), federation={"residual_every": n}) for n in (2, 0))
    rounds(s, 2)
    rounds(plain, 2)
    two = s.model.state["conv.weight"].clone()
    assert torch.equal(two, plain.model.state["conv.weight"])  # no predecessor yet
    assert s.predecessor is not None
    rounds(s, 1)
    updates = [answer(task) for task in s.plan(4)]
    s.absorb(updates)
    mean = torch.stack([u.state["conv.weight"].double() for u in updates]).mean(0)
    assert torch.allclose(s.model.state["conv.weight"].double(), 0.5 * mean + 0.5 * two.double(), atol=1e-6)
    *_, outcome = s.ledger.entries()
    assert (outcome["round"], outcome["residual"]) == (4, 2)
    assert list(outcome["weights"].values()) == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize("void", [(4,), (1, 2, 3)])
def test_a_running_mean_is_shown_and_training_goes_on_from_the_last_model(
    tmp_path: Path, void: tuple[int, ...]
) -> None:
    s, plain = (server(tmp_path / str(n), federation={"running_average": n}) for n in (0.6, 0.0))
    made = []
    for round in range(1, 7):
        for one in (s, plain):
            one.absorb([] if round in void else (answer(task) for task in one.plan(round)))
        if round not in void:
            made.append(plain.model.state["conv.weight"].double())
        assert torch.equal(s.model.state["conv.weight"], plain.model.state["conv.weight"])
        assert s.shown.round == s.model.round
    shares = [1, 1 / 2, 0.4, 0.4, 0.4]
    mean = made[0]  # not of what was there before
    for share, model in zip(shares[1 : len(made)], made[1:], strict=True):
        mean = (1 - share) * mean + share * model
    assert torch.allclose(s.shown.state["conv.weight"].double(), mean, atol=1e-6)
    tasks = list(s.evaluation_tasks())
    assert [(task.round, task.model is s.shown) for task in tasks] == [(6, True)] * 6
    assert plain.shown is plain.model
    *_, outcome = s.ledger.entries()
    assert outcome["validated"] == {"global": 6, "by": "every client", "average": 0.6}


def test_raw_helpers_of_fedmatch_are_psi_alone(tmp_path: Path) -> None:
    initial = {"sigma.w": torch.ones(3), "psi.w": torch.zeros(3), "sigma.running_mean": torch.zeros(2)}
    config = small_config(method="fedmatch", peers={"every": 1, "selector": "profile"}, federation={"quorum": 2})
    base = server(tmp_path)
    s = Server(config, [10] * 4, 2, initial, base.bank, base.ledger)
    rounds(s, 3)
    helped = [task for task in s.plan(4) if task.peer is not None]
    assert helped
    for task in helped:
        for state in task.peer_states():
            assert list(state) == ["psi.w"]
    assert set(model_of(s.bank.get(helped[0].client))) == set(initial)


def test_what_is_not_sent_costs_nothing(tmp_path: Path) -> None:
    dense, sparse = (server(tmp_path / str(t), federation={"sparse": t, "cohort": 6}) for t in (0.0, 1e6))
    for s in (dense, sparse):
        s.absorb(answer(task) for task in s.plan(1))
    first = dense.plan(2), sparse.plan(2)
    for plan in first:
        list(plan)
    peers = 6 * 4 * 12  # without batch-norm statistics
    assert dense._summary.bytes_down == 6 * (4 * (12 + 4 + 4) + 8) + peers
    assert sparse._summary.bytes_down == 6 * 8 + peers  # the counters: nothing else moved by a million


@pytest.mark.parametrize("selector", ["profile", "random"])
def test_nobody_is_helped_by_itself_or_its_own_organisation(selector: str) -> None:
    """Neither as one of the chosen nor in their place."""
    config = small_config(peers={"T": 3, "selector": selector}, federation={"organisations": [[0, 1, 2], [5, 6]]})
    own = {0: {0, 1, 2}, 1: {0, 1, 2}, 2: {0, 1, 2}, 5: {5, 6}, 6: {5, 6}}
    found = choose_committees(config, known(), dict.fromkeys(range(CLIENTS), 1), list(range(CLIENTS)), 5)
    assert set(found.committees) == set(range(CLIENTS))
    for client in range(CLIENTS):
        assert not own.get(client, {client}) & {*found.committees[client], *found.instead[client]}


def test_a_committee_may_be_one_client_in_research_alone(tmp_path: Path) -> None:
    s = server(tmp_path, privacy="research", federation={"cohort": 2}, peers={"k_min": 1, "T": 2, "min_profiles": 2})
    alone = 0
    for round in range(1, 8):
        tasks = list(s.plan(round))
        for task in tasks:
            members = s._summary.committees[task.client]
            if len(members) == 1:
                assert isinstance(task.peer, RawPeers)  # nothing is anonymous about it
                (state,) = task.peer.states
                banked = model_of(s.bank.get(members[0]))
                assert list(state) == ["conv.weight"]  # the receiver's own running statistics are used
                assert torch.equal(state["conv.weight"], banked["conv.weight"])
                alone += 1
            elif members:
                assert isinstance(task.peer, AnonymizedPeer)
        s.absorb(answer(task) for task in tasks)
    assert alone > 0
    assert research_note(s.config) == "a client's only peer may be another client's model as it is"
    with pytest.raises(ConfigError, match=r"peers\.k_min = 1"):
        small_config(peers={"k_min": 1})
    with pytest.raises(ConfigError, match=r"peers\.T = 1 with peers\.anonymize"):
        small_config(privacy="research", peers={"k_min": 1, "T": 1})


def test_a_run_may_have_peers_of_one(tmp_path: Path) -> None:
    config = small_config(
        privacy="research",
        federation={"cohort": 2, "rounds": 3},
        peers={"k_min": 1, "T": 2, "min_profiles": 2, "unprofiled": "random"},
    )
    results = train(config, tmp_path, store=small_store())
    committees = [members for line in RunFolder(tmp_path).read_metrics() for members in line["committees"].values()]
    assert 1 in map(len, committees)
    assert results["totals"]["with_peer"] == sum(map(bool, committees))
    assert "or one" in (tmp_path / "models" / "MODEL_CARD.md").read_text()
