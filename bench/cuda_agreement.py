"""Whether the engine for GPUs computes what the CPU computes. Runs on any machine with CUDA; ends with 1 where not.

    python bench/cuda_agreement.py [--rounds 30] [--seeds 3] [--methods fedperl ...] [--nets small_cnn ...] [--out FILE]

One step: every method's step on the same views, recorded and played on the GPU in float32 without TF32, beside the step
taken eagerly on the CPU: the loss and the gradients agree to 1e-4, relative to their norms. Where the weights are after
Adam is reported alone: it divides by the gradient's size, so that rounding becomes a sign. So is the share of values in
which strong views made on the GPU differ from those made on the CPU by more than rounding: some operations count in
whole levels.

Whole runs: FedPerl on dermsim with the demo's network and with EfficientNet-B0, float32 operation by operation
(`gpu = "reference"`) beside bfloat16 with recorded steps (`gpu = "fast"`), same seeds: the mean distance of the two
validation curves is to be no larger than the mean spread of the reference's seeds.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedperl.config import load_config
from fedperl.engines.cuda.captured import Recorder
from fedperl.engines.local import LocalExchange, PastStates
from fedperl.federation.client import Workspace, client_of_store
from fedperl.federation.messages import GlobalModel, TrainTask
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.federation.stopwatch import Stopwatch
from fedperl.learn.local_round import drained
from fedperl.learn.objectives import Batch
from fedperl.learn.passes import logits_of
from fedperl.learn.state import moved, state_of
from fedperl.learn.steps import EagerSteps, EagerViews, MakeSteps
from fedperl.opening import open_store
from fedperl.parallel import Job, run_jobs
from fedperl.settings import Config

TOLERANCE = 1e-4
METHODS = (
    *("lower", "ssfl", "fedperl", "fedperl_ema", "fedperl_prior", "fedperl_class_aware", "fedperl_agreement"),
    *("fedprox_ssfl", "uda", "rscfed", "fedirm", "fedirm_fedperl", "fedmatch", "fedmatch_pa", "cbafed"),
)
SMALL = ["data.size=32", "data.scale=0.02", "model.net=small_cnn", "model.dropout=0.0", "threads=1"]
SMALL += ["federation.cohort=10", "federation.quorum=3"]
LARGE = ["data.size=64", "data.scale=0.02", "model.net=efficientnet_b0", "model.dropout=0.0", "threads=1"]
LARGE += ["federation.cohort=4", "federation.quorum=3"]
LARGE += ["federation.exclude=[4,5,6,7,8,9]"]  # on a CPU they take a second a step each
RUNS = {
    "small_cnn": ["data.size=32", "data.scale=0.1", "optimizer.lr=2e-3", "federation.steps=16", "peers.warmup=2"],
    "efficientnet_b0": ["data.size=64", "data.scale=0.04", "optimizer.lr=5e-4", "federation.steps=13"],
}
RUNS["efficientnet_b0"] += ["objective.class_weights=none"]
COMMON = ["federation.steps=1", "peers.warmup=1", "objective.tau=0.15", "privacy=research"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--nets", nargs="*", default=list(RUNS), help="networks of the whole runs; by default all")
    parser.add_argument("--no-small", action="store_true", help="of the steps, take only those of EfficientNet-B0")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": []}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    print(f"{'net':16} {'method':22} {'step':9} {'loss':>9} {'gradient':>9} {'after Adam, in rates':>21} {'views':>8}")
    pairs = [(LARGE, "ssfl"), (LARGE, "fedperl")]
    if not arguments.no_small:
        pairs = [(SMALL, method) for method in arguments.methods] + pairs
    for settings, method in pairs:
        row = one_step(load_config(None, [*settings, *COMMON, f"method={method}"]))
        found["steps"].append(row)
        numbers = f"{row['loss']:9.1e} {row['gradient']:9.1e} {row['moved']:21.2g} {row['views']:8.1e}"
        print(f"{row['net']:16} {method:22} {row['step']:9} {numbers}", flush=True)
        write(arguments.out, found)
    fine = all(max(row["loss"], row["gradient"]) < TOLERANCE for row in found["steps"])
    print(f"one step agrees to {TOLERANCE:g}: {'yes' if fine else 'NO'}")
    if arguments.nets:
        found["runs"] = {}
        for net in arguments.nets:
            found["runs"][net] = whole_runs(net, arguments.rounds, arguments.seeds)
            fine &= found["runs"][net]["distance"] <= found["runs"][net]["spread"]
            write(arguments.out, found)
    sys.exit(0 if fine else 1)


def write(path: Path | None, found: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(found, indent=1) + "\n")


# One step


def one_step(config: Config) -> dict[str, Any]:
    """Return the relative differences between a step on the GPU and the same step on the CPU."""
    store = open_store(config)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder) / "run")
        run.open()
        run.restore()
        work = Workspace(config, len(store.classes), without_drop_connect)
        clients = {k: client_of_store(k, store, config, work) for k in range(len(store.partition.clients))}
        exchange = LocalExchange(clients, run.client_states, PastStates(run.past_states), Stopwatch())
        server = Server(
            config,
            [0 if k in config.federation.exclude else len(client.training.images) for k, client in clients.items()],
            1,
            state_of(work.net),
            run.bank,
            run.ledger,
            classes=len(store.classes),
        )
        last = config.objective.start + 2  # peers help, and whatever begins later has begun
        for round in range(1, last):
            server.absorb(exchange.train(server.plan(round)))
        task = next(task for task in server.plan(last) if len(clients[task.client].training.labelled))
        state = exchange.kept_by(task.client)
        seen: list[Batch] = []
        expected, loss = gradients(clients[task.client].train_steps, task, state, work, Noting(seen))
        after = state_of(work.net)
        on_card = config.changed(device="cuda")
        finish = float32_kernels(config)
        card = Workspace(on_card, len(store.classes), finish)
        client = client_of_store(task.client, store, on_card, card)
        told: list[str] = []
        given = replace(task, model=GlobalModel(task.model.round, moved(task.model.state, "cuda")))
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            instead = Instead(seen, Recorder(told.append))
            found, same = gradients(client.train_steps, given, state, card, instead)
        off = max(
            float((a.detach().cpu() - b).abs().max())
            for a, b in zip(card.net.parameters(), parameters(after), strict=True)
        )
        run.close()
    return {
        "net": config.model.net,
        "method": config.method,
        "peers": len(task.peer_states()),
        "step": "eager" if told else "recorded",
        "loss": abs(loss - same) / abs(loss),
        "gradient": float((found - expected).norm() / expected.norm()),
        "moved": off / config.optimizer.lr,
        "views": instead.differing,
    }


class Noting:
    """Takes steps eagerly and notes their batches."""

    make_views = EagerViews

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __call__(self, *arguments: Any) -> Any:
        """Return the steps of one round."""

        def note(batch: Batch) -> Batch:
            self.batches.append(batch)
            return batch

        return _Each(EagerSteps(*arguments), note)


class Instead:
    """Takes steps on batches that were noted elsewhere, not on those it is given."""

    make_views = EagerViews

    def __init__(self, batches: list[Batch], make: MakeSteps) -> None:
        self.batches, self.make, self.differing = iter(batches), make, 0.0

    def __call__(self, net: nn.Module, objective: Any, *arguments: Any) -> Any:
        """Return the steps of one round."""

        def other(batch: Batch) -> Batch:
            noted = next(self.batches)
            tensors = {f.name: getattr(noted, f.name) for f in fields(noted)}
            noted = replace(noted, **{n: t.cuda() for n, t in tensors.items() if isinstance(t, torch.Tensor)})
            if noted.strong is not None and batch.strong is not None:
                self.differing = float(((noted.strong - batch.strong).abs() > 1e-4).float().mean())
            if noted.weak is None or not objective.helpers:
                return noted
            return replace(noted, told=logits_of(objective.helpers, noted.weak))

        return _Each(self.make(net, objective, *arguments), other)


class _Each:
    """Steps whose batches pass through a function."""

    def __init__(self, steps: Any, change: Callable[[Batch], Batch]) -> None:
        self.steps, self.change = steps, change
        self.totals, self.moments = steps.totals, steps.moments

    def __call__(self, batch: Batch) -> None:
        """Take one step."""
        self.steps(self.change(batch))


def parameters(state: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Return a state's parameters, in the order of the network."""
    return [t for name, t in state.items() if t.is_floating_point() and "running_" not in name]


