"""A run on Flower's own simulation: clients as Ray actors, messages through its engine, same numbers."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from fedperl.engines.flower.environment import connect_to, environment, need_flower
from fedperl.engines.flower.rules import check_deployable
from fedperl.engines.flower.running import follow, start_run
from fedperl.engines.flower.site_folder import free_port
from fedperl.errors import RunError
from fedperl.federation.rounds import Watcher
from fedperl.federation.run_folder import RunFolder
from fedperl.opening import check_resumable, open_store, settled
from fedperl.results import Results
from fedperl.settings import Config

DAY = 86_400.0


def simulate(config: Config, out: Path, *, resume: bool = False, watchers: Iterable[Watcher] = ()) -> Results:
    """Train one run into a folder with a simulated client for each of the store's, and return its results.

    Raises:
        FedPerlError: Flower is missing, the method cannot run on it, or the run failed.
    """
    need_flower()
    config, folder = settled(config), RunFolder(out)
    check_deployable(config)
    if (folder.path / "config.toml").exists():
        check_resumable(folder, config, resume)
    finished = folder.read_results()
    if finished is not None:
        return finished
    clients = len(open_store(config).partition.clients)
    home = Path(tempfile.mkdtemp(prefix="fedperl_flower_"))
    try:
        env, port = environment(home), free_port()
        connect_to(home, f"127.0.0.1:{port}", None)
        with (home / "superlink.log").open("wb") as log:
            command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
            link = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
            try:
                wait_for(port, link)
                attempt = start_run(config, out, env, resume=resume, deadline=DAY, patience=0.0, simulated=clients)

                def alive() -> None:
                    if link.poll() is not None:
                        raise RunError(f"{out}: Flower's simulation has ended before the run: {_end_of(home)}")

                follow(out, attempt, config.federation.rounds, list(watchers), alive)
            finally:
                link.terminate()
                try:
                    link.wait(20)
                except subprocess.TimeoutExpired:
                    link.kill()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    results = folder.read_results()
    assert results is not None
    return results


def wait_for(port: int, link: "subprocess.Popen[bytes]", seconds: float = 60.0) -> None:
    """Wait until the SuperLink listens.

    Raises:
        RunError: it ended, or took too long.
    """
    import socket

    until = time.monotonic() + seconds
    while time.monotonic() < until and link.poll() is None:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise RunError("Flower's SuperLink did not start")


def _end_of(home: Path) -> str:
    return (home / "superlink.log").read_text(errors="replace")[-500:]
