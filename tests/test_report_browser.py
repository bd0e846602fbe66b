"""The report's page in a real browser: opened from disk, driven as a person would, its numbers compared with ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from fedperl.config import dump
from fedperl.evaluate import BinnedSums, intervals_of_confusion
from fedperl.report.page import write_report
from tests.conftest import small_config, small_store
from tests.test_cli import waiting
from tests.test_report import NASTY, make_runs

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'")
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium, or name one in $CHROMIUM"
)


@pytest.fixture(scope="module", name="folders")
def _folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module", name="report")
def _report(folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_report(folders, path)
    return path.as_uri()


@pytest.fixture(scope="module", name="browser")
def _browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield browser
        browser.close()


class Opened:
    """A page with all that it said and asked for."""

    def __init__(self, browser: Browser, address: str, width: int = 1280, scheme: str = "light") -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, accept_downloads=True)
        self.page: Page = context.new_page()
        self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda found: self.problems.append(found.text) if found.type != "log" else None)
        self.page.on("pageerror", lambda found: self.problems.append(str(found)))
        self.page.on("request", lambda found: self.requests.append(found.url))
        self.page.set_default_timeout(300_000)
        self.page.goto(address)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()


@pytest.fixture(name="opened")
def _opened(browser: Browser, report: str) -> Iterator[Opened]:
    opened = Opened(browser, report)
    yield opened
    outside = [url for url in opened.requests if url != report and not url.startswith(("data:", "blob:"))]
    opened.page.context.close()
    assert opened.problems == []
    assert outside == []


def sums(folder: Path, part: str, client: str | None = None, choice: str = "per_client_best") -> BinnedSums:
    """Counts as the run folder has them, of one client or of all."""
    curves = json.loads((folder / "curves.json").read_text())
    keys = [key for name, key in curves["chosen"][choice].items() if client in (None, name)]
    total = BinnedSums.from_dict(curves["sums"][keys[0]][part])
    for key in keys[1:]:
        total = total + BinnedSums.from_dict(curves["sums"][key][part])
    return total


def shown(pattern: str, text: str) -> list[float]:
    """The numbers that a text shows; to the digits shown, a half may be rounded either way."""
    return [float(found) for found in re.findall(pattern + r" (\d+\.\d+)", text)]


def test_it_opens_from_disk_and_draws_every_figure(opened: Opened) -> None:
    page = opened.page
    assert page.locator("h1").inner_text().startswith("FedPerl: ")
    drawn = page.locator("figure svg[role=img]")
    assert drawn.count() == 1 + 1 + 3 + 3 + 1 + 2 + 3  # clients, training, peers, reliability, risk, ranking, confusion
    assert all(label for label in drawn.evaluate_all("all => all.map((one) => one.getAttribute('aria-label'))"))
    assert page.locator("figure details table caption").count() == drawn.count()
    assert NASTY in opened.text("#runs label")
    for name in ("Client", "Model", "Measure", "Run", "Bins"):
        assert page.get_by_role("combobox", name=name, exact=True).count() == 1, name
    page.get_by_role("tab", name="Abstaining").click()
    assert page.get_by_role("slider", name="Least confidence").count() == 1


def test_choosing_a_client_and_bins_changes_the_ece(opened: Opened, folders: list[Path]) -> None:
    page = opened.page
    for client, bins in ((None, 15), (None, 5), ("2", 5), ("2", 20)):
        page.locator("#client").select_option(client or "all")
        page.locator("#bins").select_option(str(bins))
        captions = page.locator("#figures-reliability figcaption").all_inner_texts()
        for folder, caption in zip(folders, captions, strict=True):
            wanted = sums(folder, "test", client)
            assert f" over {bins} equal bins, {wanted.images} images" in caption
            assert shown("ECE", caption) == pytest.approx([wanted.ece(bins)], abs=5.1e-4)
            assert ("client 2 (test)" if client else "all clients together") in caption


def test_the_threshold_says_what_is_kept_on_test_and_validation_images(opened: Opened, folders: list[Path]) -> None:
    page = opened.page
    page.get_by_role("tab", name="Abstaining").click()
    assert page.locator("#panel-abstain").is_visible()
    assert not page.locator("#panel-calibration").is_visible()
    for threshold in (0.0, 0.4, 0.415, 0.9):
        page.locator("#threshold").evaluate(
            "(one, value) => { one.value = value; one.dispatchEvent(new Event('input', { bubbles: true })); }",
            str(threshold),
        )
        assert opened.text("#threshold-value") == f"{threshold:.3f}"
        rows = page.locator("#threshold-rows tr").all()
        for folder, row in zip(folders, rows, strict=True):
            cells = row.locator("td").all_inner_texts()
            for part, place in (("test", 0), ("validation", 3)):
                found = sums(folder, part)
                wrong, right = found.confidence[round(threshold * 200) :].sum(axis=0)
                kept = wrong + right
                assert float(cells[place].removesuffix(" %")) == pytest.approx(100 * kept / found.images, abs=0.051)
                if kept:
                    assert float(cells[place + 1].removesuffix(" %")) == pytest.approx(100 * wrong / kept, abs=0.051)
                else:
                    assert cells[place + 1] == "–"
            assert cells[2].endswith(f" of {sums(folder, 'test').confidence[round(threshold * 200) :].sum()}")


def test_the_threshold_moves_with_the_keyboard(opened: Opened) -> None:
    page = opened.page
    page.get_by_role("tab", name="Calibration").focus()
    page.keyboard.press("ArrowRight")
    assert page.get_by_role("tab", name="Abstaining").get_attribute("aria-selected") == "true"
    assert page.evaluate("document.activeElement.id") == "tab-abstain"
    page.locator("#threshold").focus()
    page.keyboard.press("ArrowRight")
    assert opened.text("#threshold-value") == "0.505"


def test_curves_and_confusions_are_those_of_the_counts(opened: Opened, folders: list[Path]) -> None:
    page = opened.page
    page.get_by_role("tab", name="ROC and precision").click()
    for label, name in enumerate("ABC"):
        page.locator("#label").select_option(label=name)
        for figure, area, wanted in (
            ("#figure-roc", "AUROC", [sums(folder, "test").auroc(label) for folder in folders]),
            ("#figure-pr", "AUPRC", [sums(folder, "test").average_precision(label) for folder in folders]),
        ):
            text = page.locator(f"{figure} svg").get_attribute("aria-label") or ""
            assert shown(area, text) == pytest.approx(wanted, abs=5.1e-4)
    page.get_by_role("tab", name="Confusions").click()
    page.locator("#choice").select_option("last")
    second = page.locator("#figures-confusion figure").nth(1)
    second.locator("summary").click()
    counts = [[int(cell) for cell in row.split("\t")[1:]] for row in second.locator("tbody tr").all_inner_texts()]
    assert np.array_equal(counts, sums(folders[1], "test", choice="last").confusion)


def test_runs_are_chosen_and_values_read(opened: Opened, folders: list[Path]) -> None:
    page = opened.page
    page.locator("#runs input").nth(2).uncheck()
    assert page.locator("#figures-reliability figure").count() == 2
    chart = page.locator("#figure-training svg")
    chart.focus()
    page.keyboard.press("End")
    lines = [json.loads(line) for line in (folders[1] / "metrics.jsonl").read_text().splitlines()]
    mean = np.mean([numbers["accuracy"] for numbers in lines[-1]["validation"].values()])
    assert opened.text("#figure-training .readout").startswith(f"ours: round {len(lines)}, accuracy ")
    assert shown("accuracy", opened.text("#figure-training .readout")) == pytest.approx([mean], abs=5.1e-4)
    page.locator("#measure").select_option("loss")
    assert "Validation loss" in opened.text("#figure-training figcaption")
    for _ in range(600):  # a busy machine draws late
        page.locator("#figure-clients svg circle").last.hover(force=True)
        if "weighted F1" in opened.text("#figure-clients .readout"):
            break
        page.wait_for_timeout(100)
    assert "weighted F1" in opened.text("#figure-clients .readout")
    page.locator("#figure-clients svg").focus()
    page.keyboard.press("Home")
    found = intervals_of_confusion(sums(folders[0], "test", "0").confusion)["weighted_f1"]
    read = opened.text("#figure-clients .readout")
    assert shown("weighted F1", read) + shown("interval", read) + shown("to", read) == pytest.approx(
        [found.value, found.low, found.high], abs=5.1e-4
    )


def test_temperatures_are_shown_by_client(opened: Opened, folders: list[Path]) -> None:
    numbers = json.loads((folders[1] / "results.json").read_text())["test"]["per_client_best"]["3"]
    row = opened.page.locator("table", has_text="with its temperature T").get_by_role("row", name="client 3 (test)")
    cell = row.get_by_role("cell").nth(1).inner_text()
    assert shown("T", cell) == pytest.approx([numbers["temperature"]], abs=5.1e-3)
    assert shown("→", cell) == pytest.approx([numbers["ece_scaled"]], abs=5.1e-4)


def test_early_and_late_peers_are_tabs(opened: Opened) -> None:
    page = opened.page
    assert "ours" in opened.text("#figure-peers-all figcaption")  # the first run with peers
    page.get_by_role("tab", name="Late rounds").click()
    assert "from round" in opened.text("#figure-peers-late figcaption")
    page.locator("#peers-run").select_option(label="alone")
    assert "no client has had a peer" in opened.text("#figure-peers-late")


def test_figures_and_their_numbers_can_be_saved(opened: Opened, folders: list[Path], tmp_path: Path) -> None:
    page = opened.page
    with page.expect_download() as saved:
        page.locator("#figure-clients button", has_text="SVG").click()
    saved.value.save_as(tmp_path / "figure.svg")
    text = (tmp_path / "figure.svg").read_text()
    assert ElementTree.fromstring(text).tag == "{http://www.w3.org/2000/svg}svg"
    assert "var(" not in text
    assert "<img" not in text
    with page.expect_download() as saved:
        page.locator("#figure-clients button", has_text="CSV").click()
    saved.value.save_as(tmp_path / "figure.csv")
    rows = [line.split(",") for line in (tmp_path / "figure.csv").read_text().splitlines()]
    results = json.loads((folders[1] / "results.json").read_text())["test"]["per_client_best"]
    assert rows[1][0] == "client 0 (test)"
    assert float(rows[1][2]) == pytest.approx(results["0"]["weighted_f1"], abs=1e-5)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_runs_over_the_edge_and_no_text_is_tiny(browser: Browser, report: str, width: int, scheme: str) -> None:
    opened = Opened(browser, report, width, scheme)
    page = opened.page
    for tab in ("Calibration", "Abstaining", "ROC and precision", "Confusions"):
        page.get_by_role("tab", name=tab).click()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab
        small = page.evaluate(
            "[...document.querySelectorAll('figure svg text')].filter((t) => t.getBoundingClientRect().width > 0)"
            ".map((t) => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getBoundingClientRect().width"
            " / t.ownerSVGElement.viewBox.baseVal.width).filter((size) => size < 8)"
        )
        assert small == []
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    assert opened.problems == []
    page.context.close()


def test_print_shows_every_panel(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(media="print")
    for panel in page.locator("[role=tabpanel]").all():
        assert panel.is_visible()
    assert not page.locator(".bar").is_visible()


def test_a_run_is_watched_while_it_trains(browser: Browser, tmp_path: Path) -> None:
    small_store().save(tmp_path / "store")
    config = small_config(
        name="watched", data={"source": str(tmp_path / "store")}, federation={"rounds": 6, "steps": 3}
    )
    (tmp_path / "tiny.toml").write_text(dump(config))
    command = [sys.executable, "-m", "fedperl", "train", str(tmp_path / "tiny.toml"), "--out", str(tmp_path / "cut")]
    command += ["--set", waiting(tmp_path)]
    process = subprocess.Popen([*command, "-q", "--watch"], text=True, stderr=subprocess.PIPE)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Watch at http://127.0.0.1:")
        opened = Opened(browser, line.removeprefix("Watch at ").strip())
        page = opened.page
        page.wait_for_selector("#progress progress", timeout=300_000)
        first = page.locator("#progress progress").get_attribute("value")
        (tmp_path / "go").touch()
        page.wait_for_selector(f"#summary, #progress progress:not([value='{first}'])", timeout=300_000)
        page.wait_for_selector("#summary", timeout=300_000)  # the results, once the run is finished
        assert "watched" in opened.text("h1")
        assert "no longer refreshes" in opened.text("#live")
        assert process.wait(timeout=300) == 0
        assert all(url.startswith(line.removeprefix("Watch at ").strip()) or url == "data:," for url in opened.requests)
        assert opened.problems == []
        page.context.close()
    finally:
        process.kill()
        process.communicate()
