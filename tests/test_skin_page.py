"""The pages of the runs on real lesions: every difference and verdict is what the lines give."""

import importlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from fedperl.config import config_hash
from fedperl.errors import ConfigError
from fedperl.evaluate import Interval

BENCH = Path(__file__).parents[1] / "bench"
CLASSES = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"]


@pytest.fixture(name="page")
def _page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The pages' module, with lines of its own."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("side_by_side", "skin", "skin_rows", "skin_notes", "skin_claims", "skin_page"):
        sys.modules.pop(name, None)
    skin = importlib.import_module("skin")
    monkeypatch.setattr(skin, "LINES", tmp_path / "lines")
    return importlib.import_module("skin_page")


@pytest.fixture(name="claims")
def _claims(page: ModuleType) -> ModuleType:
    return sys.modules["skin_claims"]


@pytest.mark.slow
def test_the_pages_are_what_the_results_give() -> None:
    command = [sys.executable, str(BENCH / "skin_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = BENCH.parent / "docs" / "results"
    for name in ("skin.md", "claims.md"):
        assert (results / name).exists() == (results / "skin").exists()


def test_the_readme_says_nothing_the_pages_do_not() -> None:
    """Its differences are those of the claims' page, and its counts those of the verdicts there."""
    root = BENCH.parent
    (told,) = (one for one in (root / "README.md").read_text().splitlines() if "docs/results/claims.md)." in one)
    claims = (root / "docs" / "results" / "claims.md").read_text()
    assert all(interval in claims for interval in re.findall(r"[+-][\d.]+ \[[^]]+\]", told))
    verdicts = [row.split(" | ")[-1] for row in claims.splitlines() if re.match(r"\| \d+\. ", row)]
    kinds = ("not tested", "not trained", "undecided", "does not", "holds")
    counts = Counter(next(kind for kind in kinds if kind in one) for one in verdicts)
    assert counts == {"not tested": 2, "not trained": 1, "undecided": 11}
    text = (root / "docs" / "results" / "skin.md").read_text()
    fallen = {one.split("**")[1] for one in text.splitlines() if " collapses (seed" in one}
    few = [row for row in text.split("## Labels at few clients")[1].split("##")[0].splitlines() if "| few: " in row]
    assert (len(fallen), len(few)) == (3, 4)
    assert "three of four methods end with one class for nearly all images" in told
    assert "two could not be tested, one is not trained, eleven are undecided" in told
    assert "in macro F1, calibration and melanomas found no gain with them is seen" in told
    cells = [row.strip("| ").split(" | ") for row in (root / "docs" / "results" / "skin.md").read_text().splitlines()]

    def table(column: str) -> tuple[float, float]:
        """A column of the first table that has it: of FedPerl, and of SSFL."""
        first = next(place for place, row in enumerate(cells) if column in row)
        found = [next(row for row in cells[first:] if row[0] == name) for name in ("FedPerl T=2", "SSFL")]
        # the head's first cell is empty, and is stripped off
        return tuple(float(row[cells[first].index(column) + 1]) for row in found)  # type: ignore[return-value]

    assert table("weighted F1") == (0.674, 0.668)
    for column, sign in (("macro F1", 1), ("ECE", -1), ("melanoma sensitivity", 1)):
        fedperl, ssfl = table(column)
        assert sign * (fedperl - ssfl) < 0


def line(f1: dict[str, float], **more: Any) -> dict[str, Any]:
    """A line whose clients have these F1, all other metrics likewise."""
    metrics = ("weighted_f1", "macro_f1", "balanced_accuracy", "macro_auroc", "ece", "mce", "aurc")
    numbers = {client: dict.fromkeys(metrics, value) | {"round": 10 + int(client)} for client, value in f1.items()}
    validation = {"per_client_best": {"accuracy": 0.5}}
    results = {"test": {"per_client_best": numbers}, "validation": validation, "classes": CLASSES}
    matrix = (np.eye(8, dtype=int) * 8 + 2).tolist()
    return {
        "results": results
        | {"seconds_this_start": 60.0, "partition": "abc", "totals": {"peers": {"0": 1, "2": 3}, "client_rounds": 4}},
        "confusion": dict.fromkeys(f1, matrix),
        "validation_confusion": dict.fromkeys(f1, matrix),
        "helped": {"1 0": 3, "2 0": 1, "8 7": 2, "5 7": 1},
        "date": "2026-01-01",
        "device": "GPU",
        "side_by_side": 2,
        "backbone": {"from": "pretrained on images", "size": "112", "accuracy": "0.7", "validation_images": "30"},
        **more,
    }


def test_differences_are_over_the_seeds_and_clients_of_both(page: ModuleType) -> None:
    generator = np.random.default_rng(1)
    a, b = generator.random((2, 3, 9))
    rows = {
        name: {seed: line({str(c): values[seed - 1, c] for c in range(9)}) for seed in (1, 2, 3)}
        for name, values in (("FedPerl T=2", a), ("SSFL", b))
    }
    f1 = page.by_client("weighted_f1")
    found = page.apart(rows, "FedPerl T=2", "SSFL", f1)
    assert (found.mean, found.seeds, found.clients) == (pytest.approx((a - b).mean()), 3, 9)
    del rows["SSFL"][2], rows["SSFL"][3]["results"]["test"]["per_client_best"]["4"]
    kept = np.delete(a - b, 1, axis=0)
    found = page.apart(rows, "FedPerl T=2", "SSFL", f1)
    assert (found.mean, found.seeds, found.clients) == (pytest.approx(np.delete(kept, 4, axis=1).mean()), 2, 8)
    found = page.apart(rows, "FedPerl T=2", "SSFL", f1, ("8",))
    assert (found.mean, found.seeds, found.clients) == (pytest.approx(kept[:, 8].mean()), 2, 1)
    assert page.apart(rows, "FedPerl T=2", "Lower", f1) is None


def test_a_gate_that_never_opens_is_told(page: ModuleType, claims: ModuleType) -> None:
    shut, without = line({"0": 0.5}), line({"0": 0.5})
    shut["results"]["totals"], without["results"]["totals"] = {"peers": {"0": 40}}, {"peers": {}}
    assert page.with_peers({"FedPerl": {1: line({"0": 0.5}), 2: shut}}, "FedPerl") == {0: 41 / 44, 2: 3 / 44}
    (told,) = claims.gate_note({"gated similarity 95": {1: shut}, "gated similarity 75": {1: line({"0": 0.5})}})
    assert "gated similarity 95 was shut in 100 % of the client-rounds in which peers could help" in told
    assert "gated similarity 75 was shut in 25 % of" in told
    assert claims.shut({"gated similarity 95": {1: shut}}) == "no gate ever opened"
    assert claims.shut({"gated similarity 95": {1: shut, 2: line({"0": 0.5})}}) == ""
    found = page.peers_table({"SSFL": {1: without}, "Random peers": {1: line({"0": 0.5})}}, ["SSFL", "Random peers"])
    assert found[2:] == ["| Random peers | 25 | 75 |"]


def test_the_claim_about_gates_is_of_the_highest_that_opened(page: ModuleType, claims: ModuleType) -> None:
    rows = {"gated similarity 95": {1: gated({"0": 9})}, "gated similarity 85": {1: gated({"0": 8, "2": 1})}}
    assert claims.opened(rows) == "gated similarity 85"
    assert claims.shut(rows) == ""
    rows["FedPerl T=2"] = {1: line({"0": 0.5, "8": 0.1})}
    assert claims.gate_at_outlier(rows).mean == pytest.approx(0.3)
    del rows["gated similarity 85"]
    assert claims.opened(rows) == "gated similarity 95"
    helped = gated({"2": 1}) | {"helped": {"1 8": 3, "2 8": 1, "8 1": 7, "1 18": 2}}
    assert claims.helpers_of({"a": {1: helped, 2: helped}}, "a", "8") == 8
    assert claims.gate_note({"SSFL": {1: gated({})}}) == []


def gated(peers: dict[str, int], **more: Any) -> dict[str, Any]:
    found = line({"0": 0.5, "8": 0.4}, **more)
    found["results"]["totals"] = {"peers": peers}
    return found


def test_gates_above_one_that_never_opened_need_not_be_trained(
    page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut, open_ = {"0": 40}, {"0": 39, "2": 1}
    rows = {"gated validation 75": {1: gated(shut, date="2026-01-02")}, "SSFL": {1: gated({})}}
    assert page.never_open(rows) == {"gated validation 75": ("gated validation 85", "gated validation 95")}
    (told,) = page.gates_note(rows)
    assert told == (
        "- gated validation 75 never gave a client two peers (seed 1), and one alone is not sent: it is SSFL, every "
        "number of every client, though one was trained on 2026-01-01 and the other on 2026-01-02. So would be gated "
        "validation 85 and gated validation 95, which are not trained."
    )
    rows["gated validation 75"][1]["results"]["test"]["per_client_best"]["0"]["ece"] = 0.1
    with pytest.raises(ConfigError, match="gated validation 75, seed 1: had no peers, and other numbers than SSFL"):
        page.gates_note(rows)
    lacking = [one for one in page.missing(rows) if one.startswith("gated")]
    assert lacking == ["gated similarity 95 (seeds 1, 2, 3)", "gated validation 75 (seed 1)"] + [
        f"gated similarity {rho} (seed 1)" for rho in (75, 85)
    ]  # no lines are there: rows are what is asked about
    rows["gated validation 75"][1] = gated(open_)
    rows["gated validation 85"] = {1: gated(open_), 2: gated(shut)}
    assert page.never_open(rows) == {}
    assert "gated validation 95 (seed 1)" in page.missing(rows)


def test_a_row_whose_last_model_names_one_class_is_told(page: ModuleType) -> None:
    def matrices(of: int, other: int) -> dict[str, Any]:
        """Of two clients' 100 images so many are called BCC, the rest MEL."""
        matrix = np.zeros((8, 8), dtype=int)
        matrix[1, 2], matrix[4, 0] = of, other
        return {"last_validation_confusion": {"0": matrix.tolist(), "1": matrix.tolist()}}

    gone, well = line({"0": 0.1, "3": 0.2}, **matrices(48, 2)), line({"0": 0.1}, **matrices(47, 3))
    rows = {"a": {1: well}, "b": {1: well, 2: gone}, "c": {1: line({"0": 0.1})}}
    assert page.collapsed(rows, ["a", "b", "c", "d"]) == [
        "- **b** collapses (seed 2): its last model calls 96 % of the validation images BCC; the models that are "
        "reported are of rounds 10 to 13."
    ]
    assert [page.seeds_of(rows, name) for name in "abc"] == [" (1 seed)", " † (2 seeds)", " (1 seed)"]


def test_what_the_guards_cost_is_beside_the_same_number_of_peers(page: ModuleType) -> None:
    rows = {}
    for name, f1 in (("FedPerl T=2", 0.5), ("FedPerl T=3", 0.7), ("FedPerl T=3, hospital", 0.6)):
        rows[name] = {1: line({"0": f1, "1": f1, "8": f1 - 0.3 * ("hospital" in name)})}
        rows[name][1]["results"]["totals"] = {"peers": {"0": 10, "3": 90}, "client_rounds": 150}
    found = page.guards_table(rows)
    assert len(found) == 3
    assert found[2].split(" | ")[0] == "| FedPerl T=3, hospital"
    cells = [cell.split()[0] for cell in found[2].strip("| ").split(" | ")[1:]]
    assert cells == ["-0.200", "-0.100", *["-0.200"] * 4, "60", "150"]


def test_a_milder_fedirm_is_told_where_it_is_trained(page: ModuleType) -> None:
    assert "is to tell" in page.irm_note({})[0]
    course = {"25": 0.3, "300": 0.25}
    rows = {"FedIRM, weight 1": {1: line({"0": 0.4}, macro_f1=course)}, "SSFL": {1: line({"0": 0.6})}}
    (told,) = page.irm_note(rows)
    assert "seed 1) validation macro F1 is 0.300 after round 25 and 0.250 after round 300, weighted F1 -0.200" in told


def test_how_training_went_is_the_mean_over_seeds(page: ModuleType) -> None:
    curves = [{"25": 0.3, "50": 0.1, "100": 0.2}, {"25": 0.4, "50": 0.2, "75": 0.9, "100": 0.3}]
    rows = {"A": {seed: line({"0": 0.5}, macro_f1=one, accepted={"25": 0.5}) for seed, one in enumerate(curves)}}
    rows["B"] = {1: line({"0": 0.5}, macro_f1={"25": 0.3, "300": 0.21})}
    assert page.course(rows, "A", "macro_f1") == pytest.approx({25: 0.35, 50: 0.15, 100: 0.25})
    assert page.course(rows, "C", "macro_f1") == page.course(rows, "B", "accepted") == {}
    found = page.course_table(rows, ["A", "B", "C"])[2:]
    assert found[0] == "| A (2 seeds) | 0.350 | 0.150 | 0.250 | · | · | · | · | 50 | · |"
    assert found[1:] == ["| B (1 seed) | 0.300 | · | · | · | · | · | 0.210 | · | · |"]
    assert len(page.fell(rows, ["A", "B", "C"])) == 1
    rows["A"][0]["results"]["test"]["per_client_best"]["3"] = {"round": 35}
    assert page.fell(rows, ["A"]) == [
        "- **A** falls from 0.350 after round 25 to 0.150 after round 50. The models that are reported of it are of "
        "rounds 10 to 35 (seed 0); 10 to 10 (seed 1)."
    ]
    rising = {"A": {1: line({"0": 0.5}, macro_f1={"25": 0.1, "50": 0.2, "300": 0.5})}}
    assert page.fell(rising, ["A"]) == []


def test_who_does_better_alone_is_told_over_the_same_seeds(page: ModuleType) -> None:
    rows = {"Local lower": {1: line({"0": 0.4, "8": 0.6})}}
    rows["Lower"] = {1: line({"0": 0.5, "8": 0.5}), 2: line({"0": 0.1, "8": 0.9})}
    assert sys.modules["skin_rows"].better_alone(rows, "Local lower", "Lower") == {"8": (0.6, 0.5)}
    rows["SSFL"] = {1: line({"0": 0.5, "8": 0.3}), 2: line({"0": 0.5, "8": 0.4})}
    told = page.alone_note(rows)[0]
    assert "weighted F1 (seed 1): Local lower to Lower: 8 (0.600 to 0.500). SSFL has 0.300, 0.400 at client 8" in told
    rows["Lower"][1] = line({"0": 0.5, "8": 0.6})
    assert "Local lower to Lower: none." in page.alone_note(rows)[0]
    assert page.alone_note({"SSFL": rows["Lower"]}) == []


def test_f1_by_class_is_that_of_all_images_together(page: ModuleType) -> None:
    generator = np.random.default_rng(2)
    matrices = generator.integers(0, 9, size=(3, 8, 8))
    matrices[:, 5] = 0  # no image of DF
    truth, said = [], []
    for matrix in matrices:
        for (t, p), count in np.ndenumerate(matrix):
            truth += [t] * count
            said += [p] * count
    one = line({}) | {"confusion": {str(c): matrix.tolist() for c, matrix in enumerate(matrices)}}
    found = page.by_class(one)
    assert "DF" not in found
    for k, name in enumerate(CLASSES):
        right = sum(t == p == k for t, p in zip(truth, said, strict=True))
        if name != "DF":
            precision, recall = right / said.count(k), right / truth.count(k)
            assert found[name] == pytest.approx(2 * precision * recall / (precision + recall))


def test_what_the_outlier_costs_is_what_the_others_gain_without_it(claims: ModuleType) -> None:
    generator = np.random.default_rng(3)
    values = {name: generator.random((2, 9)) for name in ("SSFL", "FedPerl T=2")}
    without = {name: generator.random((2, 8)) for name in values}
    rows = {name: {s: line({str(c): v[s, c] for c in range(9)}) for s in (0, 1)} for name, v in values.items()}
    rows |= {
        f"without outlier: {name}": {s: line({str(c): v[s, c] for c in range(8)}) for s in (0, 1)}
        for name, v in without.items()
    }
    found = claims.less_harm("FedPerl T=2", "SSFL").find(rows)
    cost = {name: (without[name] - values[name][:, :8]).mean() for name in values}
    assert found.mean == pytest.approx(cost["SSFL"] - cost["FedPerl T=2"])
    assert (found.seeds, found.clients) == (2, 8)
    del rows["without outlier: SSFL"]
    assert claims.less_harm("FedPerl T=2", "SSFL").find(rows) is None


@pytest.mark.parametrize(
    ("low", "high", "better", "no_worse", "same"),
    [
        (0.001, 0.020, "**holds**", "**holds**", "undecided"),
        (0.011, 0.020, "**holds**", "**holds**", "**does not**"),
        (-0.009, 0.009, "undecided", "**holds**", "**holds**"),
        (-0.009, 0.005, "**does not**", "**holds**", "**holds**"),
        (-0.009, 0.011, "undecided", "**holds**", "undecided"),
        (-0.011, 0.011, "undecided", "undecided", "undecided"),
        (-0.009, -0.001, "**does not**", "**holds**", "**holds**"),
        (-0.020, -0.001, "**does not**", "**does not**", "undecided"),
        (-0.020, -0.011, "**does not**", "**does not**", "**does not**"),
        (None, None, "undecided", "undecided", "undecided"),
    ],
)
def test_verdicts(claims: ModuleType, low: float, high: float, better: str, no_worse: str, same: str) -> None:
    """Where the paper reports +0.012."""
    found = Interval(0.0 if low is None else (low + high) / 2, low, high, 0.95, 3, 9)
    assert [rule(found, 0.012) for rule in (claims.better, claims.no_worse, claims.same)] == [better, no_worse, same]
    assert {rule(None, 0.012) for rule in (claims.better, claims.no_worse, claims.same)} == {"undecided"}
    for paper in (None, -0.1):
        assert claims.better(Interval(-0.001, -0.002, 0.001, 0.95, 3, 9), paper) == "undecided"
        assert claims.better(Interval(-0.001, -0.002, -0.001, 0.95, 3, 9), paper) == "**does not**"


def test_rare_classes_must_gain_more_than_the_others(claims: ModuleType) -> None:
    def rows(rare: int, others: int) -> dict[str, dict[int, Any]]:
        """Of 100 images of each class so many more are right than the 50 of SSFL; what is wrong is said to be NV."""
        found = {}
        for name, gains in (("SSFL", (0, 0)), ("FedPerl T=2", (rare, others))):
            right = [50 + gains[0 if label in claims.RARE else 1] + seed for label in CLASSES for seed in (0,)]
            matrix = np.diag(right)
            matrix[:, 1] += 100 - np.array(right)
            found[name] = {seed: line({"0": 0.5}) | {"confusion": {"0": matrix.tolist()}} for seed in (1, 2, 3)}
        return found

    more = claims.rare_classes("FedPerl T=2", "SSFL", more=True)
    assert more.find(rows(20, 5)).mean > 0.05
    assert more.find(rows(5, 20)).mean < -0.05
    plain = claims.rare_classes("FedPerl T=2", "SSFL").find(rows(20, 5))
    f1 = [2 * right / (100 + right) for right in (50, 70)]
    assert (plain.mean, plain.seeds, plain.clients) == (pytest.approx(f1[1] - f1[0]), 3, 1)


def test_a_claim_holds_where_every_comparison_does(claims: ModuleType) -> None:
    found = {name: Interval(mean, mean - 0.01, mean + 0.01, 0.95, 3, 9) for name, mean in (("up", 0.1), ("down", -0.1))}
    up, down, none = (
        claims.Comparison(name, lambda _, name=name: found.get(name), 0.1) for name in ("up", "down", "no")
    )
    said = [claims.verdict(claims.Claim("", of), {}) for of in ((up, up), (up, none), (up, none, down))]
    assert said == ["**holds**", "undecided", "**does not**"]
    assert claims.verdict(claims.Claim("", (up,), also=(down,)), {}) == "**holds**"
    never = claims.Claim("", (up,), untested=lambda _: "it never rained")
    assert claims.verdict(never, {}) == "not tested: it never rained"
    found["up"] = Interval(0.1, 0.09, 0.11, 0.95, 1, 9)
    assert claims.verdict(claims.Claim("", (up,)), {}) == "undecided: one seed, which says **holds**"


def test_one_seed_decides_nothing_nor_hides_what_others_say(claims: ModuleType) -> None:
    found = {
        "few": Interval(0.1, 0.09, 0.11, 0.95, 1, 9),
        "down": Interval(-0.1, -0.11, -0.09, 0.95, 3, 9),
        "up": Interval(0.1, 0.09, 0.11, 0.95, 3, 9),
    }
    of = {name: claims.Comparison(name, lambda _, name=name: found.get(name), 0.1) for name in (*found, "none")}

    def said(*names: str) -> str:
        verdict: str = claims.verdict(claims.Claim("", tuple(of[name] for name in names)), {})
        return verdict

    assert said("few") == said("few", "up") == "undecided: one seed, which says **holds**"
    assert said("few", "down") == "**does not**"
    assert said("up", "none") == said("few", "none") == "undecided"
    assert said("none") == said("none", "none") == "not trained yet"
    rows = sys.modules["skin_rows"]
    assert rows.shown(found["few"]) == "+0.100 [+0.090, +0.110]"  # over clients alone: too narrow for a star
    assert rows.shown(found["up"]) == "+0.100 [+0.090, +0.110]*"


def test_stars_that_stay_whichever_model_is_reported_are_named(page: ModuleType) -> None:
    def rows(other: float) -> dict[str, dict[int, Any]]:
        made: dict[str, dict[int, Any]] = {}
        for name, value in (("Upper", 0.6), ("SSFL", 0.5)):
            made[name] = {seed: line({str(c): value + 0.001 * c for c in range(9)}) for seed in (1, 2, 3)}
            for one in made[name].values():
                tested = one["results"]["test"]
                last = {
                    c: n | {"macro_f1": n["macro_f1"] * (other if name == "Upper" else 1)}
                    for c, n in tested["per_client_best"].items()
                }
                tested |= {"last": last, "global_best": tested["per_client_best"]}
        return made

    assert page.steady_note(rows(1.0), ["Upper"]) == [
        "Of the 2 stars, with the best global model and with the last one too these stay: Upper (weighted F1), Upper "
        "(macro F1)."
    ]
    assert page.steady_note(rows(0.7), ["Upper"])[0].endswith("these stay: Upper (weighted F1).")
    assert page.steady_note(rows(1.0), ["SSFL"]) == []


def test_what_no_model_at_all_would_have(page: ModuleType) -> None:
    rows, notes = sys.modules["skin_rows"], sys.modules["skin_notes"]
    matrices = np.random.default_rng(6).integers(1, 9, size=(2, 8, 8))
    one = line({"0": 0.5, "8": 0.5}) | {"confusion": {"0": matrices[0].tolist(), "8": matrices[1].tolist()}}
    expected = []
    for matrix in matrices:
        truth = np.repeat(np.arange(8), matrix.sum(1))
        always = np.full_like(truth, np.bincount(truth).argmax())
        expected.append(f1_score(truth, always, average="weighted", zero_division=0))
    assert rows.commonest(one) == pytest.approx(np.mean(expected))
    melanomas = matrices.sum(0)[0]
    benign = [CLASSES.index(name) for name in ("NV", "BKL", "DF", "VASC")]
    assert rows.benign_melanomas(one) == pytest.approx(melanomas[benign].sum() / melanomas.sum())
    assert rows.sensitivity(one, ("8",)) == rows.sensitivity(line({}) | {"confusion": {"8": matrices[1].tolist()}})
    told = " ".join(notes.poor_note({"SSFL": {1: one, 2: one}}, ["SSFL"]))
    assert f"SSFL calls {100 * melanomas[benign].sum() / melanomas.sum():.0f} % of them benign" in told
    assert notes.poor_note({"SSFL": {1: one}}, ["SSFL"]) == []
    unseen = {"malignancy": {"images": 200, "malignant": 150}}
    malignant = [1] * 150 + [0] * 50
    assert f"{f1_score(malignant, [1] * 200):.3f}" in notes.unseen_note({"A": {1: line({}) | {"unseen": unseen}}})
    assert notes.unseen_note({"A": {1: line({})}}) == ""


def test_communities_of_one_pool_test_nothing(claims: ModuleType, page: ModuleType) -> None:
    folder = sys.modules["skin"].LINES
    folder.mkdir(parents=True)
    assert claims.one_pool({}) == ""
    for ham, rest, said in ((30, 10, "75 % of what the one community holds is of the other's archive"), (10, 30, "")):
        held = [{"sources": {"HAM10000": ham, "rest": rest}} for _ in range(9)]
        (folder / "split.json").write_text(json.dumps({"clients": held}))
        assert claims.one_pool({}) == said


def test_helpers_are_compared_with_exact_chance(claims: ModuleType) -> None:
    one = line({"0": 0.5}) | {"helped": {"1 0": 3, "5 0": 1, "6 7": 2, "0 5": 4}}
    found = claims.within("HAM10000", ("5", "6", "7")).find({"FedPerl T=2": {1: one, 2: one}})
    assert found.mean == pytest.approx(np.mean([0 - 2 / 7, 1 - 2 / 7]))  # of clients 5 and 7; nobody helped 6
    assert claims.within("HAM10000", ("5",)).find({}) is None


def test_a_claim_is_undecided_where_it_hangs_on_the_model_that_is_reported(claims: ModuleType) -> None:
    rows = {
        name: {seed: line({str(c): value + 0.001 * c for c in range(9)}) for seed in (1, 2, 3)}
        for name, value in (("FedPerl T=2", 0.6), ("SSFL", 0.5))
    }
    claim = claims.Claim("", (claims.more_f1("FedPerl T=2", "SSFL"),))
    assert claims.verdict(claim, rows) == "**holds**"  # lines without other models
    for row in rows.values():
        for one in row.values():
            tested = one["results"]["test"]
            tested |= {
                "last": tested["per_client_best"],
                "global_best": rows["SSFL"][1]["results"]["test"]["per_client_best"],
            }
    assert claims.verdict(claim, rows) == (
        "undecided: **holds** with each client's best model, **does not** with the best global model"
    )


def test_helpers_of_the_own_community_are_counted_without_the_outlier(page: ModuleType) -> None:
    rows = sys.modules["skin_rows"]
    one = line({"0": 0.5}) | {"helped": {"1 0": 3, "5 0": 1, "8 0": 9, "6 7": 2, "0 8": 5, "0 5": 4}}
    assert rows.own_community(one) == {"0": 0.75, "5": 0.0, "7": 1.0}
    assert rows.helped_by_outlier({"FedPerl": {1: one, 2: one}}, "FedPerl") == 9 / 19
    assert rows.helped_by_outlier({}, "FedPerl") is None


def test_sensitivity_against_naive(page: ModuleType) -> None:
    rows = sys.modules["skin_rows"]
    matrices = np.random.default_rng(5).integers(1, 9, size=(2, 8, 8))
    bad = {"MEL", "BCC", "AK", "SCC"}
    counts = {"MEL": [0, 0], True: [0, 0], False: [0, 0]}
    for matrix in matrices:
        for (t, p), count in np.ndenumerate(matrix):
            kind, said = CLASSES[t] in bad, CLASSES[p] in bad
            counts[kind][0] += count * (kind == said)
            counts[kind][1] += count
            if CLASSES[t] == "MEL":
                counts["MEL"][0] += count * (p == t)
                counts["MEL"][1] += count
    one = line({}) | {"confusion": {str(c): matrix.tolist() for c, matrix in enumerate(matrices)}}
    expected = [counts[kind][0] / counts[kind][1] for kind in ("MEL", True, False)]
    assert list(rows.sensitivity(one).values()) == pytest.approx(expected)


@pytest.mark.slow
def test_every_row_and_claim_stands_on_the_pages(page: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    skin = sys.modules["skin"]
    generator, rate = np.random.default_rng(4), page.find_scale(str(page.SCALE)).settings["optimizer"]["lr"]
    assert "Lower, lr 0.0001 (seed 1); " in "; ".join(page.missing({}))
    for name in ("rates", *(name for name in page.GROUPS if name != "rates")):
        for run, job in skin.jobs(name, Path(), "cuda", [], []).items():
            clients = [str(c) for c in range(9) if c not in job.config.federation.exclude]
            better = 0.05 * ("FedPerl" in run or "gated" in run) + 0.1 * ("SSFL" in run or "FedPerl" in run)
            f1 = {client: 0.5 + better + 0.001 * generator.random() for client in clients}
            reading = {"malignant_f1": f1["0"], "malignant_precision": 0.5, "malignant_recall": 0.5, "benign_f1": 0.9}
            unseen = {"malignancy": {"argmax_then_group": reading, "auroc": 0.7}, "images": 1428}
            more: dict[str, Any] = {"unseen": unseen} if job.config.federation.exclude else {}
            more["config"] = config_hash(job.config)
            one = line(f1, run=run, **more)
            one["results"]["validation"]["per_client_best"]["accuracy"] += 0.3 * (job.config.optimizer.lr == rate)
            skin.side_by_side.append(skin.LINES / f"{name}.jsonl", one)
    assert page.missing({}) == []
    made = page.pages()
    shown, claims = made[page.PAGE], made[page.CLAIMS]
    assert "a backbone pretrained on images at 112 px, which has 70.0 % of 30 others right" in shown
    for group in (group for name, group in page.GROUPS.items() if name != "rates"):
        for row in group.rows:
            assert f"| {row}" in shown
    assert "| client 0 | 0 | 75 | 25 | 0 |" in shown
    assert "| gated similarity 75 | 25 | 75 |" in shown
    assert "gated similarity 95 was shut in 25 % of the client-rounds" in claims
    assert "| without outlier" not in shown.split("## Classes")[1]
    others = shown.split("## What the client unlike all others costs")[1]
    assert (
        others.index("| SSFL | 0.6") < others.index("## A client that no model saw") < others.index("| 0.700 | 1428 |")
    )
    assert claims.count("| · |") == 3  # differences that the paper reports in words, or not at all
    said = {text.split(". ")[0].removeprefix("| "): text.split(" | ")[-1] for text in claims.splitlines()[6:]}
    assert said["2"] == said["3"] == said["11"] == "**holds** |"
    assert said["10"] == said["9"] == "**does not** |"  # its error, which is its F1 here, is larger; no class gains
    assert said["6"] == "**holds** |"
    assert said["1"] == "**does not** |"  # Upper is as Local upper
    assert said["14"] == "**holds** |"  # all helpers are of the own community
    assert "What each client holds is not written down yet" in shown
    assert len(skin.own_lines("core")) == 28  # the choice of the rate has trained two of them
    assert len(skin.read("core")) == 30
    assert f"{len(page.every_line())} runs, each on one GPU, 2026-01-01, up to 2 side by side" in shown
    assert "Not planned, of the paper's rows: FedPerl raw T=3; " in shown
    held = [{"parts": dict.fromkeys(page.PARTS, k), "sources": {"HAM10000": 4 * k}} for k in range(9)]
    split = {"partition": "abc", "others": [], "at_hand": {"HAM10000": [9, 10]}, "clients": held}
    (skin.LINES / "split.json").write_text(json.dumps(split))
    assert "| 2 | 2 | 2 | 2 | 2 | 8 |" in page.pages()[page.PAGE]
    (skin.LINES / "split.json").write_text(json.dumps(split | {"partition": "other"}))
    with pytest.raises(ConfigError, match=r"split.json: is of another split than some runs"):
        page.pages()
    (skin.LINES / "split.json").unlink()
    rates = (skin.LINES / "rates.jsonl").read_text()
    (skin.LINES / "rates.jsonl").write_text(rates.replace('"accuracy": "0.7"', '"accuracy": "0.6"', 1))
    with pytest.raises(ConfigError, match="the runs started from 2 backbones; wanted one"):
        page.pages()
    monkeypatch.setattr(page, "chosen_rate", lambda: 1e-5)
    with pytest.raises(ConfigError, match=r"skin.toml: lr = 0.0005; wanted the one that was chosen, 1e-05"):
        page.choices()
    monkeypatch.setattr(skin, "chosen_rate", lambda: 1e-5)
    with pytest.raises(ConfigError, match="core: Random peers, seed 1: was trained with other settings than"):
        page.pages()


def test_few_labels_on_a_small_network_are_told_as_their_lines_have_them() -> None:
    results = BENCH.parent / "docs" / "results"
    lines = [json.loads(line) for line in (results / "skin" / "few_small.jsonl").read_text().splitlines()]
    text = (results / "skin.md").read_text().split("### Why: ")[1].split("\n## ")[0]
    cells = {row.split(" | ")[0].strip("| "): row.strip("| ").split(" | ") for row in text.splitlines()}
    collapsed, above, weighted = [], [], dict[str, float]()
    for line in lines:
        name = line["run"].removesuffix(", seed 1")
        said = Counter[str]()
        for matrix in line["last_validation_confusion"].values():
            for row in matrix:
                said.update(dict(zip(CLASSES, row, strict=True)))
        ((label, count),) = said.most_common(1)
        assert cells[name][5] == f"{label} {100 * count / said.total():.0f} %"
        assert cells[name][1:5] == [f"{line['macro_f1'][look]:.3f}" for look in ("25", "50", "75", "100")]
        assert cells[name][6:8] == [
            f"{100 * line['accepted'][look]:.0f}" if line["accepted"] else "·" for look in ("25", "100")
        ]
        last = np.mean([one["weighted_f1"] for one in line["results"]["test"]["last"].values()])
        assert cells[name][8] == f"{last:.3f}"
        weighted[name] = float(last)
        collapsed += [name] * (count / said.total() > 0.95)
        above += [name] * (line["macro_f1"]["100"] > float(cells["Lower"][4]))
    assert len(lines) == 27
    assert f"Of 26 rows that use unlabelled images {len(collapsed)} end with one class" in text
    assert not above
    assert "Of the last models none has a macro F1 above Lower's on validation images" in text
    (told,) = re.findall("validation images; (.*) have a weighted F1 above it on test images", text)
    assert set(told.split("; ")) == {name for name, value in weighted.items() if value > weighted["Lower"]}


def test_a_client_without_labels_collapses_in_one_round() -> None:
    """The page's last table, against its file."""
    results = BENCH.parent / "docs" / "results"
    found = json.loads((results / "skin" / "self_labelling.json").read_text())
    text = (results / "skin.md").read_text().split("One local round of a client without labels")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.endswith(" % |")]
    first, *others = found["tried"].values()
    looks = [*first, *(some[-1] for some in others)]
    assert len(rows) == len(looks) == 12
    for row, look in zip(rows, looks, strict=True):
        most = max(look["said"])
        assert row[-1] == f"{CLASSES[look['said'].index(most)]} {100 * most / 666:.0f} %"
        assert row[-3:-1] == [f"{100 * look[key] / 666:.0f}" for key in ("right", "above")]
    tried = found["tried"]
    alone = ("Adam 0.001, tau 0.6", "the same, other draws", "the same, other draws again", "beta 0.005")
    assert all(max(tried[name][-1]["said"]) == 666 for name in alone)
    assert max(tried["labelled images too"][-1]["said"]) < 500
    assert tried["tau 0.95"][-1]["said"] == tried["nothing is learnt: batch norm alone"][-1]["said"]
