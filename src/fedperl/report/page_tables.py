"""The page's tables, as HTML: every text from outside is escaped here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from fedperl import __version__
from fedperl.config import flat
from fedperl.evaluate import (
    BootstrapInterval,
    Spread,
    intervals_of_confidence,
    intervals_of_confusion,
    spread,
    spread_without,
)
from fedperl.federation.run_folder import RunFolder
from fedperl.report.page_data import SERVER, PageRun
from fedperl.report.page_summary import ADAPTIVE_ECE, at_end, client_name, differences, f1_by_client

OUTLIER = "8"
"""Of the paper's ten, the client whose images are unlike all others: averages are given without it too."""
NONE = "–"

NUMBERS = {
    "weighted_f1": "weighted F1",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "macro_auroc": "AUROC",
    "macro_auprc": "AUPRC",
    "hard_auroc": "AUROC, from labels",
    "ece": ADAPTIVE_ECE,
    "ece_scaled": f"{ADAPTIVE_ECE}, with temperature",
    "temperature": "temperature",
    "mce": "MCE",
    "brier": "Brier",
    "aurc": "AURC",
    "coverage_at_5": "coverage at 5 % risk",
    "coverage_at_10": "at 10 %",
    "coverage_at_20": "at 20 %",
}
"""Key in the results -> how a person reads it."""


TOGETHER = {
    "weighted_f1": "weighted F1",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "ece": "ECE, 15 equal bins",
    "aurc": "AURC",
    "coverage_at_risk_10": "coverage at 10 % risk",
}
"""The same of those that are given with an interval, over all images together."""


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], *, wide: str = "") -> str:
    """Return a table whose first column names its rows; cells are text. `wide` marks rows that sum others up."""
    lines = [f'<div class="scroll" role="region" aria-label="{escape(caption)}" tabindex="0"><table>']
    lines.append(f"<caption>{escape(caption)}</caption>")
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines.append(f"<thead><tr>{cells}</tr></thead><tbody>")
    for name, *values in rows:
        mark = ' class="total"' if wide and name.startswith(wide) else ""
        cells = "".join(f"<td>{escape(value)}</td>" for value in values)
        lines.append(f'<tr{mark}><th scope="row">{escape(name)}</th>{cells}</tr>')
    return "\n".join([*lines, "</tbody></table></div>"])


def runs_table(runs: Sequence[PageRun], choice: str) -> str:
    """Return one row a run: its numbers on test images, mean (median) ± std over clients."""
    rows = []
    for run in runs:
        over = run.results["over_clients"][choice] if run.results else {}
        cells = [str(Spread(**over[key])) if key in over else NONE for key in NUMBERS]
        rows.append([run.name, *cells])
    return table("Test images: mean (median) ± standard deviation over clients", ["run", *NUMBERS.values()], rows)


def glance_table(runs: Sequence[PageRun], choice: str) -> str:
    """Return one short row a run: for the summary."""
    rows = []
    for run in runs:
        values, over = f1_by_client(run, choice), run.results["over_clients"][choice] if run.results else {}
        gaps = differences(runs[0], run, choice).values()
        mean = f"{sum(gaps) / len(gaps):+.3f}".replace("-", "−") if run is not runs[0] and gaps else NONE
        rows.append(
            [
                run.name,
                f"{over['weighted_f1']['mean']:.3f}",
                mean,
                f"{min(values.values()):.3f}",
                f"{over['ece']['mean']:.3f}" if "ece" in over else NONE,
                f"{100 * over['coverage_at_10']['mean']:.0f} %" if "coverage_at_10" in over else NONE,
            ]
        )
    head = ["run", "weighted F1", "against the first", "worst client", ADAPTIVE_ECE, "answered at 10 % risk"]
    return table("At a glance: means over clients, on test images", head, rows)


def together_table(runs: Sequence[PageRun], choice: str) -> str:
    """Return one row a run: its numbers on the test images of all clients together, each with its interval."""
    rows = []
    for run in runs:
        sums = run.pooled(choice)
        known = {}
        if sums is not None and sums.images:
            known = intervals_of_confusion(sums.confusion) | intervals_of_confidence(sums)
        rows.append([run.name, *(ranged(known.get(key)) for key in TOGETHER)])
    caption = "Test images of all clients together: value [95 % interval]"
    return table(caption, ["run", *TOGETHER.values()], rows)


