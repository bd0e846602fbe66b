"""docs/reliability.md names a test for every fault and input, and each of them exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "reliability.md"
ROWS = (
    "Client crash in a round", "Straggler", "NaN or infinite", "Wrong shape, type, key, extra tensor",
    "Tensor of one element", "Truncated or corrupt image", "Decompression bomb", "Label out of range",
    "Missing class at a client", "No labelled images", "No unlabelled images", "No images at all", "Batch of one",
    "Kill -9 during a checkpoint", "Disk full", "Resume", "Release and crash", "Server restart in a run",
    "Duplicate client", "Update scaled by ten to a million", "Sign flip, label flip, impostor",
    'Configuration typo, "False", T below k_min, rho outside [0, 1]', "Path traversal, absolute path, link",
    "Malicious pickle, npy object, safetensors header", "Damaged run folder", "Oversized message",
    "Unauthenticated node", "Replayed, reordered or foreign message", "Clock skew",
    "Something of a client where it has no business",
)  # fmt: skip


def matrix() -> dict[str, list[str]]:
    """Return the tests of each row, as the document has them."""
    part = DOCUMENT.read_text().partition("## The matrix")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {cells[0]: re.findall(r"`(tests/[^`]+)`", cells[-1]) for cells in rows if len(cells) == 3}


@cache
def functions_of(path: str) -> frozenset[str]:
    found = ast.parse((ROOT / path).read_text()).body
    return frozenset(node.name for node in found if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


@pytest.mark.parametrize("row", ROWS)
def test_every_row_has_tests_that_exist(row: str) -> None:
    named = matrix()[row]
    assert named
    for name in named:
        path, _, test = name.partition("::")
        assert test in functions_of(path), name


def test_no_row_is_in_the_document_alone() -> None:
    assert matrix().keys() - {"fault or input", "---"} == set(ROWS)
