"""What a server reads when a run goes on: seconds and bytes until it knows every client that has sent a model.

    python bench/resume.py [--clients 1000] [--parameters 100000]

Each client has a model in the bank, in 20 tensors, with its profile. The files are dropped from the system's memory
first; bytes are those that the process has asked the system for (Linux counts them). Prints a table.
"""

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedperl.federation.known import EXTRA, Known
from fedperl.federation.run_folder import RunFolder
from fedperl.learn.state import State
from fedperl.peers import profile

TENSORS = 20


def fill(folder: RunFolder, clients: int, parameters: int) -> None:
    """Bank a model of each client, and commit."""
    generator = torch.Generator().manual_seed(1)
    for client in range(clients):
        shape = (TENSORS, parameters // TENSORS)
        drawn = torch.randn(shape, generator=generator)
        model: State = {f"layer{place}.weight": tensor for place, tensor in enumerate(drawn)}
        folder.bank.put(client, 1, model | Known(profile(model), score=0.5).tensors())
    folder.commit({"round": 1})


def drop(folder: Path) -> int:
    """Have the system forget what it holds of the files, and return their bytes."""
    found = 0
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found += os.fstat(file.fileno()).st_size
    return found


def asked_for() -> int:
    """Return how many bytes this process has read so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("rchar:")))


def main() -> None:
    """Fill a bank, forget it, and know the clients again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--parameters", type=int, default=100_000)
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = RunFolder(Path(temporary) / "run")
        folder.open()
        fill(folder, given.clients, given.parameters)
        folder.close()
        size = drop(folder.bank.folder)
        again = RunFolder(folder.path)
        again.open()
        again.restore()
        read, began = asked_for(), time.perf_counter()
        known = [Known.of(again.bank.get_part(client, EXTRA)) for client in again.bank.records]
        seconds, read = time.perf_counter() - began, asked_for() - read
        again.close()
    assert np.isfinite([one.profile for one in known]).all()
    print("| clients | bank, MB | read, MB | seconds |\n|---|---|---|---|")
    print(f"| {len(known):,} | {size / 1e6:.1f} | {read / 1e6:.1f} | {seconds:.2f} |")


if __name__ == "__main__":
    main()
