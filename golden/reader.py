"""A case's files -> its parts, each a value that can be compared: this knows every form that files have had."""

import csv
import io
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

Parts = dict[str, Any]

ASIDE = re.compile(r"^(seconds.*|config|config_hash|objective_file|written_by|version)$")
"""Names whose values depend on the clock, on the version, or on settings' names."""
BYTES = re.compile(r"^bytes")
OF_THIS_MACHINE = re.compile(
    r"second|minute|hash|SHA-256|safetensors|version|fedperl \d|\d+ (s|min|MB/s)\b", re.IGNORECASE
)
"""A row of a table that tells of this machine, the time or the version."""
SECONDS = re.compile(r", s$|second")
"""The head of a column of times."""


def read_parts(folder: Path) -> Parts:
    """Return what a case left in its folder: `refused` alone where it was refused."""
    refused = folder / "refused.txt"
    if refused.exists():
        return {"refused": refused.read_text().partition("\n")[0]}
    return {name: value for name, read in READ.items() if (value := read(folder)) not in ({}, [], "", None)}


def kept(file: Path) -> bool:
    """Return whether a file is one that parts are read from."""
    inner = "state" in file.parts and file.name != "ledger.jsonl"
    return not inner and file.suffix in (".safetensors", ".json", ".jsonl", ".csv", ".md", ".html", ".txt")


def models(folder: Path) -> Any:
    """Return every tensor of every model file that a run hands out."""
    files = [path.relative_to(folder) for path in sorted(folder.rglob("models/*.safetensors"))]
    return {str(path): dict(sorted(load_file(folder / path).items())) for path in files if kept(path)}


def bytes_sent(folder: Path) -> Any:
    """Return what each round cost, either way, and each release: the paper's column AC % hangs on them."""
    totals = _json(folder / "results.json").get("totals", {})
    return _only([*_rounds(folder), *_ledger(folder), totals], BYTES)


def ledger(folder: Path) -> Any:
    """Return the entries: who was sent what, who helped whom, what was rejected."""
    return _without(_ledger(folder), BYTES)


def metrics(folder: Path) -> Any:
    """Return every round's numbers."""
    return _without(_rounds(folder), BYTES)


def results(folder: Path) -> Any:
    """Return the final numbers of a run."""
    return _without({k: v for k, v in _json(folder / "results.json").items() if k != "dp"}, BYTES)


def privacy(folder: Path) -> Any:
    """Return epsilon and the steps that were taken for it."""
    return _without(_json(folder / "results.json").get("dp", {}), BYTES)


def curves(folder: Path) -> Any:
    """Return the counts behind curves, and each client's accuracy over the rounds."""
    found = _json(folder / "curves.json")
    if not found:
        return {}
    over_rounds: dict[str, list[Any]] = {}
    for line in _rounds(folder):
        for client, of_client in line["validation"].items():
            over_rounds.setdefault(client, []).append([line["round"], of_client.get("accuracy")])
    return found | {"accuracy_over_rounds": over_rounds}


def listing(folder: Path) -> Any:
    """Return a store's table of images and its classes."""
    classes = _json(folder / "store.json").get("classes")
    return _csv(folder / "manifest.csv") and {"classes": classes, "images": _csv(folder / "manifest.csv")}


def split(folder: Path) -> Any:
    """Return who holds which image, for what."""
    return _csv(folder / "partition.csv")


def numbers(folder: Path) -> Any:
    """Return the numbers of an evaluation, by what was evaluated."""
    evaluations = [_json(path) for path in (folder / "evaluations").glob("*.json")]
    return {" + ".join(one["sets"]): one for one in evaluations} or _json(folder / "numbers.json")


def tables(folder: Path) -> Any:
    """Return the tables of the page, the model card and the terminal, but for rows that tell of this machine."""
    if not (folder / "page.html").exists():
        return []
    page = _PageTables()
    page.feed((folder / "page.html").read_text(encoding="utf-8"))
    rows = [" | ".join(row) for table in page.tables for row in _columns_kept(table)]
    for path in [*sorted((folder / "models").glob("*.md")), folder / "printed.txt"]:
        rows += [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if "|" in line or "│" in line]
    return [row for row in rows if not OF_THIS_MACHINE.search(row)]


READ: dict[str, Callable[[Path], Any]] = {
    "models": models,
    "bytes": bytes_sent,
    "ledger": ledger,
    "metrics": metrics,
    "results": results,
    "privacy": privacy,
    "curves": curves,
    "listing": listing,
    "split": split,
    "numbers": numbers,
    "tables": tables,
}


def _columns_kept(table: list[list[str]]) -> list[list[str]]:
    """Return a table's rows without the columns that its head says are the clock's."""
    head = table[0] if table else []
    left_out = {place for place, name in enumerate(head) if SECONDS.search(name)}
    return [[cell for place, cell in enumerate(row) if place not in left_out] for row in table]


def _rounds(folder: Path) -> list[Any]:
    return [line for path in sorted(folder.rglob("metrics.jsonl")) for line in _lines(path)]


def _ledger(folder: Path) -> list[Any]:
    return [line["entry"] for path in sorted(folder.rglob("ledger.jsonl")) for line in _lines(path)]


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _csv(path: Path) -> list[list[str]]:
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    return list(csv.reader(io.StringIO("".join(line for line in text.splitlines(True) if not line.startswith("#")))))


def _without(value: Any, names: re.Pattern[str]) -> Any:
    """Return a value without what its keys say is aside, or is another part's."""
    if isinstance(value, dict):
        return {k: _without(v, names) for k, v in value.items() if not (ASIDE.match(k) or names.match(k))}
    return [_without(one, names) for one in value] if isinstance(value, list) else value


def _only(value: Any, names: re.Pattern[str]) -> Any:
    """Return what stands under such keys, with the place it was found at."""
    if isinstance(value, dict):
        inner = {k: v if names.match(k) else _only(v, names) for k, v in value.items() if not ASIDE.match(k)}
        return {k: v for k, v in inner.items() if v not in ({}, [], None)}
    if isinstance(value, list):
        return [found for one in value if (found := _only(one, names)) not in ({}, [], None)]
    return None


class _PageTables(HTMLParser):
    """Collects a page's tables: the texts of their cells, by row."""

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a table, a row or a cell."""
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th") and self.tables:
            self._inside = True
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        """End a cell."""
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        """Take a cell's text in."""
        if self._inside:
            self.tables[-1][-1][-1] += " ".join(data.split())
