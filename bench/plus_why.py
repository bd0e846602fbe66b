"""What stands between FedPerl+ and what was aimed at: what its runs, and two small sets beside them, say of it."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import plus_time
import side_by_side
from plus import LINES
from plus_carried import carried_gain
from plus_report import CONTROL, FEDPERL, GAIN, OURS, SSFL, aims, by_client_less, report_rows
from plus_rounds import course_rows, course_section, course_told
from side_by_side import Line, table
from skin_rows import CHOICES, RARE, Rows, apart, by_class, by_client, course, matrix_of, sensitivity, shown, under

UPPER = "Upper"
SHOWN = {
    "weighted_f1": "weighted F1",
    "balanced_accuracy": "balanced accuracy",
    "macro_auroc": "AUROC",
    "aurc": "AURC",
    "nll": "log loss",
    "ece": "ECE",
}
ROWS = (SSFL, FEDPERL, CONTROL, OURS, UPPER)
PARTS = ("training", "validation", "server", "checkpoint")

Counts = npt.NDArray[np.int64]


def in_short() -> list[str]:
    """Return what came of the aims and of CIFAR-10, and why as far as that is known; nothing without the report."""
    rows = report_rows("report")
    if OURS not in rows:
        return []
    time = side_by_side.read(LINES / plus_time.FILE).get("report")
    found = aims(rows, plus_time.ratios(time) if time else [])
    met = sum(one.margin is not None and one.margin >= 0 for one in found)
    missed = [f"- {one.what}: {one.found}" for one in found if one.margin is None or one.margin < 0]
    text = [f"**In short.** Of {len(found)} things that were aimed at on real lesions {met} are met. Missed:", *missed]
    if (less := carried_gain()).by_seed:
        text += ["", f"On CIFAR-10 it is {less} points beside FedPerl (half of a 95 % interval). {RECOMMENDED}"]
    if CONTROL in rows and UPPER in rows:
        text += ["", *gained(rows), "", f"{TRIED} What stands in the way, by the numbers below:", *reasons(rows)]
    return [*text, ""]


def gained(rows: Rows) -> list[str]:
    """Return what it gains beside both, and after which round it has what FedPerl ends with."""
    told = []
    for metric in ("weighted_f1", "ece"):
        both = [f"{shown(apart(rows, OURS, other, by_client(metric)))} beside {other}" for other in (FEDPERL, SSFL)]
        told.append(f"{SHOWN[metric]} {' and '.join(both)}")
    ours, theirs = (course(rows, name, "macro_f1") for name in (OURS, FEDPERL))
    last = max(theirs)
    soon = min((round for round, value in ours.items() if value >= theirs[last]), default=None)
    if soon is not None:
        told.append(
            f"{FEDPERL}'s validation macro F1 of round {last} ({theirs[last]:.3f}) is passed after round {soon}{ON}"
        )
    return [f"What it does: {'; '.join(told)}."]


def reasons(rows: Rows) -> list[str]:
    """Return what stands in the way, each with its numbers."""
    macro = by_client("macro_f1")
    gaps = [apart(rows, OURS, other, macro) for other in (FEDPERL, SSFL)]
    halves = [(one.high - one.low) / 2 for one in gaps if one and one.low is not None and one.high is not None]
    few = f" A gain of {GAIN} would not be clear of 0, were it there." if min(halves, default=0) > GAIN else ""
    ece = {name: mean_over(rows, name, lambda line: fmean(by_client("ece")(line).values())) for name in (CONTROL, OURS)}
    found = {name: mean_over(rows, name, melanomas_found) for name in (SSFL, FEDPERL, CONTROL, OURS)}
    labels, images = (summed(rows, OURS, lambda line, of=of: line["pseudo"][of]) for of in ("right", "images"))  # type: ignore[misc]
    right = dict(zip(test_images(rows), labels / np.maximum(1, images), strict=True))
    went = [line["course"] for line in course_rows().get("FedPerl", {}).values()]
    poor = " and ".join(f"{name} ({right[name]:.0%})" for name in sorted(right, key=lambda name: right[name])[:2])
    return [
        f"- What can be told: half of an interval of macro F1 is {' and '.join(f'{one:.3f}' for one in halves)} wide "
        f"with these seeds and clients.{few}",
        f"- {headroom_note(rows)}",
        f"- Peers: FedPerl+ less itself without them has {shown(apart(rows, OURS, CONTROL, macro))} macro F1. Nor is "
        f"its calibration theirs: ECE {ece[CONTROL]:.3f} without, {ece[OURS]:.3f} with them.",
        *([f"- Peers and clients over the rounds (small network): {course_told(went)}"] if went else []),
        f"- Labels by class: of the unlabelled images of {poor} the fewest get their right label.",
        f"- Melanomas found: {', '.join(f'{name} {share:.3f}' for name, share in found.items())}.",
    ]


def mean_over(rows: Rows, name: str, of: Callable[[Line], float]) -> float:
    """Return a number of a row, the mean over its seeds."""
    return fmean(of(line) for line in rows[name].values())


def melanomas_found(line: Line) -> float:
    """Return the share of melanomas that are called so."""
    return float(sensitivity(line)["melanoma sensitivity"])


def why_section() -> list[str]:
    """Return what the report says beyond its aims; nothing while all it needs is not trained."""
    rows = report_rows("report")
    if not all(name in rows for name in (OURS, CONTROL, FEDPERL, SSFL, UPPER)):
        return []
    text = ["## What stands in the way", "", HEADROOM_NOTE, "", *headroom(rows), "", GAINS, "", *gains(rows), ""]
    text += [by_class_note(rows), "", *by_class_table(rows), "", CONFUSED, "", *confusions(rows), ""]
    text += [LABELS, "", *label_table(rows), "", ACCEPTED, "", *course_table(rows, "accepted", "labelled"), ""]
    text += [*course_table(rows, "macro_f1", "validation macro F1"), "", PEERS, "", *peers(rows), ""]
    if time := side_by_side.read(LINES / plus_time.FILE).get("report"):
        text += [TIME, "", *time_table(time), ""]
    return [*text, *course_section()]


def headroom_note(rows: Rows) -> str:
    """Return how often all labels, and FedPerl+, reach what was aimed at in macro F1, whichever model is reported."""
    seen = [rows, *(under(rows, choice) for choice in CHOICES)]
    told = []
    for name in (UPPER, OURS):
        found = [apart(each, name, other, by_client("macro_f1")) for each in seen for other in (SSFL, FEDPERL)]
        least = sum(one is not None and one.mean >= GAIN for one in found)
        clear = sum(one is not None and one.low is not None and one.low > 0 for one in found)
        told.append(f"{name} reaches {GAIN} in {least} of {len(found)} and is clear of 0 in {clear}")
    return f"{HEADROOM} {'; '.join(told)}."


def headroom(rows: Rows) -> list[str]:
    """Return what all labels and what FedPerl+ are worth in macro F1, whichever model is reported."""
    seen = [rows, *(under(rows, choice) for choice in CHOICES)]
    cells = [
        [f"{one} less {other}", *(shown(apart(each, one, other, by_client("macro_f1"))) for each in seen)]
        for other in (SSFL, FEDPERL)
        for one in (UPPER, OURS)
    ]
    return table(["macro F1", "each client's best model", *CHOICES.values()], cells)


def gains(rows: Rows) -> list[str]:
    """Return the other numbers of FedPerl+ less other rows'."""
    cells = [
        [name, *(shown(apart(rows, OURS, other, by_client(metric))) for other in (FEDPERL, SSFL, CONTROL, UPPER))]
        for metric, name in SHOWN.items()
    ]
    return table([f"{OURS} less", FEDPERL, SSFL, CONTROL, UPPER], cells)


