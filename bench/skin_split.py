"""Write down what each client of the benchmark on real lesions holds: docs/results/skin/split.json.

    python bench/skin_split.py

It wants the store that bench/skin.toml names; images of HAM10000 are told by their pixels, whoever lists them.
"""

import json
from typing import Any

import numpy as np
from skin import LINES, SCALE

from fedperl.config import merged, resolve
from fedperl.data.store import Store
from fedperl.opening import open_store
from fedperl.paper.runs import find_scale

PARTS = ("labelled", "unlabelled", "validation", "test")


def split_of(store: Store) -> dict[str, Any]:
    """Return how many images of which part and set each client holds, and how many of those listed are at hand."""
    manifest = store.manifest
    ham = np.isin(manifest.pixels, manifest.pixels[manifest.source == "HAM10000"])
    names = {"HAM10000": ham, "the rest of ISIC 2019": (manifest.source == "ISIC19") & ~ham}
    names["PAD-UFES-20"] = manifest.source == "PAD-UFES"
    clients = []
    for part in store.partition.clients:
        rows = {name: np.asarray(getattr(part, name)) for name in PARTS}
        every = np.concatenate(list(rows.values())).astype(np.int64)
        clients.append(
            {
                "parts": {name: len(some) for name, some in rows.items()},
                "sources": {name: int(of[every].sum()) for name, of in names.items()},
            }
        )
    listed = {one["source"]: [one["read"], one["listed"]] for one in store.made["sets"]}
    return {"partition": store.partition.hash(manifest), "clients": clients, "at_hand": listed}


def main() -> None:
    """Write the file; the scenario in which the server has the labels deals otherwise, and is named by its hash."""
    settings = find_scale(str(SCALE)).settings
    found = split_of(open_store(resolve(settings, (), source=str(SCALE))))
    server = open_store(resolve(merged(settings, {"scenario": {"labels": "server"}}), (), source=str(SCALE)))
    found["others"] = [server.partition.hash(server.manifest)]
    LINES.mkdir(parents=True, exist_ok=True)
    (LINES / "split.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
