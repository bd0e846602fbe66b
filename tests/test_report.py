"""The report's page without a browser: what it says, that it is whole, what it refuses; and the server of `--watch`."""

import http.client
import itertools
import json
import re
import shutil
import socket
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedperl.data.dermsim.hospitals import ten_hospitals
from fedperl.data.store import Store
from fedperl.errors import RunError
from fedperl.evaluate import BinnedSums, binned_sums, intervals_of_confidence, intervals_of_confusion
from fedperl.federation.rounds import Progress
from fedperl.report.page import runs_page, write_report
from fedperl.report.page_data import PageRun, embedded, read_run, read_runs
from fedperl.report.page_summary import differences, summary
from fedperl.training import train
from fedperl.watching import Watch
from tests.conftest import small_config, small_store

NASTY = "<img src=x onerror=alert(1)> & “{{data}}”"
WORSE = f"</script></title>{NASTY}<!--"
VOID = {"meta", "link", "input", "br", "img", "hr"}
MARKUP = "<img src=x>"
ASSETS = Path(__file__).parents[1] / "src" / "fedperl" / "report" / "assets"


def described_store() -> Store:
    """Twelve test images a client; the patients of 0 to 2 are women, of 3 and 4 men; one site is known, at client 0."""
    store = small_store(images=48)
    holder = np.arange(len(store.manifest)) // 48
    about = {"sex": np.where(holder < 3, "female", "male"), "body_site": np.where(holder == 0, MARKUP, "")}
    return replace(store, manifest=replace(store.manifest, about=about))


def make_runs(folder: Path) -> list[Path]:
    """Three runs of seconds on the same images: with peers, without, and each client alone."""
    methods = {"ssfl": ("ssfl", NASTY), "fedperl": ("fedperl", "ours"), "alone": ("local_lower", "alone")}
    for name, (method, run) in methods.items():
        config = small_config(method=method, name=run, federation={"rounds": 6})
        train(config, folder / name, store=described_store())
    return [folder / name for name in methods]


def stop_after(rounds: int) -> Any:
    def watcher(progress: Progress) -> None:
        if progress.round >= rounds:
            raise KeyboardInterrupt

    return watcher


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module", name="unfinished")
def _unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unfinished") / "begun"
    config = small_config(method="fedperl", name="begun", federation={"rounds": 9})
    with pytest.raises(KeyboardInterrupt):
        train(config, folder, store=small_store(), watchers=[stop_after(5)])
    return folder


@pytest.fixture(scope="module", name="runs")
def _runs(folders: list[Path]) -> list[PageRun]:
    return read_runs(folders)


