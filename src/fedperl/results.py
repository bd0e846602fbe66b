"""The final numbers of a run: the reported models on every client's test images, and what it took to get them."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, Literal

import numpy as np

from fedperl.config import config_hash
from fedperl.evaluate import Description, spread
from fedperl.federation.client import Workspace
from fedperl.federation.ledger import peer_frequency
from fedperl.federation.members import Member
from fedperl.federation.messages import EvaluateTask, Evaluation, GlobalModel
from fedperl.federation.own_images import OwnImages
from fedperl.federation.rounds import Rounds
from fedperl.federation.run_folder import RunFolder
from fedperl.settings import Config

Results = dict[str, Any]

PARTS: tuple[Literal["validation", "test"], ...] = ("validation", "test")


def final_results(
    rounds: Rounds,
    members: Mapping[int, Member],
    own: OwnImages,
    work: Workspace,
    about: Callable[[int], dict[str, str]],
) -> Results:
    """Test the reported models on every client and on the server's test images, and put all final numbers together.

    Args:
        about: what the file of a round's model says of itself.
    """
    server, folder = rounds.server, rounds.folder
    best, last = rounds.selection.best, server.model.round
    holders = [number for number, member in members.items() if member.test and number not in server.withdrawn]
    testers: list[int | None] = [*holders] if "test" not in own.parts else [*holders, None]
    reported = {"last": last} | {
        name: best[key][1] for name, key in (("global_best", "global"), ("server_best", "server")) if key in best
    }
    wanted: dict[str, dict[int | None, int]] = {name: dict.fromkeys(testers, made) for name, made in reported.items()}
    if holders and server.evaluators:
        wanted["per_client_best"] = {number: best[str(number)][1] for number in holders if str(number) in best}
    uses: dict[int | None, int] = {**dict.fromkeys(holders, last), **wanted.get("per_client_best", {})}
    tested: dict[tuple[int, int | None], dict[str, float]] = {}
    curves: dict[str, dict[str, Any]] = {"sums": {}, "groups": {}}
    for round in sorted({*reported.values(), *(made for choice in wanted.values() for made in choice.values())}):
        model = GlobalModel(round, folder.models.get(round))
        for name, made in reported.items():
            if made == round:
                folder.write_model(name, work.deliverable(model.state), about(round))
        asked = [tester for tester in testers if any(choice.get(tester) == round for choice in wanted.values())]
        users = {tester for tester in asked if uses.get(tester) == round}
        for (tester, part), found in _evaluated(rounds, own, model, asked, users).items():
            _keep_counts(curves, f"{_name(tester)}@{round}", part, found)
            if part == "test":
                tested[(round, tester)] = found.numbers
        for tester in testers:
            if tester is not None and wanted.get("per_client_best", {}).get(tester) == round:
                state = rounds.exchange.in_use(tester, model)
                if state is not None:
                    folder.write_model(f"client_{tester}_best", work.deliverable(state), about(round))
    gone = {_name(client) for client in rounds.exchange.left}
    for name in gone:
        (folder.path / "models" / f"client_{name}_best.safetensors").unlink(missing_ok=True)
    curves = {
        kind: {k: v for k, v in found.items() if k.partition("@")[0] not in gone} for kind, found in curves.items()
    }
    wanted = {
        name: {c: r for c, r in choice.items() if (r, c) in tested and _name(c) not in gone}
        for name, choice in wanted.items()
    }
    chosen = {name: {_name(c): f"{_name(c)}@{r}" for c, r in choice.items()} for name, choice in wanted.items()}
    folder.write_curves({"chosen": chosen} | curves)
    frequency = {} if server.config.privacy == "hospital" else peer_frequency(folder.ledger.entries())
    return {
        "config": config_hash(server.config),
        "method": server.config.method,
        "scenario": server.config.scenario.labels,
        "seed": server.config.seed,
        "rounds": server.config.federation.rounds,
        "test": {
            name: {_name(c): {"round": r} | tested[(r, c)] for c, r in choice.items()}
            for name, choice in wanted.items()
        },
        "over_clients": {
            name: _over_clients(
                [tested[(r, c)] for c, r in choice.items() if c is not None or not holders],
            )
            for name, choice in wanted.items()
        },
        "validation": _validation(wanted, rounds),
        "local": own.local_accuracy(server) if own.streams and "test" in own.parts else {},
        "peer_frequency": {str(m): {str(k): n for k, n in row.items()} for m, row in sorted(frequency.items())},
        "totals": dict(sorted(rounds.totals.items())) | {"peers": dict(sorted(rounds.totals["peers"].items()))},
        "seconds": _seconds(folder),
    }


def _evaluated(
    rounds: Rounds, own: OwnImages, model: GlobalModel, testers: list[int | None], users: Collection[int | None]
) -> dict[tuple[int | None, str], Evaluation | Description]:
    """Return a reported model's numbers and counts on the parts of clients' images, and of the server's, by both.

    Args:
        users: those of the testers whose own model it is from now on.
    """
    server = rounds.server
    tasks = [
        EvaluateTask(server.run, model.round, tester, model, part, full=True, to_use=part == "test" and tester in users)
        for tester in testers
        for part in PARTS
        if tester is not None and (part == "test" or tester in server.evaluators)
    ]
    found: dict[tuple[int | None, str], Evaluation | Description] = {
        (evaluation.client, evaluation.part): evaluation for evaluation in rounds.exchange.evaluate(tasks)
    }
    if None in testers:
        found |= {(None, part): own.evaluate_fully(model.state, part) for part in PARTS if part in own.parts}
    return {(tester, part): found[tester, part] for tester in testers for part in PARTS if (tester, part) in found}


def _keep_counts(curves: dict[str, dict[str, Any]], key: str, part: str, found: Evaluation | Description) -> None:
    """Put the counts in bins, and those of patients' groups where some are known, to those of other models."""
    if found.sums is not None:
        curves["sums"].setdefault(key, {})[part] = found.sums.to_dict()
    if found.groups:
        curves["groups"][key] = {attribute: counts.to_dict() for attribute, counts in found.groups.items()}


