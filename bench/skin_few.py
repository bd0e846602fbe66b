"""Why pseudo labels end with one class where few clients have labels: a small network's rows, and one local round."""

import json
from statistics import fmean

from self_labelling import FILE
from side_by_side import Line, check_lines, table, where_and_when
from skin import FEW_SMALL, LINES, jobs, own_lines
from skin_rows import ONE_CLASS, commonest_answer

LOOKS = ("25", "50", "75", "100")
SEED = ", seed 1"
LOWER = "Lower"


def small_section() -> list[str]:
    """Return what becomes of pseudo labels with a small network; nothing while it is not trained.

    Raises:
        ConfigError: a line was trained with other settings than the suite has now.
    """
    lines = own_lines(FEW_SMALL)
    planned = jobs(FEW_SMALL, LINES, "cpu", [], [])
    check_lines(FEW_SMALL, lines, planned)
    rows = {run.removesuffix(SEED): {1: lines[run]} for run in planned if run in lines}
    if LOWER not in rows:
        return []
    cells = []
    for name, (line,) in ((name, [*some.values()]) for name, some in rows.items()):
        label, share = commonest_answer(rows, name)[1]
        macro = [f"{line['macro_f1'][look]:.3f}" for look in LOOKS]
        taught = [f"{100 * line['accepted'][look]:.0f}" if look in line["accepted"] else "·" for look in LOOKS[::3]]
        cells.append([name, *macro, f"{label} {100 * share:.0f} %", *taught, f"{_weighted(line):.3f}"])
    head = ["", *(f"macro F1, round {look}" for look in LOOKS), "commonest answer, last model"]
    head += [*(f"taught, %, round {look}" for look in LOOKS[::3]), "weighted F1 of the last model, test images"]
    return [
        "### Why: a client without labels teaches itself one class",
        "",
        SMALL,
        where_and_when(lines.values()),
        "",
        *table(head, cells),
        "",
        _told(rows),
        "",
        *_round_alone(),
    ]


def _weighted(line: Line) -> float:
    return fmean(numbers["weighted_f1"] for numbers in line["results"]["test"]["last"].values())


def _told(rows: dict[str, dict[int, Line]]) -> str:
    """Return how many rows end with one class, and whether any ends above the labelled clients alone."""
    own = [name for name in rows if name != LOWER]
    one = [name for name in own if commonest_answer(rows, name)[1][1] > ONE_CLASS]
    base = rows[LOWER][1]
    ends = [name for name in own if rows[name][1]["macro_f1"][LOOKS[-1]] > base["macro_f1"][LOOKS[-1]]]
    best = [name for name in own if _weighted(rows[name][1]) > _weighted(base)]
    return (
        f"Of {len(own)} rows that use unlabelled images {len(one)} end with one class for more than "
        f"{100 * ONE_CLASS:.0f} % of the validation images. Of the last models {_listed(ends)} a macro F1 above "
        f"{LOWER}'s on validation images; {_listed(best)} a weighted F1 above it on test images."
    )


def _listed(names: list[str]) -> str:
    return f"{'; '.join(names)} {'has' if len(names) == 1 else 'have'}" if names else "none has"


def _round_alone() -> list[str]:
    """Return what one client makes of a model in one local round, by a loop without the engine's steps."""
    if not FILE.exists():
        return []
    found = json.loads(FILE.read_text())
    cells = []
    for place, (name, looks) in enumerate(found["tried"].items()):
        for step, look in zip(found["steps"], looks, strict=True):
            if not place or step == found["steps"][-1]:
                shares = [f"{100 * look[key] / found['images']:.0f}" for key in ("right", "above")]
                most = max(range(len(look["said"])), key=lambda k: look["said"][k])
                answer = f"{found['classes'][most]} {100 * look['said'][most] / found['images']:.0f} %"
                cells.append([name if step else "as received", str(step), *shares, answer])
    head = ["", "steps", "right, %", "above tau, %", "commonest answer"]
    return [
        f"One local round of a client without labels: client {found['client']}, {found['images']} images, from the "
        f"model that both labelled clients have after {found['rounds']} rounds (`python bench/self_labelling.py`, a "
        f"plain loop without the engine's steps; seed {found['seed']}, a CPU, {found['date']}). `labelled images too`: "
        f"{found['labelled']} of its images, as where every client has some. Of its own images:",
        "",
        *table(head, cells),
        "",
        ALONE,
        "",
    ]


SMALL = (
    "The same scenario with the small network at 48 px for 100 rounds (`bench/skin_few_small.toml`), from a backbone "
    "of CIFAR-10; one seed. `start 20`: the labelled clients alone for 20 rounds. `labels 10 times`: the average "
    "weighs a client with labels so. `mu 1`: FedProx. `taught`: the share of unlabelled images whose label counted. "
    "Macro F1 is of the global model on validation images. FedIRM and CBAFed begin with 20 such rounds by themselves."
)
ALONE = (
    "Within 26 steps the client calls everything the same; which class that is depends on the draws. A hundredth of "
    "`beta` changes nothing: Adam's steps are of one length however small the gradient is. With labelled images in the "
    "same loss it does not happen. At a tenth of the rate it takes more than one round. A part of what moves is batch "
    "norm, whose statistics become the client's; at tau 0.95 no image passes, and that is all. Labels by the received "
    "model, in eval mode, do not run away within a round, but over the rounds end with one class too (`round-start "
    "labels`). This is one client of one model: EfficientNet-B0 was not looked at step by step, and FedIRM, which has "
    "no such labels, is not explained by it."
)