class Page(HTMLParser):
    """Reads a page and fails where a tag is closed that was not open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def having(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.tags if attributes.get(name) is not None]

    def rows(self, caption: str) -> dict[str, list[str]]:
        """The cells of a table by the name of their row."""
        found: list[list[str]] = []
        inside = False
        for place, data in self.texts:
            if "caption" in place:
                inside = data == caption
            elif inside and "tr" in place and "tbody" in place:
                if place[-1] == "th":
                    found.append([data])
                elif place[-1] == "td":
                    found[-1].append(data)
        return {row[0]: row[1:] for row in found}


def test_the_page_is_whole_and_every_reference_in_it_leads_somewhere(runs: list[PageRun], unfinished: Path) -> None:
    for shown in (runs, runs[:1], [read_run(unfinished)], [*runs, read_run(unfinished)], []):
        page = Page(runs_page(shown))
        ids = page.having("id")
        assert len(ids) == len(set(ids))
        for name in ("aria-controls", "aria-labelledby", "for"):
            assert set(page.having(name)) <= set(ids), name
        assert {address.removeprefix("#") for address in page.having("href") if address != "data:,"} <= set(ids)


def test_the_page_loads_nothing(runs: list[PageRun]) -> None:
    text = runs_page(runs)
    page = Page(text)
    assert page.having("src") == []
    assert all(address.startswith(("#", "data:,")) for address in page.having("href"))
    assert "@import" not in text
    assert not re.search(r"url\(", text)
    assert {found for found in re.findall(r"https?://[^\"'\s]+", text)} <= {"http://www.w3.org/2000/svg"}
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in str(policy)
    assert "connect-src 'none'" in str(policy)


def test_headings_are_in_order_and_everything_has_a_name(runs: list[PageRun]) -> None:
    page = Page(runs_page(runs))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    tags = [tag for tag, _ in page.tags]
    for landmark in ("header", "nav", "main", "footer"):
        assert tags.count(landmark) == 1, landmark
    assert dict(page.tags)["html"] == {"lang": "en"}
    assert tags.count("caption") == tags.count("table")
    stack: list[str] = []

    class Labels(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag in ("select", "input"):
                assert "label" in stack, attrs
            if tag not in VOID:
                stack.append(tag)

        def handle_endtag(self, tag: str) -> None:
            stack.pop()

    Labels().feed(runs_page(runs))


def test_texts_from_outside_cannot_become_markup(runs: list[PageRun]) -> None:
    results = {**(runs[0].results or {}), "classes": [WORSE, "B", "C"]}
    nasty = replace(runs[0], name=WORSE, sources=(WORSE,) * 5, results=results)
    page = Page(runs_page([nasty], WORSE))
    tags = [tag for tag, _ in page.tags]
    assert "img" not in tags
    assert tags.count("script") == 2
    data = json.loads("".join(data for place, data in page.texts if place and place[-1] == "script").split("\n", 1)[0])
    assert data["runs"][0]["name"] == data["runs"][0]["sources"][0] == data["classes"][0] == WORSE
    assert "".join(data for place, data in page.texts if place and place[-1] == "h1") == WORSE


def test_the_tables_are_the_results(folders: list[Path], runs: list[PageRun]) -> None:
    page = Page(runs_page(runs))
    results = [json.loads((folder / "results.json").read_text()) for folder in folders]
    by_method = page.rows("Test images: mean (median) ± standard deviation over clients")
    by_client = page.rows("Weighted F1 by client, test images: value [95 % interval]")
    scaled = page.rows("ECE, adaptive bins (paper), by client, test images: before → with its temperature T")
    for place, (run, found) in enumerate(zip(runs, results, strict=True)):
        over = found["over_clients"]["per_client_best"]
        shown = over["weighted_f1"]
        assert by_method[run.name][0] == f"{shown['mean']:.3f} ({shown['median']:.3f}) ± {shown['std']:.3f}"
        shown = over["ece"]
        assert by_method[run.name][7] == f"{shown['mean']:.3f} ({shown['median']:.3f}) ± {shown['std']:.3f}"
        shown = over["temperature"]
        assert by_method[run.name][9] == f"{shown['mean']:.3f} ({shown['median']:.3f}) ± {shown['std']:.3f}"
        for client, numbers in found["test"]["per_client_best"].items():
            assert by_client[f"client {client} (test)"][place].startswith(f"{numbers['weighted_f1']:.3f} [")
            end = " (end of range)" if numbers["temperature"] in (0.01, 100) else ""
            cell = f"{numbers['ece']:.3f} → {numbers['ece_scaled']:.3f}, T {numbers['temperature']:.2f}{end}"
            assert scaled[f"client {client} (test)"][place] == cell
        values = [numbers["weighted_f1"] for numbers in found["test"]["per_client_best"].values()]
        assert by_client["Mean, all clients"][place].startswith(f"{np.mean(values):.3f} (")
        cost = page.rows("What it took")[run.name]
        assert cost[1] == f"{found['totals']['bytes_down'] / 1e6:.1f}"
    assert page.rows("Where it comes from")["hash of the settings"] == [found["config"] for found in results]


def in_brackets(found: Any) -> str:
    return f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]"


def test_intervals_are_those_of_the_counts(folders: list[Path], runs: list[PageRun]) -> None:
    page = Page(runs_page(runs))
    by_client = page.rows("Weighted F1 by client, test images: value [95 % interval]")
    together = page.rows("Test images of all clients together: value [95 % interval]")
    for place, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        curves = json.loads((folder / "curves.json").read_text())
        keys = curves["chosen"]["per_client_best"]
        sums = {client: BinnedSums.from_dict(curves["sums"][key]["test"]) for client, key in keys.items()}
        for client, one in sums.items():
            found = intervals_of_confusion(one.confusion)["weighted_f1"]
            assert by_client[f"client {client} (test)"][place] == in_brackets(found)
            bounds = embedded([run])["runs"][0]["f1_interval"]["per_client_best"][client]
            assert bounds == pytest.approx([found.low, found.high], abs=1e-5)
        pooled = sum(list(sums.values())[1:], start=sums["0"])
        known = intervals_of_confusion(pooled.confusion) | intervals_of_confidence(pooled)
        names = ("weighted_f1", "macro_f1", "balanced_accuracy", "accuracy", "ece", "aurc", "coverage_at_risk_10")
        assert together[run.name] == [in_brackets(known[name]) for name in names]
        assert known["ece"].value == pytest.approx(pooled.ece(15))


def test_patients_groups_are_added_up_over_the_clients(folders: list[Path], runs: list[PageRun]) -> None:
    text = runs_page(runs)
    page = Page(text)
    for folder, place in ((folders[0], 0), (folders[2], 2)):  # clients that trained alone too
        curves = json.loads((folder / "curves.json").read_text())
        keys = curves["chosen"]["per_client_best"]
        women = np.sum([curves["sums"][keys[client]]["test"]["confusion"] for client in "012"], axis=0)
        known = intervals_of_confusion(women)
        for what, name in (("Accuracy", "accuracy"), ("Balanced accuracy", "balanced_accuracy")):
            by_group = page.rows(f"{what} by patient group, test images of all clients together: value [95 % interval]")
            assert list(by_group) == ["sex: female", "sex: male", f"body site: {MARKUP}"]
            assert (by_group["sex: female"][0], by_group["sex: female"][1 + place]) == ("36", in_brackets(known[name]))
            assert by_group["sex: male"] == ["24", *["too few"] * 3]
            assert by_group[f"body site: {MARKUP}"] == ["12", *["too few"] * 3]
    assert "body site: 48 of which it is not known, 0 in groups that a client did not tell" in text
    assert MARKUP not in text


def old(folder: Path, to: Path) -> Path:
    """A run folder as it was before temperatures and groups were told."""
    copy(folder, to)
    results, curves = (json.loads((to / name).read_text()) for name in ("results.json", "curves.json"))
    for choice in (*results["test"].values(), results["over_clients"]):
        for numbers in choice.values():
            for name in ("temperature", "ece_scaled", "nll_scaled", "brier_scaled"):
                del numbers[name]
    del curves["groups"]
    (to / "results.json").write_text(json.dumps(results))
    (to / "curves.json").write_text(json.dumps(curves))
    return to


def test_a_run_of_an_earlier_version_is_shown_without_temperatures_and_groups(
    tmp_path: Path, folders: list[Path]
) -> None:
    before = read_run(old(folders[1], tmp_path / "old"))
    text = runs_page([before])
    page = Page(text)
    assert "By patient group" not in text
    scaled = page.rows("ECE, adaptive bins (paper), by client, test images: before → with its temperature T")
    assert all(re.fullmatch(r"0\.\d{3} → –, T –", cells[0]) for cells in scaled.values())
    by_method = page.rows("Test images: mean (median) ± standard deviation over clients")
    assert (by_method["ours"][8], by_method["ours"][9]) == ("–", "–")
    both = Page(runs_page(read_runs([tmp_path / "old", folders[0]])))
    accuracy = both.rows("Accuracy by patient group, test images of all clients together: value [95 % interval]")
    assert accuracy["sex: female"][1] == "–"


def test_a_temperature_at_the_end_of_the_range_is_cautioned_against(tmp_path: Path, folders: list[Path]) -> None:
    results = json.loads((copy(folders[1], tmp_path / "run") / "results.json").read_text())
    for client, numbers in results["test"]["per_client_best"].items():
        numbers["temperature"] = 100.0 if client == "2" else 1.5
    (tmp_path / "run" / "results.json").write_text(json.dumps(results))
    text = runs_page([read_run(tmp_path / "run")])
    assert "ours: at 1 of 5 clients the temperature is at the end of what is tried (0.01 to 100)" in text
    scaled = Page(text).rows("ECE, adaptive bins (paper), by client, test images: before → with its temperature T")
    assert [name for name, cells in scaled.items() if "(end of range)" in cells[0]] == ["client 2 (test)"]
    assert scaled["client 2 (test)"][0].endswith("T 100.00 (end of range)")


def test_a_model_that_names_one_class_is_cautioned_against(tmp_path: Path, folders: list[Path]) -> None:
    path = copy(folders[1], tmp_path / "run") / "curves.json"
    assert "It tells nothing apart" not in runs_page([read_run(tmp_path / "run")])
    curves = json.loads(path.read_text())
    curves["groups"] = {}
    every = np.zeros(3, dtype=np.int64)
    for key in curves["chosen"]["last"].values():
        images = np.sum(curves["sums"][key]["test"]["confusion"], axis=1)
        always_a = np.tile([0.8, 0.1, 0.1], (images.sum(), 1))
        curves["sums"][key]["test"] = binned_sums(np.repeat(np.arange(3), images), always_a).to_dict()
        every += images
    path.write_text(json.dumps(curves))
    share = 100 * every[0] / every.sum()
    told = f"ours: what is tested (last round) names A for 100 % of the test images, of which {share:.0f} % are."
    assert f"{told} It tells nothing apart: its numbers are no result." in runs_page([read_run(tmp_path / "run")])


def test_classes_are_counted_over_all_clients(folders: list[Path], runs: list[PageRun]) -> None:
    page = Page(runs_page(runs[:2]))
    f1s, aurocs = (page.rows(f"{what} by class, test images of all clients together") for what in ("F1", "AUROC"))
    curves = json.loads((folders[1] / "curves.json").read_text())
    counts = [curves["sums"][key]["test"] for key in curves["chosen"]["per_client_best"].values()]
    confusion = np.sum([one["confusion"] for one in counts], axis=0)
    for label, name in enumerate("ABC"):
        right = confusion[label, label]
        f1 = 2 * right / (confusion[label].sum() + confusion[:, label].sum())
        assert f1s[name][0] == str(confusion[label].sum())
        assert f1s[name][2] == f"{f1:.3f}"
        others, own = np.sum([one["scores"][label] for one in counts], axis=0).T
        ahead = sum(own[b] * (others[:b].sum() + others[b] / 2) for b in range(len(own)))
        assert aurocs[name][2] == f"{ahead / own.sum() / others.sum():.3f}"


def test_what_the_page_carries_are_the_counts(folders: list[Path], runs: list[PageRun]) -> None:
    data = embedded(runs)
    for folder, run in zip(folders, data["runs"], strict=True):
        curves = json.loads((folder / "curves.json").read_text())
        for key, parts in curves["sums"].items():
            for part, counts in parts.items():
                wanted, found = BinnedSums.from_dict(counts), run["sums"][key][part]
                dense = np.zeros((200, 2))
                for b, wrong, right in np.reshape(found["confidence"], (-1, 3)):
                    dense[b] = wrong, right
                assert (dense == wanted.confidence).all()
                assert sum(found["total"]) == pytest.approx(wanted.total_confidence.sum(), abs=1e-4)
                assert ("scores" in found) == (part == "test")
        assert run["chosen"].keys() == curves["chosen"].keys()


def test_no_image_is_named(folders: list[Path], runs: list[PageRun]) -> None:
    assert "image_17" in (folders[0] / "partition.csv").read_text()
    assert "image_17" not in runs_page(runs)


def test_the_summary_says_who_gains_and_who_is_harmed(runs: list[PageRun]) -> None:
    first, second = (run.tested("per_client_best") for run in runs[:2])
    gaps = {client: second[client]["weighted_f1"] - first[client]["weighted_f1"] for client in first}
    assert differences(runs[0], runs[1], "per_client_best") == pytest.approx(gaps)
    said = summary(runs[:2], "per_client_best")
    for question, word in (("Who gains?", "higher"), ("Who is harmed?", "lower")):
        assert said[question][0].startswith(f"ours: weighted F1 is {word} than with {NASTY} at ")
        assert "of 5 clients" in said[question][0]
    alone = summary(runs[1:2], "per_client_best")
    assert "Who is harmed?" not in alone
    assert "One run alone" in alone["Who gains?"][0]
    worst = min(second, key=lambda client: second[client]["weighted_f1"])
    value = second[worst]["weighted_f1"]
    assert alone["Which client is served worst?"][0].startswith(
        f"ours: client {worst} (test), weighted F1 {value:.3f};"
    )


def told(folder: Path, to: Path, name: str, confusions: list[list[list[int]]]) -> PageRun:
    """A run whose clients gave these answers on their test images."""
    copy(folder, to)
    results, curves = (json.loads((to / file).read_text()) for file in ("results.json", "curves.json"))
    keys = curves["chosen"]["per_client_best"]
    for client, confusion in enumerate(confusions):
        counts = np.array(confusion)
        truth, answers = (np.repeat(one, counts.ravel()) for one in np.indices(counts.shape).reshape(2, -1))
        sums = binned_sums(truth, 0.7 * np.eye(3)[answers] + 0.1)
        curves["sums"][keys[str(client)]]["test"] = sums.to_dict()
        f1 = sums.classification().weighted_f1
        results["test"]["per_client_best"][str(client)]["weighted_f1"] = f1
    curves["groups"] = {}
    (to / "results.json").write_text(json.dumps(results))
    (to / "curves.json").write_text(json.dumps(curves))
    return replace(read_run(to), name=name)


def test_a_client_is_harmed_where_its_interval_says_so(tmp_path: Path, folders: list[Path]) -> None:
    """One image of twelve more or less is no harm, and sixty of ninety are, whatever the means say."""
    good, one_less, bad = (
        [[4, 0, 0], [0, 4, 0], [0, 0, 4]],
        [[4, 0, 0], [0, 4, 0], [0, 1, 3]],
        [[10, 20, 0], [0, 10, 20], [20, 0, 10]],
    )
    many = (10 * np.eye(3, dtype=int) * 3).tolist()
    first = told(folders[0], tmp_path / "a", "first", [many, good, good, bad, one_less])
    other = told(folders[1], tmp_path / "b", "other", [bad, one_less, good, many, good])
    said = summary([first, other], "per_client_best")
    for question, client in (("Who is harmed?", 0), ("Who gains?", 3)):
        assert f"at 1 of 5 clients, most at client {client} (test), " in said[question][0]
        assert "95 % interval of its difference excludes 0" in said[question][0]
    value, low, high = (float(one) for one in re.findall(r"−(0\.\d{3})", said["Who is harmed?"][0]))
    assert value == 0.667
    assert low > value > high > 0
    same = summary([first, replace(first, name="same")], "per_client_best")
    assert all("at none of 5 clients" in same[question][0] for question in ("Who gains?", "Who is harmed?"))


def test_client_8_is_named_where_it_is_the_papers(tmp_path: Path) -> None:
    config = small_config(federation={"rounds": 1, "cohort": 3})
    train(config, tmp_path / "paper", store=ten_hospitals(size=16, scale=0.02, seed=0))
    train(config, tmp_path / "ten", store=small_store(clients=10))
    caption, row = "Weighted F1 by client, test images: value [95 % interval]", "Mean, without client 8"
    paper, ten = read_run(tmp_path / "paper"), read_run(tmp_path / "ten")
    text = runs_page([paper])
    values = [numbers["weighted_f1"] for client, numbers in paper.tested("per_client_best").items() if client != "8"]
    assert Page(text).rows(caption)[row][0].startswith(f"{np.mean(values):.3f} (")
    assert "The mean without client 8" in text
    assert "without client 8" not in runs_page([ten])
    assert set(Page(runs_page([ten])).rows(caption)) > {"client 8 (test)"}


def test_two_eces_on_a_page_have_two_names(runs: list[PageRun]) -> None:
    page = Page(runs_page(runs))
    heads = [data for place, data in page.texts if place and place[-1] == "th" and "thead" in place and "ECE" in data]
    assert {head.removesuffix(", with temperature") for head in heads} == {
        "ECE, adaptive bins (paper)",
        "ECE, 15 equal bins",
    }
    said = summary(runs, "per_client_best")["Can its confidence be believed?"]
    assert all("ECE, adaptive bins (paper)" in one for one in said)


def test_the_threshold_for_abstaining_is_chosen_on_validation_images(runs: list[PageRun]) -> None:
    said = summary(runs[1:2], "per_client_best")["Where should it abstain?"][0]
    validation, test = runs[1].pooled("per_client_best", "validation"), runs[1].pooled("per_client_best")
    assert validation is not None
    assert test is not None
    threshold = validation.threshold_at_risk(0.1)
    if threshold is None:
        assert "no confidence, however high" in said
    else:
        kept = test.confidence[round(threshold * 200) :]
        assert f"below a confidence of {threshold:.3f}" in said
        assert f"answers {100 * kept.sum() / test.images:.0f} %" in said


def test_peers_and_curves_are_those_of_the_rounds(folders: list[Path], runs: list[PageRun]) -> None:
    ssfl, ours, alone = embedded(runs)["runs"]
    assert ssfl["peers"] is None
    results = json.loads((folders[1] / "results.json").read_text())
    for receiver, row in results["peer_frequency"].items():
        for peer, count in row.items():
            share = ours["peers"]["shares"]["all"][int(receiver)][int(peer)]
            assert share == pytest.approx(count / sum(row.values()), abs=1e-5)
    lines = [json.loads(line) for line in (folders[1] / "metrics.jsonl").read_text().splitlines()]
    assert ours["training"]["3"]["round"] == [line["round"] for line in lines]
    assert ours["training"]["3"]["accuracy"][-1] == pytest.approx(lines[-1]["validation"]["3"]["accuracy"], abs=1e-5)
    assert list(alone["training"]) == ["0", "1", "2", "3", "4"]
    assert alone["done"] == alone["rounds"]


def test_a_run_that_is_not_finished_says_so(unfinished: Path, runs: list[PageRun]) -> None:
    run = read_run(unfinished)
    text = runs_page([run])
    assert "begun is not finished" not in text  # the progress says it, there is no summary
    assert 'id="progress"' in text
    assert "A run that is not finished has no test results" in text
    for absent in ('id="summary"', 'id="trust"', 'id="cost"'):
        assert absent not in text
    found = embedded([run])["runs"][0]
    assert (found["finished"], found["done"], found["rounds"]) == (False, 5, 9)
    assert found["peers"] is not None
    both = runs_page([*runs, run])
    assert "begun is not finished: 5 of 9 rounds" in both
    assert 'id="summary"' in both


def test_files_are_written_where_they_are_expected(
    tmp_path: Path, folders: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedperl.cli import main

    monkeypatch.chdir(tmp_path)
    for arguments, path in (
        ([str(folders[1])], folders[1] / "report.html"),
        ([str(folders[0]), str(folders[1])], tmp_path / "report.html"),
        ([str(folders[1]), "--out", "x.html", "--title", "A title"], tmp_path / "x.html"),
    ):
        monkeypatch.setattr("sys.argv", ["fedperl", "report", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code in (0, None)
        assert path.name in capsys.readouterr().out
        assert path.stat().st_size < 500_000
    assert "<h1>A title</h1>" in (tmp_path / "x.html").read_text()
    (folders[1] / "report.html").unlink()


def copy(folder: Path, to: Path) -> Path:
    to.mkdir()
    for name in ("config.toml", "partition.csv", "metrics.jsonl", "results.json", "curves.json"):
        (to / name).write_bytes((folder / name).read_bytes())
    return to


def test_what_cannot_be_shown_is_refused_with_the_file(tmp_path: Path, folders: list[Path]) -> None:
    def refused(*paths: Path) -> str:
        with pytest.raises(RunError) as found:
            write_report(paths, tmp_path / "out.html")
        assert not (tmp_path / "out.html").exists()
        return str(found.value)

    assert refused() == "no run folder was given; wanted at least one"
    assert "nowhere: no such folder; wanted a run folder" in refused(tmp_path / "nowhere")
    assert "holds no config.toml; wanted a run folder" in refused(tmp_path)
    assert "named twice" in refused(folders[0], folders[0])
    for out, why in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.html", "there is no folder")):
        with pytest.raises(RunError, match=why):
            write_report(folders[:1], out)
    run = copy(folders[1], tmp_path / "run")
    curves, results = (run / "curves.json").read_text(), json.loads((run / "results.json").read_text())
    (run / "curves.json").unlink()
    assert "curves.json: cannot be read" in refused(run)
    for broken in (curves[:500], "[]", '{"chosen": {}}', curves.replace("confusion", "confused", 1)):
        (run / "curves.json").write_text(broken)
        assert "curves.json: cannot be" in refused(run)
    groups = json.loads(curves)["groups"]
    for key, said in (("sex", "hold more than there are"), ("name", "groups by 'name'; wanted one of age, sex")):
        wrong = {one: {key: {"groups": {"male": [[60, 0, 0], [0, 0, 0], [0, 0, 0]]}, "too_few": 0}} for one in groups}
        (run / "curves.json").write_text(json.dumps(json.loads(curves) | {"groups": wrong}))
        assert said in refused(run)
    (run / "curves.json").write_text(json.dumps(json.loads(curves) | {"groups": {"nobody@1": {}}}))
    assert "curves.json: cannot be used: 'nobody@1'" in refused(run)
    (run / "curves.json").write_text(curves)
    (run / "results.json").write_text(json.dumps(results | {"classes": ["A", "B", "D"]}))
    assert "its classes are A, B, D; those of" in refused(folders[0], run)
    (run / "results.json").write_text(json.dumps(results | {"classes": ["A", "B"]}))
    assert "wanted one shape, of 2 classes" in refused(run)
    (run / "results.json").write_text("{")
    assert "results.json: cannot be read" in refused(run)
    (run / "results.json").write_text("{}")
    assert "results.json: wanted the numbers of a finished run, found {}" in refused(run)
    (run / "results.json").write_text('{"classes": []}')
    assert "results.json: holds no 'test'" in refused(run)
    (run / "results.json").write_text(json.dumps(results))
    (run / "metrics.jsonl").write_text("nonsense\n")
    assert "metrics.jsonl: cannot be read" in refused(run)


def test_runs_of_one_name_are_told_apart(tmp_path: Path, folders: list[Path]) -> None:
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
    same = [copy(folders[1], tmp_path / "a" / "run"), copy(folders[1], tmp_path / "b" / "run")]
    assert [run.name for run in read_runs([folders[1], same[0]])] == ["ours (fedperl)", "ours (run)"]
    assert len({run.name for run in read_runs(same)}) == 2


def test_other_partitions_are_not_compared_silently(tmp_path: Path, folders: list[Path]) -> None:
    run = copy(folders[1], tmp_path / "run")
    results = json.loads((run / "results.json").read_text())
    (run / "results.json").write_text(json.dumps(results | {"partition": "other"}))
    assert "not trained and tested on the same partition" in runs_page(read_runs([folders[0], run]))
    assert "not trained and tested on the same partition" not in runs_page(read_runs(folders))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_colours_can_be_read_in_light_and_dark() -> None:
    style = (ASSETS / "page.css").read_text()
    themes = [dict(re.findall(r"(--[\w-]+): (#\w{6})", block)) for block in re.findall(r":root[^{]*\{([^}]*)\}", style)]
    assert len(themes) == 4  # light, dark by the system, dark by choice, print
    assert themes[1] == themes[2]
    for found in themes:
        for text in ("--ink", "--soft", "--accent", *(f"--run{n}" for n in range(8))):
            assert contrast(found[text], found["--page"]) >= 4.5, (text, found["--page"])
        for text in ("--ink", "--soft", "--accent"):
            assert contrast(found[text], found["--panel"]) >= 4.5, text
        assert contrast(found["--ink"], found["--warn"]) >= 4.5
        # The darkest cell of a heat map: three quarters of its colour over the page.
        mixed = "#" + "".join(
            f"{round(0.75 * int(found['--heat'][p : p + 2], 16) + 0.25 * int(found['--page'][p : p + 2], 16)):02x}"
            for p in (1, 3, 5)
        )
        assert contrast(found["--ink"], mixed) >= 4.5, mixed


# The live view


def ask(watch: Watch, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    address = watch.address.removeprefix("http://").rstrip("/")
    connection = http.client.HTTPConnection(address, timeout=300)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_the_live_view_shows_the_run_and_nothing_else(tmp_path: Path, unfinished: Path) -> None:
    with Watch(unfinished) as watch:
        status, page = ask(watch, "/")
        assert status == 200
        assert b'id="progress"' in page
        assert json.loads(ask(watch, "/state.json")[1])["runs"][0]["done"] == 5
        for path in ("/config.toml", "/../config.toml", "/state/ledger.jsonl", "/favicon.ico"):
            assert ask(watch, path)[0] == 404, path
        assert ask(watch, "/", "POST")[0] == 501
        assert ask(watch, "/", host="evil.example")[0] == 403
        assert watch.address.startswith("http://127.0.0.1:")
        with pytest.raises(OSError, match="in use"):
            Watch(unfinished, int(watch.address.rstrip("/").rpartition(":")[2]))
    with pytest.raises(ConnectionRefusedError):
        ask(watch, "/")
    with Watch(tmp_path / "not begun") as watch:
        assert json.loads(ask(watch, "/state.json")[1])["runs"] == []
        assert b"about to begin" in ask(watch, "/")[1]


def test_a_page_that_cannot_be_made_is_an_answer_and_no_failure(tmp_path: Path, unfinished: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.toml").write_text("nonsense = [")
    with Watch(run) as watch:
        status, text = ask(watch, "/")
        assert status == 503
        assert b"config.toml" in text
        with socket.create_connection(("127.0.0.1", int(watch.address.rstrip("/").rpartition(":")[2]))) as raw:
            raw.sendall(b"\x00\xff nonsense\r\n\r\n")
            raw.recv(100)
        assert ask(watch, "/")[0] == 503


def test_training_goes_on_where_the_port_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedperl.cli import main
    from fedperl.config import dump

    small_store().save(tmp_path / "store")
    (tmp_path / "tiny.toml").write_text(dump(small_config(data={"source": str(tmp_path / "store")})))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = [
            "train",
            str(tmp_path / "tiny.toml"),
            "--out",
            str(tmp_path / "run"),
            "-q",
            "--watch",
            "--port",
            port,
        ]
        monkeypatch.setattr("sys.argv", ["fedperl", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
    assert stopped.value.code in (0, None)
    assert f"--watch: port {port} cannot be used" in capsys.readouterr().err
    assert (tmp_path / "run" / "results.json").exists()


@pytest.mark.parametrize(("file", "content"), [("results.json", "[1]"), ("metrics.jsonl", '{"a": 1}\n')])
def test_a_file_of_another_shape_is_named(folders: list[Path], tmp_path: Path, file: str, content: str) -> None:
    shutil.copytree(folders[0], tmp_path / "run")
    (tmp_path / "run" / file).write_text(content)
    with pytest.raises(RunError, match=file):
        write_report([tmp_path / "run"], tmp_path / "page.html")


def test_a_folder_that_is_no_run_is_named_before_the_page(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="wanted a run folder"):
        write_report([tmp_path / "nothere"], tmp_path / "nothere" / "report.html")
