"""Robust rules against plain loops, and against the attacks they are there for."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.federation.aggregate import fedavg
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.messages import GlobalModel, TrainTask
from fedperl.federation.robust import (
    clip_to_median,
    fltrust,
    min_mixed,
    movement,
    multi_krum,
    reach,
    screened,
    trimmed_mean,
    turned,
)
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.predict import predict
from fedperl.learn.state import State, load_into, state_of
from fedperl.peers import profile, similarity_matrix, top_peers
from fedperl.peers.similarity import Scale
from tests.conftest import small_config

SEEDS = st.integers(0, 9999)
WEIGHTS, STATISTICS = ("conv.weight", "bn.weight"), ("bn.running_mean", "bn.running_var")


def model(generator: torch.Generator, spread: float = 1.0) -> State:
    return {
        "conv.weight": spread * torch.randn(3, 4, generator=generator, dtype=torch.float64),
        "bn.weight": 1 + spread * torch.randn(4, generator=generator, dtype=torch.float64),
        "bn.running_mean": 50 * spread * torch.randn(4, generator=generator, dtype=torch.float64),
        "bn.running_var": 500 * spread * torch.rand(4, generator=generator, dtype=torch.float64),
        "bn.num_batches_tracked": torch.tensor(int(torch.randint(1, 99, (1,), generator=generator))),
    }


def cohort(n: int, seed: int = 0) -> tuple[State, list[State]]:
    """A start, and models that moved from it by lengths of their own."""
    generator = torch.Generator().manual_seed(seed)
    start = model(generator)
    states = []
    for _ in range(n):
        change, length = model(generator), float(0.01 + torch.rand(1, generator=generator))
        states.append({k: t + length * change[k] if t.is_floating_point() else change[k] for k, t in start.items()})
    return start, states


def flat(state: State, names: Sequence[str] = WEIGHTS) -> npt.NDArray[np.float64]:
    return np.array([x for name in names for x in state[name].flatten().tolist()])


def naive_length(state: State, start: State, names: Sequence[str] = WEIGHTS) -> float:
    return math.sqrt(sum((a - b) ** 2 for a, b in zip(flat(state, names), flat(start, names), strict=True)))


def lower_median(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def scaled(state: State, start: State, factor: float) -> State:
    return {n: start[n] + factor * (t - start[n]) if t.is_floating_point() else t for n, t in state.items()}


# Movement


@given(SEEDS, st.floats(-20, 20))
def test_movement_and_turned_against_naive(seed: int, factor: float) -> None:
    start, (state,) = cohort(1, seed)
    assert movement(state, start) == pytest.approx(naive_length(state, start))
    found = turned(state, start, factor)
    assert found.keys() == state.keys()
    assert flat(found, WEIGHTS + STATISTICS) == pytest.approx(
        (1 - factor) * flat(start, WEIGHTS + STATISTICS) + factor * flat(state, WEIGHTS + STATISTICS)
    )
    assert found["bn.num_batches_tracked"] == state["bn.num_batches_tracked"]
    assert movement(found, start) == pytest.approx(abs(factor) * movement(state, start))
    apart = turned(state, start, factor, 0.5)
    assert flat(apart).tolist() == flat(found).tolist()
    assert flat(apart, STATISTICS) == pytest.approx((flat(start, STATISTICS) + flat(state, STATISTICS)) / 2)


def test_running_statistics_and_counters_are_no_movement() -> None:
    start, (state,) = cohort(1)
    before = movement(state, start)
    state["bn.running_var"] *= 1e6
    state["bn.num_batches_tracked"] += 10**6
    assert movement(state, start) == before
    assert movement({"n": torch.tensor(3)}, {"n": torch.tensor(9)}) == 0.0


def test_a_small_movement_of_large_weights_is_measured_in_double_precision() -> None:
    start = {"w": torch.full((1000,), 1000.0)}
    state = {"w": start["w"].clone()}
    state["w"][0] += 2**-13  # one step of a float32 of that size
    assert movement(state, start) == 2**-13
    start, state = {"w": torch.zeros(10)}, {"w": torch.full((10,), 1e30)}  # a square is no float32
    assert movement(state, start) == pytest.approx(1e30 * math.sqrt(10))


def test_turned_keeps_types() -> None:
    start, (state,) = cohort(1)
    start, state = ({n: t.float() if t.is_floating_point() else t for n, t in s.items()} for s in (start, state))
    found = turned(state, start, 0.3)
    assert {n: t.dtype for n, t in found.items()} == {n: t.dtype for n, t in state.items()}


# Clipping


@given(SEEDS, st.integers(1, 7), st.floats(0.2, 3.0))
def test_clip_against_naive(seed: int, n: int, kappa: float) -> None:
    start, states = cohort(n, seed)
    clipped, factors = clip_to_median(states, start, kappa)
    for names in (WEIGHTS, STATISTICS):
        lengths = [naive_length(state, start, names) for state in states]
        most = kappa * lower_median(lengths)
        for before, after, length in zip(states, clipped, lengths, strict=True):
            wanted = flat(start, names) + min(1.0, most / length) * (flat(before, names) - flat(start, names))
            assert flat(after, names) == pytest.approx(wanted, rel=1e-9, abs=1e-9)
            assert naive_length(after, start, names) <= min(length, most) * (1 + 1e-9)  # it never lengthens
            if length <= most:
                assert all(after[name] is before[name] for name in names)
        if names is WEIGHTS:
            assert factors == pytest.approx([min(1.0, most / length) for length in lengths])
            assert (1.0 in factors) == (min(lengths) <= most)
    assert all(a["bn.num_batches_tracked"] == b["bn.num_batches_tracked"] for a, b in zip(clipped, states, strict=True))


def test_whoever_is_half_of_a_cohort_does_not_set_the_median() -> None:
    start, (honest, hostile) = cohort(2)
    hostile = scaled(hostile, start, 1e6)
    (first, second), (one, other) = clip_to_median([honest, hostile], start)
    assert one == 1.0
    assert equal(first, honest)
    assert movement(second, start) == pytest.approx(movement(honest, start))
    assert other < 1e-3


def test_where_half_of_a_cohort_does_not_move_nobody_does() -> None:
    start, states = cohort(4)
    still = scaled(states[0], start, 0.0)
    clipped, factors = clip_to_median([still, states[1], still, states[3]], start)
    assert factors == [1.0, 0.0, 1.0, 0.0]
    assert all(movement(state, start) == 0 for state in clipped)


def test_statistics_are_bounded_where_the_weights_did_not_move() -> None:
    start, states = cohort(5)
    poison = dict(start) | {name: start[name] + 1e9 for name in STATISTICS}
    clipped, factors = clip_to_median([*states, poison], start)
    assert factors[5] == 1.0
    most = lower_median([naive_length(state, start, STATISTICS) for state in [*states, poison]])
    assert naive_length(clipped[5], start, STATISTICS) == pytest.approx(most)
    fair, _ = clip_to_median(states, start)
    for one, other in zip(clipped[:5], fair, strict=True):  # their weights are cut no more than without it
        assert movement(one, start) == pytest.approx(movement(other, start), rel=0.5)


def test_the_order_of_tensors_changes_no_bit() -> None:
    generator = torch.Generator().manual_seed(0)
    models: list[State] = [{f"{k}.weight": torch.randn(7, generator=generator) for k in range(20)} for _ in range(6)]
    start, *states = models
    other, *others = [dict(reversed(state.items())) for state in models]
    assert clip_to_median(states, start)[1] == clip_to_median(others, other)[1]
    assert [movement(s, start) for s in states] == [movement(s, other) for s in others]
    one, two = fltrust(states, start, states[0]), fltrust(others, other, others[0])
    assert one is not None
    assert two is not None
    assert one[1:] == two[1:]


# Trimmed mean


@given(SEEDS, st.integers(1, 8), st.integers(0, 3))
def test_trimmed_mean_against_naive(seed: int, n: int, trim: int) -> None:
    _, states = cohort(n, seed)
    if n <= 2 * trim:
        with pytest.raises(ValueError, match=f"trim = {trim} of {n} models"):
            trimmed_mean(states, trim)
        return
    found = trimmed_mean(states, trim)
    assert list(found) == list(states[0])
    columns = np.sort([flat(state, WEIGHTS + STATISTICS) for state in states], axis=0)[trim : n - trim]
    assert flat(found, WEIGHTS + STATISTICS) == pytest.approx(columns.mean(axis=0))
    assert found["bn.num_batches_tracked"] == max(state["bn.num_batches_tracked"] for state in states)
    assert {name: t.dtype for name, t in found.items()} == {name: t.dtype for name, t in states[0].items()}


# Multi-Krum


def naive_krum(states: Sequence[State], faulty: int, keep: int) -> list[int]:
    n, scores = len(states), []
    for i in range(n):
        squares = sorted(float(((flat(states[i]) - flat(states[j])) ** 2).sum()) for j in range(n) if j != i)
        scores.append(sum(squares[: n - faulty - 2]))
    return sorted(sorted(range(n), key=lambda place: (scores[place], place))[:keep])


@given(SEEDS, st.integers(3, 9), st.data())
def test_multi_krum_against_naive(seed: int, n: int, data: st.DataObject) -> None:
    faulty = data.draw(st.integers(0, (n - 3) // 2))
    keep = data.draw(st.integers(1, n - faulty))
    _, states = cohort(n, seed)
    assert multi_krum(states, faulty, keep) == naive_krum(states, faulty, keep)


def test_of_equal_models_the_first_are_kept_and_statistics_do_not_count() -> None:
    _, states = cohort(5)
    same = [dict(states[0]) | {name: states[k][name] * 1e6 for name in STATISTICS} for k in range(5)]
    assert multi_krum(same, 1, 3) == [0, 1, 2]


@pytest.mark.parametrize(("n", "faulty", "keep"), [(4, 1, 2), (5, 1, 5), (5, 1, 0), (5, -1, 3), (6, 2, 2)])
def test_multi_krum_refuses(n: int, faulty: int, keep: int) -> None:
    with pytest.raises(ValueError, match=f"Multi-Krum: {n} models, faulty = {faulty}, keep = {keep}"):
        multi_krum(cohort(n)[1], faulty, keep)


# FLTrust


@given(SEEDS, st.integers(1, 6))
def test_fltrust_against_naive(seed: int, n: int) -> None:
    start, (trusted, *states) = cohort(n + 1, seed)
    own = flat(trusted) - flat(start)
    changes = [flat(state) - flat(start) for state in states]
    scores = [max(0.0, float(c @ own) / math.sqrt(float(c @ c) * float(own @ own))) for c in changes]
    found = fltrust(states, start, trusted)
    if not any(scores):
        assert found is None
        return
    assert found is not None
    assert found.weights == pytest.approx(scores)
    mean = flat(start) + sum(
        score / sum(scores) * np.linalg.norm(own) / np.linalg.norm(c) * c
        for score, c in zip(scores, changes, strict=True)
    )
    assert flat(fedavg(found.states, found.weights)) == pytest.approx(mean, rel=1e-9, abs=1e-9)
    assert found.factors == pytest.approx([float(np.linalg.norm(own) / np.linalg.norm(c)) for c in changes])
    most = naive_length(trusted, start, STATISTICS)
    for before, after in zip(states, found.states, strict=True):
        length = naive_length(before, start, STATISTICS)
        assert naive_length(after, start, STATISTICS) == pytest.approx(min(length, most))
        assert (after["bn.running_var"] >= 0).all()  # as those of the clients and of the start are


def test_fltrust_takes_nothing_where_nobody_goes_its_way() -> None:
    start, (trusted, *_) = cohort(1)
    against = [scaled(trusted, start, factor) for factor in (-0.1, -10.0, 0.0)]
    assert fltrust(against, start, trusted) is None
    found = fltrust([*against, scaled(trusted, start, 7.0)], start, trusted)
    assert found is not None
    assert found.weights == pytest.approx([0.0, 0.0, 0.0, 1.0])
    assert movement(fedavg(found.states, found.weights), start) == pytest.approx(movement(trusted, start))


def test_fltrust_refuses_a_server_that_did_not_move_and_nobody() -> None:
    start, states = cohort(2)
    with pytest.raises(ValueError, match="a server that moved by 0.0"):
        fltrust(states, start, start)
    with pytest.raises(ValueError, match="FLTrust: 0 models"):
        fltrust([], start, states[0])


# What every rule owes


def by_clip(start: State, states: list[State]) -> State:
    return fedavg(clip_to_median(states, start)[0], [1.0] * len(states))


def by_trim(start: State, states: list[State]) -> State:
    return trimmed_mean(states, 1)


def by_krum(start: State, states: list[State]) -> State:
    clipped, _ = clip_to_median(states, start)
    return fedavg([clipped[place] for place in multi_krum(states, 1, 3)], [1.0] * 3)


def by_trust(start: State, states: list[State]) -> State:
    found = fltrust(states, start, states[0])  # the server happens to move as an honest client does
    assert found is not None
    return fedavg(found.states, found.weights)


RULES: dict[str, tuple[Callable[[State, list[State]], State], int]] = {
    "clip": (by_clip, 3),
    "trimmed_mean": (by_trim, 3),
    "multi_krum": (by_krum, 5),
    "fltrust": (by_trust, 3),
}


def test_min_mixed() -> None:
    assert [min_mixed(rule, 5) for rule in ("mean", "clip", "fltrust")] == [5, 5, 5]
    assert [min_mixed("trimmed_mean", n, trim=2) for n in (3, 4, 5, 6, 9)] == [0, 0, 1, 2, 5]
    assert [min_mixed("multi_krum", n, keep=3) for n in (2, 3, 9)] == [2, 3, 3]


@given(SEEDS, st.integers(5, 7), st.integers(0, 2), st.integers(0, 6))
def test_no_number_of_a_mixture_is_one_clients(seed: int, n: int, trim: int, agreed: int) -> None:
    """Save where all agree: as dead inputs make them."""
    start, states = cohort(n, seed)
    for state in states:
        state["conv.weight"].view(-1)[agreed] = 0.25
    start["conv.weight"].view(-1)[agreed] = 0.25
    results = {rule: make(start, states) for rule, (make, _) in RULES.items()}
    results["trimmed_mean"] = trimmed_mean(states, trim)
    trust = fltrust(states, start, states[0])
    assert trust is not None
    mixed = {
        "clip": min_mixed("clip", n),
        "trimmed_mean": min_mixed("trimmed_mean", n, trim=trim),
        "multi_krum": min_mixed("multi_krum", n, keep=3),
        "fltrust": min_mixed("fltrust", sum(weight > 0 for weight in trust.weights)),
    }
    for rule, result in results.items():
        found = flat(result, WEIGHTS + STATISTICS)
        own = np.array([flat(state, WEIGHTS + STATISTICS) == found for state in states])  # (clients, numbers)
        assert found[agreed] == pytest.approx(0.25)
        alone = np.delete(own, agreed, axis=1).any(axis=0)
        if mixed[rule] >= 2:
            assert not alone.any(), rule
        elif rule == "trimmed_mean":
            assert alone.all(), "a median hands out single clients' numbers"


@pytest.mark.parametrize("rule", RULES)
@given(SEEDS, st.integers(0, 3), st.sampled_from([1e6, -1e6]), st.data())
def test_one_client_a_million_times_as_far_does_not_carry_the_average_away(
    rule: str, seed: int, more: int, factor: float, data: st.DataObject
) -> None:
    make, fewest = RULES[rule]
    n = fewest + more
    start, states = cohort(n, seed)
    hostile = data.draw(st.integers(1, n - 1))
    honest = [state for place, state in enumerate(states) if place != hostile]
    states[hostile] = scaled(states[hostile], start, factor)
    found = make(start, states)
    for names in (WEIGHTS, STATISTICS):
        most = max(naive_length(state, start, names) for state in honest)
        # coordinates of a trimmed mean lie between honest ones, but may be other clients' furthest
        slack = math.sqrt(len(honest)) if rule == "trimmed_mean" else 1 + 1e-9
        assert naive_length(found, start, names) <= slack * most
        assert naive_length(fedavg(states, [1.0] * n), start, names) > 100 * most


BAD = [float("nan"), float("inf"), -float("inf")]


@pytest.mark.parametrize("value", BAD)
@pytest.mark.parametrize("name", ["conv.weight", "bn.running_var"])
@pytest.mark.parametrize("place", [0, 2, 4])
def test_what_is_not_finite_is_refused_by_name(value: float, name: str, place: int) -> None:
    start, states = cohort(5)
    fair = states[(place + 1) % 5]
    states[place][name].view(-1)[1] = value
    bad = states[place]
    calls: list[Callable[[], object]] = [
        lambda: movement(bad, start),
        lambda: movement(fair, bad),
        lambda: reach(bad),
        lambda: turned(bad, start, 0.5),
        lambda: clip_to_median(states, start),
        lambda: trimmed_mean(states, 1),
        lambda: multi_krum(states, 1, 3),
        lambda: fltrust(states, start, fair),
        lambda: fltrust([fair], start, bad),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"tensor '{name}' has values that are not finite"):
            call()


def test_models_of_another_schema_and_none_at_all_are_refused() -> None:
    start, states = cohort(5)
    states[3]["conv.weight"] = states[3]["conv.weight"][:1]  # would be broadcast
    for call in (
        lambda: clip_to_median(states, start),
        lambda: trimmed_mean(states, 1),
        lambda: multi_krum(states, 1, 3),
        lambda: fltrust(states[:4], start, states[4]),
    ):
        with pytest.raises(ValueError, match=r"has shape \(1, 4\); wanted \(3, 4\)"):
            call()
    with pytest.raises(ValueError, match="at least one model, found none"):
        clip_to_median([], start)


@pytest.mark.parametrize("value", [0.0, -1.0, *BAD])
def test_factors_that_are_none_are_refused(value: float) -> None:
    start, states = cohort(3)
    with pytest.raises(ValueError, match="kappa"):
        clip_to_median(states, start, value)
    with pytest.raises(ValueError, match="screen: factor"):
        screened({0: 1.0}, {}, factor=value)
    if value != math.inf:
        with pytest.raises(ValueError, match="screen: factor = 3.0, reach = "):
            screened({0: 1.0}, {}, value)
    if not math.isfinite(value):
        with pytest.raises(ValueError, match="wanted finite ones"):
            turned(states[0], start, value)
        with pytest.raises(ValueError, match="wrong movements {1: "):
            screened({0: 1.0, 1: value}, {})
        with pytest.raises(ValueError, match="wrong movements {1: "):
            screened({0: 1.0}, {1: value})


def test_distances_that_are_no_number_are_refused() -> None:
    start = {"w": torch.zeros(2, dtype=torch.float64)}
    far = {"w": torch.tensor([1e200, -1e200], dtype=torch.float64)}
    with pytest.raises(ValueError, match="wanted models whose distances are finite"):
        clip_to_median([far] * 3, start)


def test_joined_tensors_give_the_same_as_tensor_by_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU all tensors of a type are one."""
    start, states = cohort(5)
    apart = {rule: make(start, states) for rule, (make, _) in RULES.items()}
    lengths, kept = [movement(state, start) for state in states], multi_krum(states, 1, 3)
    monkeypatch.setattr("fedperl.learn.state._on_cpu", lambda state: False)
    assert [movement(state, start) for state in states] == pytest.approx(lengths)
    assert multi_krum(states, 1, 3) == kept
    for rule, (make, _) in RULES.items():
        joined = make(start, states)
        assert {n: t.shape for n, t in joined.items()} == {n: t.shape for n, t in start.items()}
        assert flat(joined, WEIGHTS + STATISTICS) == pytest.approx(flat(apart[rule], WEIGHTS + STATISTICS)), rule


