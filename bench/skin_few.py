"""Why pseudo labels end with one class where few clients have labels: a small network's rows, and one local round."""

import json
from statistics import fmean

import side_by_side
from self_labelling import FILE
from side_by_side import Line, check_lines, table, where_and_when
from skin import FEW_SMALL, LINES, jobs
from skin_rows import ONE_CLASS, by_client, commonest_answer

LOOKS = ("25", "50", "75", "100")
LOWER = "Lower"


def small_section() -> list[str]:
    """Return what becomes of pseudo labels with a small network; nothing while it is not trained.

    Raises:
        ConfigError: a line was trained with other settings than the suite has now.
    """
    lines = side_by_side.read(LINES / f"{FEW_SMALL}.jsonl")
    if not lines:
        return []
    planned = jobs(FEW_SMALL, LINES, "cpu", [], [])
    check_lines(FEW_SMALL, lines, planned)
    rows = {name: {0: lines[run]} for run in planned if run in lines for name in (run.rpartition(", seed ")[0],)}
    cells = []
    for name, (line,) in ((name, [*some.values()]) for name, some in rows.items()):
        label, share = commonest_answer(rows, name)[0]
        macro = [f"{line['macro_f1'][look]:.3f}" for look in LOOKS]
        taught = [f"{100 * line['accepted'][look]:.0f}" if look in line["accepted"] else "·" for look in LOOKS[::3]]
        cells.append([name, *macro, f"{label} {100 * share:.0f} %", *taught, f"{_weighted(line):.3f}"])
    head = ["", *(f"macro F1, round {look}" for look in LOOKS), "commonest answer, last model"]
    head += [*(f"taught, %, round {look}" for look in LOOKS[::3]), "weighted F1 on test images"]
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
    return fmean(by_client("weighted_f1")(line).values())


def _told(rows: dict[str, dict[int, Line]]) -> str:
    """Return how many rows end with one class, and whether any ends above the labelled clients alone."""
    own = [name for name in rows if name != LOWER]
    one = [name for name in own if commonest_answer(rows, name)[0][1] > ONE_CLASS]
    base = rows[LOWER][0]
    ends = [name for name in own if rows[name][0]["macro_f1"][LOOKS[-1]] > base["macro_f1"][LOOKS[-1]]]
    best = [name for name in own if _weighted(rows[name][0]) > _weighted(base)]
    return (
        f"Of {len(own)} rows that use unlabelled images {len(one)} end with one class for more than "
        f"{100 * ONE_CLASS:.0f} % of the validation images; {_listed(ends)} with a macro F1 above {LOWER}'s, "
        f"{_listed(best)} with a weighted F1 above it on test images."
    )


def _listed(names: list[str]) -> str:
    return f"{', '.join(names)} ends" if len(names) == 1 else f"{', '.join(names)} end" if names else "none ends"


def _round_alone() -> list[str]:
    """Return what one client makes of a model in one local round, by a loop that shares no code with the engine."""
    if not FILE.exists():
        return []
    found = json.loads(FILE.read_text())
    cells = []
    for name, looks in found["tried"].items():
        for step, look in zip(found["steps"], looks, strict=True):
            shares = [f"{100 * look[key] / found['images']:.0f}" for key in ("right", "above")]
            most = max(range(len(look["said"])), key=lambda k: look["said"][k])
            answer = f"{found['classes'][most]} {100 * look['said'][most] / found['images']:.0f} %"
            cells.append([name if not step else "", str(step), *shares, answer])
    head = ["", "steps", "right, %", "above tau, %", "commonest answer"]
    return [
        f"One local round of a client without labels: client {found['client']}, {found['images']} images, from the "
        f"model that both labelled clients have after {found['rounds']} rounds (`python bench/self_labelling.py`, a "
        f"plain loop that shares views and network with the engine and nothing else; seed {found['seed']}, a CPU, "
        f"{found['date']}). Of its own images:",
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
    "Within 26 steps the class that is sure first is all that is left. Where a client has labelled images too, their "
    "loss holds it; without any nothing does. Adam's steps are of one length however small the gradient is, so neither "
    "`beta` nor the few images that pass make it slower. Labels by the received model do not run away within a round, "
    "but only what passes tau is learnt, and over the rounds that ends with one class too (`round-start labels`). A "
    "threshold of 0.95 puts it off until something passes. EfficientNet-B0 was not looked at step by step."
)
