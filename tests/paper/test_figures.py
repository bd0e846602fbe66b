"""The figures' numbers against naive ones from the answers, committees and images behind them."""

import ast
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score

import fedperl
from fedperl.data.partition import PARTS
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.evaluate import binned_sums, calibration
from fedperl.paper import figures
from fedperl.paper.content import NONE, FigureContent
from fedperl.paper.figures.examples import Answers as TwoAnswers
from fedperl.paper.figures.training import smoothed, window
from fedperl.paper.found import Found, Trained, read_trained
from fedperl.paper.printed import printed
from tests.conftest import small_config, small_store
from tests.paper.made import CLASSES, Answers, answers, found, ten, trained

Lines = Sequence[dict[str, Any]]


def cells(content: FigureContent, setting: str = "") -> dict[str, dict[str, str]]:
    """Return label -> column -> cell, of our numbers."""
    assert content.values is not None
    rows = [row for row in content.values.rows if row.setting.startswith(setting)]
    return {row.label: dict(zip(content.values.columns, row.ours, strict=True)) for row in rows}


def paper_cells(content: FigureContent, setting: str = "") -> dict[str, dict[str, str]]:
    assert content.values is not None
    rows = [row for row in content.values.rows if row.setting.startswith(setting) and row.paper]
    return {row.label: dict(zip(content.values.columns, row.paper, strict=True)) for row in rows}


def titles(content: FigureContent) -> list[str]:
    return [axes.get_title() or axes.get_title(loc="left") for axes in content.figure.axes]


def with_lines(run: Trained, *seeds: Lines) -> Trained:
    """Return the run with these rounds, one list a seed."""
    both = zip(run.seeds, seeds, strict=True)
    return replace(run, seeds=tuple(replace(one, lines=tuple((None, line) for line in lines)) for one, lines in both))


def committees(seed: int, T: int, rounds: int = 12, clients: int = 10) -> list[dict[str, Any]]:
    """Rounds of three clients, each helped by T others; nobody in the first two rounds."""
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(1, rounds + 1):
        helped = {}
        for receiver in generator.choice(clients, 3, replace=False).tolist():
            others = [k for k in range(clients) if k != receiver]
            helped[str(receiver)] = generator.choice(others, T, replace=False).tolist() if number > 2 else []
        lines.append({"round": number, "committees": helped, "validation": {}})
    return lines


def naive_shares(lines: Lines) -> np.ndarray[Any, np.dtype[np.float64]]:
    counts = np.zeros((10, 10))
    for line in lines:
        for receiver, members in line["committees"].items():
            for member in members:
                counts[int(receiver), member] += 1
    with np.errstate(invalid="ignore"):
        return np.asarray(counts / counts.sum(axis=1, keepdims=True))


# Who helps whom


def test_the_heat_map_has_the_shares_of_all_seeds_and_the_mean_inside() -> None:
    first, second = committees(1, 2), committees(2, 2)
    run = with_lines(trained("FedPerl T=2", ten(1), ten(2)), first, second)
    content = figures.figure3(found(run))
    shares = naive_shares([*first, *second])
    table = cells(content, "T = 2")
    for m in range(10):
        row = table[f"client {m}"]
        wanted = [NONE if np.isnan(share) else f"{100 * share:.1f}" for share in shares[m]]
        assert [row[f"peer {k}"] for k in range(10)] == wanted
    ham = np.nanmean([shares[m, 5:8].sum() for m in (5, 6, 7)])
    assert table["HAM10000, mean"]["inside %"] == f"{100 * ham:.1f}"
    assert table["HAM10000, mean"]["chance %"] == f"{100 * 2 / 9:.1f}"
    assert table["client 1"]["chance %"] == f"{100 * 4 / 9:.1f}"
    assert table["client 8"]["inside %"] == table["client 8"]["chance %"] == NONE
    assert paper_cells(content)["HAM10000, mean"]["inside %"] == "57.77"
    assert paper_cells(content)["client 6"]["peer 5"] == "33.2"
    texts = [text.get_text() for text in content.figure.findobj(Text)]
    assert f"HAM10000: {100 * ham:.1f} % inside (chance 22.2, paper 57.77)" in texts
    assert f"{100 * ham:.0f} %" in content.alt
    largest = np.nanmax(shares)
    assert f"{100 * largest:.0f}" in texts


