"""Accuracy under attack, by rule of aggregation: ten drawn hospitals, two of them hostile, five a round.

    python bench/robust_attacks.py [--seeds 1 2 3] [--rounds 16] [--quick]
    python bench/robust_attacks.py --movements [--method ssfl] [--rounds 36]

Clients train with every label (method `upper`); what hostile ones send is changed here, the library is as it is. The
columns are the plain mean and the rules of `federation.robust`: all of these see clipped changes, the trimmed mean
leaves out one number at either end, Multi-Krum one client, and FLTrust trusts the server's few images. The tables have
the accuracy of the last global model on the pooled test images of all clients, and its balanced accuracy, 0.125 by
chance: the mean over seeds. `--movements` prints how far honest clients move instead, in medians of their cohort, and
how far an impostor does: what the screen of peers rests on.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import mean, median_low

import numpy as np
import torch

from fedperl.config import resolve
from fedperl.data.store import Store
from fedperl.demo import SETTINGS
from fedperl.evaluate import classification
from fedperl.federation.aggregate import fedavg
from fedperl.federation.client import Client, Workspace, client_of_store
from fedperl.federation.messages import GlobalModel, TrainTask
from fedperl.federation.robust import (
    clip_to_median,
    fltrust,
    movement,
    multi_krum,
    reach,
    screened,
    trimmed_mean,
    turned,
)
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.predict import predict
from fedperl.learn.schedule import of_round
from fedperl.learn.state import State, is_running_statistic, load_into, state_of
from fedperl.opening import open_store
from fedperl.seeds import seed_for
from fedperl.settings import Config

HOSTILE = (2, 6)
COHORT = 5

Attack = Callable[[State, State, int], State]
"""What a hostile client sends, of what it has trained, the model that it was sent, and a seed."""
Rule = Callable[[list[State], State, Callable[[], State]], State | None]
"""The average of the models sent, of the one that was sent, and of what the server trains itself; None: void."""


def shuffled(state: State, start: State, seed: int) -> State:
    """Return the impostor: each tensor's own numbers in another order, so that the profile stays what it is."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view(tensor.shape)
        for name, tensor in state.items()
    }


def poisoned(state: State, start: State, seed: int) -> State:
    """Return the start, unmoved, with running statistics that no image has."""
    return {name: tensor * 1e6 if is_running_statistic(name) else start[name].clone() for name, tensor in state.items()}


ATTACKS: dict[str, Attack] = {
    "none": lambda state, start, seed: state,
    "sign flip": lambda state, start, seed: turned(state, start, -1.0, 1.0),
    "scaled -10": lambda state, start, seed: turned(state, start, -10.0, 1.0),
    "label flip": lambda state, start, seed: state,  # it trains on wrong labels
    "permuted impostor": shuffled,
    "running statistics": poisoned,
}


def average(states: Sequence[State]) -> State:
    return fedavg(states, [1.0] * len(states))


def krum(states: list[State], start: State, teach: Callable[[], State]) -> State:
    return average([states[place] for place in multi_krum(states, faulty=1, keep=len(states) - 1)])


def trusting(states: list[State], start: State, teach: Callable[[], State]) -> State | None:
    found = fltrust(states, start, teach())
    return None if found is None else fedavg(found.states, found.weights)


PLAIN = "mean"
RULES: dict[str, Rule] = {
    PLAIN: lambda states, start, teach: average(states),
    "clip": lambda states, start, teach: average(states),
    "trimmed mean": lambda states, start, teach: trimmed_mean(states, 1),
    "Multi-Krum": krum,
    "FLTrust": trusting,
}


