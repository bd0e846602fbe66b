"""The page's tables by patient group: age, sex, body site, skin type, all clients together."""

from collections.abc import Mapping, Sequence

from fedperl.evaluate import ATTRIBUTES, BootstrapInterval, GroupCounts, intervals_of_confusion
from fedperl.evaluate.classification import Counts
from fedperl.evaluate.subgroups import SMALLEST, sort_key
from fedperl.report.page_data import PageRun
from fedperl.report.page_tables import NONE, ranged, table

SHOWN = {"accuracy": "Accuracy", "balanced_accuracy": "Balanced accuracy", "weighted_f1": "Weighted F1"}

Group = tuple[str, str]
"""Attribute and value."""


def groups_tables(runs: Sequence[PageRun], choice: str) -> str:
    """Return accuracy, balanced accuracy and weighted F1, each as a table with one row a group; "" if none is known."""
    known = {run.name: run.groups(choice) for run in runs}
    every = [
        (attribute, value)
        for attribute in ATTRIBUTES
        for value in sorted(
            {v for one in known.values() if attribute in one for v in one[attribute].groups}, key=sort_key
        )
    ]
    if not every:
        return ""
    counts = {name: {group: _counts(found, group) for group in every} for name, found in known.items()}
    numbers = {name: {group: _numbers(one) for group, one in found.items()} for name, found in counts.items()}
    shown = []
    for key, what in SHOWN.items():
        rows = []
        for group in every:
            images = {int(one.sum()) for found in counts.values() if (one := found[group]) is not None}
            cells = [_cell(counts[run.name][group], numbers[run.name][group].get(key)) for run in runs]
            rows.append([_named(group), _either(images), *cells])
        head = ["group", "test images", *(run.name for run in runs)]
        shown.append(
            table(f"{what} by patient group, test images of all clients together: value [95 % interval]", head, rows)
        )
    return f'<div class="tables">{"".join(shown)}</div>'


def left_out(runs: Sequence[PageRun], choice: str) -> list[str]:
    """Return a sentence an attribute: how many test images are in none of its groups; runs may differ in it."""
    unknown: dict[str, set[int]] = {}
    too_few: dict[str, set[int]] = {}
    for run in runs:
        sums = run.pooled(choice)
        for attribute, counts in run.groups(choice).items():
            unknown.setdefault(attribute, set()).add((0 if sums is None else sums.images) - counts.images)
            too_few.setdefault(attribute, set()).add(counts.too_few)
    return [
        f"{attribute.replace('_', ' ')}: {_either(unknown[attribute])} of which it is not known, "
        f"{_either(too_few[attribute])} in groups that a client did not tell, being too few."
        for attribute in ATTRIBUTES
        if attribute in unknown
    ]


def _either(counts: set[int]) -> str:
    return " / ".join(map(str, sorted(counts)))


def _counts(found: Mapping[str, GroupCounts], group: Group) -> Counts | None:
    attribute, value = group
    return found[attribute].groups.get(value) if attribute in found else None


def _numbers(counts: Counts | None) -> dict[str, BootstrapInterval]:
    return intervals_of_confusion(counts) if counts is not None and counts.sum() >= SMALLEST else {}


def _cell(counts: Counts | None, number: BootstrapInterval | None) -> str:
    return NONE if counts is None else "too few" if number is None else ranged(number)


def _named(group: Group) -> str:
    return f"{group[0].replace('_', ' ')}: {group[1]}"
