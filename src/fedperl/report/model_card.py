"""What must be known of a model before it is used: `models/MODEL_CARD.md` of every finished run.

All numbers are the run's own, and nothing depends on the clock: a resumed run writes the same bytes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedperl import __version__
from fedperl.config import methods
from fedperl.federation.run_folder import RunFolder
from fedperl.files import write_durably
from fedperl.learn.accounting import rounded_up
from fedperl.report.card_cells import code, span, table, value
from fedperl.report.card_data import Holdings, data, holdings
from fedperl.report.card_numbers import (
    abstaining,
    by_class,
    by_client,
    calibration,
    counts_of,
    main_choice,
    served_worst,
    together,
)
from fedperl.settings import OBJECTIVES, Config, research_note

__all__ = ["Holdings", "holdings", "model_card", "write_model_card"]

FILE = "MODEL_CARD.md"

FILES = {
    "last": ("`last.safetensors`", "the last round"),
    "global_best": ("`global_best.safetensors`", "best on the validation images of all clients"),
    "server_best": ("`server_best.safetensors`", "best on the server's validation images"),
    "per_client_best": ("`client_K_best.safetensors`", "best on the validation images of client K, one file a client"),
}
WEIGHTS_OF = {
    "fixmatch": ("tau", "beta", "gamma"),
    "fixmatch_irm": ("tau", "beta", "gamma"),
    "uda": ("tau", "beta", "gamma"),
    "fedmatch": ("tau",),
    "cbafed": ("tau", "beta"),
}
"""The paper's weights that an objective makes use of; the others have none."""


def write_model_card(folder: RunFolder, config: Config, results: Mapping[str, Any], held: Holdings | None) -> None:
    """Write the card beside a run's models; before the results, which say that all is there."""
    text = model_card(config, results, folder.read_curves(), held)
    write_durably(folder.path / "models" / FILE, text.encode(), mode=0o644)


