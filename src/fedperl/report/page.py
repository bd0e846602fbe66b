"""One self-contained HTML page of one or several runs: `fedperl report`, and the live view of `fedperl train --watch`.

Tables and sentences are written here; figures are drawn in the page, from counts that it carries. Nothing is loaded.
"""

import json
import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedperl import __version__
from fedperl.errors import RunError
from fedperl.evaluate.subgroups import SMALLEST
from fedperl.files import write_durably
from fedperl.report.page_data import CHOICES, PageRun, embedded, read_runs, shared_choice
from fedperl.report.page_groups import groups_tables, left_out
from fedperl.report.page_summary import ADAPTIVE_ECE, cautions, summary
from fedperl.report.page_tables import (
    OUTLIER,
    classes_tables,
    clients_table,
    cost_table,
    glance_table,
    has_outlier,
    hashes_table,
    origin_table,
    runs_table,
    scaling_table,
    settings,
    settings_table,
    table,
    together_table,
)

PART = re.compile(r"\{\{(\w+)\}\}")

LIMITS = (
    "This page and the models behind it are for research. They are not a medical device, and nothing here is advice "
    "about a patient.",
    "The page holds no image and no prediction of a single image, but counts of each client's predictions, in 200 bins "
    "of confidence and by class. Where a client has one or two images of a class, those counts say much about them: "
    "share the page as you would share such counts. Of patients' groups a client tells those of ten images or more.",
    "All numbers are from one data set, split among the clients. They say nothing of hospitals, cameras or patients "
    "that are not in it.",
    "ECE is never below 0, and with few images even a perfectly calibrated model shows one above it: an interval of it "
    "never contains 0. Compare it between runs on the same images, not with 0.",
    "A temperature is fitted by each client on its own validation images; the ECE “with temperature” is that of its "
    "test images. All other numbers, diagrams and thresholds are of the model as it is, without a temperature. One at "
    "the end of the range that is tried means little.",
    "Intervals of 95 % answer: with other test images like these, drawn one by one, where would this model's number "
    "lie? They say nothing of another training or another hospital, are too narrow where several images are of one "
    "lesion or patient, and have no width where all images are right or all wrong.",
    f"There are two ECEs, which differ. “{ADAPTIVE_ECE}” is each client's, or their mean; MCE has the same bins. Of "
    "all images together, and in the diagrams, ECE is over bins of equal width: 15 in the table, as many as you choose "
    "in the diagrams.",
    "Curves, areas by class and thresholds are from counts in bins: images of one bin count as equally sure.",
    "A threshold holds for images like those it was chosen on. Compare what it gives on validation and on test images, "
    "and for each client, before relying on it.",
    "Best models are chosen on validation images and tested on others; the number of choices makes the best one look "
    "slightly better on validation images than it is.",
)


INTERVAL = (
    "In brackets: where 95 % of the values lie when the test images are drawn again, with replacement, 1,000 times. "
    "The model stays the same: another training moves the numbers too. Runs are tested on the same images, so that "
    "intervals that overlap may still differ."
)


def write_report(folders: Sequence[Path], out: Path, title: str | None = None) -> int:
    """Write the page of these run folders to a file and return its size in bytes.

    Raises:
        RunError: a folder holds no run, its files cannot be used, the runs do not belong on one page, or it cannot be
            written there.
    """
    runs = read_runs(folders)
    if out.is_dir() or not out.parent.is_dir():
        found = "is a folder" if out.is_dir() else f"there is no folder {out.parent}"
        raise RunError(f"{out}: {found}; wanted a file to write the page to")
    page = runs_page(runs, title).encode()
    write_durably(out, page, mode=0o644)
    return len(page)


