"""The layers of the design: a folder imports only from those above it."""

import ast
import re
from pathlib import Path

import fedperl

LAYERS = ["data", "learn", "peers", "evaluate", "federation", "attack", "engines", "report"]
ROOT = Path(fedperl.__file__).parent


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("fedperl.")}
    return found


def test_each_layer_imports_only_from_those_above() -> None:
    for place, layer in enumerate(LAYERS):
        files = list((ROOT / layer).rglob("*.py"))
        assert files
        for path in files:
            below = imported(path) & {*LAYERS[place + 1 :], "cli", "demo", "training", "parallel"}
            assert not below, f"{path} imports {below}"


def test_a_setting_is_changed_by_what_checks_it() -> None:
    unchecked = [path.name for path in ROOT.rglob("*.py") if re.search(r"\bmodel_(copy|construct)\(", path.read_text())]
    assert unchecked == ["earlier.py"]  # what an earlier edition wrote is read, and nothing is trained by it


def test_evaluate_knows_nothing_else() -> None:
    for path in (ROOT / "evaluate").glob("*.py"):
        assert imported(path) <= {"evaluate"}
