"""How Flower's programs are started: from this installation, silent towards the internet, in a folder of ours."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fedperl.errors import ConfigError, RunError

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
}
"""Nothing is reported, looked up or installed at run time."""
MEMORY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
"""Models that are no longer needed go back to the system at once: a third of the server's peak."""
APP = Path(__file__).parent / "app"
CONNECTION = "fedperl"


def need_flower() -> None:
    """Refuse to go on without Flower.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec("flwr") is None:
        raise ConfigError("this needs Flower, which is not installed; wanted: pip install '.[flower]'")


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's programs; `home` holds their files."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    programs = str(Path(sys.executable).parent)
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    return os.environ | QUIET | MEMORY | {"FLWR_HOME": str(home.resolve()), "PATH": path} | more


def connect_to(home: Path, address: str, certificate: Path | None) -> None:
    """Write which server Flower's command line talks to; without a certificate in plain text, on this machine."""
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    trust = (
        "insecure = true"
        if certificate is None
        else f"root-certificates = {json.dumps(str(certificate.resolve()), ensure_ascii=False)}"
    )
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{trust}\n'
    (home / "config.toml").write_text(text)


def flwr(arguments: Sequence[str], env: dict[str, str], seconds: float = 120.0) -> dict[str, Any]:
    """Return what a command of Flower's answers as JSON.

    Raises:
        RunError: it failed; with its own words.
    """
    command = ["flwr", *arguments, "--format", "json"]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
        start = done.stdout.find("{")
        found: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout[start:])[0] if start >= 0 else {}
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise RunError(f"flwr {' '.join(arguments[:2])}: {error}") from None
    if done.returncode or not found.get("success"):
        said = found.get("error-message") or (done.stderr or done.stdout).strip()[-500:]
        raise RunError(f"flwr {' '.join(arguments[:2])}: {said}")
    return found
