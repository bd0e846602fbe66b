"""What the server is told of a client before the first round."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fedperl.data.partition import ClientPart, Part
from fedperl.evaluate.classification import Labels
from fedperl.evaluate.few import of_large_classes
from fedperl.settings import Config

EVALUATED: tuple[Part, ...] = ("validation", "test")
"""The parts on which models are evaluated for the server."""


@dataclass(frozen=True)
class Member:
    """How many images of which use a client has; nothing of any single one."""

    labelled: int
    unlabelled: int
    at_once: int
    """Unlabelled images that are there at a time, at least, where they stream in; by which steps are counted."""
    validation: int
    test: int

    def size(self, config: Config) -> int:
        """Return how many images it can train on."""
        return self.labelled + (0 if config.objective.kind == "supervised" else self.unlabelled)


def member_of(part: ClientPart, config: Config) -> Member:
    """Return what is told of a client that holds a part of a store."""
    labelled, unlabelled = len(part.labelled), len(part.unlabelled)
    if config.objective.labels == "all":
        labelled, unlabelled = labelled + unlabelled, 0
    return Member(labelled, unlabelled, part.unlabelled_at_once(), len(part.validation), len(part.test))


def counted(config: Config, members: Iterable[Member]) -> Config:
    """Return the configuration with cohort and quorum in numbers, for these clients.

    Raises:
        ConfigError: those of them that have something to train on are fewer than the quorum.
    """
    return config.counted(sum(member.size(config) > 0 for member in members))


def told_part(part: ClientPart, labels: Labels) -> ClientPart:
    """Return a hospital's part without the images of which nothing may be told: of small classes, to evaluate on.

    Args:
        labels: of the whole store.
    """
    rows = {name: getattr(part, name) for name in EVALUATED}
    return replace(part, **{name: held[of_large_classes(labels[held])] for name, held in rows.items()})