class Hospitals:
    """Ten clients and a server with a few labelled images; everything is drawn anew from one seed."""

    def __init__(self, config: Config, store: Store, attack: str) -> None:
        self.config, self.attack = config, ATTACKS[attack]
        self.work = Workspace(config, len(store.classes))
        numbers = range(len(store.partition.clients))
        self.clients = {number: client_of_store(number, store, config, self.work) for number in numbers}
        if attack == "label flip":
            for number in HOSTILE:
                honest = self.clients[number].training
                self.clients[number].training = replace(honest, labels=honest.classes - 1 - honest.labels)
        rows = store.partition.server.validation
        images, labels = torch.from_numpy(store.pixels(rows)), torch.from_numpy(store.manifest.label[rows])
        every = torch.arange(len(rows))
        own = LocalImages(images, labels, every, every[:0], len(store.classes))
        self.server = Client(len(self.clients), own, {}, self.work)
        self.state = state_of(self.work.net)

    def trained(self, client: Client, round: int) -> State:
        config, federation = self.config, self.config.federation
        optimizer = of_round(config.optimizer, round, federation.rounds)
        assert isinstance(federation.steps, int)
        settings = LocalSettings(config.objective, optimizer, config.views, federation.steps, federation.batch)
        seed = seed_for(config.seed, "local round", round, client.number)
        task = TrainTask("", round, client.number, GlobalModel(round - 1, self.state), None, settings, seed)
        return client.train(task, {})[0].state

    def round(self, round: int) -> dict[int, State]:
        """Return what the cohort of a round sends."""
        generator = np.random.default_rng(seed_for(self.config.seed, "cohort", round))
        cohort = sorted(generator.choice(len(self.clients), self.config.cohort, replace=False).tolist())
        sent = {number: self.trained(self.clients[number], round) for number in cohort}
        for number in set(HOSTILE) & set(cohort):
            sent[number] = self.attack(sent[number], self.state, seed_for(self.config.seed, "attack", round, number))
        return sent

    def run(self, rule: str) -> None:
        for round in range(1, self.config.federation.rounds + 1):
            states = list(self.round(round).values())
            if rule != PLAIN:
                states, _ = clip_to_median(states, self.state)
            found = RULES[rule](states, self.state, partial(self.trained, self.server, round))
            self.state = self.state if found is None else found

    def accuracies(self) -> tuple[float, float]:
        """Return accuracy and balanced accuracy on the clients' test images; of a broken model, 0."""
        load_into(self.work.net, self.state)
        tests = [client.evaluation["test"] for client in self.clients.values()]
        probabilities = predict(self.work.net, torch.cat([test.images for test in tests])).numpy()
        if not np.isfinite(probabilities).all():
            return 0.0, 0.0
        found = classification(torch.cat([test.labels for test in tests]).numpy(), probabilities)
        return found.accuracy, found.balanced_accuracy


def config_of(seed: int, rounds: int, method: str = "upper") -> Config:
    federation = SETTINGS["federation"] | {"rounds": rounds, "cohort": COHORT}
    return resolve(SETTINGS | {"method": method, "seed": seed, "federation": federation}, source="the benchmark")


def table(title: str, cells: dict[tuple[str, str], list[float]], attacks: Sequence[str]) -> None:
    print(f"\n| {title} | " + " | ".join(RULES) + " |")
    print("|---" * (len(RULES) + 1) + "|")
    for attack in attacks:
        print(f"| {attack} | " + " | ".join(f"{mean(cells[attack, rule]):.2f}" for rule in RULES) + " |")


def attacked(seeds: Sequence[int], rounds: int, attacks: Sequence[str], store: Store) -> None:
    plain: dict[tuple[str, str], list[float]] = {}
    balanced: dict[tuple[str, str], list[float]] = {}
    for attack in attacks:
        for rule in RULES:
            for seed in seeds:
                hospitals = Hospitals(config_of(seed, rounds), store, attack)
                hospitals.run(rule)
                accuracy, other = hospitals.accuracies()
                plain.setdefault((attack, rule), []).append(accuracy)
                balanced.setdefault((attack, rule), []).append(other)
    table("accuracy", plain, attacks)
    table("balanced accuracy", balanced, attacks)


def movements(config: Config, store: Store) -> None:
    """Print what the screen of peers sees: honest clients, and an impostor in the place of each."""
    hospitals = Hospitals(config, store, "none")
    last: dict[int, float] = {}
    honest, fakes, caught, hit = [], [], 0, 0
    for round in range(1, config.federation.rounds + 1):
        sent, start = hospitals.round(round), hospitals.state
        fresh = {number: movement(state, start) for number, state in sent.items()}
        median = median_low(fresh.values())
        honest += [moved / median for moved in fresh.values()]
        hit += len(screened(fresh, last, reach(start)))
        for number, state in sent.items():
            fake = movement(shuffled(state, start, round), start)
            fakes.append(fake / median)
            caught += number in screened(fresh | {number: fake}, last, reach(start))
        last |= fresh
        hospitals.state = average(list(sent.values()))
    for name, values in (("honest clients", honest), ("impostors", fakes)):
        shares = ", ".join(f"{share:.0%}: {np.quantile(values, share):.2f}" for share in (0, 0.05, 0.5, 0.95, 1))
        print(f"{name}, movement in medians of the cohort: {shares}")
    print(f"screened: {hit} of {len(honest)} honest models, {caught} of {len(fakes)} impostors")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--attacks", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    parser.add_argument("--quick", action="store_true", help="one round: a check that all of it runs")
    parser.add_argument("--movements", action="store_true")
    parser.add_argument("--method", choices=("upper", "lower", "ssfl"), default="upper", help="of --movements")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    began, rounds = time.perf_counter(), 1 if arguments.quick else arguments.rounds
    store = open_store(config_of(arguments.seeds[0], rounds))
    if arguments.movements:
        movements(config_of(arguments.seeds[0], rounds, arguments.method), store)
    else:
        attacked(arguments.seeds, rounds, arguments.attacks, store)
    seeds = ", ".join(map(str, arguments.seeds))
    print(f"\n{rounds} rounds, seeds {seeds}, {time.perf_counter() - began:.0f} s, torch {torch.__version__}")


if __name__ == "__main__":
    main()