def runs_page(runs: Sequence[PageRun], title: str | None = None, *, live: bool = False) -> str:
    """Return the page of runs, finished or not; a live one asks `state.json` beside it for the rounds so far."""
    finished = [run for run in runs if run.results is not None]
    names = ", ".join(run.name for run in runs) or "a run that is about to begin"
    sections = [*_unfinished(runs, live=live), *_of_results(finished, runs), *_always(runs, finished)]
    parts = {
        "title": escape(title or f"FedPerl: {names}"),
        "subtitle": escape(_subtitle(runs)),
        "connect": "'self'" if live else "'none'",
        "style": _asset("page.css"),
        "navigation": "".join(f'<li><a href="#{anchor}">{escape(name)}</a></li>' for anchor, name, _ in sections),
        "choice": '<label><span>Model</span> <select id="choice"></select></label>' if finished else "",
        "sections": "\n".join(
            f'<section id="{anchor}" aria-labelledby="{anchor}-title">\n<h2 id="{anchor}-title">{escape(name)}</h2>\n'
            f"{body}\n</section>"
            for anchor, name, body in sections
        ),
        "footer": escape(f"Made by fedperl {__version__}."),
        "data": script_json(embedded(runs, live=live)),
        "script": "\n".join(_asset(name) for name in ("sums.js", "charts.js", "page.js")),
    }
    return PART.sub(lambda found: parts[found[1]], _asset("page.html"))