def model_card(
    config: Config, results: Mapping[str, Any], curves: Mapping[str, Any], held: Holdings | None = None
) -> str:
    """Return the card of a run as Markdown.

    Args:
        results: as `results.json` has them.
        curves: as `curves.json` has them.
        held: what is known of the images beyond the tested ones.
    """
    choice = main_choice(config, results)
    test = together(counts_of(curves, choice, "test"))
    sections = [
        _head(config, results, choice),
        _models(config, results, choice),
        data(config, results, held),
        _method(config, results),
        by_client(results, choice, FILES[choice][1]),
        by_class(results["classes"], test),
        calibration(test),
        abstaining(config, results["over_clients"][choice], test, counts_of(curves, choice, "validation")),
        _use(),
        [*_limits(held), *served_worst(results, choice, test), *_after_all(results)],
        _privacy(config, results, curves.get("groups", {})),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


# The sections


def _head(config: Config, results: Mapping[str, Any], choice: str) -> list[str]:
    known = methods().get(config.method)
    what = f"`{config.method}`" + ("" if known is None else f" ({known.line.rstrip('.')})")
    rounds, by = config.federation.rounds, ""
    if config.federation.alone:
        clients = len(results["test"][choice].keys() - {"server"}) or 1
        rounds, by = results["totals"]["client_rounds"] // clients, " by each client"
    return [
        f"# Model card: {config.method}",
        "",
        "**Not a medical device. For research; not for diagnosis, triage or treatment of any patient.**",
        "",
        f"Trained with {what} by fedperl {__version__}, seed {config.seed}, "
        f"{rounds} round{'' if rounds == 1 else 's'}{by}; configuration `{results['config']}`.",
    ]


def _models(config: Config, results: Mapping[str, Any], main: str) -> list[str]:
    rows = []
    for choice, numbers in results["test"].items():
        file, chosen = FILES.get(choice, (f"`{choice}.safetensors`", ""))
        if config.federation.alone:
            if choice != main:
                continue
            file = f"`client_K_{'best' if choice == 'per_client_best' else 'last'}.safetensors`"
            chosen = "trained by client K alone; " + chosen
        rounds = sorted({int(one["round"]) for one in numbers.values()})
        over = results["over_clients"].get(choice, {})
        means = [value(over.get(name, {}).get("mean")) for name in ("weighted_f1", "balanced_accuracy", "ece")]
        rows.append([file, chosen, span(rounds), *means])
    header = ["file", "chosen as", "round", "weighted F1", "balanced accuracy", "ECE"]
    server_alone = set(results["test"][main]) == {"server"}
    whose = "On the server's test images" if server_alone else "Means over the clients' test images"
    note = f"{whose}; models are chosen on validation images, never on these."
    if config.federation.running_average:
        note += " A round's model is the running mean of those up to it, from which no client has trained."
    if config.federation.batch_norm == "local":
        note += (
            " Each client is tested with batch-norm layers of its own; the files of all clients have averaged ones. "
            "Across sites client K alone has `client_K_best`."
        )
    elif personal := config.federation.personal:
        note += (
            f" Each client is tested with {personal}, as in `client_K_best`; the files of all clients have none. "
            "`client_K_best` is for client K alone, and across sites with it alone: with the global model of its round "
            "it tells K's own models."
        )
    return ["## The models", "", *table(header, rows, text=2), "", note]


def _method(config: Config, results: Mapping[str, Any]) -> list[str]:
    federation, optimizer = config.federation, config.optimizer
    rows = [
        ["preset", config.preset],
        [
            "network",
            f"{config.model.net}, {config.data.size} px, input {config.model.input_scale}"
            + (", group norm" if config.model.norm == "group" else "")
            + (f", asked in {n} orientations" if (n := config.orientations) > 1 else ""),
        ],
        ["starting weights", _weights(config.model.weights)],
        ["objective", _objective(config)],
        ["local steps", f"{federation.steps} a round, batches of {federation.batch}"],
        ["optimiser", f"{optimizer.kind}, learning rate {optimizer.lr:g}, {optimizer.schedule}"],
    ]
    if federation.alone:
        rows.append(["federation", "none: each client trained by itself"])
    else:
        rows.append(["federation", f"{federation.rounds} rounds, cohorts of {config.cohort}, quorum {config.quorum}"])
        rows.append(["average", f"{federation.aggregator}, weights {federation.weights}"])
        if federation.running_average:
            rows.append(["handed out", f"running mean of the rounds' models, decay {federation.running_average:g}"])
        rows.append(["peers", _peers(config, results) if config.peer_learning else "none"])
    if federation.exclude:
        rows.append(["left out", f"clients {', '.join(map(str, federation.exclude))}"])
    if config.objective.mu:
        rows.append(["proximal term", f"mu = {config.objective.mu:g}"])
    return [
        "## Method",
        "",
        *table(["setting", "value"], rows, text=2),
        "",
        "Every setting is in the run's `config.toml`.",
    ]


def _peers(config: Config, results: Mapping[str, Any]) -> str:
    peers = config.peers
    T = f"{'at most ' if peers.sizes == 'spectral_gap' else ''}{peers.T}"
    kind = "anonymized" if peers.anonymize else "raw"
    told = f"T = {T}, {kind}, by {peers.selector}, policy {peers.policy}, after round {peers.warmup}"
    if peers.every > 1:
        told += f", every {peers.every} rounds"
    return told if results["totals"]["with_peer"] else f"{told}: no client was sent any"


def _objective(config: Config) -> str:
    objective = config.objective
    if objective.kind == "supervised":
        return f"supervised, on {'all' if objective.labels == 'all' else 'the labelled'} training images"
    if objective.kind not in OBJECTIVES:  # of an own file: no folders
        return ", ".join([code(Path(objective.kind).name), *(f"{k} = {v}" for k, v in objective.options.items())])
    weights = [f"{name} = {getattr(objective, name):g}" for name in WEIGHTS_OF.get(objective.kind, ())]
    return ", ".join([objective.kind, *weights])


def _weights(setting: str) -> str:
    if setting in ("none", "imagenet"):
        return {"none": "drawn at random", "imagenet": "ImageNet"}[setting]
    return f"the file {code(Path(setting).name)}"


def _use() -> list[str]:
    return [
        "## Intended use",
        "",
        "Research on federated and semi-supervised learning: comparing methods, studying calibration and abstaining, "
        "on images of the kind named above. Out of scope: any decision about a patient, images of another kind or "
        "another camera without a test of one's own, lesions of other classes (the model always names one it knows).",
    ]


def _limits(held: Holdings | None) -> list[str]:
    lines = ["## Limits", "", "- Not a medical device: no one has approved it, and no clinical study was made with it."]
    lines.append(
        "- The numbers are means over test images of the clients that took part: they promise nothing for one patient, "
        "nor for another hospital. A confidence is not a probability of being right unless the table above shows it."
    )
    if held is not None and held.drawn:
        lines.append("- Trained on drawn lesions: of no use on photographs of skin.")
    return lines


def _after_all(results: Mapping[str, Any]) -> list[str]:
    totals, last = results["totals"], "- One run with one seed: another seed gives other numbers."
    if totals["rejected"] or totals["void"]:
        return [f"- {totals['rejected']} updates were rejected or missing, {totals['void']} rounds void.", last]
    return [last]


def _privacy(config: Config, results: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["## Privacy", ""]
    if config.federation.alone:
        lines.append("Nothing was exchanged: each client trained by itself.")
    else:
        lines += _exchanged(config, results["totals"], groups)
        lines.append("The server saw every client's model and was trusted with it.")
        if note := research_note(config):
            lines.append(f'**`privacy = "research"`: not for real patients; {note}.**')
    lines += _differential(config, results)
    return lines


def _differential(config: Config, results: Mapping[str, Any]) -> list[str]:
    """Return what differential privacy promises of the models, and what it does not."""
    if config.dp.unit == "none":
        return ["No differential privacy was used: a model may give away something of the images it was trained on."]
    found = results["dp"]
    rows = [[f"client {k}", rounded_up(one["epsilon"]), str(one["steps"])] for k, one in found["clients"].items()]
    return [
        f"Differential privacy of the clients' training images: **{found['text']}** for the client that spent most; "
        f"noise {config.dp.noise:g}, clipping norm {config.dp.clip:g}. It covers the models. It does not cover numbers "
        "and counts of validation and test images, how many images a client has, nor images of the server.",
        "",
        *table(["client", "epsilon", "steps"], rows, text=1),
    ]


def _exchanged(config: Config, totals: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> list[str]:
    told = "mean losses and scores" if config.dp.unit == "none" else "scores"
    lines = [
        f"No image left a client. Exchanged: models towards clients ({totals['bytes_down'] / 1e6:.1f} MB to train, "
        f"peers included, {totals['bytes_evaluation'] / 1e6:.1f} MB to validate), trained models back to the "
        f"server ({totals['bytes_up'] / 1e6:.1f} MB), {told} of each client, and at the end its "
        "counts of test and validation images by class, prediction and confidence: what this card is made of."
    ]
    if by := sorted({attribute.replace("_", " ") for one in groups.values() for attribute in one}):
        lines.append(f"Clients also sent counts of their test images by class and prediction, by {', '.join(by)}.")
    if totals["with_peer"] and config.peers.anonymize:
        of = "of at least two other clients' models" if config.peers.k_min > 1 else "of other clients' models, or one"
        lines.append(f"Clients were also sent anonymized peers, each the mean {of}.")
    if config.objective.kind in ("fedirm", "fixmatch_irm"):
        lines.append("Clients also sent relation matrices of their labelled images, and were sent the mean of others'.")
    elif config.objective.kind not in OBJECTIVES:
        lines.append("The objective is of a file of its own, which may also have exchanged relation matrices.")
    return lines
