"""Labels and clients over the rounds of the set `course`, as bench/plus_course.py has followed them: tables of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import side_by_side
from plus import COURSE, LINES, jobs
from plus_networks import BASE, WITHOUT_PEERS
from side_by_side import Line, check_lines, table, where_and_when
from skin_rows import RARE


def course_rows() -> dict[str, dict[int, Line]]:
    """Return the lines of the set `course` by row and seed."""
    found: dict[str, dict[int, Line]] = {}
    for run, line in side_by_side.read(LINES / f"{COURSE}.jsonl").items():
        row, _, seed = run.rpartition(", seed ")
        found.setdefault(row, {})[int(seed)] = line
    return found


def course_section() -> list[str]:
    """Return how labels and clients went over the rounds with the small network; nothing while it is not trained."""
    lines = side_by_side.read(LINES / f"{COURSE}.jsonl")
    if not lines:
        return []
    check_lines(COURSE, lines, jobs(COURSE, Path(), "cpu", [], []))
    rows = course_rows()
    looked = {name: [one["course"] for one in some.values()] for name, some in rows.items()}
    after = sorted(map(int, looked[next(iter(looked))][0]))
    text = ["### Labels and clients over the rounds", "", COURSE_NOTE, where_and_when(lines.values()), ""]
    for head, of in COURSES.items():
        cells = []
        for name, courses in looked.items():
            for whose in ("own", "with_peer") if name != WITHOUT_PEERS else ("own",):
                numbers = [fmean(of(one[str(round)][whose]) for one in courses) for round in after]
                cells.append([name + WHOSE[whose], *(f"{number:.3f}" for number in numbers)])
        text += [*table([f"{head}, after round", *map(str, after)], cells), ""]
    cells = [
        [f"{what}: {name}", *(f"{fmean(one[str(round)]['drift'][key] for one in courses):.3f}" for round in after)]
        for key, what in DRIFTS.items()
        for name, courses in looked.items()
    ]
    text += [DRIFT_NOTE, "", *table(["drift, rounds up to", *map(str, after)], cells), ""]
    return [*text, f"In FedPerl, over all of these rounds and seeds, {course_told(looked[BASE])}", ""]


def course_told(courses: Sequence[Mapping[str, Any]]) -> str:
    """Return what a peer does to labels and how little a round's clients agree, the mean over rounds and seeds."""
    looks = [look for one in courses for look in one.values()]
    labelled, right, _, rare = (
        [fmean(of(look[whose]) for look in looks) for whose in ("with_peer", "own")] for of in COURSES.values()
    )
    cosine, kept = (fmean(look["drift"][key] for look in looks) for key in ("cosine", "kept"))
    return (
        f"a peer lets {labelled[0]:.1%} of the labels pass tau in place of {labelled[1]:.1%}, of which "
        f"{right[0]:.1%} are right in place of {right[1]:.1%}, while of the images of {', '.join(RARE)} {rare[0]:.1%} "
        f"get their right label in place of {rare[1]:.1%}. Two clients' changes have a cosine of {cosine:.3f}, and the "
        f"mean of three keeps {kept:.2f} of a change's length, where {1 / math.sqrt(3):.2f} would be left of three at "
        "right angles."
    )


def _share(part: str, whole: str, rare: bool) -> Callable[[Mapping[str, Sequence[int]]], float]:
    places = [CLASSES_OF.index(name) for name in RARE] if rare else range(len(CLASSES_OF))
    return lambda counts: sum(counts[part][k] for k in places) / max(1, sum(counts[whole][k] for k in places))


COURSE_NOTE = (
    "The small network at 48 px, seeds 11 and 12, as in the search below. Of the unlabelled images themselves in eval "
    "mode, asked of the global model alone, and together with the peer that each client's last committee makes of its "
    "members' last models. That is near what training has, and not the same: there weak views pass networks in train "
    "mode, and committees are chosen anew. A hospital cannot know any of it: the labels are hidden from training."
)
DRIFT_NOTE = (
    "How far a round carries a client, as a share of the length of the weights that it began with; how much two "
    "clients' changes agree (cosine); and the length of the mean change beside the mean length of a change."
)
CLASSES_OF = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
WHOSE = {"own": "", "with_peer": ", with its peer"}
COURSES = {
    "share of labels above tau": _share("above", "images", rare=False),
    "of them right": _share("right", "above", rare=False),
    f"of labels of {', '.join(RARE)} right": _share("right", "said", rare=True),
    f"images of {', '.join(RARE)} whose label is right": _share("right", "images", rare=True),
}
DRIFTS = {"moved": "moved", "cosine": "cosine of two changes", "kept": "kept by the mean"}