def test_a_map_for_each_run_that_had_peers() -> None:
    runs = [with_lines(trained(f"FedPerl T={t}", ten(t)), committees(t, t)) for t in (2, 4)]
    silent = with_lines(trained("FedPerl T=5", ten(5)), committees(5, 2, rounds=2))
    content = figures.figure3(found(*runs, silent))
    assert titles(content) == ["T = 2", "T = 4", ""]  # the last is the scale of colours
    assert any("No peers in FedPerl T=5" in note for note in content.notes)
    with pytest.raises(RunError, match="FedPerl T=2"):
        figures.early_late(found(silent, with_lines(trained("FedPerl T=2", ten(5)), committees(5, 2, rounds=2))))


def test_communities_that_are_not_neighbours_are_drawn_as_neighbours() -> None:
    clients = {n: answers(n) for n in range(4)}
    lines = [{"round": 1, "committees": {"0": [2], "2": [0, 3], "3": [1]}, "validation": {}}]
    run = with_lines(trained("FedPerl T=2", clients, sources=("a", "b", "a", "c")), lines)
    content = figures.figure3(found(run))
    assert content.values is not None
    assert content.values.columns[:4] == ("peer 0", "peer 2", "peer 1", "peer 3")
    assert cells(content)["a, mean"]["inside %"] == "75.0"
    assert cells(content)["client 1"]["peer 0"] == NONE
    assert not paper_cells(content)  # these are not the paper's clients


def test_early_and_late_rounds_are_halves_of_those_with_peers() -> None:
    lines = committees(3, 2, rounds=12)
    content = figures.early_late(found(with_lines(trained("FedPerl T=2", ten(1)), lines)))
    for setting, half in (("Rounds before 8", lines[:7]), ("Rounds from 8 on", lines[7:])):
        shares, table = naive_shares(half), cells(content, setting)
        for m in range(10):
            wanted = NONE if np.isnan(shares[m, 0]) else f"{100 * shares[m, 1]:.1f}"
            assert table[f"client {m}"]["peer 1"] == wanted


# During training


def test_a_smoothed_value_is_the_mean_around_it() -> None:
    values = [0.0, 3.0, 6.0, 0.0, 3.0]
    assert smoothed(values, 3) == [1.5, 3.0, 3.0, 3.0, 1.5]
    assert smoothed(values, 1) == values
    assert [window(n) for n in (5, 19, 20, 60, 500)] == [1, 1, 3, 3, 25]


def test_training_curves_by_client() -> None:
    generator = np.random.default_rng(0)
    accuracies = generator.random((24, 10))
    lines = [
        {"round": r + 1, "validation": {str(c): {"accuracy": float(accuracies[r, c])} for c in range(10)}}
        for r in range(24)
    ]
    runs = [with_lines(trained(name, ten(1)), lines) for name in ("FedMatch", "FedPerl T=3")]
    silent = with_lines(trained("FedPerl T=2", ten(1)), [{"round": 1, "validation": {}}])
    content = figures.figure4(found(*runs, silent))
    assert titles(content) == ["FedMatch", "FedPerl T=3"]
    axes = content.figure.axes[0]
    assert len(axes.lines) == 20  # every round, and smoothed
    raw, smooth = (np.asarray(line.get_ydata(), dtype=float) for line in axes.lines[6:8])
    assert raw == pytest.approx(100 * accuracies[:, 3])
    assert smooth[10] == pytest.approx(100 * accuracies[9:12, 3].mean())
    best = int(accuracies[:, 3].argmax())
    row = cells(content, "FedPerl T=3")["client 3"]
    assert row["best %"] == f"{100 * accuracies[best, 3]:.1f}"
    assert row["round of the best"] == str(best + 1)
    assert row["last round %"] == f"{100 * accuracies[-1, 3]:.1f}"
    assert any("FedPerl T=2" in note for note in content.notes)


def test_the_best_of_equal_rounds_is_the_one_that_is_tested() -> None:
    lines = [{"round": r, "validation": {"0": {"accuracy": accuracy}}} for r, accuracy in enumerate((0.5, 0.7, 0.7), 1)]
    content = figures.figure4(found(with_lines(trained("FedMatch", ten(1)), lines)))
    assert cells(content)["client 0"]["round of the best"] == "3"  # as federation.selection has it


