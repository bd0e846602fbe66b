"""One process that runs cases, a line of JSON each, for one side: `python -m golden.worker DRIVER SCRATCH`."""

import importlib.util
import json
import sys
import traceback
from pathlib import Path

import torch


def main(driver_file: Path, scratch: Path) -> None:
    """Answer each line with what went wrong, nothing where the case was run or refused."""
    torch.set_num_threads(1)
    spec = importlib.util.spec_from_file_location("side_driver", driver_file)
    assert spec is not None
    assert spec.loader is not None
    driver = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(driver)
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        case = json.loads(line)
        folder = Path(case["folder"])
        folder.mkdir(parents=True)
        try:
            driver.run(case, folder, scratch)
            said = ""
        except driver.REFUSAL as error:
            said = ""
            (folder / "refused.txt").write_text(f"{type(error).__name__}: {error}")
        except BaseException:
            said = traceback.format_exc()
        print(json.dumps(said), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
