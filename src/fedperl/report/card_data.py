"""The model card's data: what those who took part held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedperl.data.audit import class_counts
from fedperl.data.partition import PARTS
from fedperl.data.store import Store
from fedperl.report.card_cells import UNKNOWN, code, count, holder_name, plain, table
from fedperl.settings import Config


@dataclass(frozen=True)
class Holdings:
    """What those who took part held; known where all images were at hand, as in a run on one machine."""

    source: str
    drawn: bool
    """By a program: of no patient."""
    size: int
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Holder -> part -> class -> images."""
    like: Mapping[str, str]
    """Holder -> which data set its images are from."""


def holdings(store: Store, config: Config) -> Holdings:
    """Return what the clients that take part, and the server, hold of a store; of a folder only its name is told."""
    out = {str(number) for number in config.federation.exclude}
    counts = {holder: parts for holder, parts in class_counts(store).items() if holder not in out}
    like = {str(number): client.source for number, client in enumerate(store.partition.clients)}
    drawn, source = store.made.get("source") == "dermsim", config.data.source
    named = "a store given by hand" if source == "dermsim" else f"the store {code(Path(source).absolute().name)}"
    return Holdings("dermsim" if drawn else named, drawn, store.size, counts, like)


def data(config: Config, results: Mapping[str, Any], held: Holdings | None) -> list[str]:
    """Return what the run was trained and tested on, by holder and by class as far as it is known."""
    lines = ["## Data", ""]
    if held is None:
        lines.append(f"Images of {config.data.size} px; how many each client trained on is not known here.")
    else:
        total = sum(sum(counts.values()) for parts in held.counts.values() for counts in parts.values())
        lines.append(f"{total} images of {held.size} px from {held.source}.")
    if held is not None and held.drawn:
        lines.append("These images are drawn by a program: no patient's image was used.")
    lines += [_scenario(config), f"Who held which image: `partition.csv`, SHA-256 `{results['partition']}`."]
    if held is not None and config.dp.unit != "none":
        lines.append("How many training images of which class there were is not told: epsilon would not cover it.")
    elif held is not None:
        lines += ["", *table(["holder", "images like", *PARTS], _held_by(held), text=2), ""]
        lines += [*table(["class", *PARTS], _held_of(held, results["classes"]))]
        lines += ["", "Training never saw the classes of unlabelled images, even where they are counted here."]
        if config.objective.labels == "all":
            lines[-1] = "This method was given the classes of all training images, unlabelled ones too: an upper bound."
    return lines


def _held_by(held: Holdings) -> list[list[str]]:
    rows = []
    for holder, parts in held.counts.items():
        counts = {part: sum(of_class.values()) for part, of_class in parts.items()}
        if sum(counts.values()):
            like = plain(held.like.get(holder, UNKNOWN))
            rows.append([holder_name(holder), like, *(count(counts.get(part, 0)) for part in PARTS)])
    return rows


def _held_of(held: Holdings, classes: Sequence[str]) -> list[list[str]]:
    rows = []
    for name in (*classes, "no label"):
        every = [sum(parts.get(part, {}).get(name, 0) for parts in held.counts.values()) for part in PARTS]
        if name in classes or any(every):
            rows.append([plain(name), *map(count, every)])
    return rows


def _scenario(config: Config) -> str:
    scenario = config.scenario
    if scenario.labels == "server":
        return "Scenario: labels at the server only; the clients trained without any."
    if scenario.labels == "few_clients":
        few = ", ".join(map(str, scenario.labelled_clients))
        return f"Scenario: clients {few} had labels for all their training images, the others for none."
    return "Scenario: every client had labels for a part of its training images."
