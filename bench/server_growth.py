"""Server work against the number of clients: seconds of plan + absorb a round, and memory.

    python bench/server_growth.py [--clients 10 100 1000 10000] [--rounds 20]

Clients are simulated: each answers with the global model moved a little. A model of 100,000 parameters in 20 tensors,
cohorts of 10, every client banked beforehand, so that profiles and bank have their full size from the first round on.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from fedperl.config import load_config
from fedperl.federation.messages import TrainTask, Update
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.learn.state import State

INITIAL: State = {f"layer{i}.weight": torch.zeros(100, 50) for i in range(20)}


def answer(task: TrainTask) -> Update:
    generator = torch.Generator().manual_seed(1000 * task.round + task.client)
    state = {name: t + 0.01 * torch.randn(t.shape, generator=generator) for name, t in task.model.state.items()}
    return Update(task.run, task.round, task.client, state, {"loss": 1.0})


def measure(clients: int, rounds: int, folder: Path) -> tuple[float, float, float, int]:
    """Return mean seconds of plan + absorb, of the commit, the peak memory in MB and the models read a round."""
    run = RunFolder(folder)
    run.open()
    run.restore()
    config = load_config(None, ["federation.cohort=10", "peers.warmup=0"])
    server = Server(config, [100] * clients, 1, INITIAL, run.bank, run.ledger)
    for client in range(clients):
        task = TrainTask(server.run, 0, client, server.model, None, server._settings, 0)
        server._bank(answer(task))
    reads, get = 0, run.bank.get

    def counted(key: int) -> State:
        nonlocal reads
        reads += 1
        return get(key)

    run.bank.get = counted  # type: ignore[method-assign]
    server_seconds = commit_seconds = 0.0
    for round in range(1, rounds + 1):
        start = time.perf_counter()
        tasks = list(server.plan(round))
        planned = time.perf_counter()
        updates = [answer(task) for task in tasks]
        trained = time.perf_counter()
        server.absorb(updates)
        absorbed = time.perf_counter()
        run.commit({"round": round})
        commit_seconds += time.perf_counter() - absorbed
        server_seconds += (planned - start) + (absorbed - trained)
    run.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return server_seconds / rounds, commit_seconds / rounds, peak, reads // rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    print(f"{'clients':>8} {'plan + absorb':>14} {'commit':>10} {'peak memory':>12} {'models read':>12}")
    for clients in arguments.clients:
        with tempfile.TemporaryDirectory() as folder:
            work, commit, peak, reads = measure(clients, arguments.rounds, Path(folder))
        print(f"{clients:8} {work * 1e3:11.1f} ms {commit * 1e3:7.1f} ms {peak:9.0f} MB {reads:12}")


if __name__ == "__main__":
    main()
