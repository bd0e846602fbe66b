"""The walk-through of docs/deployment.md, as it is printed there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from fedperl.engines.flower.site_folder import free_port

pytestmark = [pytest.mark.flower, pytest.mark.slow]
DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "deployment.md"


def test_the_walk_through_works_as_printed(tmp_path: Path) -> None:
    marked = re.search(r"<!-- walk-through -->(.*)<!-- end of walk-through -->", DOCUMENT.read_text(), re.DOTALL)
    assert marked is not None
    blocks = re.findall(r"```bash\n(.*?)```", marked.group(1), re.DOTALL)
    assert len(blocks) > 4
    port = str(free_port())
    script = "set -e\n" + "\n".join(blocks)
    assert "8000" in script
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", script.replace("8000", port)],
        cwd=tmp_path,
        env=os.environ | {"PATH": programs},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(tmp_path.rglob("results.json"))
