"""Damaged model files, read with our guards and by the library alone."""

from collections import Counter
from pathlib import Path

import safetensors.torch

from fedperl.benchmarking.reliability.mutations import Mutations
from fedperl.errors import FedPerlError
from fedperl.federation.state_files import StateFiles
from fedperl.learn.nets import build_net
from fedperl.learn.packing import packed
from fedperl.learn.state import state_of

GUARDED, PLAIN = "guarded", "plain"


def damaged_models(folder: Path, cases: int) -> dict[str, Counter[str]]:
    """Return what became of so many damaged files of a network: `refused`, `accepted` or `crashed`, either way.

    Guarded: by the bank of models, which knows each file's hash. Plain: safetensors and `load_state_dict`.
    """
    net = build_net("small_cnn", 3, seed=0)
    content = packed(state_of(net))
    bank = StateFiles(folder / "bank", "client")
    bank.put(0, 1, state_of(net))
    index, path = bank.to_json(), bank.folder / bank.records[0].file
    draw, found = Mutations("model files", folder / "sentinel"), {GUARDED: Counter[str](), PLAIN: Counter[str]()}
    while found[PLAIN].total() < cases:
        damaged = draw.chance.choice([draw.damaged, draw.safetensors])(content)
        if damaged == content:
            continue
        path.write_bytes(damaged)
        found[GUARDED][_guarded(bank.folder, index)] += 1
        try:
            net.load_state_dict(safetensors.torch.load(damaged))
            found[PLAIN]["accepted"] += 1
        except (safetensors.SafetensorError, RuntimeError, KeyError, ValueError):
            found[PLAIN]["refused"] += 1
        except Exception:
            found[PLAIN]["crashed"] += 1
    if (folder / "sentinel").exists():
        found[GUARDED]["ran code"] += 1
    return found


def _guarded(folder: Path, index: dict[str, object]) -> str:
    try:
        files = StateFiles(folder, "client")
        files.restore(index)
        files.get(0)
    except FedPerlError:
        return "refused"
    except Exception:
        return "crashed"
    return "accepted"