def script_json(value: Any) -> str:
    """Return JSON that can stand inside a script element, whatever its texts are."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


Section = tuple[str, str, str]
"""Anchor, heading, HTML."""


def _unfinished(runs: Sequence[PageRun], *, live: bool) -> list[Section]:
    waiting = [run for run in runs if run.results is None]
    if not waiting and not live:
        return []
    body = ['<div id="progress"></div>']
    if live:
        body.append('<p class="soft" id="live" role="status">Refreshes by itself.</p>')
    if waiting:
        body.append(
            "<p>A run that is not finished has no test results: its validation curves and peers alone are shown.</p>"
        )
    return [("now", "Progress", "\n".join(body))]


def _of_results(runs: Sequence[PageRun], every: Sequence[PageRun]) -> list[Section]:
    """Return the sections that need test results; none without a finished run."""
    if not runs:
        return []
    choice = shared_choice(runs)
    which = f"Models: {CHOICES[choice]}, chosen on validation images." if choice != "last" else "Models: last round."
    return [
        ("summary", "Summary", _summary(runs, choice, which) + _care(every, choice)),
        ("results", "Results", _results(runs, choice, which)),
        ("trust", "How far it can be trusted", _asset("trust.html")),
    ]


def _always(runs: Sequence[PageRun], finished: Sequence[PageRun]) -> list[Section]:
    sections = [("training", "During training", _asset("training.html")), ("peers", "Peers", _asset("peers.html"))]
    if finished:
        cost = (
            "<p>Megabytes of models sent, as the run counted them, and seconds on the machine it was trained on. "
            "Additional cost is what was sent to the clients beyond one model for each client and round; clients that "
            "train alone send nothing.</p>"
        )
        sections.append(("cost", "Cost", cost + cost_table(finished)))
    sections.append(("limits", "Privacy and limits", _list([*_private(finished), *LIMITS])))
    if runs:
        sections.append(("origin", "Configuration and origin", _origin(runs)))
    return sections


def _private(runs: Sequence[PageRun]) -> list[str]:
    """Return what differential privacy promises of each run that has it."""
    return [
        f"{run.name}: {run.results['dp']['text']}, for the client that spent most. It covers models and the images "
        "they were trained on, not the numbers on this page, which are of validation and test images."
        for run in runs
        if run.results and "dp" in run.results
    ]


def _subtitle(runs: Sequence[PageRun]) -> str:
    if not runs:
        return "Training has not begun."
    clients = max(len(run.sources) for run in runs)
    finished = sum(run.results is not None for run in runs)
    found = f"{len(runs)} run{'s' if len(runs) > 1 else ''}, {clients} clients; {finished} finished."
    return found + (f" Others are compared with the first, {runs[0].name}." if finished > 1 else "")


def _summary(runs: Sequence[PageRun], choice: str, which: str) -> str:
    answers = "".join(
        f"<dt>{escape(question)}</dt><dd><ul>{''.join(f'<li>{_of_run(one, runs)}</li>' for one in found)}</ul></dd>"
        for question, found in summary(runs, choice).items()
        if found
    )
    drawn = (
        " The interval of a client's difference comes from the counts of both runs, each run's test images drawn again "
        "by themselves. Of the same images it is wider than need be: small differences are missed, not made up."
    )
    note = f'<p class="soft">{escape(which + (drawn if len(runs) > 1 else ""))}</p>'
    return "\n".join([note, glance_table(runs, choice), f'<dl class="answers">{answers}</dl>'])


def _of_run(sentence: str, runs: Sequence[PageRun]) -> str:
    """Return a sentence with the name of its run, where it begins with one, set off."""
    for run in runs:
        if sentence.startswith(f"{run.name}: "):
            return f"<strong>{escape(run.name)}</strong>: {escape(sentence.removeprefix(f'{run.name}: '))}"
    return escape(sentence)


def _care(runs: Sequence[PageRun], choice: str) -> str:
    found = cautions(runs, choice)
    return f'<aside class="care"><h3>Read with care</h3>{_list(found)}</aside>' if found else ""


def _results(runs: Sequence[PageRun], choice: str, which: str) -> str:
    return "\n".join(
        [
            f'<p class="soft">{escape(which)}</p>',
            "<h3>By method</h3>",
            runs_table(runs, choice),
            '<p class="soft">AUROC and AUPRC are means over the classes that a client has, each against the rest, from '
            "probabilities; “from labels” is the variant of the paper's tables. Lower is better for ECE, MCE, Brier "
            "and AURC. Coverage at a risk: the share of images that could be answered with no more wrong answers than "
            "that, had the threshold been known. With temperature: each client's own, likeliest on its validation "
            "images; above 1 the model was too sure. With few of them, or one that the model held impossible, ECE may "
            "rise.</p>",
            together_table(runs, choice),
            f'<p class="soft">{INTERVAL}</p>',
            "<h3>By client</h3>",
            '<figure id="figure-clients"></figure>',
            clients_table(runs, choice),
            _outlier(runs, choice),
            scaling_table(runs, choice),
            "<h3>By class</h3>",
            classes_tables(runs, choice),
            '<p class="soft">–: the class has no test image, or no other has.</p>',
            _patients(runs, choice),
        ]
    )


def _outlier(runs: Sequence[PageRun], choice: str) -> str:
    if not any(has_outlier(run, choice) for run in runs):
        return ""
    return (
        f'<p class="soft">The mean without client {OUTLIER}, whose images are unlike all others in the paper, is of '
        "the same models, not of models that were trained without it.</p>"
    )


def _patients(runs: Sequence[PageRun], choice: str) -> str:
    """Return the results by patient group; nothing where no client knows one."""
    tables = groups_tables(runs, choice)
    if not tables:
        return ""
    return "\n".join(
        [
            "<h3>By patient group</h3>",
            "<p>Whether the model serves all alike, as far as the images' lists tell age, sex, body site or skin type. "
            "Groups differ in their lesions too: a group with harder lesions has lower numbers from the same model, so "
            "look at balanced accuracy beside accuracy, and at whether intervals are apart. Groups of fewer than "
            f"{SMALLEST} images are named, not computed.</p>",
            tables,
            f'<div class="soft"><p>Images in none of these groups:</p>{_list(left_out(runs, choice))}</div>',
        ]
    )


def _origin(runs: Sequence[PageRun]) -> str:
    whole = [
        f'<details class="printed"><summary>All settings of {escape(run.name)}</summary>'
        f'<div class="wrap">{table(f"All settings of {run.name}", ["setting", "value"], settings(run).items())}</div>'
        "</details>"
        for run in runs
    ]
    models = (
        f'<details class="printed"><summary>Hashes of the models</summary>{hashes_table(runs)}</details>'
        if any(run.hashes for run in runs)
        else ""
    )
    shown = [*([settings_table(runs)] if len(runs) > 1 else []), *whole, origin_table(runs), models]
    return "\n".join(f'<div class="wrap">{one}</div>' for one in shown)


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _asset(name: str) -> str:
    return (files("fedperl.report") / "assets" / name).read_text(encoding="utf-8")
