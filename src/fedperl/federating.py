"""A run from its members to its results, whatever engine carries the messages."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from fedperl.data.batches import auto_steps
from fedperl.errors import ConfigError
from fedperl.federation.client import MEMORY, Workspace
from fedperl.federation.handing_out import about_model
from fedperl.federation.kept_uploads import FOLDER, KeptUploads
from fedperl.federation.members import Member
from fedperl.federation.own_images import OwnImages
from fedperl.federation.rounds import Exchange, Rounds, Watcher
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.federation.stopwatch import Stopwatch
from fedperl.files import digest
from fedperl.learn.accounting import figures
from fedperl.learn.private import STEPS
from fedperl.learn.state import load_into, state_of
from fedperl.learn.weights import load_backbone, resolve_weights
from fedperl.plugins import digest_of
from fedperl.report.card_data import Holdings
from fedperl.report.model_card import write_model_card
from fedperl.results import Results, final_results
from fedperl.settings import OBJECTIVES, Config


@dataclass(frozen=True)
class Ground:
    """What a run stands on before its first round."""

    members: Mapping[int, Member]
    """The clients that take part."""
    count: int
    """Of clients, those that take no part included."""
    classes: tuple[str, ...]
    size: int
    """Pixels along an edge."""
    origin: str
    """Of images, labels and starting weights: a run is resumed on the same ones only."""
    dealt_as: str
    """Who holds which image, as far as it is known here: partition.csv."""
    partition: str
    """Its hash."""
    held: Holdings | None = None


def _taken(folder: RunFolder, clients: Iterable[int]) -> dict[int, int]:
    """Return the private steps that each client knows it has taken."""
    name = MEMORY + STEPS
    known = {k: folder.client_states.get_part(k, name) for k in folder.client_states.records}
    return {client: int(known[client][name]) if known.get(client) else 0 for client in clients}


def federate(
    config: Config,
    folder: RunFolder,
    ground: Ground,
    own: OwnImages,
    work: Workspace,
    exchange: Exchange,
    watch: Stopwatch,
    watchers: Iterable[Watcher],
    started: float,
) -> Results:
    """Run the rounds that are left, test what is reported, and write the results.

    Args:
        own: the server's images.
        work: holds the starting weights.
        started: when, by time.perf_counter.
    Raises:
        ConfigError: clients are to mix a model of their own in, and none tests any.
    """
    share, members = config.federation.own_share, ground.members.values()
    if share and not any(one.validation or (one.test and share != "validation") for one in members):
        what = "validate" if share == "validation" else "test"
        raise ConfigError(
            f"federation.own_share = {share!r} is for models that clients {what}; "
            "here the server alone has images for that; wanted 0"
        )
    rounds = Rounds(
        _server(config, folder, ground, own, work),
        exchange,
        folder,
        watch,
        digest(ground.origin.encode()),
        own.measure if _measures(config, ground) else lambda _: {},
    )
    if not (folder.path / "config.toml").exists():
        folder.write_start(config, ground.dealt_as)
    rounds.restore()  # refuses another start's configuration, images or weights
    folder.write_start(config, ground.dealt_as)
    rounds.run(watchers)
    about = partial(about_model, config, ground.classes, ground.size)
    results = final_results(rounds, ground.members, own, work, about)
    rounds.finish()
    results |= {"partition": ground.partition, "classes": list(ground.classes)}
    if config.objective.kind not in OBJECTIVES:
        results["objective_file"] = digest_of(config.objective.kind)
    if config.dp.unit != "none":
        results["dp"] = figures(folder.private_steps, config.dp, _taken(folder, ground.members))
    write_model_card(folder, config, results, ground.held)
    results["seconds_this_start"] = round(time.perf_counter() - started, 1)
    folder.write_results(results)
    return results


def load_weights(config: Config, work: Workspace) -> str:
    """Put the starting weights into the network and return their file's hash; nothing where they are drawn."""
    path = resolve_weights(config.model.weights)
    if path is None:
        return ""
    net = work.plain()
    found = load_backbone(net, path, config.model.net)
    load_into(work.net, state_of(work.decomposed(net)))
    return found


def _server(config: Config, folder: RunFolder, ground: Ground, own: OwnImages, work: Workspace) -> Server:
    numbers, members = range(ground.count), ground.members
    scores = scoring_setting(config)
    if scores and "validation" not in own.parts:
        raise ConfigError(f"{scores}: the partition gives the server no images to validate on")
    relations = config.objective.kind not in OBJECTIVES or config.objective.kind in ("fedirm", "fixmatch_irm")
    return Server(
        config,
        [members[number].size(config) if number in members else 0 for number in numbers],
        steps_of(config, [member.at_once for member in members.values()]),
        state_of(work.net),
        folder.bank,
        folder.ledger,
        own.score if scores else None,
        own.teach if config.scenario.labels == "server" else None,
        _evaluators(ground),
        embed=own.embed if config.peers.selector == "predictions" else None,
        labelled=[number in members and members[number].labelled > 0 for number in numbers],
        unlabelled=[number in members and members[number].unlabelled > 0 for number in numbers],
        classes=len(ground.classes) if relations else None,
        kept=KeptUploads(folder.state / FOLDER, config.audit.keep_uploads) if config.audit.keep_uploads else None,
    )


def _evaluators(ground: Ground) -> list[int]:
    return [number for number, member in ground.members.items() if member.validation]


def _measures(config: Config, ground: Ground) -> bool:
    """Return whether the server validates every model on images of its own."""
    return config.scenario.labels == "server" or not _evaluators(ground) or config.federation.server_validation


def steps_of(config: Config, at_once: Iterable[int]) -> int:
    """Return the optimiser's steps a client and round."""
    if config.federation.steps != "auto_min":
        return config.federation.steps
    return auto_steps(at_once, config.federation.batch)


def scoring_setting(config: Config) -> str:
    """Return the setting that asks the server to score models on images of its own; nothing where none does."""
    if config.profile.server_score:
        return "profile.server_score = true"
    policy = config.peers.policy
    if config.peer_learning and policy in ("validation", "gated_validation") and config.gate.metric == "server_acc":
        return f"peers.policy = {policy!r} with gate.metric = 'server_acc'"
    return ""
