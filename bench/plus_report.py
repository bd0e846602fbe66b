"""FedPerl+ beside the rows of bench/skin.py on test images, what was aimed at, and what it is on CIFAR-10."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import plus_time
import side_by_side
import skin_rows
from plus import DEVICES, LINES, jobs
from side_by_side import Line, check_lines, table, where_and_when
from skin_rows import RARE, Rows, apart, by_class, by_client, sensitivity, shown

from fedperl.errors import ConfigError
from fedperl.evaluate import Interval

OURS, CONTROL, FEDPERL, SSFL = "FedPerl+", "FedPerl+ without peers", "FedPerl T=2", "SSFL"
OTHERS = ("FedPerl+ with half of one's own", "root of class weights, unlabelled loss times 2")
"""Other choices that are reported of the small network."""
BESIDE = ("Lower", SSFL, FEDPERL, "FedIRM", "CBAFed", "Upper")
"""Rows of the core that it is reported beside."""
GAIN, LOSS, TIMES = 0.02, 0.01, 1.2
"""What was aimed at: macro F1 more than both, no client's F1 less than SSFL's by more, time and bytes."""
METRICS = {"weighted_f1": "weighted F1", "macro_f1": "macro F1"}
"""What is said by client: the aim names neither."""


@dataclass(frozen=True)
class Aim:
    """One thing that was aimed at, what came of it, and by how much it is met; None where that cannot be told yet."""

    what: str
    found: str
    margin: float | None

    @property
    def verdict(self) -> str:
        """Whether it is met, or by how much it is missed."""
        if self.margin is None:
            return "cannot be told yet"
        missed = f"{-self.margin:.3f}"
        return "met" if self.margin >= 0 else "just missed" if missed == "0.000" else f"missed by {missed}"


def report_rows(name: str) -> dict[str, dict[int, Line]]:
    """Return the lines of FedPerl+ and of what it is compared with, by row and seed, all from one backbone.

    Raises:
        ConfigError: they began with different ones.
    """
    found = {row: lines for row, lines in skin_rows.read_rows().items() if name == "report" and row in BESIDE}
    ours = side_by_side.read(LINES / f"{name}.jsonl")
    for run, line in ours.items():
        row, _, seed = run.rpartition(", seed ")
        if "failed" not in line:
            found.setdefault(row, {})[int(seed)] = line
    backbones = {tuple(line["backbone"].values()) for some in found.values() for line in some.values()}
    if ours and len(backbones) != 1:
        raise ConfigError(f"{name}: the rows began with {len(backbones)} backbones; wanted one")
    return found


def report_section(name: str) -> list[str]:
    """Return FedPerl+ on test images; nothing while it is not trained.

    Raises:
        ConfigError: a line was trained with other settings than the suite has now.
    """
    lines = side_by_side.read(LINES / f"{name}.jsonl")
    if not lines:
        return []
    check_lines(name, lines, jobs(name, Path(), DEVICES[name], [], []))
    rows = report_rows(name)
    text = [
        f"## {HEADS[name]}",
        "",
        f"{REPORTS[name]} {REPORT}",
        "",
        where_and_when(lines.values()),
        "",
        *_table(rows),
        "",
    ]
    time = side_by_side.read(LINES / plus_time.FILE).get(name)
    how = [] if time is None else ["", _how_timed(time)]
    return [*text, *_clients(rows), "", *_aims_table(aims(rows, plus_time.ratios(time) if time else [])), *how, ""]


def rare_f1(line: Line) -> float:
    """Return the mean F1 of the rare classes, of the test images of all clients together."""
    found = by_class(line)
    return fmean(found[name] for name in RARE)


def _table(rows: Rows) -> list[str]:
    macro, cells = by_client("macro_f1"), []
    for name in (name for name in (*BESIDE, *OTHERS, CONTROL, OURS) if name in rows):
        lines = rows[name].values()
        numbers: list[Callable[[Line], float]] = [
            lambda line: fmean(by_client("macro_f1")(line).values()),
            lambda line: fmean(by_client("weighted_f1")(line).values()),
            lambda line: min(by_client("weighted_f1")(line).values()),
            rare_f1,
            lambda line: sensitivity(line)["melanoma sensitivity"],
            lambda line: fmean(by_client("ece")(line).values()),
        ]
        less = ["" if name == OURS else shown(apart(rows, OURS, name, macro))]
        few = "" if len(rows[name]) == 3 else f" ({len(rows[name])} seed{'s' if len(rows[name]) > 1 else ''})"
        cells.append([name + few, *(f"{fmean(of(line) for line in lines):.3f}" for of in numbers), *less])
    head = ["", "macro F1", "weighted F1", "weighted F1 of the worst client", f"F1 of {', '.join(RARE)}"]
    return table([*head, "melanomas found", "ECE", f"macro F1: {OURS} less this row"], cells)


def by_client_less(rows: Rows, row: str, other: str, metric: str) -> dict[str, float]:
    """Return a metric of one row less another by client, the mean over the seeds that both have."""
    seeds = [seed for seed in rows.get(row, {}) if seed in rows.get(other, {})]
    f1 = by_client(metric)
    pairs = [(f1(rows[row][seed]), f1(rows[other][seed])) for seed in seeds]
    return {client: fmean(a[client] - b[client] for a, b in pairs) for client in (pairs[0][0] if pairs else {})}


def _clients(rows: Rows) -> list[str]:
    text = []
    for metric, name in METRICS.items():
        others = {other: by_client_less(rows, OURS, other, metric) for other in (SSFL, FEDPERL)}
        cells = [[other, *(f"{value:+.3f}" for value in found.values())] for other, found in others.items() if found]
        if cells:
            text += [*table([f"{name} of {OURS} less, at client", *others[SSFL]], cells), ""]
    return text[:-1]


def _how_timed(line: Line) -> str:
    """Return how times were taken (bench/plus_time.py)."""
    (first, last), turns = line["rounds"], len(plus_time.ratios(line))
    return (
        f"Time: rounds {first} to {last}, the two trained in turns on one machine ({line['device']}, {line['date']}), "
        f"{turns} time{'s' if turns > 1 else ''} each (`bench/plus_time.py`); met where every turn meets it."
    )


def aims(rows: Rows, times: Sequence[float]) -> list[Aim]:
    """Return what was aimed at, and what came of it.

    Args:
        times: of FedPerl+ over FedPerl's, turn by turn.
    """
    found = []
    for other in (FEDPERL, SSFL):
        less = apart(rows, OURS, other, by_client("macro_f1"))
        what = f"macro F1 at least {GAIN} above {other}, the interval clear of 0"
        found.append(Aim(what, shown(less), _clear(less)))
    for metric, name in METRICS.items():
        worst = by_client_less(rows, OURS, SSFL, metric)
        client = min(worst, key=lambda name: worst[name], default=None)
        said = f"{worst[client]:+.3f} (client {client})" if client else "·"
        margin = worst[client] + LOSS if client else None
        found.append(Aim(f"no client's {name} more than {LOSS} below {SSFL}'s", said, margin))
    ece = apart(rows, OURS, FEDPERL, by_client("ece"))
    found.append(Aim(f"ECE no worse than {FEDPERL}'s", shown(ece), -ece.mean if ece else None))
    bytes_sent = _ratio(rows, sent)
    for what, ratios in (("time", times), ("bytes", [] if bytes_sent is None else [bytes_sent])):
        said = f"{fmean(ratios):.2f} times" if ratios else "·"
        said += f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
        found.append(Aim(f"{what} at most {TIMES} times {FEDPERL}'s", said, TIMES - max(ratios) if ratios else None))
    return found


def _clear(less: Interval | None) -> float | None:
    """Return by how much a gain is met: what it is beyond the aim, or less where its interval reaches below 0.

    None with one seed, whose interval is over clients alone.
    """
    if less is None or less.low is None or less.seeds < 2:
        return None
    return less.mean - GAIN if less.low > 0 else min(less.mean - GAIN, less.low)


def sent(line: Line) -> float:
    """Return the bytes that a run sends, either way."""
    return float(sum(count for name, count in line["results"]["totals"].items() if name.startswith("bytes_")))


def _ratio(rows: Rows, of: Callable[[Line], float]) -> float | None:
    seeds = [seed for seed in rows.get(OURS, {}) if seed in rows.get(FEDPERL, {})]
    return fmean(of(rows[OURS][seed]) / of(rows[FEDPERL][seed]) for seed in seeds) if seeds else None


def _aims_table(found: list[Aim]) -> list[str]:
    cells = [[one.what, one.found, one.verdict] for one in found]
    return table(["aimed at", "found", ""], cells)


HEADS = {
    "report": "Reported once, on test images",
    "small_report": "The small network on test images",
}
REPORTS = {
    "report": (
        "`fedperl_plus` ([methods.md](../methods.md#fedperl)) with seeds that the search did not use, beside the rows "
        "of [skin.md](skin.md) with the same seeds, split and backbone. What those rows have on the same test images "
        "was known when the search began."
    ),
    "small_report": (
        "`fedperl_plus` ([methods.md](../methods.md#fedperl)) with the small network at 48 px "
        "(`bench/plus_small_report.toml`). How it trains was chosen on validation images of this network first, with "
        "half of its own at every client. That each client chooses came later, on validation images of "
        "EfficientNet-B0, when what half at every client has on these test images was known. The row with the root of "
        "class weights is one that gained on EfficientNet-B0. Lower, FedIRM, CBAFed and Upper are not trained with "
        "this network."
    ),
}
REPORT = (
    "Each client's model is the one that was best on its validation images. Differences are paired by client and "
    "seed, with an interval of 95 % over both. A gain in macro F1 is missed by what it lacks or by how far its "
    "interval reaches below 0, whichever is more; a limit on time by its worst turn."
)
