import dataclasses

import pytest
import torch

from fedperl.data.batches import draw_indices
from fedperl.data.views import apply_strong, draw_strong
from fedperl.learn import local_round as module
from fedperl.learn.average import follow
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, batches, local_round
from fedperl.learn.nets import build_net
from fedperl.learn.objectives import FixMatch, Supervised, View
from fedperl.learn.state import load_into, state_of
from fedperl.seeds import seed_for
from fedperl.settings import Objective, Optimizer, Views


def images(labelled: int = 10, unlabelled: int = 20) -> LocalImages:
    generator = torch.Generator().manual_seed(0)
    n = labelled + unlabelled
    pixels = torch.randint(0, 256, (max(n, 1), 3, 16, 16), dtype=torch.uint8, generator=generator)
    labels = torch.arange(max(n, 1)) % 3
    return LocalImages(pixels, labels, torch.arange(labelled), torch.arange(labelled, n), 3)


def settings(**objective: object) -> LocalSettings:
    return LocalSettings(Objective(**objective), Optimizer(lr=1e-2), Views(), steps=3, batch=4)  # type: ignore[arg-type]


def run(seed: int = 1, data: LocalImages | None = None, **objective: object) -> dict[str, torch.Tensor]:
    net = build_net("small_cnn", 3, seed=0)
    local_round(net, data or images(), settings(**objective), seed=seed)
    return state_of(net)


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_same_seed_same_model_whatever_else_was_drawn() -> None:
    first = run()
    torch.rand(100)
    assert equal(first, run())
    assert not equal(first, run(seed=2))


def test_views_in_small_or_large_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(batches(images(), settings(), 1, FixMatch.views))
    monkeypatch.setitem(module.VIEW_MEMORY, "cpu", 1)
    single = list(batches(images(), settings(), 1, FixMatch.views))
    assert len(whole) == len(single) == 3
    for a, b in zip(whole, single, strict=True):
        for name in ("labelled", "labels", "weak", "strong"):
            assert torch.equal(getattr(a, name), getattr(b, name))


def test_labels_belong_to_their_images() -> None:
    data = images()
    plain = LocalSettings(Objective(), Optimizer(), Views(weak="none"), steps=4, batch=4)
    for batch in batches(data, plain, 1, Supervised.views):
        assert batch.labelled is not None
        assert batch.labels is not None
        assert batch.weak is None
        for image, label in zip(batch.labelled, batch.labels, strict=True):
            same = (data.images[data.labelled].float() / 255 - image).abs().amax(dim=(1, 2, 3)) < 1e-6
            assert data.labels[data.labelled][same].tolist() == [label]


def test_labelled_images_in_strong_views_change_nothing_else() -> None:
    data = images()
    again: tuple[View, ...] = ("labelled", "labelled_again")
    of: frozenset[View] = FixMatch.views | {*again}
    strong = dataclasses.replace(settings(), views=Views(labelled="strong"))
    plain, shown = (list(batches(data, each, 1, of)) for each in (settings(), strong))
    for name in again:
        generator = torch.Generator().manual_seed(seed_for(1, module.PURPOSE[name]))
        drawn = draw_strong(12, generator)
        rows = draw_indices(10, 12, torch.Generator().manual_seed(seed_for(1, "labelled")))
        wanted = torch.stack(
            [
                apply_strong(data.images[row : row + 1].float() / 255, drawn[k : k + 1])[0]
                for k, row in enumerate(rows.tolist())
            ]
        )
        found = torch.cat([getattr(batch, name) for batch in shown])
        torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
        assert not torch.equal(found, torch.cat([getattr(batch, name) for batch in plain]))
    for one, other in zip(plain, shown, strict=True):
        for kind in ("labels", "weak", "strong"):
            assert torch.equal(getattr(one, kind), getattr(other, kind))


def test_missing_kinds_are_skipped_and_nothing_at_all_is_refused() -> None:
    assert equal(run(data=images(10, 0), kind="fixmatch"), run(data=images(10, 0), kind="supervised"))
    unlabelled_only = run(data=images(0, 20))
    assert all(torch.isfinite(t).all() for t in unlabelled_only.values())
    with pytest.raises(ValueError, match="nothing to train on: 0 labelled and 0 unlabelled"):
        run(data=images(0, 0))
    with pytest.raises(ValueError, match="nothing to train on: 0 labelled"):
        run(data=images(0, 20), kind="supervised")


def test_teacher_follows_with_ema_and_stays_with_round_start() -> None:
    for source, moves in (("ema", True), ("round_start", False)):
        net, teacher = (build_net("small_cnn", 3, seed=0) for _ in range(2))
        before = state_of(teacher)
        teacher.eval()
        local_round(net, images(), settings(label_source=source, ema_decay=0.5), seed=1, teacher=teacher)
        assert equal(before, state_of(teacher)) != moves
    with pytest.raises(ValueError, match="needs that network"):
        run(label_source="ema")


def test_ema_against_naive() -> None:
    net, mean = (build_net("small_cnn", 3, seed=s) for s in (1, 2))
    expected = {k: 0.9 * m + 0.1 * n for (k, m), n in zip(state_of(mean).items(), state_of(net).values(), strict=True)}
    follow(mean, net, 0.9)
    for name, tensor in state_of(mean).items():
        if tensor.is_floating_point():
            assert torch.allclose(tensor, expected[name], atol=1e-6)
        else:
            assert torch.equal(tensor, net.state_dict()[name])


def test_load_into_takes_part_of_a_state_and_refuses_unknown_names() -> None:
    net = build_net("small_cnn", 3, seed=0)
    load_into(net, {"head.bias": torch.tensor([1.0, 2.0, 3.0])})
    assert net.state_dict()["head.bias"].tolist() == [1, 2, 3]
    with pytest.raises(KeyError):
        load_into(net, {"other": torch.ones(1)})
