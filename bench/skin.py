"""The paper's experiments on real lesions (bench/skin.toml), many runs side by side.

    python bench/skin.py SET [SET ...] [--workers 12] [--device cuda] [--seeds 1 2 3] [--rows ...]

A set is some rows of the paper's tables and figures, and a few beyond them: see GROUPS; what one seed cannot decide is
planned with three (`--seeds 1` trains the first of each). `rates` chooses the learning rate that the others take, on
validation images; `few_small` looks at few labelled clients with a small network (--device cpu --workers 2). A run
becomes a line of docs/results/skin/SET.jsonl (bench/side_by_side.py) with its confusion matrices by client, who helped
whom, and, where the clinical photographs of client 8 were kept out of training, what its model says of them.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import numpy as np
import numpy.typing as npt
import side_by_side
import torch
import variants
from side_by_side import Line

from fedperl.config import Table, merged, resolve
from fedperl.data.scenarios import seen_by
from fedperl.data.store import Store
from fedperl.errors import ConfigError
from fedperl.evaluate import BinnedSums
from fedperl.evaluating import evaluate
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.predict import predict
from fedperl.learn.weights import read_metadata
from fedperl.opening import open_store
from fedperl.paper.runs import find_scale, paper_runs
from fedperl.parallel import Job
from fedperl.predicting import open_predictor
from fedperl.settings import Config

SCALE = Path(__file__).with_name("skin.toml")
FEW_SMALL, FEW_SUITE = "few_small", Path(__file__).with_name("skin_few_small.toml")
"""A set of its own, of a small network on a CPU: what becomes of pseudo labels where few clients have labels."""
LINES = Path(__file__).parents[1] / "docs" / "results" / "skin"
UNSEEN = "PAD-UFES"
CHOICE = "per_client_best"
QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)
"""Of the similarities of candidates that a line holds."""

BEYOND: dict[str, tuple[str, Table]] = {
    "FedIRM": ("fedirm", {}),
    "CBAFed": ("cbafed", {}),
    "RSCFed": ("rscfed", {}),
    "FedIRM, weight 1": (
        "fedirm",
        {"objective": {"teacher": {"weight": 1.0}, "class_weights": "median_frequency"}},
    ),
    **{
        f"few: {row} 30%, start 20": (
            method,
            {
                "scenario": {"labels": "few_clients"},
                "federation": {"cohort": 3, "quorum": 2},
                "objective": {"start": 20},
            },
        )
        for row, method in (("SSFL", "ssfl"), ("FedPerl", "fedperl"))
    },
    "FedPerl T=2, recommended": ("fedperl", {"privacy": "recommended", "checkpoint_every": 1}),
    "FedPerl T=3, hospital": (
        "fedperl",
        {
            "privacy": "hospital",
            "checkpoint_every": 1,
            "peers": {"T": 3, "k_min": 3},
            "federation": {"cohort": 5, "quorum": 4, "robust": "clip"},
        },
    ),
}
"""Rows that the paper does not have: their methods and settings."""


@dataclass(frozen=True)
class Group:
    """Rows that are trained together."""

    rows: tuple[str, ...]
    seeds: tuple[int, ...] = (1,)
    rates: tuple[float, ...] = ()
    """Learning rates to choose from, each trained; else the one that was chosen."""


GROUPS = {
    "rates": Group(("Lower", "SSFL"), rates=(1e-4, 2e-4, 5e-4, 1e-3)),
    "core": Group(
        (
            "Lower",
            "SSFL",
            "Random peers",
            "FedMatch+",
            "FedPerl raw T=2",
            "FedPerl T=2",
            "gated similarity 95",
            "FedIRM",
            "CBAFed",
            "Upper",
        ),
        (1, 2, 3),
    ),
    "sizes": Group(("FedPerl raw T=1", "FedPerl T=3", "FedPerl T=4", "FedPerl T=5"), (1, 2, 3)),
    "policies": Group(
        (
            "validation",
            *(f"gated validation {rho}" for rho in (75, 85, 95)),
            *(f"gated similarity {rho}" for rho in (75, 85)),
        )
    ),
    "outlier": Group(tuple(f"without outlier: {row}" for row in ("SSFL", "FedPerl T=2")), (1, 2, 3)),
    "outlier_more": Group(tuple(f"without outlier: {row}" for row in ("Lower", "FedMatch+", "Upper")), (1, 2, 3)),
    "local": Group(("Local lower", "Local FixMatch", "Local upper"), (1, 2, 3)),
    "scenarios": Group(
        (
            "server: SSFL",
            "server: FedPerl T=2",
            "few: Lower 30%",
            "few: SSFL 30%",
            "few: FedIRM 30%",
            "few: FedPerl 30%",
            *(row for row in BEYOND if row.startswith("few: ")),
        ),
        (1, 2, 3),
    ),
    "more": Group(("FedMatch", *(row for row in BEYOND if row not in ("FedIRM", "CBAFed") and "few" not in row))),
}


def jobs(name: str, out: Path, device: str, seeds: list[int], rows: list[str]) -> dict[str, Job]:
    """Return the runs of a group by name, or some of them.

    Raises:
        ConfigError: seeds or rows that are not of the group, or no learning rate was chosen yet.
    """
    if name == FEW_SMALL:
        return side_by_side.suite_jobs(name, FEW_SUITE, out / "skin" / name, device, seeds, rows)
    group, scale = GROUPS[name], find_scale(str(SCALE))
    runs = {row: (run.method, run.settings) for row, run in paper_runs(scale).items()}
    runs |= {row: (method, merged(scale.settings, own)) for row, (method, own) in BEYOND.items()}
    for asked, there in ((seeds, group.seeds), (rows, group.rows)):
        side_by_side.check_choice(name, asked, there)
    found = {}
    for seed in seeds or group.seeds:
        for row in rows or group.rows:
            method, settings = runs[row]
            for rate in group.rates or (chosen_rate(),):
                if not group.rates and _tried(row, rate, seed) in read("rates"):
                    continue  # nothing is trained twice
                run = f"{row}, {f'lr {rate:g}, ' if group.rates else ''}seed {seed}"
                own = {"name": f"{method} {seed}", "method": method, "seed": seed, "device": device}
                table = merged(settings, own, {"optimizer": {"lr": rate}})
                folder = out / "skin" / name / re.sub(r"[^\w.=%+]+", "-", run)
                found[run] = Job(f"{name}: {run}", resolve(table, (), source=run), folder)
    return found


def chosen_rate() -> float:
    """Return the smallest learning rate whose validation accuracy is within one standard error of the best.

    The accuracy is the mean over the rows that it was tried with, the error that of so many images.

    Raises:
        ConfigError: not all were tried yet.
    """
    group, lines = GROUPS["rates"], read("rates")
    (seed,) = group.seeds
    found = dict[float, float]()
    for rate in group.rates:
        names = [_tried(row, rate, seed) for row in group.rows]
        if missing := [name for name in names if name not in lines]:
            raise ConfigError(f"{missing[0]}: not trained; wanted all of group 'rates' first")
        found[rate] = fmean(lines[name]["results"]["validation"][CHOICE]["accuracy"] for name in names)
    best, images = max(found.values()), sum(np.sum(one) for one in lines[names[0]]["validation_confusion"].values())
    return min(rate for rate, accuracy in found.items() if accuracy >= best - math.sqrt(best * (1 - best) / images))


def _tried(row: str, rate: float, seed: int) -> str:
    return f"{row}, lr {rate:g}, seed {seed}"


def read(name: str) -> dict[str, Line]:
    """Return the lines of a group by the names of their runs, less those that diverged.

    Those of `core` that the choice of the learning rate has trained already are among them.
    """
    lines, group, tried = own_lines(name), GROUPS[name], own_lines("rates")
    if name == "core" and len(tried) == len(GROUPS["rates"].rows) * len(GROUPS["rates"].rates):
        for row in group.rows:
            for seed in group.seeds:
                if line := tried.get(_tried(row, chosen_rate(), seed)):
                    lines[f"{row}, seed {seed}"] = line
    return lines


def own_lines(name: str) -> dict[str, Line]:
    """Return the lines of a group's own file by the names of their runs, less those that diverged."""
    return {run: line for run, line in side_by_side.read(LINES / f"{name}.jsonl").items() if "failed" not in line}


