"""What must be known of a model before it is used: `models/MODEL_CARD.md` of every finished run.

All numbers are the run's own, and nothing depends on the clock: a resumed run writes the same bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from fedperl import __version__
from fedperl.config import methods
from fedperl.data.audit import class_counts
from fedperl.data.partition import PARTS
from fedperl.data.store import Store
from fedperl.evaluate import BinnedSums
from fedperl.evaluate.selective import RISKS
from fedperl.federation.run_folder import RunFolder
from fedperl.files import write_durably
from fedperl.settings import Config, research_note

FILE = "MODEL_CARD.md"
UNKNOWN = "·"
RELIABILITY_BINS = 10

FILES = {
    "last": ("`last.safetensors`", "the last round"),
    "global_best": ("`global_best.safetensors`", "best on the validation images of all clients"),
    "server_best": ("`server_best.safetensors`", "best on the server's validation images"),
    "per_client_best": ("`client_K_best.safetensors`", "best on the validation images of client K, one file a client"),
}
BY_CLIENT = {
    "images": "images",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "weighted_f1": "weighted F1",
    "macro_auroc": "macro AUROC",
    "ece": "ECE",
    "aurc": "AURC",
}


@dataclass(frozen=True)
class Holdings:
    """What those who took part held; known where all images were at hand, as in a run on one machine."""

    source: str
    drawn: bool
    """By a program: of no patient."""
    size: int
    counts: Mapping[str, Mapping[str, Mapping[str, int]]]
    """Holder -> part -> class -> images."""
    like: Mapping[str, str]
    """Holder -> which data set its images are from."""


def holdings(store: Store, config: Config) -> Holdings:
    """Return what the clients that take part, and the server, hold of a store; of a folder only its name is told."""
    out = {str(number) for number in config.federation.exclude}
    counts = {holder: parts for holder, parts in class_counts(store).items() if holder not in out}
    like = {str(number): client.source for number, client in enumerate(store.partition.clients)}
    drawn, source = store.made.get("source") == "dermsim", config.data.source
    named = "a store given by hand" if source == "dermsim" else f"the store `{Path(source).name}`"
    return Holdings("dermsim" if drawn else named, drawn, store.size, counts, like)


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
    choice = _main_choice(config, results)
    test, validation = (_sums(curves, choice, part) for part in ("test", "validation"))
    sections = [
        _head(config, results),
        _models(config, results),
        _data(config, results, held),
        _method(config),
        _by_client(results, choice),
        _by_class(results, test),
        _calibration(test),
        _abstaining(results, choice, test, validation),
        _use(),
        _limits(results, choice, test, held),
        _privacy(config, results),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def _main_choice(config: Config, results: Mapping[str, Any]) -> str:
    """Return the models that the tables speak of: of the last round; of clients alone, those that were written."""
    return "per_client_best" if config.federation.alone and "per_client_best" in results["test"] else "last"


def _sums(curves: Mapping[str, Any], choice: str, part: str) -> BinnedSums | None:
    """Return the counts of all clients together; the server's where no client has any."""
    found = {
        holder: BinnedSums.from_dict(curves["sums"][key][part])
        for holder, key in curves["chosen"].get(choice, {}).items()
        if part in curves["sums"].get(key, {})
    }
    clients = [sums for holder, sums in found.items() if holder != "server"] or list(found.values())
    return reduce(add, clients) if clients else None


# The sections


def _head(config: Config, results: Mapping[str, Any]) -> list[str]:
    known = methods().get(config.method)
    what = f"`{config.method}`" + ("" if known is None else f" ({known.line.rstrip('.')})")
    return [
        f"# Model card: {config.method}",
        "",
        "**Not a medical device. For research; not for diagnosis, triage or treatment of any patient.**",
        "",
        f"Trained with {what} by fedperl {__version__}, seed {config.seed}, {config.federation.rounds} rounds; "
        f"configuration `{results['config']}`.",
    ]


