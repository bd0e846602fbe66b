"""What FedPerl+ takes beside FedPerl: both trained in turns on one machine, with nothing else beside them.

    python bench/plus_time.py small_report --device cpu      # the small network; or: report, on a GPU

A line of docs/results/plus/time.jsonl has the seconds of rounds BEFORE + 1 to ROUNDS, validations among them as in
the suite. Peers help before that already: what is done once, such as kernels, recordings and tests, does not count. The
line is there after the first turn, and grows with each.
"""

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import side_by_side
import skin
from plus import LINES, SUITES, jobs

from fedperl.config import merged, resolve
from fedperl.files import write_durably
from fedperl.settings import Config
from fedperl.training import train

FILE = "time.jsonl"
PAIR = ("FedPerl T=2", "FedPerl+")
ROUNDS, TIMES, BEFORE = 35, 3, 15


def configs(suite: str, device: str) -> dict[str, Config]:
    """Return the two rows of a report, seed 1, of a few rounds."""
    rows = {f"{row}, seed 1": row for row in PAIR}
    every = jobs(suite, Path(), device, [1], [])
    if suite == "report":
        every |= skin.jobs("core", Path(), device, [1], [PAIR[0]])
    short = {"federation": {"rounds": ROUNDS}, "checkpoint_every": ROUNDS, "peers": {"warmup": 4}}
    return {
        row: resolve(merged(every[run].config.model_dump(mode="json", exclude_defaults=True), short), (), source=row)
        for run, row in rows.items()
    }


def seconds_of(config: Config) -> dict[str, float]:
    """Train, and return the seconds of what a round is made of, over the rounds that count."""
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder) / "run")
        rounds = [line["seconds"] for line in side_by_side.metrics(Path(folder) / "run") if line["round"] > BEFORE]
    return {part: round(sum(one[part] for one in rounds), 3) for part in rounds[0]}


def ratios(line: side_by_side.Line) -> list[float]:
    """Return the time of FedPerl+ over FedPerl's in each turn."""
    theirs, ours = ([sum(turn.values()) for turn in line["seconds"][row]] for row in PAIR)
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=[name for name in SUITES if name.endswith("report")])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    pair, turns = configs(args.suite, args.device), list[dict[str, dict[str, float]]]()
    others = [one for run, one in side_by_side.read(LINES / FILE).items() if run != args.suite]
    for _ in range(TIMES):
        turns.append({row: seconds_of(config) for row, config in pair.items()})
        line = {
            "run": args.suite,
            "date": datetime.now(UTC).date().isoformat(),
            "device": side_by_side.device_name(args.device),
            "rounds": [BEFORE + 1, ROUNDS],
            "seconds": {row: [turn[row] for turn in turns] for row in PAIR},
        }
        text = "".join(json.dumps(one) + "\n" for one in [*others, line])
        write_durably(LINES / FILE, text.encode(), mode=0o644)
        sys.stdout.write(f"{args.suite}: {ratios(line)[-1]:.2f} times\n")


if __name__ == "__main__":
    main()