@cache
def _store(source: str) -> Store:
    return Store.open(Path(source))


@cache
def _unlabelled(dealing: str) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
    """Return the unlabelled images of all clients, and what they show; by the configuration's tables, as JSON."""
    config = Config.model_validate_json(dealing)
    store = open_store(config)
    store = store.dealt(seen_by(config.scenario, store.partition, store.manifest, seed=config.data.seed))
    rows = np.concatenate([np.asarray(part.unlabelled, dtype=np.int64) for part in store.partition.clients])
    return torch.from_numpy(store.pixels(rows)), store.manifest.label[rows]


def pseudo_labels(folder: Path, config: Config, device: str) -> dict[str, list[int]]:
    """Return what the last model would teach, by class: images, those above tau, those that are right, and said to be.

    Of the images themselves, not of views, and without peers: what the hidden labels say of the pseudo labels.
    """
    dealt = Config(data=config.data, partition=config.partition, scenario=config.scenario)
    images, truth = _unlabelled(dealt.model_dump_json())
    predictor = open_predictor(folder, "last", device=device)
    confidence, said = (part.cpu().numpy() for part in predict(predictor.net, images).max(dim=1))
    sure, count = confidence >= config.objective.tau, len(predictor.classes)
    counted = {"images": truth, "above": truth[sure], "right": truth[sure & (said == truth)], "said": said[sure]}
    return {name: np.bincount(labels, minlength=count).tolist() for name, labels in counted.items()}