def test_images(rows: Rows) -> dict[str, list[int]]:
    """Return the test images of each class by client."""
    line = next(iter(rows[OURS].values()))
    counts = np.array([np.array(one).sum(1) for one in line["confusion"].values()])
    return dict(zip(line["results"]["classes"], counts.T.tolist(), strict=True))


def summed(rows: Rows, name: str, of: Callable[[Line], Any]) -> Counts:
    """Return counts of a row, summed over its seeds."""
    return np.sum([np.array(of(line), dtype=np.int64) for line in rows[name].values()], axis=0)  # type: ignore[no-any-return]


def by_class_note(rows: Rows) -> str:
    """Return how few test images stand behind the classes that weigh most in macro F1, and how well all labels do."""
    counts = test_images(rows)
    some = ", ".join(f"{name} {min(counts[name])} to {max(counts[name])}" for name in RARE)
    found = by_class_f1(rows, UPPER)
    poor = [f"{name} {value:.2f}" for name, value in found.items() if value < HALF_RIGHT]
    below = ", ".join(poor) or "none"
    return f"{CLASSES} A client has of {some} test images. With all labels F1 is still below a half for {below}."


def by_class_f1(rows: Rows, name: str) -> dict[str, float]:
    """Return F1 by class of the images of all clients together, the mean over seeds."""
    found = [by_class(line) for line in rows[name].values()]
    return {label: fmean(one[label] for one in found) for label in found[0]}


def by_class_table(rows: Rows) -> list[str]:
    """Return F1 by class."""
    cells = [[name, *(f"{value:.3f}" for value in by_class_f1(rows, name).values())] for name in ROWS]
    images = [str(sum(count)) for count in test_images(rows).values()]
    return table(["F1", *test_images(rows)], [["test images", *images], *cells])


def label_table(rows: Rows) -> list[str]:
    """Return what the labels of the last models of FedPerl+ are worth by class."""
    cells = []
    for name in (CONTROL, OURS):
        counts = {kind: summed(rows, name, lambda line, kind=kind: line["pseudo"][kind]) for kind in KINDS}  # type: ignore[misc]
        for what, part, whole in LABELLED:
            shares = counts[part] / np.maximum(1, counts[whole])
            cells.append([f"{name}: {what}", *(f"{share:.2f}" for share in shares)])
    return table(["labels", *test_images(rows)], cells)


