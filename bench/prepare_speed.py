"""How long archives take to become a store, and how much memory: the whole command, in its own process.

    python bench/prepare_speed.py FOLDER SIZE

FOLDER holds the archives isic2019, ham10000 and pad_ufes20, as published.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fedperl.data.store import Store
from fedperl.data.twins import find_twins, fingerprints

folder, size = Path(sys.argv[1]), sys.argv[2]
archives = [str(folder / name) for name in ("isic2019", "ham10000", "pad_ufes20")]

with tempfile.TemporaryDirectory() as scratch:
    out = Path(scratch) / "store"
    command = [sys.executable, "-m", "fedperl", "data", "prepare", *archives, "--out", str(out)]
    start = time.perf_counter()
    done = subprocess.run([*command, "--size", size, "--allow-missing", "--json"], check=True, capture_output=True)
    seconds = time.perf_counter() - start
    found = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    packed = sum(file.stat().st_size for file in out.iterdir()) / 2**20
    what = f"{found['rows']} rows read, {found['images']} images of {size} px stored"
    print(f"- {what}: {seconds:.0f} s, {peak:.0f} MiB peak")
    print(f"- the store: {packed:.1f} MiB")
    start = time.perf_counter()
    store = Store.open(out)
    print(f"- opened, all images decoded: {time.perf_counter() - start:.1f} s")
    start = time.perf_counter()
    prints = fingerprints(store.images)
    middle = time.perf_counter()
    pairs = find_twins(prints)
    seconds = time.perf_counter() - middle
    published = dict(zip(store.manifest.pixels.tolist(), store.manifest.about["published_group"].tolist(), strict=True))
    apart = sum(published[pair.first] != published[pair.second] for pair in pairs)
    print(f"- twins: fingerprints {middle - start:.1f} s, search {seconds:.1f} s, {len(pairs)} pairs")
    print(f"- {apart} of the pairs have two lesion or patient ids")