def _models(config: Config, results: Mapping[str, Any]) -> list[str]:
    rows = []
    for choice, numbers in results["test"].items():
        file, chosen = FILES.get(choice, (f"`{choice}.safetensors`", ""))
        if config.federation.alone:
            if choice != _main_choice(config, results):
                continue
            file = f"`client_K_{'best' if choice == 'per_client_best' else 'last'}.safetensors`"
            chosen = "trained by client K alone; " + chosen
        rounds = sorted({int(one["round"]) for one in numbers.values()})
        rows.append([file, chosen, _span(rounds), *_means(results["over_clients"].get(choice, {}))])
    header = ["file", "chosen as", "round", "weighted F1", "balanced accuracy", "ECE"]
    note = "Means over the clients' test images; models are chosen on validation images, never on these."
    if config.federation.batch_norm == "local":
        note += " Each client is tested with batch-norm layers of its own; the files of all clients have averaged ones."
    return ["## The models", "", *_table(header, rows, text=2), "", note]


def _data(config: Config, results: Mapping[str, Any], held: Holdings | None) -> list[str]:
    lines = ["## Data", ""]
    if held is None:
        lines.append(f"Images of {config.data.size} px; how many each client trained on is not known here.")
    else:
        total = sum(sum(counts.values()) for parts in held.counts.values() for counts in parts.values())
        lines.append(f"{total} images of {held.size} px from {held.source}.")
    if held is not None and held.drawn:
        lines.append("These images are drawn by a program: no patient's image was used.")
    lines += [_scenario(config), f"Who held which image: `partition.csv`, SHA-256 `{results['partition']}`."]
    if held is not None:
        lines += ["", *_table(["holder", "images like", *PARTS], _held_by(held), text=2), ""]
        lines += [*_table(["class", *PARTS], _held_of(held, results["classes"]))]
        lines += ["", "Training never saw the classes of unlabelled images, even where they are counted here."]
        if config.objective.labels == "all":
            lines[-1] = "This method was given the classes of all training images, unlabelled ones too: an upper bound."
    return lines


def _held_by(held: Holdings) -> list[list[str]]:
    rows = []
    for holder, parts in held.counts.items():
        counts = {part: sum(of_class.values()) for part, of_class in parts.items()}
        if sum(counts.values()):
            name = holder if holder == "server" else f"client {holder}"
            rows.append([name, held.like.get(holder, UNKNOWN), *(_count(counts.get(part, 0)) for part in PARTS)])
    return rows


def _held_of(held: Holdings, classes: Sequence[str]) -> list[list[str]]:
    rows = []
    for name in (*classes, "no label"):
        every = [sum(parts.get(part, {}).get(name, 0) for parts in held.counts.values()) for part in PARTS]
        if name in classes or any(every):
            rows.append([name, *map(_count, every)])
    return rows


def _scenario(config: Config) -> str:
    scenario = config.scenario
    if scenario.labels == "server":
        return "Scenario: labels at the server only; the clients trained without any."
    if scenario.labels == "few_clients":
        few = ", ".join(map(str, scenario.labelled_clients))
        return f"Scenario: clients {few} had labels for all their training images, the others for none."
    return "Scenario: every client had labels for a part of its training images."


def _method(config: Config) -> list[str]:
    federation, objective, peers, optimizer = config.federation, config.objective, config.peers, config.optimizer
    rows = [
        ["preset", config.preset],
        ["network", f"{config.model.net}, {config.data.size} px, input {config.model.input_scale}"],
        ["starting weights", _weights(config.model.weights)],
        ["objective", _objective(config)],
        ["local steps", f"{federation.steps} a round, batches of {federation.batch}"],
        ["optimiser", f"{optimizer.kind}, learning rate {optimizer.lr:g}, {optimizer.schedule}"],
    ]
    if federation.alone:
        rows.append(["federation", "none: each client trained by itself"])
    else:
        rows.append(["federation", f"{federation.rounds} rounds, cohorts of {federation.cohort}"])
        rows.append(["average", f"{federation.aggregator}, weights {federation.weights}"])
        if config.peer_learning:
            kind = "anonymized" if peers.anonymize else "raw"
            told = f"T = {peers.T}, {kind}, by {peers.selector}, policy {peers.policy}, after round {peers.warmup}"
            rows.append(["peers", told])
        else:
            rows.append(["peers", "none"])
    if federation.exclude:
        rows.append(["left out", f"clients {', '.join(map(str, federation.exclude))}"])
    if objective.mu:
        rows.append(["proximal term", f"mu = {objective.mu:g}"])
    return [
        "## Method",
        "",
        *_table(["setting", "value"], rows, text=2),
        "",
        "Every setting is in the run's `config.toml`.",
    ]