def test_time_is_a_multiple_of_ssfl() -> None:
    ssfl = trained("SSFL", ten(1), seconds={"training": 100.0, "validation": 20.0})
    ours = trained("FedPerl T=2", ten(1), ten(2), seconds={"training": 150.0, "validation": 30.0})
    content = figures.time(found(ssfl, ours))
    assert cells(content)["FedPerl T=2"] == {"multiple of SSFL": "1.50", "seconds": "180.0", "hours": "0.050"}
    assert paper_cells(content)["FedPerl T=2"]["multiple of SSFL"] == f"{5.85 / 5.5:.2f}"
    lengths = [bar.get_width() for bar in content.figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert lengths == pytest.approx([1.0, 1.5])
    assert any("Titan Xp" in note for note in content.notes)
    alone = figures.time(found(ours))
    assert cells(alone)["FedPerl T=2"]["multiple of FedPerl T=2"] == "1.00"
    assert not paper_cells(alone)


# What can be trusted


def naive_coverage(one: Answers, risk: float) -> float:
    """The largest share that can be kept, the surest first, whole steps of 0.005 at a time."""
    step = np.minimum((one.probabilities.max(axis=1) * 200).astype(int), 199)
    wrong = one.probabilities.argmax(axis=1) != one.truth
    kept = [step >= least for least in range(200)]
    return max((float(which.mean()) for which in kept if which.any() and wrong[which].mean() <= risk), default=0.0)


def test_risk_at_full_coverage_is_one_minus_accuracy() -> None:
    clients = {n: one for n, one in ten(4).items() if n != 9}
    content = figures.figure5(found(trained("SSFL", clients), trained("Local upper", ten(5))))
    assert titles(content) == ["SSFL", "Local upper"]
    table = cells(content, "SSFL")
    assert list(table) == [f"client {n}" for n in range(9)]
    for n, one in clients.items():
        risk = (one.probabilities.argmax(axis=1) != one.truth).mean()
        assert table[f"client {n}"]["risk at full coverage %"] == f"{100 * risk:.1f}"
        assert table[f"client {n}"]["coverage at 10 % risk"] == f"{100 * naive_coverage(one, 0.1):.1f}"
        line = content.figure.axes[0].lines[n]
        assert line.get_label() == f"client {n} ({100 * risk:.1f})"
        assert np.asarray(line.get_ydata())[-1] == pytest.approx(100 * risk)
    assert paper_cells(content, "SSFL")["client 2"]["coverage at 10 % risk"] == "33.0"


def test_reliability_of_each_client_and_of_all_together() -> None:
    clients = ten(6)
    content = figures.figure9(found(trained("SSFL", clients), trained("FedMatch", ten(7))))
    table = cells(content, "SSFL")
    exact = {n: calibration(one.truth, one.probabilities) for n, one in clients.items()}
    for n, one in exact.items():
        row = table[f"client {n}"]
        assert (row["ECE"], row["MCE"]) == (f"{one.ece:.3f}", f"{one.mce:.3f}")
        assert (row["accuracy"], row["images"]) == (f"{one.accuracy:.3f}", "60")
    assert table["mean over clients"]["ECE"] == f"{np.mean([one.ece for one in exact.values()]):.3f}"
    assert paper_cells(content, "SSFL")["mean over clients"]["ECE"] == "0.152"
    every = calibration(
        np.concatenate([one.truth for one in clients.values()]),
        np.concatenate([one.probabilities for one in clients.values()]),
    )
    assert float(table["all clients together"]["ECE"]) == pytest.approx(every.ece, abs=0.01)
    assert len(content.figure.axes) == 2 * 11
    assert content.figure.axes[4].get_title() == f"{exact[3].ece:.2f} / {exact[3].mce:.2f}"


def test_bars_reach_from_accuracy_to_confidence() -> None:
    sure = np.full((50, 8), 0.1 / 7)
    sure[:, 2] = 0.9
    truth = np.array([2] * 30 + [1] * 20)
    content = figures.reliability_local(found(trained("Local lower", {0: Answers(truth, sure)})))
    bar, gap = [one for one in content.figure.axes[1].patches if isinstance(one, Rectangle)]
    assert bar.get_height() == pytest.approx(0.6)
    assert (gap.get_y(), gap.get_height()) == pytest.approx((0.6, 0.3))
    assert bar.get_x() < 0.9 < bar.get_x() + bar.get_width()


def unseen(seed: int) -> tuple[dict[str, Any], Answers]:
    one = answers(seed, images=300, classes=2)
    exact = calibration(one.truth, one.probabilities)
    return {
        "calibration": {"malignancy": {"ece": exact.ece, "mce": exact.mce}},
        "sums": {"malignancy": binned_sums(one.truth, one.probabilities).to_dict()},
    }, one


def test_reliability_on_the_unseen_client_is_the_mean_over_seeds() -> None:
    told = [unseen(seed) for seed in (1, 2)]
    run = replace(trained("Upper", ten(1), ten(2)), unseen=tuple(one for one, _ in told))
    content = figures.figure7(found(run, trained("SSFL", ten(1), ten(2))))
    ece = np.mean([one["calibration"]["malignancy"]["ece"] for one, _ in told])
    right = np.concatenate([one.probabilities.argmax(axis=1) == one.truth for _, one in told])
    row = cells(content, "Upper")["all images"]
    assert (row["ECE"], row["images"], row["accuracy"]) == (f"{ece:.3f}", "600", f"{right.mean():.3f}")
    assert len(titles(content)) == 1  # SSFL was not asked
    assert f"ECE {ece:.3f}" in titles(content)[0]
    parts = [int(cell["images"]) for label, cell in cells(content).items() if label.startswith("confidence")]
    assert sum(parts) == 600
    with pytest.raises(RunError, match="unseen"):
        figures.figure7(found(trained("SSFL", ten(1))))


# One class against the rest


@pytest.mark.parametrize(
    ("make", "score"), [(figures.roc, roc_auc_score), (figures.precision_recall, average_precision_score)]
)
def test_areas_are_those_of_all_clients_together(
    make: Callable[[Found], FigureContent], score: Callable[..., float]
) -> None:
    clients = {n: answers(n, known=[0, 1, 2, 3, 4, 5, 7]) for n in range(4)}  # VASC is nowhere
    content = make(found(trained("SSFL", clients), trained("Upper", ten(3))))
    truth = np.concatenate([one.truth for one in clients.values()])
    rounded = [np.floor(one.probabilities * 200) for one in clients.values()]
    for label, name in enumerate(CLASSES):
        cell = cells(content)[name]["SSFL"]
        if name == "VASC":
            assert cell == NONE
        else:
            assert cell == f"{score(truth == label, np.concatenate(rounded)[:, label]):.3f}"
            assert f"SSFL  {cell}" in [line.get_label() for line in content.figure.axes[label].lines]
    assert cells(content)["MEL"]["images"] == str((truth == 0).sum())


def test_a_class_without_images_has_an_empty_panel() -> None:
    content = figures.roc(found(trained("SSFL", {n: answers(n, known=[0, 1]) for n in range(3)})))
    assert len(content.figure.axes) == 8
    assert "no test image" in [text.get_text() for text in content.figure.axes[6].texts]
    assert "no test image" not in [text.get_text() for text in content.figure.axes[0].texts]


def test_the_precision_recall_curve_has_the_area_it_claims() -> None:
    clients = ten(8)
    content = figures.precision_recall(found(trained("SSFL", clients)))
    line = content.figure.axes[1].lines[-1]
    x, y = np.asarray(line.get_xdata()), np.asarray(line.get_ydata())
    assert len(np.unique(x)) == len(x) // 2 + 1  # each recall has one precision
    assert f"{(np.diff(x) * (y[1:] + y[:-1]) / 2).sum():.3f}" == cells(content)["NV"]["SSFL"]


# Few labelled clients


def test_bars_are_mean_f1_beside_the_papers() -> None:
    seeds = (ten(1), ten(2))
    content = figures.figure8(found(trained("few: FedIRM 30%", *seeds), trained("few: SSFL 100%", *seeds)))

    def f1(one: Answers) -> float:
        return float(f1_score(one.truth, one.probabilities.argmax(1), average="weighted", zero_division=0))

    mean = 100 * np.mean([[f1(one) for one in seed.values()] for seed in seeds])
    assert cells(content, "30%")["FedIRM"]["F1 %"] == f"{mean:.1f}"
    assert paper_cells(content, "30%")["FedIRM"]["F1 %"] == f"{printed('figure8')['few: FedIRM 30%']['f1']}"
    assert "SSFL" not in paper_cells(content, "100%")
    bars = [bar.get_height() for bar in content.figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert bars == pytest.approx([mean, 66.3, mean])
    by_seed = sorted(100 * np.mean([f1(one) for one in seed.values()]) for seed in seeds)
    whisker = content.figure.axes[0].lines[0]
    assert np.asarray(whisker.get_ydata()) == pytest.approx(by_seed)
    assert f"FedIRM 30% {mean:.1f}" in content.alt


# Images


def with_images(store: Store, *runs: Trained) -> Found:
    return replace(found(*runs), open_store=lambda _: store)


def dealt_run(name: str, **scenario: Any) -> Trained:
    run = trained(name, {n: answers(n) for n in range(5)}, sources=("test",) * 5)
    return replace(run, seeds=(replace(run.first, config=small_config(scenario=scenario)),))


def test_images_by_use_and_by_class() -> None:
    store = small_store()
    runs = [dealt_run("SSFL"), dealt_run("server: SSFL", labels="server")]
    content = figures.figure2(with_images(store, *runs))
    standard, server = cells(content, "A"), cells(content, "B")
    hidden = seen_by(runs[1].first.config.scenario, store.partition, store.manifest, seed=0)
    for n, client in enumerate(store.partition.clients):
        row = standard[f"client {n}"]
        assert {part: row[part] for part in PARTS} == {part: str(len(getattr(client, part))) for part in PARTS}
        labels = [store.classes[store.manifest.label[one]] for one in client.rows()]
        assert {name: row[name] for name in store.classes} == {name: str(labels.count(name)) for name in store.classes}
        assert server[f"client {n}"]["labelled"] == "0"
        assert int(server[f"client {n}"]["unlabelled"]) == len(client.labelled) + len(client.unlabelled)
    assert server["server"]["labelled"] == str(len(hidden.server.labelled)) != "0"
    bars = [bar for bar in content.figure.axes[0].patches if isinstance(bar, Rectangle)]
    assert sum(bar.get_width() for bar in bars) == len(store.manifest)
    assert content.alt.startswith("5 clients hold 120 images, 25 % of them labelled")
    assert [title[0] for title in titles(content)] == ["A", "B", "C"]
    assert [title[0] for title in titles(figures.figure2(with_images(store, runs[0])))] == ["A", "C"]


@pytest.fixture(scope="module", name="asked")
def _asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Trained], Store]:
    """Two short runs with their models."""
    store, folder, runs = small_store(clients=3), tmp_path_factory.mktemp("runs"), {}
    for name, method in (("FedPerl T=2", "fedperl"), ("SSFL", "ssfl")):
        config = small_config(method=method, privacy="research", optimizer={"lr": 1e-2}, federation={"rounds": 2})
        fedperl.train(config, folder / method, store=store)
        runs[name] = read_trained(name, [folder / method])
    return runs, store