def noted(folder: Path, *, device: str) -> Line:
    """Return confusion matrices by client, who helped whom, and what the model says of clients it never saw.

    The matrices are of validation images too, and there of the last model as well. And how many peers the policy kept;
    how similar candidates are, in QUANTILES; every 25 rounds the share of unlabelled images that taught something, and
    validation macro F1, over clients; what the backbone says of itself; what the model's labels of unlabelled images
    are worth; and what models are worth however they are handed out, where that was followed.
    """
    curves = json.loads((folder / "curves.json").read_text())
    sums = {client: curves["sums"][key] for client, key in curves["chosen"][CHOICE].items()}
    last = {client: curves["sums"][key]["validation"] for client, key in curves["chosen"]["last"].items()}
    found: Line = {
        "confusion": {client: parts["test"]["confusion"] for client, parts in sums.items()},
        "validation_confusion": {client: parts["validation"]["confusion"] for client, parts in sums.items()},
        "last_validation_confusion": {client: parts["confusion"] for client, parts in last.items()},
        "validation_ece": {
            client: round(BinnedSums.from_dict(parts["validation"]).ece(), 4) for client, parts in sums.items()
        },
    }
    helped, kept, accepted, macro_f1 = Counter[str](), Counter[int](), dict[int, float](), dict[int, float]()
    similarity = list[float]()
    if (folder / "metrics.jsonl").exists():  # not of clients that train alone
        for line in side_by_side.metrics(folder):
            for client, members in line.get("committees", {}).items():  # `hospital` tells nobody
                helped.update(f"{member} {client}" for member in members)
            kept.update(line.get("kept", {}).values())
            for candidates in line.get("similarity", {}).values():
                similarity += candidates
            if line["round"] % 25 == 0:
                if some := [one["accepted"] for one in line["numbers"].values() if "accepted" in one]:
                    accepted[line["round"]] = round(fmean(some), 4)
                if validated := line.get("validation"):
                    macro_f1[line["round"]] = round(fmean(one["macro_f1"] for one in validated.values()), 4)
    found |= {"helped": dict(sorted(helped.items())), "accepted": accepted, "macro_f1": macro_f1}
    if kept:
        found["kept"] = dict(sorted(kept.items()))
    if similarity:
        found["similarity"] = np.quantile(similarity, QUANTILES).round(3).tolist()
    if (folder / variants.FILE).exists():
        found["variants"] = json.loads((folder / variants.FILE).read_text())
    config = RunFolder(folder).read_config()
    if config.data.source != "dermsim" and (folder / "models" / "last.safetensors").exists():
        found["pseudo"] = pseudo_labels(folder, config, device)
    if config.model.weights not in ("none", "imagenet"):
        about = read_metadata(Path(config.model.weights))
        found["backbone"] = {key: about[key] for key in ("from", "size", "accuracy", "validation_images")}
    if config.federation.exclude and (folder / "models" / "global_best.safetensors").exists():
        store = _store(config.data.source)
        said = evaluate(folder, store, model="global_best", source=UNSEEN, device=device)
        found["unseen"] = {key: said[key] for key in ("images", "classes", "malignancy")}
        found["unseen"]["calibration"] = said["calibration"]["classes"]
    return found


def cost(config: Config) -> float:
    """Return how long a run takes, roughly."""
    return config.cohort * {"supervised": 1.0, "fedirm": 3.0}.get(config.objective.kind, 2.0)


def headline(line: Line) -> str:
    """Return weighted and macro F1, the mean over clients."""
    tested = line["results"]["test"][CHOICE]
    means = [fmean(numbers[metric] for numbers in tested.values()) for metric in ("weighted_f1", "macro_f1")]
    return f"weighted F1 {means[0]:.3f}, macro F1 {means[1]:.3f}"


def run_command(
    doc: str,
    sets: Iterable[str],
    lines: Path,
    jobs: Callable[[str, Path, str, list[int], list[str]], dict[str, Job]],
    told: Callable[[Line], str] = headline,
    make: Callable[..., Line] = noted,
) -> None:
    """Train what the command line asks for of some sets, into lines of this folder.

    Args:
        told: what is printed of each.
        make: what a line has besides, from a run's folder and the device.
    """
    args = side_by_side.parser_of(doc, sets).parse_args()
    plan = lambda name: jobs(name, args.out, args.device, args.seeds, args.rows)  # noqa: E731
    side_by_side.train_sets(args, lines, plan, partial(make, device=args.device), told, cost)


if __name__ == "__main__":
    run_command(__doc__ or "", [*GROUPS, FEW_SMALL], LINES, jobs)
