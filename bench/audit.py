"""What the release auditor costs and what it prevents: 500 rounds of FedPerl on drawn lesions, with it and without.

python bench/audit.py [--rounds 500] [--seeds 1 2 3] [--workers 2] [--out FOLDER] [--json FILE]

With --out it goes on where it was stopped.

Every run keeps some numbers of every model that was sent, and an attacker that knows nothing of the auditor then solves
for single models and changes from what each client (`one`) or each pair (`two`) was sent. Weighted F1 is that of the
model that is best for each client, mean over the clients. Then the auditor alone, on made-up committees, with 10 and
with 100 clients.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from fedperl.attack import Attacker, coalitions, read_history
from fedperl.config import load_config, resolve
from fedperl.federation.auditing import Auditing
from fedperl.federation.kept_uploads import FOLDER, read_kept
from fedperl.suite import plan_suite
from fedperl.training import train

KEPT = 2000
SETTINGS: dict[str, dict[str, Any]] = {
    "one": {"coalition": 1, "federation": {"cohort": 3, "quorum": 3}, "peers": {"T": 2}},
    "two": {
        "coalition": 2,
        "federation": {"cohort": 5, "quorum": 4, "robust": "clip"},
        "peers": {"T": 3, "k_min": 3},
    },
}
TARGETS = {"models": "uploads", "changes": "changes", "distant changes": "distant"}


def timed() -> list[float]:
    """Have the auditor count its seconds, and return where."""
    spent = [0.0]

    def counting(method: Any) -> Any:
        def call(*arguments: Any) -> Any:
            begun = time.perf_counter()
            try:
                return method(*arguments)
            finally:
                spent[0] += time.perf_counter() - begun

        return call

    for name in ("committee", "model", "keep"):
        setattr(Auditing, name, counting(getattr(Auditing, name)))
    return spent


def one(setting: str, seed: int, audited: bool, rounds: int, steps: int, out: Path) -> dict[str, Any]:
    about, spent = SETTINGS[setting], timed()
    with tempfile.TemporaryDirectory() as empty:
        plan = plan_suite("dermsim", Path(empty))
    base = next(p for p in plan.points if p.run.name == "FedPerl").jobs
    table = next(iter(base.values())).config.model_dump(exclude_none=True, exclude={"written_by"})
    for section in ("federation", "peers"):
        table[section] |= about[section]
    table["federation"] |= {"rounds": rounds, "steps": steps}
    table |= {"seed": seed, "privacy": "research", "name": f"{setting} {seed} {audited}"}
    table["audit"] = {"coalition": about["coalition"] if audited else 0, "keep_uploads": KEPT}
    folder = out / f"{setting}_{seed}_{'on' if audited else 'off'}"
    if (folder / "found.json").exists():
        return dict(json.loads((folder / "found.json").read_text()))
    results = train(resolve(table), folder, resume=(folder / "config.toml").exists())
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    asked = [(line, client) for line in lines for client in line["kept"]]
    served = sum(bool(line["committees"][client]) for line, client in asked)
    found: dict[str, Any] = {
        "setting": setting,
        "seed": seed,
        "audited": audited,
        "f1": float(np.mean([n["weighted_f1"] for n in results["test"]["per_client_best"].values()])),
        "client_rounds": len(asked),
        "served": served,
        "swapped": sum(len(line["swapped"]) for line in lines),
        "auditor_ms": 1e3 * spent[0] / rounds,
        "seconds": results["seconds"],
    }
    history = read_history(folder / "state" / "ledger.jsonl", anonymized=True)
    attacker, begun = Attacker(history, read_kept(folder / "state" / FOLDER)), time.perf_counter()
    for size in range(1, about["coalition"] + 1):
        findings = [attacker.attack(group) for group in coalitions(history.clients, size, ())]
        for name, kind in TARGETS.items():
            counts = [getattr(finding, kind) for finding in findings]
            found[f"{name}, {size}"] = {
                "of": sum(c.of for c in counts),
                "solvable": sum(c.solvable for c in counts),
                "recovered": sum(c.recovered for c in counts),
                "receivers": sum(c.recovered > 0 for c in counts),
                "best": min((c.best for c in counts if c.best is not None), default=None),
            }
    found["attack_seconds"] = time.perf_counter() - begun
    (folder / "found.json").write_text(json.dumps(found))
    return found


def growth(clients: int, size: int, rounds: int = 60, seed: int = 1) -> dict[str, Any]:
    """Return the auditor's time a round with made-up similarities: communities of five, cohorts of five, T = 3."""
    generator, last = np.random.default_rng(seed), dict[int, int]()
    config = load_config(
        None,
        ["federation.cohort=5", "federation.quorum=4", "peers.T=3", "peers.k_min=3", f"audit.coalition={size}"],
    )
    auditing, spent, swapped, asked = Auditing(config, clients, {}), 0.0, 0, 0
    for round in range(1, rounds + 1):
        cohort = [int(k) for k in generator.choice(clients, 5, replace=False)]
        for client in cohort if len(last) > 5 else []:
            alike = {k: (k // 5 == client // 5) + generator.random() for k in last if k != client}
            ranked = sorted(alike, key=lambda k: -alike[k])
            begun = time.perf_counter()
            found = auditing.committee(client, ranked[:3], ranked[3:11], last)
            spent, asked, swapped = spent + time.perf_counter() - begun, asked + 1, swapped + (found.swapped > 0)
        begun = time.perf_counter()
        auditing.model({(k, round): 0.2 for k in cohort})
        last |= dict.fromkeys(cohort, round)
        auditing.keep(last.items())
        spent += time.perf_counter() - begun
    pairs = len(list(combinations(range(clients), size)))
    return {"clients": clients, "coalitions": pairs, "ms": 1e3 * spent / rounds, "swapped": swapped / max(asked, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"runs": [], "growth": []}
    with (
        tempfile.TemporaryDirectory() as temporary,
        ProcessPoolExecutor(arguments.workers, max_tasks_per_child=1) as pool,
    ):
        out = arguments.out or Path(temporary)
        jobs = [
            pool.submit(one, setting, seed, audited, arguments.rounds, arguments.steps, out)
            for setting in arguments.settings
            for seed in arguments.seeds
            for audited in (False, True)
        ]
        for job in as_completed(jobs):
            found["runs"].append(job.result())
            print(json.dumps(found["runs"][-1]), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(found, indent=1))
    for clients, size in ((10, 1), (10, 2), (100, 1), (100, 2)):
        found["growth"].append(growth(clients, size))
        print(json.dumps(found["growth"][-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