def gradients(
    train_steps: Callable[..., Any], task: TrainTask, state: Any, work: Workspace, make: Any
) -> tuple[torch.Tensor, float]:
    """Take the task's one step and return the gradient it left, as one vector on the CPU, and the loss."""
    update, _ = drained(train_steps(replace(task, settings=replace(task.settings, steps=1)), state, work, make))
    found = [p.grad if p.grad is not None else torch.zeros_like(p) for p in work.net.parameters()]
    return torch.cat([gradient.detach().flatten().cpu() for gradient in found]), update.numbers["loss"]


def without_drop_connect(net: nn.Module) -> nn.Module:
    """Return the network without the random part that no setting turns off."""
    for module in net.modules():
        if hasattr(module, "drop_connect_rate"):
            module.drop_connect_rate = 0.0  # type: ignore[assignment]
    return net


def float32_kernels(config: Config) -> Callable[[nn.Module], nn.Module]:
    """Return what gives a network our kernels in float32, where there are some for it."""
    if config.model.net != "efficientnet_b0" or config.objective.decomposed:
        return without_drop_connect
    from fedperl.engines.cuda.fused_b0 import FusedB0

    def fused(net: nn.Module) -> nn.Module:
        found = FusedB0(without_drop_connect(net), dtype=torch.float32).to("cuda")
        found.prepare((config.federation.batch, 3, config.data.size, config.data.size), (True, True, True))
        return found

    return fused