def test_examples_are_counted_fairly(asked: tuple[dict[str, Trained], Store]) -> None:
    runs, store = asked
    content = figures.figure6(with_images(store, *runs.values()))
    every = {column: int(cell) for column, cell in list(cells(content)["all"].items())[:6]}
    both = every["both right, FedPerl surer"] + every["both right, SSFL as sure or surer"]
    assert (
        every["images"] == 18 == both + sum(every[k] for k in ("only FedPerl right", "only SSFL right", "both wrong"))
    )
    for name, alone in (("FedPerl T=2", "only FedPerl right"), ("SSFL", "only SSFL right")):
        numbers = runs[name].first.tested("per_client_best").values()
        right = sum(round(one["accuracy"] * one["images"]) for one in numbers)
        assert every[alone] + both == right
    by_class = [int(row["only SSFL right"]) for label, row in cells(content).items() if label != "all"]
    assert sum(by_class) == every["only SSFL right"]
    assert (
        f"{every['only FedPerl right']} are right only with FedPerl and {every['only SSFL right']}" in content.notes[0]
    )
    shown = sum(bool(axes.images) for axes in content.figure.axes)
    kinds = ("only FedPerl right", "both right, FedPerl surer", "only SSFL right")
    assert shown == sum(row[kind] != "0" for label, row in cells(content).items() if label != "all" for kind in kinds)
    assert not content.private