# The screen


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0, 100), max_size=6),
    st.dictionaries(st.integers(0, 9), st.floats(0, 100), max_size=10),
    st.floats(1, 200),
    st.floats(1, 5),
)
def test_screen_against_naive(fresh: dict[int, float], last: dict[int, float], reach: float, factor: float) -> None:
    found = screened(fresh, last, reach, factor)
    if not fresh:
        assert found == set()
        return
    everyone = [fresh.get(client, last.get(client, -1.0)) for client in sorted(fresh.keys() | last.keys())]
    most = min(reach, factor * lower_median(list(fresh.values())), factor * lower_median(everyone))
    assert found == {client for client in fresh if fresh[client] > most}


def test_screen_keeps_up_and_is_not_in_the_hands_of_one_cohort() -> None:
    honest = dict.fromkeys(range(10), 1.0)
    assert screened({7: 20.0, 8: 20.0, 9: 1.0}, honest) == {7, 8}  # two of three are hostile
    assert screened({0: 0.01, 1: 0.011, 2: 0.5}, honest) == {2}  # a cosine's end: movements have shrunk
    assert screened({0: 0.01, 1: 0.011, 2: 0.012}, honest) == set()
    assert screened({0: 1.0, 1: 1.0, 2: 3.0, 3: 3.1}, {}) == {3}
    assert screened({0: 1.0, 1: 1.0, 2: 2.5}, {}, reach=2.0) == {2}  # where honest clients move far themselves


