"""`make golden BASE=<commit>`: run all cases on the working tree and on a commit, and print what differs."""

import argparse
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from golden.cases import Case, read_cases
from golden.changes import declared_since, unused
from golden.compare import Difference, differences
from golden.reader import read_parts
from golden.sides import HERE, Side, alone, checked_out, git, machine, run_cases

CHANGES = "golden/changes.md"
SHOWN = 3
"""Places at which a part differs that are printed."""

Found = dict[tuple[str, str], list[Difference]]
"""By case and part."""


def main() -> int:
    """Return 0 where both sides are equal but for what golden/changes.md declares, else 1."""
    asked = _arguments()
    try:
        commit = git("rev-parse", "--verify", f"{asked.base}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError as error:
        print(f"BASE = {asked.base!r}: {error.stderr.decode().strip()}; wanted a commit", file=sys.stderr)
        return 2
    every = read_cases(HERE / "golden" / "cases")
    cases = {name: case for name, case in every.items() if asked.only is None or asked.only.search(name)}
    if not cases:
        print(f"--only {asked.only.pattern!r}: no case has such a name", file=sys.stderr)
        return 2
    with alone():
        return _compare(asked, commit, cases)


def _compare(asked: argparse.Namespace, commit: str, cases: dict[str, Case]) -> int:
    """Run the cases on both sides, print what differs, and return the exit code."""
    began = time.monotonic()
    tree = checked_out(commit)
    base_cases = read_cases(tree / "golden" / "cases") if (tree / "golden" / "cases").is_dir() else cases
    before = {name: base_cases.get(name, case) for name, case in cases.items()}
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        base = Side(tree, tree.parent / machine())
        ours = Side(HERE, Path(folder))
        for side, chosen in ((base, before), (ours, cases)):
            progress = _Progress("BASE" if side is base else "tree", chosen, side)
            run_cases(side, chosen.values(), asked.workers, progress)
        found: Found = {}
        for name, case in cases.items():
            found |= _compared(case, read_parts(base.folder(before[name])), read_parts(ours.folder(case)), asked.close)
    if asked.only is None:
        found |= {(name, "gone"): [("", "the case is not run any more")] for name in base_cases.keys() - cases.keys()}
    changes = declared_since(_changes_of(commit), (HERE / CHANGES).read_text(encoding="utf-8"))
    meant = {key for key in found if any(change.covers(*key) for change in changes)}
    for key in sorted(found):
        _print_difference(*key, found[key], meant=key in meant)
    missing = [] if asked.only else unused(changes, found)
    for change in missing:
        print(f"{CHANGES}: declares {change.cases!r}, {change.part}; there is no such difference")
    kinds = ", ".join(f"{count} {kind}" for kind, count in Counter(case.kind for case in cases.values()).items())
    print(
        f"{len(cases)} cases ({kinds}) against {commit[:12]}: {len(found) - len(meant)} parts differ, "
        f"{len(meant)} more as declared; {time.monotonic() - began:.0f} s"
    )
    return 1 if len(found) > len(meant) or missing else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make golden", description=__doc__)
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument(
        "--only", type=re.compile, metavar="PATTERN", help="only cases whose name this regular expression is found in"
    )
    parser.add_argument("--close", type=float, metavar="SIZE", help="numbers may differ by so much, for sums reordered")
    parser.add_argument("--workers", type=int, choices=range(1, 65), default=2, help="processes side by side")
    return parser.parse_args()


def _compared(case: Case, before: dict[str, object], after: dict[str, object], close: float | None) -> Found:
    """Return where a case's parts differ; a refusal is a part of its own, whatever its words."""
    found: Found = {}
    for side, parts in (("BASE", before), ("the tree", after)):
        if ("refused" in parts) != case.refused:
            what = f"refuses: {parts['refused']}" if "refused" in parts else "does not refuse it"
            found.setdefault((case.name, "refused"), []).append((side, what))
    if found or case.refused:
        return found
    if not before or not after:
        return {(case.name, "files"): [("", "nothing that can be compared was written")]}
    for part in case.parts or sorted(before.keys() | after.keys()):
        if part not in before or part not in after:
            found[case.name, part] = [("", "is new" if part in after else "is gone")]
        elif pickle.dumps(before[part]) == pickle.dumps(after[part]):
            continue  # as nearly all are: walking through a part takes a hundred times longer
        elif where := list(differences(before[part], after[part], close)):
            found[case.name, part] = where
    return found


def _changes_of(commit: str) -> str:
    try:
        return git("show", f"{commit}:{CHANGES}").decode()
    except subprocess.CalledProcessError:
        return ""


def _print_difference(case: str, part: str, where: list[Difference], *, meant: bool) -> None:
    print(f"{case} | {part}{' (declared)' if meant else ''}")
    for place, what in where[:SHOWN]:
        print(f"    {place}: {what}" if place else f"    {what}")
    if len(where) > SHOWN:
        print(f"    and {len(where) - SHOWN} more places")


class _Progress:
    """Prints how many cases of a side are done, on one line."""

    def __init__(self, name: str, cases: dict[str, Case], side: Side) -> None:
        self.name = name
        self.total = sum(not side.folder(case).exists() for case in cases.values())
        self.done = 0
        self.began = time.monotonic()

    def __call__(self) -> None:
        self.done += 1
        if sys.stderr.isatty() or self.done in (1, self.total) or self.done % 20 == 0:
            left = (time.monotonic() - self.began) / self.done * (self.total - self.done)
            print(f"{self.name}: {self.done} of {self.total}, {left:.0f} s left", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
