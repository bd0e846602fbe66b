import torch
from hypothesis import given
from hypothesis import strategies as st

from fedperl.data.batches import auto_steps, draw_indices
from fedperl.data.partitions.paper import PAPER


def test_the_papers_split_gives_26_steps() -> None:
    assert auto_steps((h.unlabelled for h in PAPER), 16) == 26


def test_steps_are_capped_and_empty_clients_do_not_count() -> None:
    assert auto_steps([10_000, 5_000], 16) == 100
    assert auto_steps([0, 33], 16) == 3


@given(st.integers(1, 50), st.integers(1, 200), st.integers(0, 99))
def test_every_image_comes_equally_often(available: int, wanted: int, seed: int) -> None:
    drawn = draw_indices(available, wanted, torch.Generator().manual_seed(seed))
    counts = torch.bincount(drawn, minlength=available)
    assert len(drawn) == wanted
    assert counts.max() - counts.min() <= 1