# Whole runs


def whole_runs(net: str, rounds: int, seeds: int) -> dict[str, Any]:
    """Return the validation curves of both modes, and how far apart they are."""
    settings = [*RUNS[net], f"model.net={net}", "threads=1", "device=cuda", f"federation.rounds={rounds}"]
    settings += ["federation.cohort=3", "federation.quorum=3"]
    with tempfile.TemporaryDirectory() as folder:
        jobs = [
            Job(
                f"{mode} {seed}",
                load_config(None, [*settings, f"gpu={mode}", f"seed={seed}"]),
                Path(folder) / mode / str(seed),
            )
            for mode in ("reference", "fast")
            for seed in range(1, seeds + 1)
        ]
        failed = run_jobs(jobs, workers=len(jobs), tick=lambda _: None)
        if failed:
            sys.exit(f"runs failed: {failed}")
        curves = {job.name: curve(job.out) for job in jobs}
    reference, fast = (np.array([c for n, c in curves.items() if n.startswith(mode)]) for mode in ("reference", "fast"))
    spread = float((reference.max(0) - reference.min(0)).mean())
    distance = float(abs(reference.mean(0) - fast.mean(0)).mean())
    print(f"{net}: validation accuracy, mean over clients and seeds, every fifth round:")
    for name, of in (("reference", reference), ("fast", fast)):
        print(f"  {name:10}", " ".join(f"{value:.3f}" for value in of.mean(0)[4::5]))
    print(f"mean distance of the curves {distance:.4f}, mean spread of the reference's {seeds} seeds {spread:.4f}")
    return {"settings": settings, "curves": curves, "distance": distance, "spread": spread}


def curve(folder: Path) -> list[float]:
    """Return the mean validation accuracy of each round."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [float(np.mean([client["accuracy"] for client in line["validation"].values()])) for line in lines]


if __name__ == "__main__":
    main()
