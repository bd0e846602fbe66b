"""Views made by kernels against those made operation by operation in torch, on the CPU.

Where there is no GPU the kernels run in Triton's interpreter: slowly, so images are tiny and few here.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton", reason="Triton, in which the kernels are written, is not installed")

from triton.runtime import interpreter  # noqa: E402

from fedperl.config import load_config  # noqa: E402
from fedperl.data.views import (  # noqa: E402
    STRONG_RECIPES,
    WEAK_RECIPES,
    Operation,
    StrongDraw,
    apply_strong,
    apply_weak,
    draw_strong,
    draw_weak,
    to_float,
)
from fedperl.engines.cuda import kernels_common, kernels_strong  # noqa: E402
from fedperl.engines.cuda.captured import Recorder  # noqa: E402
from fedperl.engines.cuda.kernels import fast_views, views_work  # noqa: E402
from fedperl.engines.cuda.views import KernelViews, views_of  # noqa: E402
from fedperl.learn import local_round as rounds  # noqa: E402
from fedperl.learn.local_images import LocalImages  # noqa: E402
from fedperl.learn.local_round import LocalSettings, batches, drained, local_steps  # noqa: E402
from fedperl.learn.nets import build_net  # noqa: E402
from fedperl.learn.objectives import FixMatch  # noqa: E402
from fedperl.learn.steps import EagerSteps, EagerViews  # noqa: E402
from fedperl.settings import Objective, Optimizer, Views  # noqa: E402

MOVES = range(Operation.ROTATE, Operation.AUTOCONTRAST)
VALUES: dict[Operation, list[float]] = {
    Operation.IDENTITY: [0.0],
    Operation.ROTATE: [-17.0, 90.0, 200.0],
    Operation.SHEAR_X: [-0.3, 0.1],
    Operation.SHEAR_Y: [-0.1, 0.3],
    Operation.TRANSLATE_X: [-0.2, 2.0],
    Operation.TRANSLATE_Y: [-0.11, 0.2],
    Operation.AUTOCONTRAST: [0.0] * 2,
    Operation.EQUALIZE: [0.0] * 2,
    Operation.SOLARIZE: [100.0, 0.0, 256.0],
    Operation.POSTERIZE: [4.0, 7.0, 8.0],
    Operation.COLOUR: [0.1, 1.0, 1.9],
    Operation.CONTRAST: [0.7, 0.0, 1.5],
    Operation.BRIGHTNESS: [0.1, 1.3],
    Operation.SHARPNESS: [0.1, 1.0, 1.9],
}


@pytest.fixture(autouse=True)
def _mended_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mend a fault of Triton 3.6's interpreter: loop bounds under NumPy 2.4."""
    patch = interpreter._patch_lang_tensor

    def with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", with_index)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(n: int, height: int, width: int | None = None, seed: int = 0) -> Tensor:
    """Noise of 8 bits, each image and channel in a range of levels of its own."""
    low, high = torch.randint(0, 256, (2, n, 3, 1, 1), generator=generator(seed)).sort(0).values
    noise = torch.rand(n, 3, height, width or height, generator=generator(seed + 1))
    return torch.lerp(low.float(), high.float(), noise).round().to(torch.uint8)


def made(images: Tensor, drawn: Any) -> Tensor:
    found: Tensor = views_of(images.to(DEVICE), drawn)
    assert found.shape == images.shape
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert found.dtype == torch.float32
    return found.cpu()