@given(SEEDS)
def test_reach_against_naive(seed: int) -> None:
    start, _ = cohort(0, seed)
    squares = 0.0
    for name in WEIGHTS:
        values = start[name].flatten().tolist()
        squares += sum((value - sum(values) / len(values)) ** 2 for value in values)
    assert reach(start) == pytest.approx(math.sqrt(squares))


# The impostor, of networks that were really trained


def shuffled(state: State, seed: int = 0) -> State:
    generator = torch.Generator().manual_seed(seed)
    return {n: t.flatten()[torch.randperm(t.numel(), generator=generator)].view(t.shape) for n, t in state.items()}


def test_the_impostor_is_chosen_first_by_its_profile_and_caught_by_its_movement() -> None:
    config = small_config(
        data={"size": 32}, method="upper", optimizer={"lr": 3e-3}, objective={"class_weights": "none"}
    )
    store = ten_hospitals(size=32, scale=0.03, seed=0)
    work = Workspace(config, len(store.classes))
    numbers = (0, 1, 5, 8, 9)  # of four sources; 8 has a phone's camera and other lesions, 9 the fewest images
    clients = [client_of_store(number, store, config, work) for number in numbers]
    local = LocalSettings(config.objective, config.optimizer, config.views, 16, 16)
    start = state_of(work.net)
    last: dict[int, float] = {}
    for round in (1, 2, 3, 4):
        tasks = [TrainTask("", round, k, GlobalModel(round - 1, start), None, local, round) for k in numbers]
        sent = [client.train(task, {})[0].state for client, task in zip(clients, tasks, strict=True)]
        honest = {number: movement(state, start) for number, state in zip(numbers, sent, strict=True)}
        fake = {99: movement(shuffled(sent[0]), start)}

        # Honest clients pass, the impostor does not: not even in the place of one of three, nor as one of two fakes.
        assert screened(honest, last, reach(start)) == set()
        assert screened(honest | fake, last, reach(start)) == {99}
        assert screened({8: honest[8], 9: honest[9]} | fake, last, reach(start)) == {99}
        assert screened({8: honest[8], 98: fake[99]} | fake, honest, reach(start)) == {98, 99}
        assert max(honest.values()) < 1.5 * min(honest.values())
        assert fake[99] == pytest.approx(math.sqrt(2) * reach(start), rel=0.2)
        last, start = honest, fedavg(sent, [1.0] * len(sent))

    # It looks like the receiver, more than any honest client does, and knows nothing.
    receiver, impostor, place = sent[0], shuffled(sent[0]), len(sent)
    profiles = np.stack([profile(state) for state in [*sent, impostor]])
    assert profiles[place] == pytest.approx(profiles[0], rel=1e-9, abs=1e-12)
    scales: tuple[Scale, ...] = ("none", "minmax")
    for scale in scales:
        matrix = similarity_matrix(profiles, scale)
        assert matrix[0, place] == pytest.approx(1.0, abs=1e-9)
        assert top_peers(matrix, 0, 2)[0] == place
        assert max(matrix[0, 1:place]) < matrix[0, place]
    pixels = torch.cat([client.evaluation["test"].images for client in clients])
    labels = torch.cat([client.evaluation["test"].labels for client in clients]).numpy()

    def recall(state: State) -> float:
        """Balanced accuracy: by chance, 1 in 8."""
        load_into(work.net, state)
        said = predict(work.net, pixels).argmax(1).numpy()
        return float(np.mean([(said[labels == c] == c).mean() for c in np.unique(labels)]))

    assert recall(receiver) > 0.25
    assert recall(impostor) < 0.2
