"""What `fedperl leakage` has measured, as tables."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

Found = Mapping[str, Any]

NAMES = {"raw": "raw peer", "global": "global model"}
SCORES = {"lira": "Offline LiRA", "calibrated": "Confidence less the global model's"}
NUMBERS = {
    "tpr_1": "TPR at 1 % FPR, in %",
    "tpr_01": "TPR at 0.1 % FPR, in %",
    "auc": "AUC",
    "ratio": "TPR at 1 % FPR, by the raw peer's",
}
TABLES = [
    ("lira", "tpr_1"),
    ("lira", "ratio"),
    ("lira", "auc"),
    ("lira", "tpr_01"),
    ("calibrated", "tpr_1"),
    ("calibrated", "auc"),
]
NONE = "·"


def release_name(release: Found) -> str:
    """Return what a released model is called."""
    if release["T"] is None:
        return NAMES[release["kind"]]
    if release["T"] == 1:
        return "raw peer without its running statistics"
    what = "anonymized peer" if release["kind"] == "static" else "two peers, differenced"
    return f"{what}, T = {release['T']}"


def leakage_markdown(found: Found) -> str:
    """Return all tables: each number of each score, F1, and LiRA by class."""
    lines = [f"# Leakage: {found['name']}", "", leakage_note(found)]
    kinds = [kind for kind, images in found["images"].items() if images and kind != "others"]
    for score, number in TABLES:
        lines += ["", f"## {SCORES[score]}: {NUMBERS[number]}", "", *_table(found, score, number, kinds)]
    if found["classes"]:
        lines += ["", "## Offline LiRA by class: AUC", "", *_classes(found["classes"])]
    return "\n".join(lines) + "\n"


def leakage_note(found: Found) -> str:
    """Return what must be known to read the tables."""
    seeds, images = found["seeds"], found["images"]
    members = ", ".join(f"{images[kind]} {kind}" for kind in images if kind not in ("others", "together"))
    return (
        f"{len(seeds)} seeds ({', '.join(map(str, seeds))}), {len(found['clients'])} clients. Members: {members} "
        f"images; others: {images['others']} of the same clients. {found['references']} reference models. In brackets "
        f"95 % intervals over seeds and images ({found['resamples']} resamples). Chance: TPR 1 % (0.1 %), AUC 0.500."
    )


def leakage_table(found: Found) -> Table:
    """Return the main numbers for the terminal."""
    kinds = [kind for kind in ("labelled", "new labelled") if found["images"][kind]] or ["together"]
    table = Table(title="Members found by offline LiRA at 1 % false alarms, in %", caption=leakage_note(found))
    table.add_column("released", no_wrap=True)
    for name in (*kinds, *(f"AUC, {kind}" for kind in kinds), "weighted F1"):
        table.add_column(name, justify="right", no_wrap=True)
    for release in found["releases"]:
        of = release["attacks"]["lira"]
        cells = [_cell(of, kind, number) for number in ("tpr_1", "auc") for kind in kinds]
        table.add_row(release_name(release), *cells, _f1(release, bounds=False))
    return table


def _table(found: Found, score: str, number: str, kinds: Sequence[str]) -> list[str]:
    lines = _head(["released", *kinds, *(["weighted F1"] if number == "ratio" else [])])
    for release in found["releases"]:
        cells = [release_name(release), *(_cell(release["attacks"][score], kind, number) for kind in kinds)]
        if number == "ratio":
            cells.append(_f1(release))
        lines.append(_line(cells))
    return lines


def _classes(classes: Sequence[Found]) -> list[str]:
    names, kinds = list(classes[0]["auc"]), list(classes[0]["members"])
    what = [NAMES.get(name, "anonymized peer, T = 2") for name in names]
    lines = _head(["class", "others", *(cell for kind in kinds for cell in (f"{kind}: members", *what))])
    for one in classes:
        cells = [one["name"], str(one["others"])]
        for kind in kinds:
            cells += [str(one["members"][kind]), *(_interval(one["auc"][name][kind], 3) for name in names)]
        lines.append(_line(cells))
    return lines


def _cell(of: Found, kind: str, number: str) -> str:
    if kind not in of:
        return NONE
    percent = number.startswith("tpr")
    return _interval(of[kind][number], 1 if percent else 2 if number == "ratio" else 3, 100 if percent else 1)


def _f1(release: Found, *, bounds: bool = True) -> str:
    f1 = release["f1"] or {"mean": None, "low": None, "high": None}
    return _interval({"value": f1["mean"]} | {key: f1[key] if bounds else None for key in ("low", "high")}, 3)


def _interval(number: Found, digits: int, factor: int = 1) -> str:
    value, low, high = (number[key] for key in ("value", "low", "high"))
    if value is None:
        return NONE
    bounds = "" if low is None or high is None else f" [{factor * low:.{digits}f}, {factor * high:.{digits}f}]"
    return f"{factor * value:.{digits}f}{bounds}"


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(["---", *("---:" for _ in cells[1:])])]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