@pytest.mark.parametrize(("size", "as_float", "values"), [(19, False, 3), (32, True, 1)])
def test_every_operation(size: int, as_float: bool, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that do not move an image give the same to the last bit, so that the same levels come out of them."""
    if DEVICE == "cpu":
        monkeypatch.setattr(kernels_strong, "MANY", 256)  # so that a program walks several tiles
    cases = [(operation, value) for operation, some in VALUES.items() for value in some[:values]]
    operation, value = torch.tensor([int(case[0]) for case in cases]), torch.tensor([case[1] for case in cases])
    images = pictures(len(cases), size)
    for first in (Operation.AUTOCONTRAST, Operation.EQUALIZE):
        here = int((operation == first).nonzero()[0])
        images[here, 0] = torch.where(images[here, 1] > 100, 255, 3)  # two levels
        images[here, 1] = 77  # one
    given = to_float(images) if as_float else images
    found = made(given, StrongDraw(operation[:, None], value[:, None]))
    wanted = apply_strong(to_float(images), StrongDraw(operation[:, None], value[:, None]))
    for row, (name, factor) in enumerate(cases):
        difference = (found[row] - wanted[row]).abs().max()
        assert difference <= (1e-5 if name in MOVES else 0), f"{name.name} {factor}"


def test_operations_on_what_others_have_left() -> None:
    """A difference in the last bit of a moved image may become one of a level: seldom."""
    wrong, total = 0, 0
    for seed, (recipe, n) in enumerate({"fedperl": 6, "standard": 15}.items()):
        images, drawn = pictures(n, 19, seed=seed), draw_strong(n, generator(seed), recipe)
        difference = (made(images, drawn) - apply_strong(to_float(images), drawn)).abs()
        assert difference.max() < 0.1
        wrong, total = wrong + int((difference > 1e-5).sum()), total + difference.numel()
    assert wrong < 1e-3 * total


@pytest.mark.slow
@pytest.mark.parametrize("recipe", STRONG_RECIPES)
def test_many_strong_views(recipe: str) -> None:
    images, drawn = pictures(60, 32, seed=5), draw_strong(60, generator(5), recipe)
    difference = (made(images, drawn) - apply_strong(to_float(images), drawn)).abs()
    assert (difference > 1e-5).float().mean() < 1e-3


@pytest.mark.parametrize("recipe", WEAK_RECIPES)
@pytest.mark.parametrize(("height", "width", "as_float"), [(19, 19, True), (32, 32, False), (17, 23, False)])
def test_weak_views(recipe: str, height: int, width: int, as_float: bool) -> None:
    images, drawn = pictures(5, height, width), draw_weak(5, generator(), recipe)
    wanted = apply_weak(to_float(images), drawn)
    torch.testing.assert_close(made(to_float(images) if as_float else images, drawn), wanted, atol=1e-5, rtol=0)


def test_a_view_does_not_depend_on_the_other_images() -> None:
    images = pictures(5, 19)
    draws: list[Any] = [draw_strong(5, generator(3), "standard", operations=3), draw_weak(5, generator(3))]
    for drawn in draws:
        alone = [made(images[i : i + 1], drawn[i : i + 1]) for i in range(5)]
        assert torch.equal(made(images, drawn), torch.cat(alone))


def test_few_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a weak view; one an operation of a strong view, and one more where an image must be seen as a whole."""
    launched: list[str] = []

    def note(kernel: kernels_common.Kernel, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: launched.append(kernel.compiled.fn.__name__)

    monkeypatch.setattr(kernels_common.Kernel, "__getitem__", note)
    made(pictures(3, 8), draw_weak(3, generator()))
    assert launched == ["_weak"]
    launched.clear()
    slots = [Operation.ROTATE, Operation.CONTRAST, Operation.SOLARIZE, Operation.EQUALIZE]
    operation = torch.tensor([slots, [Operation.IDENTITY] * 4])
    made(pictures(2, 8), StrongDraw(operation, torch.ones(2, 4)))
    assert launched == ["_operate", "_statistics", "_operate", "_operate", "_statistics", "_operate"]


def test_other_images_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be uint8 or float32 .* was given torch.float64 \(2, 3, 8, 8\)"):
        views_of(torch.zeros(2, 3, 8, 8, dtype=torch.float64), draw_weak(2, generator()))
    with pytest.raises(ValueError, match="was given 2 images and a draw for 3"):
        views_of(pictures(2, 8), draw_strong(3, generator()))


def client() -> LocalImages:
    every = torch.arange(12, device=DEVICE)
    return LocalImages(pictures(12, 8).to(DEVICE), every % 3, every[:5], every[5:], 3)


SETTINGS = LocalSettings(Objective(), Optimizer(lr=1e-3), Views(strong="standard", operations=1), steps=2, batch=3)


@pytest.mark.parametrize("labelled", ["weak", "strong"])
def test_batches_of_a_round(labelled: Literal["weak", "strong"], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(SETTINGS, views=Views(strong="standard", operations=1, labelled=labelled))
    eager = list(batches(client(), settings, 1, FixMatch.views))
    monkeypatch.setitem(rounds.VIEW_MEMORY, DEVICE, 1)  # a step at a time, so that most begin inside the draws
    ours = list(batches(client(), settings, 1, FixMatch.views, make_views=KernelViews))
    for one, other in zip(ours, eager, strict=True):
        for name in ("labelled", "weak", "strong"):
            view = getattr(one, name)
            assert view.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(view, getattr(other, name), atol=1e-5, rtol=0)
        assert torch.equal(one.labels, other.labels)  # type: ignore[arg-type]


def test_a_round_asks_the_engine_for_its_views() -> None:
    asked: list[int] = []

    def make_views(data: LocalImages, rows: Tensor, draws: Any) -> EagerViews:
        asked.append(len(draws))
        return EagerViews(data, rows, draws)

    class Steps(EagerSteps):
        pass

    Steps.make_views = staticmethod(make_views)
    net = build_net("small_cnn", 3, seed=0).to(DEVICE)
    drained(local_steps(net, client(), SETTINGS, seed=1, make_steps=Steps))
    assert asked == [1, 2]  # of labelled and of unlabelled images
    assert Recorder(record=lambda step: step, make_views=make_views).make_views is make_views


def test_without_triton_views_are_made_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    views_work.cache_clear()
    monkeypatch.setitem(sys.modules, "fedperl.engines.cuda.views", None)
    assert fast_views(load_config(None, [])) is EagerViews
    views_work.cache_clear()


@pytest.mark.slow
def test_kernels_that_give_something_else_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    views_work.cache_clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert views_work(Views(strong="standard"), 24, str(DEVICE))
    assert len([*tmp_path.glob("fedperl-*")]) == 1  # while others waited
    views_work.cache_clear()
    monkeypatch.setattr(
        KernelViews, "__call__", lambda self, part: [views * 0.9 for views in EagerViews.__call__(self, part)]
    )
    assert not views_work(Views(strong="standard"), 24, str(DEVICE))
    views_work.cache_clear()