def _objective(config: Config) -> str:
    objective = config.objective
    kind = Path(objective.kind).name if ":" in objective.kind else objective.kind  # of an own file: no folders
    if objective.kind == "supervised":
        return f"{kind}, on {'all' if objective.labels == 'all' else 'the labelled'} training images"
    return f"{kind}, tau = {objective.tau:g}, beta = {objective.beta:g}, gamma = {objective.gamma:g}"


def _weights(setting: str) -> str:
    if setting in ("none", "imagenet"):
        return {"none": "drawn at random", "imagenet": "ImageNet"}[setting]
    return f"the file `{Path(setting).name}`"


def _by_client(results: Mapping[str, Any], choice: str) -> list[str]:
    rows = []
    for holder, numbers in results["test"][choice].items():
        name = holder if holder == "server" else f"client {holder}"
        rows.append([name, *(_value(numbers.get(key)) for key in BY_CLIENT)])
    over = results["over_clients"][choice]
    if len(rows) > 1:
        rows.append(["mean over clients", *(_value(over.get(key, {}).get("mean")) for key in BY_CLIENT)])
    chosen = FILES.get(choice, ("", choice))[1]
    lines = ["## Test images, by client", "", f"Model: {chosen}.", "", *_table(["client", *BY_CLIENT.values()], rows)]
    note = "ECE over adaptive bins; AURC: the mean share of wrong ones among the surest images (0 is best)."
    return [*lines, "", note]


def _by_class(results: Mapping[str, Any], test: BinnedSums | None) -> list[str]:
    if test is None:
        return ["## Test images, by class", "", "Not known for this run."]
    rows = []
    for label, (name, one) in enumerate(zip(results["classes"], test.classification().per_class, strict=True)):
        numbers = (one.precision, one.recall, one.f1, test.auroc(label), test.average_precision(label))
        rows.append([name, str(one.support), str(one.predicted), *map(_value, numbers)])
    header = ["class", "images", "predicted", "precision", "recall", "F1", "AUROC", "AUPRC"]
    note = f"All clients together; areas from counts in bins. `{UNKNOWN}`: undefined, the class has no test image."
    return ["## Test images, by class", "", *_table(header, rows), "", note]


def _calibration(test: BinnedSums | None) -> list[str]:
    lines = ["## Calibration", ""]
    if test is None:
        return [*lines, "Not known for this run."]
    bins = test.reliability(RELIABILITY_BINS)
    rows = [
        [str(b["images"]), *(_value(b[name]) for name in ("confidence", "accuracy")), f"{b['gap']:+.3f}"] for b in bins
    ]
    lines.append(f"ECE of all test images together, equal-width bins: {test.ece():.3f}. A gap above 0: too sure.")
    return [*lines, "", *_table(["images", "mean confidence", "accuracy", "gap"], rows)]


def _abstaining(
    results: Mapping[str, Any], choice: str, test: BinnedSums | None, validation: BinnedSums | None
) -> list[str]:
    lines = ["## Abstaining", ""]
    if test is None:
        return [*lines, "Not known for this run."]
    over, rows = results["over_clients"][choice], []
    for risk in RISKS:
        cells = [f"{100 * risk:.0f} %", _value(over.get(f"coverage_at_{round(100 * risk)}", {}).get("mean"))]
        threshold = None if validation is None else validation.threshold_at_risk(risk)
        if threshold is None:
            cells += ["none", UNKNOWN, UNKNOWN]
        else:
            coverage, wrong = _kept(test, threshold)
            cells += [f"{threshold:g}", _value(coverage), _value(wrong)]
        rows.append(cells)
    header = [
        "wanted risk",
        "coverage at it, mean over clients (chosen on the test images)",
        "threshold from validation images",
        "its coverage on test images",
        "its risk there",
    ]
    return [
        *lines,
        "Coverage: the share of images that are kept; risk: the share of wrong ones among them. The threshold is from "
        "the validation images of all clients together, as `fedperl predict --risk` takes it; what it gave on test "
        "images shows how far it carries.",
        "",
        *_table(header, rows),
    ]


def _kept(sums: BinnedSums, threshold: float) -> tuple[float, float | None]:
    """Return the share of images from a threshold on, and that of wrong ones among them."""
    wrong, right = sums.confidence[round(threshold * len(sums.confidence)) :].sum(axis=0).tolist()
    return (wrong + right) / max(1, sums.images), wrong / (wrong + right) if wrong + right else None