def test_every_image_is_of_one_sort() -> None:
    ours = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8], [0.3, 0.7]])
    theirs = np.array([[0.2, 0.8], [0.7, 0.3], [0.8, 0.2], [0.6, 0.4], [0.4, 0.6]])
    every = np.arange(5)
    asked = TwoAnswers(every, every, np.zeros(5, dtype=np.int64), ours, theirs)
    sorts = {kind: np.flatnonzero(which).tolist() for kind, which in asked.kinds().items()}
    assert sorts == {
        "only FedPerl right": [0],
        "both right, FedPerl surer": [1],
        "both right, SSFL as sure or surer": [2],
        "only SSFL right": [3],
        "both wrong": [4],
    }
    assert asked.margin == pytest.approx([0.7, 0.2, -0.2, -0.4, -0.1])


def test_photographs_stay_here(asked: tuple[dict[str, Trained], Store]) -> None:
    runs, store = asked
    config = runs["SSFL"].first.config
    other = config.model_copy(update={"data": config.data.model_copy(update={"source": "stores/skin"})})
    run = replace(runs["SSFL"], seeds=(replace(runs["SSFL"].first, config=other),))
    assert figures.figure6(with_images(store, runs["FedPerl T=2"], run)).private
    with pytest.raises(RunError, match="SSFL"):
        figures.figure6(with_images(store, runs["FedPerl T=2"]))


