"""The model card's numbers: by client, by class, calibration, abstaining, and who is served worst."""

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from fedperl.evaluate import BinnedSums
from fedperl.evaluate.selective import RISKS
from fedperl.report.card_cells import UNKNOWN, holder_name, plain, table, value
from fedperl.report.page_summary import kept_at
from fedperl.settings import Config

RELIABILITY_BINS = 10
BY_CLIENT = {
    "images": "images",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "weighted_f1": "weighted F1",
    "macro_auroc": "macro AUROC",
    "ece": "ECE",
    "aurc": "AURC",
}
NOT_KNOWN = "Not known for this run."


def main_choice(config: Config, results: Mapping[str, Any]) -> str:
    """Return the models that the tables speak of: of the last round; of clients alone, those that were written."""
    return "per_client_best" if config.federation.alone and "per_client_best" in results["test"] else "last"


def counts_of(curves: Mapping[str, Any], choice: str, part: str) -> dict[str, BinnedSums]:
    """Return the counts of each client; the server's where no client has any."""
    keys, sums = curves.get("chosen", {}).get(choice, {}), curves.get("sums", {})
    found = {holder: BinnedSums.from_dict(sums[key][part]) for holder, key in keys.items() if part in sums.get(key, {})}
    return {holder: sums for holder, sums in found.items() if holder != "server"} or found


def together(counts: Mapping[str, BinnedSums]) -> BinnedSums | None:
    """Return the counts of all of them; None where there are none."""
    return reduce(add, counts.values()) if counts else None


def by_client(results: Mapping[str, Any], choice: str, chosen: str) -> list[str]:
    """Return the test numbers of each client, and their means."""
    tested, over = results["test"][choice], results["over_clients"][choice]
    rows = [[holder_name(one), *(value(numbers.get(key)) for key in BY_CLIENT)] for one, numbers in tested.items()]
    if len(tested.keys() - {"server"}) > 1:
        rows.append(["mean over clients", *(value(over.get(key, {}).get("mean")) for key in BY_CLIENT)])
    lines = ["## Test images, by client", "", f"Model: {chosen}.", "", *table(["client", *BY_CLIENT.values()], rows)]
    note = "ECE over adaptive bins; AURC: the mean share of wrong ones among the surest images (0 is best)."
    return [*lines, "", note]


def by_class(classes: Sequence[str], test: BinnedSums | None) -> list[str]:
    """Return the numbers of each class, all clients together."""
    lines = ["## Test images, by class", ""]
    if test is None:
        return [*lines, NOT_KNOWN]
    rows = []
    for label, (name, one) in enumerate(zip(classes, test.classification().per_class, strict=True)):
        numbers = (one.precision, one.recall, one.f1, test.auroc(label), test.average_precision(label))
        rows.append([plain(name), str(one.support), str(one.predicted), *map(value, numbers)])
    header = ["class", "images", "predicted", "precision", "recall", "F1", "AUROC", "AUPRC"]
    note = f"All clients together; areas from counts in bins. `{UNKNOWN}`: undefined, the class has no test image."
    return [*lines, *table(header, rows), "", note]


def calibration(test: BinnedSums | None) -> list[str]:
    """Return how often the model was right where it was about that sure."""
    lines = ["## Calibration", ""]
    if test is None:
        return [*lines, NOT_KNOWN]
    rows = [
        [str(b["images"]), *(value(b[name]) for name in ("confidence", "accuracy")), f"{b['gap']:+.3f}"]
        for b in test.reliability(RELIABILITY_BINS)
    ]
    lines.append(f"ECE of all test images together, equal-width bins: {test.ece():.3f}. A gap above 0: too sure.")
    return [*lines, "", *table(["images", "mean confidence", "accuracy", "gap"], rows)]


def abstaining(
    config: Config,
    over: Mapping[str, Any],
    test: BinnedSums | None,
    validation: Mapping[str, BinnedSums],
) -> list[str]:
    """Return what thresholds from validation images gave on test images.

    Args:
        over: the run's numbers over clients.
    """
    lines = ["## Abstaining", ""]
    if test is None:
        return [*lines, NOT_KNOWN]
    chosen_on, rows = together(validation), []
    for risk in RISKS:
        cells = [f"{100 * risk:.0f} %", value(over.get(f"coverage_at_{round(100 * risk)}", {}).get("mean"))]
        threshold = None if chosen_on is None else chosen_on.threshold_at_risk(risk)
        if threshold is None:
            cells += ["none", UNKNOWN, UNKNOWN]
        else:
            cells += [f"{threshold:g}", *map(value, kept_at(test, threshold))]
        rows.append(cells)
    header = [
        "wanted risk",
        "coverage at it, mean over clients (chosen on the test images)",
        "threshold from validation images",
        "its coverage on test images",
        "its risk there",
    ]
    what = (
        "Coverage: the share of images that are kept; risk: the share of wrong ones among them. The threshold is from"
    )
    shows = "What it gave on test images shows how far it carries."
    return [*lines, f"{what} {_chosen_on(config, validation)} {shows}", "", *table(header, rows)]


def _chosen_on(config: Config, validation: Mapping[str, BinnedSums]) -> str:
    """Return on whose validation images a threshold was chosen, and whether `fedperl predict` would choose the same."""
    if config.federation.alone:
        return (
            "the validation images of all clients together, each with its own model; `fedperl predict --risk` takes "
            "those of the client whose model it is given, and no others."
        )
    if personal := config.federation.personal:
        return (
            f"the validation images of all clients together, each with {personal}; `fedperl predict --risk` knows "
            "thresholds of `client_K_best` models alone."
        )
    server_alone = set(validation) == {"server"}
    whose = "the server's validation images" if server_alone else "the validation images of all clients together"
    return f"{whose}, as `fedperl predict --risk` takes it."


def served_worst(results: Mapping[str, Any], choice: str, test: BinnedSums | None) -> list[str]:
    """Return the client and the classes with the lowest numbers, and the classes that were never tested."""
    lines = []
    clients = {k: one for k, one in results["test"][choice].items() if k != "server" and "weighted_f1" in one}
    if len(clients) > 1:
        worst, best = (pick(clients, key=lambda k: clients[k]["weighted_f1"]) for pick in (min, max))
        low, high = clients[worst]["weighted_f1"], clients[best]["weighted_f1"]
        lines.append(
            f"- Worst served client: client {worst}, weighted F1 {low:.3f} on {int(clients[worst]['images'])} test "
            f"images; the best, client {best}, has {high:.3f}: a gap of {high - low:.3f}."
        )
    return lines if test is None else [*lines, *_classes_served_worst(results["classes"], test)]


def _classes_served_worst(classes: Sequence[str], test: BinnedSums) -> list[str]:
    found = list(zip(map(plain, classes), test.classification().per_class, strict=True))
    recalls = {name: one.recall for name, one in found if one.recall is not None}
    lines = []
    if recalls:
        least = min(recalls.values())
        worst = {name: one.support for name, one in found if recalls.get(name) == least}
        lines.append(
            f"- Worst served class: {', '.join(worst)}, {100 * least:.1f} % of {'its' if len(worst) == 1 else 'their'} "
            f"{sum(worst.values())} test images are recognised."
        )
    absent = [name for name, one in found if not one.support]
    return [*lines, f"- Never tested, for want of an image: {', '.join(absent)}."] if absent else lines