def _use() -> list[str]:
    return [
        "## Intended use",
        "",
        "Research on federated and semi-supervised learning: comparing methods, studying calibration and abstaining, "
        "on images of the kind named above. Out of scope: any decision about a patient, images of another kind or "
        "another camera without a test of one's own, lesions of other classes (the model always names one it knows).",
    ]


def _limits(results: Mapping[str, Any], choice: str, test: BinnedSums | None, held: Holdings | None) -> list[str]:
    lines = ["## Limits", "", "- Not a medical device: no one has approved it, and no clinical study was made with it."]
    lines.append(
        "- The numbers are means over test images of the clients that took part: they promise nothing for one patient, "
        "nor for another hospital. A confidence is not a probability of being right unless the table above shows it."
    )
    if held is not None and held.drawn:
        lines.append("- Trained on drawn lesions: of no use on photographs of skin.")
    clients = {k: one for k, one in results["test"][choice].items() if k != "server" and "weighted_f1" in one}
    if len(clients) > 1:
        worst, best = (pick(clients, key=lambda k: clients[k]["weighted_f1"]) for pick in (min, max))
        low, high = clients[worst]["weighted_f1"], clients[best]["weighted_f1"]
        lines.append(
            f"- Worst served client: client {worst}, weighted F1 {low:.3f} on {_images(clients[worst])}; the best, "
            f"client {best}, has {high:.3f}: a gap of {high - low:.3f}."
        )
    if test is not None:
        lines += _worst_class(results["classes"], test)
    totals = results["totals"]
    if totals["rejected"] or totals["void"]:
        lines.append(f"- {totals['rejected']} updates were rejected or missing, {totals['void']} rounds void.")
    return [*lines, "- One run with one seed: another seed gives other numbers."]


def _worst_class(classes: Sequence[str], test: BinnedSums) -> list[str]:
    found = list(zip(classes, test.classification().per_class, strict=True))
    present = [(one.recall, name, one.support) for name, one in found if one.recall is not None]
    recall, name, support = min(present, key=lambda one: one[0])
    lines = [f"- Worst served class: {name}, {100 * recall:.1f} % of its {support} test images are recognised."]
    absent = [name for name, one in found if not one.support]
    if absent:
        lines.append(f"- Never tested, for want of an image: {', '.join(absent)}.")
    return lines


def _privacy(config: Config, results: Mapping[str, Any]) -> list[str]:
    lines, totals = ["## Privacy", ""], results["totals"]
    if config.federation.alone:
        lines.append("Nothing was exchanged: each client trained by itself.")
    else:
        lines.append(
            f"No image left a client. Exchanged: models towards clients ({totals['bytes_down'] / 1e6:.1f} MB to train, "
            f"peers included, {totals['bytes_evaluation'] / 1e6:.1f} MB to validate), trained models back to the "
            f"server ({totals['bytes_up'] / 1e6:.1f} MB), mean losses and scores of each client, and at the end its "
            "counts of test and validation images by class, prediction and confidence: what this card is made of."
        )
        if config.peer_learning and config.peers.anonymize:
            lines.append(
                "Clients were also sent anonymized peers, each the mean of at least two other clients' models."
            )
        if config.objective.kind in ("fedirm", "fixmatch_irm"):
            lines.append(
                "Clients also sent relation matrices of their labelled images, and were sent the mean of others'."
            )
        lines.append("The server saw every client's model and was trusted with it.")
    if note := research_note(config):
        lines.append(f'**`privacy = "research"`: not for real patients; {note}.**')
    lines.append("No differential privacy was used: a model may give away something of the images it was trained on.")
    return lines


# Cells


def _means(over: Mapping[str, Any]) -> list[str]:
    return [_value(over.get(name, {}).get("mean")) for name in ("weighted_f1", "balanced_accuracy", "ece")]


def _images(numbers: Mapping[str, Any]) -> str:
    return f"{int(numbers['images'])} test images"


def _span(rounds: Sequence[int]) -> str:
    return str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"


def _count(number: int) -> str:
    return str(number) if number else UNKNOWN


def _value(number: float | None) -> str:
    if number is None:
        return UNKNOWN
    return str(number) if isinstance(number, int) else f"{number:.3f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], *, text: int = 1) -> list[str]:
    """Return a Markdown table, the first `text` columns to the left, numbers to the right."""
    lines = [list(header), ["---"] * text + ["---:"] * (len(header) - text), *map(list, rows)]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