def _validation(wanted: dict[str, dict[int | None, int]], rounds: Rounds) -> dict[str, dict[str, float]]:
    """Return the mean validation accuracy over the clients of each choice of models: what a grid is chosen by."""
    lines, made_in = dict[int, Any](), 0
    for line in rounds.folder.read_metrics():
        made_in = made_in if line["void"] else line["round"]
        if line["validation"] or "server" in line:
            lines[made_in] = line
    found = {}
    for name, choice in wanted.items():
        values = []
        alone = set(choice) == {None}
        for tester, made in choice.items():
            if tester is None and not alone:
                continue
            line = lines.get(made, {})
            numbers = line.get("server" if tester is None else "validation", {})
            numbers = numbers if tester is None else numbers.get(str(tester), {})
            if "accuracy" in numbers:
                values.append(numbers["accuracy"])
        if values:
            found[name] = {"accuracy": float(np.mean(values))}
    return found


def _name(tester: int | None) -> str:
    return "server" if tester is None else str(tester)


def _over_clients(numbers: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return each number over the clients; over the server's test images where no client has any."""
    names = dict.fromkeys(key for one in numbers for key in one if key not in ("images", "round"))
    return {key: asdict(spread([one[key] for one in numbers if key in one])) for key in names}


def _seconds(folder: RunFolder) -> dict[str, float]:
    totals: dict[str, float] = {}
    for line in folder.read_metrics():
        for name, value in line["seconds"].items():
            totals[name] = totals.get(name, 0.0) + value
    return {name: round(value, 3) for name, value in totals.items()}


def of_clients_alone(config: Config, found: dict[int, Results]) -> Results:
    """Return the results of clients that trained by themselves, as one run's: nothing was sent."""
    first = next(iter(found.values()))
    choices = [choice for choice in ("last", "per_client_best") if choice in first["test"]]
    # Where the server alone has test images, its numbers of each client's model stand for that client.
    test = {
        choice: {str(n): one["test"][choice].get(str(n)) or one["test"][choice]["server"] for n, one in found.items()}
        for choice in choices
    }
    validation = {
        choice: {"accuracy": float(np.mean([one["validation"][choice]["accuracy"] for one in found.values()]))}
        for choice in choices
        if all(choice in one["validation"] for one in found.values())
    }
    totals: dict[str, Any] = {key: 0 for key, value in first["totals"].items() if isinstance(value, int)} | {
        "peers": {}
    }
    for key in ("client_rounds", "accepted", "rejected", "void"):
        totals[key] = sum(one["totals"][key] for one in found.values())
    seconds = {key: round(sum(one["seconds"].get(key, 0.0) for one in found.values()), 3) for key in first["seconds"]}
    return first | {
        "config": config_hash(config),
        "rounds": config.federation.rounds,
        "test": test,
        "over_clients": {choice: _over_clients(list(numbers.values())) for choice, numbers in test.items()},
        "validation": validation,
        "totals": totals,
        "seconds": seconds,
        "seconds_this_start": round(sum(one["seconds_this_start"] for one in found.values()), 1),
    }


def curves_of_clients_alone(found: dict[int, dict[str, Any]], choices: list[str]) -> dict[str, Any]:
    """Return the counts of clients that trained by themselves, as one run's; the server's stand for the client's."""
    chosen: dict[str, dict[str, str]] = {name: {} for name in choices}
    sums: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for number, one in found.items():
        for name in choices:
            own = one["chosen"][name]
            key = own.get(str(number)) or own["server"]
            mine = f"{number}@{key.partition('@')[2]}"
            chosen[name][str(number)], sums[mine] = mine, one["sums"][key]
            if key in one.get("groups", {}):
                groups[mine] = one["groups"][key]
    return {"chosen": chosen, "sums": sums, "groups": groups}
