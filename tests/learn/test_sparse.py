"""Sparse transmission against a loop over entries, and its bound."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedperl.learn.sparse import sparse_bytes, sparsify
from fedperl.learn.state import size_in_bytes

VALUES = st.lists(st.tuples(*[st.floats(-1e3, 1e3, width=32)] * 2), min_size=1, max_size=30)


def states() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    old = {"a": torch.randn(4, 5, generator=generator), "b.running_var": torch.rand(7, generator=generator)}
    new = {name: value + 0.1 * torch.randn(value.shape, generator=generator) for name, value in old.items()}
    new["a"][0] = old["a"][0]
    return new | {"count": torch.tensor(9)}, old | {"count": torch.tensor(3)}


@pytest.mark.parametrize("threshold", [0.0, 0.05, 0.1, 10.0])
def test_against_a_loop(threshold: float) -> None:
    new, old = states()
    result, changed = sparsify(new, old, threshold)
    count = 0
    for name in ("a", "b.running_var"):
        for r, n, o in zip(result[name].flatten(), new[name].flatten(), old[name].flatten(), strict=True):
            moved = abs(float(n - o)) > threshold
            count += moved
            assert r == (n if moved else o)
    assert changed == count
    assert result["count"] == 9
    assert list(result) == list(new)


def test_bounds_of_the_threshold() -> None:
    new, old = states()
    everything, changed = sparsify(new, old, 0.0)
    assert all(torch.equal(everything[name], new[name]) for name in new)
    assert changed == 22  # 27 float entries, of which a row of 5 is the same
    nothing, changed = sparsify(new, old, 1e3)
    assert changed == 0
    assert all(torch.equal(nothing[name], old[name]) for name in ("a", "b.running_var"))


@given(VALUES, st.floats(0, 10, width=32))
def test_the_result_is_within_the_threshold_and_a_second_time_changes_nothing(
    pairs: list[tuple[float, float]], threshold: float
) -> None:
    new, old = ({"w": torch.tensor(column)} for column in zip(*pairs, strict=True))
    result, changed = sparsify(new, old, threshold)
    assert ((result["w"] - new["w"]).abs() <= threshold).all()
    assert changed == ((result["w"] != old["w"]).sum())
    again, more = sparsify(result, old, threshold)
    assert torch.equal(again["w"], result["w"])
    assert more == changed


def test_results_are_copies_and_what_is_not_finite_is_sent() -> None:
    new = {"w": torch.tensor([float("nan"), float("inf"), 1.0]), "n": torch.tensor([1])}
    old = {"w": torch.zeros(3), "n": torch.tensor([0])}
    result, changed = sparsify(new, old, 2.0)
    assert changed == 2
    assert torch.isnan(result["w"][0])
    assert torch.isinf(result["w"][1])
    result["w"].zero_()
    result["n"].zero_()
    assert new["w"][2] == 1
    assert new["n"] == 1


def test_states_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="a: wanted an old tensor of shape \\(2,\\), found none"):
        sparsify({"a": torch.zeros(2)}, {}, 0.0)
    with pytest.raises(ValueError, match="found \\(3,\\)"):
        sparsify({"a": torch.zeros(2)}, {"a": torch.zeros(3)}, 0.0)
    for threshold in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="at least 0"):
            sparsify({}, {}, threshold)


def test_bytes_are_value_and_position_of_each_entry_up_to_the_dense_size() -> None:
    state = {"w": torch.zeros(10, 10), "count": torch.tensor(1)}
    assert size_in_bytes(state) == 408
    assert sparse_bytes(0, state) == 8
    assert sparse_bytes(7, state) == 7 * 8 + 8
    assert sparse_bytes(50, state) == 408
    assert sparse_bytes(100, state) == 408
