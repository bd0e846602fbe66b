"""What a round across sites costs beyond the training itself: three sites of EfficientNet-B0 on loopback, over TLS.

    python bench/flower_round.py [--rounds 5] [--net efficientnet_b0] [--size 32]

Starts a real server and sites with the commands that users type, trains FedPerl with peers from the second round on,
and compares the server's stopwatch with what sites log of their training.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.flower.federation import Federation

SETTINGS = """\
name = "run"
threads = 1
[data]
size = {size}
scale = 0.05
[model]
net = "{net}"
[federation]
rounds = {rounds}
cohort = 3
quorum = 3
steps = 1
exclude = [3, 4, 5, 6, 7, 8, 9]
[peers]
warmup = 1
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--net", default="efficientnet_b0")
    parser.add_argument("--size", type=int, default=32)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        federation = Federation(Path(path))
        federation.config.write_text(SETTINGS.format(**vars(arguments)))
        try:
            federation.call("data", "deal", str(federation.config), "--out", "stores")
            federation.start_server()
            for number in range(3):
                federation.add_site(number, federation.root / "stores" / f"client_{number}")
                federation.join(number)
            federation.wait_for_sites(3)
            federation.begin()
            if federation.ended(1200):
                sys.exit(federation.log("run"))
            trained: dict[int, list[float]] = {}
            for number in range(3):
                for round, seconds in re.findall(
                    r"round (\d+): trained in ([\d.]+) s", federation.log(f"site_{number}")
                ):
                    trained.setdefault(int(round), []).append(float(seconds))
            lines = federation.metrics()
            size = (federation.out / "models" / "last.safetensors").stat().st_size
            database = sum(file.stat().st_size for file in federation.server.glob("superlink.db*"))
        finally:
            federation.close()
    print(
        f"{arguments.net}, {size / 1e6:.1f} MB a model; SuperLink's database {database / 1e6:.0f} MB; seconds a round:"
    )
    print("round   exchange   of it training   beyond   validation   server   checkpoint of the round before   peers")
    for line in lines:
        seconds, longest = line["seconds"], max(trained[line["round"]])
        peers = sum(bool(members) for members in line["committees"].values())
        print(
            f"{line['round']:5} {seconds['training']:10.1f} {longest:16.1f} {seconds['training'] - longest:8.1f} "
            f"{seconds['validation']:12.1f} {seconds['server']:8.2f} {seconds.get('checkpoint', 0.0):32.2f} {peers:7}"
        )
    print(json.dumps({"beyond": [line["seconds"]["training"] - max(trained[line["round"]]) for line in lines]}))


if __name__ == "__main__":
    main()
