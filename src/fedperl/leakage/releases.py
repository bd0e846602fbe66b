"""What a finished run would send next of each client: its model as it is, in committees, and what differencing gives.

One more round is planned for every client, as the server plans any, and each client trains it. A client is then looked
at as if it alone had trained: the others' models are those that the server has banked.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedperl.data.store import Store
from fedperl.errors import ConfigError, RunError
from fedperl.federating import steps_of
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.known import model_of
from fedperl.federation.ledger import Ledger
from fedperl.federation.members import member_of
from fedperl.federation.messages import GlobalModel
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.learn.state import State
from fedperl.peers import committee, similarity_matrix, top_peers
from fedperl.peers.committee import BatchNorm, committee_mean
from fedperl.settings import Config

FEWEST = 3
"""Clients: one that is attacked, one beside it in a committee, one that receives."""


@dataclass(frozen=True)
class Releases:
    """Models of one moment of a run."""

    model: State
    """The global model, which every receiver has; all trained from it."""
    before: Mapping[int, State]
    """What the server has banked of each client."""
    after: Mapping[int, State]
    """Each client's model after one more round."""
    others: Mapping[int, list[int]]
    """Of each client, the most similar first."""
    batch_norm: BatchNorm = "receiver"

    def raw(self, client: int) -> State:
        """Return a client's new model as it is."""
        return self.after[client]

    def without_statistics(self, client: int) -> State:
        """Return a client's new model without its running statistics, as a committee's mean comes."""
        return committee_mean([self.after[client]], "receiver")

    def anonymized(self, client: int, T: int) -> State:
        """Return the anonymized peer of a client's new model and the banked ones of its T - 1 most similar others."""
        return committee({client: self.after[client], **self._beside(client, T)}, self.batch_norm).state

    def differenced(self, client: int, T: int) -> State:
        """Return what an attacker makes of two peers of one committee, a client's new model having replaced its old.

        T times their difference is the client's change, exactly; it is added to the earlier peer. Running statistics
        are left out: they may come out negative.
        """
        beside = self._beside(client, T)
        first, second = (
            committee({client: models[client], **beside}, "receiver").state for models in (self.before, self.after)
        )
        return {
            name: (old.double() + T * (second[name].double() - old.double())).to(old.dtype)
            for name, old in first.items()
        }

    def receiver(self, client: int, T: int) -> int:
        """Return who might be sent a committee of T with the client in it: the most similar one outside of it."""
        return self.others[client][T - 1]

    def _beside(self, client: int, T: int) -> dict[int, State]:
        return {k: self.before[k] for k in self.others[client][: T - 1]}


def next_releases(config: Config, run: Path, store: Store, work: Workspace) -> Releases:
    """Return what a finished run would release next.

    Args:
        config: the run's.
        store: dealt as the run's scenario sees it.
        work: networks to train in; left in whatever state.
    Raises:
        ConfigError: the run's clients have nothing that a committee could be made of.
        RunError: fewer than three clients have trained.
    """
    if config.federation.alone or config.objective.decomposed:
        what = "federation.alone = true" if config.federation.alone else "objective.fedmatch.decompose = true"
        raise ConfigError(f"{what}: no client's whole model is averaged with others; wanted false")
    folder = RunFolder(run)
    folder.open()
    try:
        folder.bank.device = folder.models.device = config.device
        if folder.read_results() is None:
            raise RunError(f"{run}: the run is not finished; its results.json is missing")
        if config.checkpoint_every > config.federation.rounds:  # before anything is put back to where it began
            raise RunError(
                f"{run}: checkpoint_every = {config.checkpoint_every}, so that no client's model was kept; wanted at "
                f"most federation.rounds = {config.federation.rounds}"
            )
        content = folder.restore()
        if content is None:
            raise RunError(f"{run}: the run is not finished; its checkpoint is missing")
        if len(folder.bank.records) < FEWEST:
            raise RunError(f"{run}: {len(folder.bank.records)} clients have trained; wanted at least {FEWEST}")
        model = GlobalModel(content["model"], folder.trained_on(content["model"]))
        before = {client: model_of(folder.bank.get(client)) for client in sorted(folder.bank.records)}
        kept = {client: folder.client_states.get(client) for client in folder.client_states.records}
        with TemporaryDirectory(prefix="fedperl-leakage-") as name:
            server = _server(config, content["round"] + 1, folder, model, store, Path(name))
            tasks = {task.client: task for task in server.plan(content["round"] + 1)}
            if folder.private_steps.exists():
                shutil.copytree(folder.private_steps, Path(name) / "steps")
            after = {}
            for client in before:
                trainer = client_of_store(client, store, config, work, counts=Path(name) / "steps")
                after[client] = trainer.train(tasks[client], kept.get(client, {}))[0].state
        matrix = similarity_matrix([server.known[client].profile for client in before], config.profile.scale)
    finally:
        folder.close()
    clients = list(before)
    others = {
        client: [clients[k] for k in top_peers(matrix, place, len(clients))] for place, client in enumerate(clients)
    }
    batch_norm = config.peers.batch_norm
    return Releases(model.state, before, after, others, "receiver" if batch_norm == "recalibrate" else batch_norm)


def _server(config: Config, round: int, folder: RunFolder, model: GlobalModel, store: Store, scratch: Path) -> Server:
    """Return the run's server before a round in which every client trains; it writes into a copy of the ledger."""
    members = {
        number: member_of(part, config)
        for number, part in enumerate(store.partition.clients)
        if number not in config.federation.exclude
    }
    numbers = range(len(store.partition.clients))
    sizes = [members[number].size(config) if number in members else 0 for number in numbers]
    federation = config.federation.changed(rounds=round, cohort=sum(size > 0 for size in sizes))
    if folder.ledger.path.exists():
        shutil.copyfile(folder.ledger.path, scratch / "ledger.jsonl")
    ledger = Ledger(scratch / "ledger.jsonl")
    ledger.open()
    server = Server(
        config.changed(federation=federation),
        sizes,
        steps_of(config, [member.at_once for member in members.values()]),
        model.state,
        folder.bank,
        ledger,
        labelled=[number in members and members[number].labelled > 0 for number in numbers],
        unlabelled=[number in members and members[number].unlabelled > 0 for number in numbers],
    )
    server.restore(model)
    return server