def clients_table(runs: Sequence[PageRun], choice: str) -> str:
    """Return one row a client, then one a community, then the means with and without the outlier."""
    values = {run.name: f1_by_client(run, choice) for run in runs}
    known = {run.name: run.intervals(choice) for run in runs}
    clients = _clients(values)
    rows = []
    for client in clients:
        found = [known[run.name].get(client, {}).get("weighted_f1") for run in runs]
        given = [_number(values[run.name].get(client)) for run in runs]
        cells = [plain if one is None else ranged(one) for one, plain in zip(found, given, strict=True)]
        rows.append([client_name(runs[0], client), *cells])
    sources = runs[0].sources
    for source in dict.fromkeys(sources):
        members = [str(number) for number, other in enumerate(sources) if other == source and str(number) in clients]
        if len(members) > 1:
            cells = [_mean(values[run.name], members) for run in runs]
            rows.append([f"Mean, clients {_listed(members)} ({source})", *cells])
    rows.append(["Mean, all clients", *(str(spread(list(values[run.name].values()))) for run in runs)])
    if any(has_outlier(run, choice) for run in runs):
        cells = [str(spread_without(values[run.name], [OUTLIER])) if has_outlier(run, choice) else NONE for run in runs]
        rows.append([f"Mean, without client {OUTLIER}", *cells])
    caption = "Weighted F1 by client, test images: value [95 % interval]"
    return table(caption, ["client", *(run.name for run in runs)], rows, wide="Mean")


def has_outlier(run: PageRun, choice: str) -> bool:
    """Whether the clients are the paper's, and its outlier and others were tested."""
    tested = run.tested(choice)
    return run.of_the_papers_clients and OUTLIER in tested and len(tested) > 1


def scaling_table(runs: Sequence[PageRun], choice: str) -> str:
    """Return one row a client: its ECE before and after its temperature, and the temperature."""
    tested = {run.name: run.tested(choice) for run in runs}
    rows = [
        [client_name(runs[0], client), *(_scaled(tested[run.name].get(client, {})) for run in runs)]
        for client in _clients(tested)
    ]
    caption = f"{ADAPTIVE_ECE}, by client, test images: before → with its temperature T"
    return table(caption, ["client", *(run.name for run in runs)], rows)


def classes_tables(runs: Sequence[PageRun], choice: str) -> str:
    """Return F1, AUROC and AUPRC, each as a table with one row a class: all clients together."""
    pooled = {run.name: sums for run in runs if (sums := run.pooled(choice)) is not None}
    per_class = {name: sums.classification().per_class for name, sums in pooled.items()}
    measures: dict[str, Callable[[str, int], float | None]] = {
        "F1": lambda name, label: per_class[name][label].f1,
        "AUROC": lambda name, label: pooled[name].auroc(label),
        "AUPRC": lambda name, label: pooled[name].average_precision(label),
    }
    classes = runs[0].results["classes"] if runs[0].results else []
    shown = []
    for what, measure in measures.items():
        rows = []
        for label, name in enumerate(classes):
            supports = sorted({one[label].support for one in per_class.values()})
            cells = [_number(measure(run.name, label)) if run.name in pooled else NONE for run in runs]
            rows.append([name, " / ".join(map(str, supports)) or NONE, *cells])
        head = ["class", "test images", *(run.name for run in runs)]
        shown.append(table(f"{what} by class, test images of all clients together", head, rows))
    return f'<div class="tables">{"".join(shown)}</div>'


def cost_table(runs: Sequence[PageRun]) -> str:
    """Return what each run sent and how long it took."""
    head = ["run", "rounds", "MB to clients", "MB from clients", "MB to validate", "additional cost, down"]
    parts = list(dict.fromkeys(name for run in runs if run.results for name in run.results["seconds"]))
    rows = []
    for run in runs:
        if run.results is None:
            continue
        totals, seconds, extra = run.results["totals"], run.results["seconds"], run.extra_down()
        cells = [str(run.results["rounds"])]
        cells += [f"{totals[key] / 1e6:.1f}" for key in ("bytes_down", "bytes_up", "bytes_evaluation")]
        cells.append(NONE if extra is None else f"{extra:.0f} %")
        cells += [f"{seconds.get(part, 0.0):.1f}" for part in parts]
        rows.append([run.name, *cells, f"{sum(seconds.values()):.1f}"])
    return table("What it took", [*head, *(f"{part}, s" for part in parts), "all, s"], rows)


