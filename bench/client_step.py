"""Where a client step of the demo spends its time: milliseconds a step by objective, and the costliest operations.

python bench/client_step.py
"""

import time

import torch
from torch.profiler import ProfilerActivity, profile

from fedperl.demo import demo_config
from fedperl.federation.client import Workspace, client_of_store
from fedperl.learn.local_round import LocalSettings, batches, local_round
from fedperl.learn.objectives import Context, build_objective
from fedperl.learn.state import state_of
from fedperl.opening import open_store

STEPS, REPEATS = 16, 5


def main() -> None:
    torch.set_num_threads(1)
    config = demo_config("fedperl", 1)
    store = open_store(config)
    work = Workspace(config, len(store.classes))
    data = client_of_store(0, store, config, work).training
    peers = work.peers([state_of(work.net)])
    print(f"{'objective':30} {'ms a step':>10} {'ratio':>6} {'of it views':>12}")
    first = 0.0
    for name, kind, helpers in (
        ("supervised", "supervised", []),
        ("FixMatch (SSFL)", "fixmatch", []),
        ("FixMatch + peer (FedPerl)", "fixmatch", peers),
    ):
        objective = config.objective.changed(kind=kind)
        settings = LocalSettings(objective, config.optimizer, config.views, STEPS, config.federation.batch)
        times, views = [], []
        for seed in range(REPEATS):
            start = time.perf_counter()
            local_round(work.net, data, settings, seed=seed, peers=helpers)
            times.append(time.perf_counter() - start)
            start = time.perf_counter()
            list(batches(data, settings, seed, build_objective(objective, Context(data)).views))
            views.append(time.perf_counter() - start)
        step = min(times) / STEPS * 1e3
        first = first or step
        print(f"{name:30} {step:10.2f} {step / first:6.2f} {min(views) / min(times):12.0%}")
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        local_round(work.net, data, settings, seed=0, peers=peers)
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=8, max_name_column_width=40))


if __name__ == "__main__":
    main()