def course_table(rows: Rows, of: str, head: str) -> list[str]:
    """Return a number that the lines hold over the rounds, the mean over seeds and clients."""
    went = {name: course(rows, name, of) for name in (SSFL, FEDPERL, CONTROL, OURS)}
    after = sorted(set[int]().union(*went.values()))[1::2]
    cells = [[name, *(f"{found[round]:.3f}" for round in after)] for name, found in went.items()]
    return table([f"{head}, after round", *map(str, after)], cells)


def confusions(rows: Rows) -> list[str]:
    """Return how many of a class are found, and what the others are taken for most, by row."""
    classes, cells = list(test_images(rows)), []
    for name in ROWS:
        matrix, told = summed(rows, name, matrix_of), []
        for place, row in enumerate(matrix / matrix.sum(1, keepdims=True)):
            others = np.where(np.arange(len(row)) == place, -1.0, row)
            told.append(f"{row[place]:.2f}; {classes[int(others.argmax())]} {others.max():.2f}")
        cells.append([name, *told])
    return table(["", *classes], cells)


def peers(rows: Rows) -> list[str]:
    """Return what peers are worth by client and by class: FedPerl+ and FedPerl less the same without them."""
    text = []
    pairs = {f"{OURS} less {CONTROL}": (OURS, CONTROL), f"{FEDPERL} less {SSFL}": (FEDPERL, SSFL)}
    for head, of in (("weighted F1, client", _of_clients), ("F1, class", _of_classes)):
        found = {name: of(rows, *pair) for name, pair in pairs.items()}
        cells = [[name, *(f"{value:+.3f}" for value in one.values())] for name, one in found.items()]
        text += [*table([head, *next(iter(found.values()))], cells), ""]
    return text[:-1]


def _of_clients(rows: Rows, one: str, other: str) -> dict[str, float]:
    return by_client_less(rows, one, other, "weighted_f1")


def _of_classes(rows: Rows, one: str, other: str) -> dict[str, float]:
    mine, theirs = by_class_f1(rows, one), by_class_f1(rows, other)
    return {name: mine[name] - theirs[name] for name in mine}


def time_table(line: Line) -> list[str]:
    """Return the seconds of a round by what they are spent on, the mean over turns, and what FedPerl+ adds."""
    (first, last), seconds = line["rounds"], line["seconds"]
    rounds = last - first + 1
    found = {
        row: {part: fmean(turn[part] for turn in turns) / rounds for part in PARTS} for row, turns in seconds.items()
    }
    theirs = found[plus_time.PAIR[0]]
    whole = sum(theirs.values())
    cells = [
        [row, *(f"{1000 * value:.0f}" for value in (*one.values(), sum(one.values())))] for row, one in found.items()
    ]
    more = [found[plus_time.PAIR[1]][part] - theirs[part] for part in PARTS]
    cells.append([f"more, % of {plus_time.PAIR[0]}", *(f"{100 * one / whole:.0f}" for one in (*more, sum(more)))])
    return table(["milliseconds a round", *PARTS, "all"], cells)


ON = ", on the images that its clients choose their share by"
RECOMMENDED = "The preset `recommended` would have it only if it won on both data sets."
TRIED = (
    "Tried, on validation images of two networks: every option of the methods on top of FedPerl with two seeds, some "
    "together, and some further settings with one ([below](#what-is-known-so-far))."
)
HEADROOM = (
    "All labels (Upper, plainly trained in the same steps, which is no bound) are worth about what was aimed at: over "
    "SSFL and FedPerl, whichever of three models is reported,"
)
HEADROOM_NOTE = (
    "What the labels of all training images are worth in macro F1 over the same two rows (Upper), and FedPerl+ beside "
    "it, whichever model is reported. Upper is trained at the same rate in as many steps and handed out as it is: it "
    "shows what labels alone give, not what could be reached."
)
GAINS = "Other numbers of each client's best model; of AURC, log loss and ECE less is better:"
CLASSES = "Macro F1 weighs all classes of a client alike, and some have next to no images."
CONFUSED = (
    "How many of a class are found, and what else its images are taken for most, of the test images of all clients and "
    "seeds together:"
)
LABELS = (
    "What the last models of FedPerl+, which are means over rounds, would label the unlabelled images of each class, "
    "in eval mode and without a peer: the share above tau, how many of these are right, and how many of the labels of "
    "that name. In training a client's own network labels weak views, with the peer. The other rows were trained "
    "before lines had this."
)
ACCEPTED = (
    "The share of unlabelled images whose label counted in training, and validation macro F1 of what is handed out. "
    "Thresholds by class were a row of the search (`class-aware thresholds`), and are not on test images."
)
PEERS = (
    "What the peer adds where, the mean over three seeds: of classes, the F1 of all clients' images together. Three "
    "seeds of one class at a time decide nothing; they say where to look."
)
TIME = "Where the time goes, of the rounds that were timed above; kept moments and own models are in training:"
HALF_RIGHT = 0.5
KINDS = ("images", "above", "right", "said")
LABELLED = (
    ("labelled", "above", "images"),
    ("of them right", "right", "above"),
    ("of the labels right", "right", "said"),
)