def settings_table(runs: Sequence[PageRun]) -> str:
    """Return the settings in which the runs differ; all of them for one run."""
    every = {run.name: settings(run) for run in runs}
    keys = list(dict.fromkeys(key for found in every.values() for key in found))
    if len(runs) > 1:
        keys = [key for key in keys if len({found.get(key) for found in every.values()}) > 1]
    rows = [[key, *(every[run.name].get(key, NONE) for run in runs)] for key in keys]
    caption = "Settings in which the runs differ" if len(runs) > 1 else "Settings"
    return table(caption, ["setting", *(run.name for run in runs)], rows)


def settings(run: PageRun) -> dict[str, str]:
    """Return every setting of a run as text, under its dotted key."""
    every = flat(run.config.model_dump(exclude_none=True)) | RunFolder(run.folder).read_gone()
    return {key: _shown(value) for key, value in every.items()}


def origin_table(runs: Sequence[PageRun]) -> str:
    """Return what a run can be repeated from: folder, versions, seeds, hashes."""
    rows: list[list[str]] = []

    def row(name: str, values: Mapping[str, Any]) -> None:
        rows.append([name, *(str(values.get(run.name) or NONE) for run in runs)])

    row("folder", {run.name: run.folder.resolve().name for run in runs})
    row("method", {run.name: run.config.method for run in runs})
    row("trained by", {run.name: run.config.written_by for run in runs})
    row("page made by", dict.fromkeys((run.name for run in runs), f"fedperl {__version__}"))
    row("seed of the training", {run.name: str(run.config.seed) for run in runs})
    row("seed of the data", {run.name: str(run.config.data.seed) for run in runs})
    row("images", {run.name: run.config.data.source for run in runs})
    results = {run.name: run.results or {} for run in runs}
    row("hash of the settings", {name: found.get("config") for name, found in results.items()})
    row("hash of the partition", {name: found.get("partition") for name, found in results.items()})
    row("hash of the objective's file", {name: found.get("objective_file") for name, found in results.items()})
    if all(cell == NONE for cell in rows[-1][1:]):
        rows.pop()
    for name in [name for name in _files(runs) if not name.startswith("models/")]:
        row(f"SHA-256 of {name}", {run.name: run.hashes.get(name) for run in runs})
    return table("Where it comes from", ["what", *(run.name for run in runs)], rows)


def hashes_table(runs: Sequence[PageRun]) -> str:
    """Return the hashes of the models that were reported."""
    names = [name for name in _files(runs) if name.startswith("models/")]
    rows = [[name.removeprefix("models/"), *(run.hashes.get(name, NONE) for run in runs)] for name in names]
    return table("SHA-256 of the models", ["file", *(run.name for run in runs)], rows)


def _files(runs: Sequence[PageRun]) -> list[str]:
    return list(dict.fromkeys(name for run in runs for name in run.hashes))


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value)


def ranged(found: BootstrapInterval | None) -> str:
    """Return a number with its interval."""
    if found is None or found.value is None:
        return NONE
    return f"{found.value:.3f}" + ("" if found.low is None else f" [{found.low:.3f}, {found.high:.3f}]")


def _scaled(numbers: Mapping[str, float]) -> str:
    temperature = numbers.get("temperature")
    known = NONE if temperature is None else f"{temperature:.2f}{' (end of range)' if at_end(temperature) else ''}"
    return f"{_number(numbers.get('ece'))} → {_number(numbers.get('ece_scaled'))}, T {known}"


def _clients(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the clients that any run has, by number, the server last."""
    return sorted({client for one in found.values() for client in one}, key=lambda c: (c == SERVER, len(c), c))


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _mean(values: Mapping[str, float], members: Sequence[str]) -> str:
    known = [values[member] for member in members if member in values]
    return str(spread(known)) if known else NONE


def _listed(members: Sequence[str]) -> str:
    numbers = [int(member) for member in members]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} to {numbers[-1]}"
    return ", ".join(members)