# How all of them look


def everything() -> Found:
    """Runs enough for several panels of each figure, with peers, curves and answers on the unseen client."""
    names: tuple[str, ...] = ("Lower", "SSFL", "FedMatch", "FedPerl raw T=1", *(f"FedPerl T={t}" for t in (2, 3, 4, 5)))
    names += tuple(
        f"few: {name} {share}" for share in ("30%", "100%") for name in ("Lower", "SSFL", "FedIRM", "FedPerl")
    )
    one, runs = replace(trained("", ten(1)), unseen=(unseen(1)[0],)), []
    for number, name in enumerate(names):
        lines = committees(number, 3)
        for line in lines:
            line["validation"] = {str(c): {"accuracy": 0.05 * c + 0.04 * line["round"]} for c in range(10)}
        runs.append(replace(with_lines(one, lines), name=name))
    return found(*runs)


def shown_texts(content: FigureContent) -> list[Text]:
    """Return what is written; marks beyond an axis's ends are there, but are not drawn."""
    hidden = set()
    for axes in content.figure.axes:
        for axis, (low, high) in ((axes.xaxis, sorted(axes.get_xlim())), (axes.yaxis, sorted(axes.get_ylim()))):
            marks = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
            hidden |= {label for at, label in marks if not low <= at <= high}
    texts = [text for text in content.figure.findobj(Text) if isinstance(text, Text) and text not in hidden]
    return [text for text in texts if text.get_visible() and text.get_text().strip()]


def overlaps(content: FigureContent) -> list[str]:
    """Return texts that lie on another text or beyond the figure's edge."""
    content.figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown_texts(content)]
    width, height = content.figure.bbox.width, content.figure.bbox.height
    found = [name for name, box in boxes if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1]
    low, high = (np.array([getattr(box, corner) for _, box in boxes]) for corner in ("min", "max"))
    shared = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)  # (texts, texts, 2)
    pairs = np.argwhere(np.triu((shared > 1).all(axis=2), k=1))
    return found + [f"{boxes[one][0]!r} on {boxes[two][0]!r}" for one, two in pairs]


def test_no_text_lies_on_another() -> None:
    made, twins = everything(), ("reliability_local", "precision_recall", "early_late")  # others are drawn likewise
    names = [name for name in figures.__all__ if name not in ("figure2", "figure6", *twins)]
    before = dict(mpl.rcParams)
    for name in names:
        content = getattr(figures, name)(made)
        assert overlaps(content) == [], name
        assert content.alt.endswith(".")
        assert not content.private
    assert dict(mpl.rcParams) == before


def test_the_same_runs_give_the_same_file() -> None:
    def svg() -> bytes:
        file = io.BytesIO()
        with mpl.rc_context({"svg.hashsalt": "one"}):
            content = figures.figure5(found(trained("SSFL", ten(1))))
            content.figure.savefig(file, format="svg", metadata={"Date": None})
        return file.getvalue()

    assert svg() == svg()


def test_other_clients_and_odd_numbers_can_be_drawn() -> None:
    many = {n: answers(n, images=3) for n in range(14)}
    run = with_lines(trained("FedPerl T=2", many, sources=("a",) * 14), committees(1, 2, clients=14))
    made = found(run, trained("SSFL", {0: answers(1, images=1)}, sources=("a",), seconds={}))
    for name in ("figure3", "figure5", "figure9", "roc", "time"):
        content = getattr(figures, name)(made)
        content.figure.draw_without_rendering()
    assert any("first 12" in note for note in figures.figure5(made).notes)
    with pytest.raises(RunError, match="Local lower"):
        figures.reliability_local(made)


def test_names_are_no_formulas() -> None:
    content = figures.roc(found(trained("SSFL", ten(1), classes=["x$_$", *CLASSES[1:]])))
    content.figure.draw_without_rendering()
    assert titles(content)[0].startswith("x$_$")


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[paper\]'"):
        figures.figure5(found(trained("SSFL", ten(1))))


def test_matplotlib_is_imported_when_something_is_drawn() -> None:
    for path in Path(figures.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("matplotlib") for name in names), path
