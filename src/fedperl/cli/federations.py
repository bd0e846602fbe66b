"""Federations across real sites: `fedperl server` for the consortium's engineer, `fedperl site` for a hospital's."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from fedperl.cli.common import AsJson, Quiet, Settings, console, rounds_bar, shown, stopped

Folder = Annotated[Path, typer.Option("--folder", help="The server's folder: keys, roster, runs.")]
Own = Annotated[Path, typer.Argument(help="The site's folder.")]
SERVER = Path("server")

# The server


def start(
    folder: Folder = SERVER,
    host: Annotated[str, typer.Option(help="The server's name or address, as hospitals will have it.")] = "localhost",
    port: Annotated[int, typer.Option(min=1, max=65535, help="On this machine alone, for the reverse proxy.")] = 8000,
    public: Annotated[int, typer.Option(min=1, max=65535, help="Of the reverse proxy, for hospitals.")] = 8443,
) -> None:
    """Serve the federation until it is stopped; the first start makes its keys."""
    from fedperl.engines.flower.environment import need_flower
    from fedperl.engines.flower.server_folder import Address, ServerFolder
    from fedperl.files import lock

    need_flower()
    server = ServerFolder(folder)
    server.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = lock(server.path / "lock")
    os.set_inheritable(held.fileno(), True)  # the SuperLink holds it on
    new = server.create(Address(host, port, public))
    if new:
        print(f"New keys in {server.keys}. Give {server.keys / 'ca.crt'} to every site; keep the .key files here.")
    print(f"Serving on 127.0.0.1:{port}. For hospitals: nginx -c {server.path / 'nginx.conf'} (port {public}).")
    command = server.superlink()
    sys.stdout.flush()
    server.note_superlink()
    os.umask(0o077)  # models pass through the SuperLink's database
    os.execvpe(command[0], command, server.environment())


def register(
    key: Annotated[Path, typer.Argument(help="A site's site.pub.")],
    folder: Folder = SERVER,
    client: Annotated[int | None, typer.Option(min=0, help="Its number; by default the next free one.")] = None,
) -> None:
    """Let the site with this public key take part."""
    from fedperl.engines.flower.server_folder import ServerFolder

    print(f"client {ServerFolder(folder).register(key, client)}")


def remove(client: Annotated[int, typer.Argument(help="The client's number.")], folder: Folder = SERVER) -> None:
    """Take a site out: its key is refused, and its banked model, profile and state are deleted."""
    from fedperl.engines.flower.server_folder import ServerFolder

    for line in ServerFolder(folder).remove(client):
        print(line)


def run(
    config: Annotated[Path, typer.Argument(help="A TOML file.")],
    folder: Folder = SERVER,
    settings: Settings = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on exactly where the run stopped.")] = False,
    deadline: Annotated[float, typer.Option(min=1, help="Seconds that a site has for an answer.")] = 3600,
    patience: Annotated[float, typer.Option(min=0, help="Seconds to wait for enough sites to be online.")] = 600,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train across the registered sites, on the server that `server start` runs."""
    from fedperl.config import hospital_note, load_config
    from fedperl.engines.flower.numbering import draw_numbers, renumbered
    from fedperl.engines.flower.rules import check_deployable
    from fedperl.engines.flower.running import follow, start_run
    from fedperl.engines.flower.server_folder import ServerFolder
    from fedperl.errors import RunError
    from fedperl.federation.run_folder import RunFolder
    from fedperl.opening import check_resumable, settled
    from fedperl.report.tables import runs_table
    from fedperl.settings import loss_note, research_note

    server = ServerFolder(folder)
    server.address()
    wanted = settled(load_config(config, settings or []))
    check_deployable(wanted)
    there = server.roster().keys() - server.taken_out() - set(wanted.federation.exclude)
    if what := research_note(wanted):
        print(f"not for real patients; {what}", file=sys.stderr)
    out = server.runs / wanted.name
    if wanted.privacy == "hospital":
        wanted = renumbered(wanted, draw_numbers(out, server.roster()))
    if (out / "config.toml").exists():
        wanted = check_resumable(RunFolder(out), wanted, resume)
    elif resume:
        raise RunError(f"{out}: no run to go on with")
    for what in filter(None, [hospital_note(wanted), loss_note(wanted.counted(len(there)))]):
        print(what, file=sys.stderr)
    try:
        attempt = start_run(wanted, out, server.environment(), resume=resume, deadline=deadline, patience=patience)
        with rounds_bar(hidden=quiet or as_json) as progress:
            task = progress.add_task(wanted.name, total=wanted.federation.rounds, accuracy="")
            watcher = lambda p: progress.update(task, completed=p.round, accuracy=shown(p.accuracy))  # noqa: E731
            follow(out, attempt, wanted.federation.rounds, [watcher])
    except KeyboardInterrupt:
        stopped("the run goes on; `fedperl server status` shows it, `fedperl server stop` ends it")
    results = RunFolder(out).read_results()
    assert results is not None
    if as_json:
        print(json.dumps(results))
    elif not quiet:
        console.print(runs_table({wanted.name: results}))
        print(f"Run folder: {out}")


def stop(name: Annotated[str, typer.Argument(help="The run's name.")] = "run", folder: Folder = SERVER) -> None:
    """End a run; `server run --resume` goes on with it."""
    from fedperl.engines.flower.server_folder import ServerFolder, Serving
    from fedperl.errors import RunError

    runs = ServerFolder(folder).runs
    path = runs / name
    if not path.is_dir():
        there = ", ".join(sorted(one.name for one in runs.iterdir())) if runs.is_dir() else ""
        raise RunError(f"{path}: no such run; there are {there or 'none'}")
    serving = Serving(path / "serving.json")
    said = serving.read()
    if said.get("state") != "running" or not serving.alive():
        raise RunError(f"{path}: is not running")
    os.kill(int(said["pid"]), signal.SIGTERM)
    print(f"{name}: stopped")


def status(folder: Folder = SERVER, as_json: AsJson = False) -> None:
    """Show the rounds, who is online, who lags behind, and the last accuracy."""
    from fedperl.engines.flower.server_folder import ServerFolder
    from fedperl.engines.flower.standing import standing

    found = standing(ServerFolder(folder))
    if as_json:
        print(json.dumps(found))
        return
    print(f"server: {found['server']}")
    for client, about in found["clients"].items():
        print(f"client {client}: {about}")
    for name, about in found["runs"].items():
        print(f"{name}: {about['line']}")
        for line in about["lagging"]:
            print(f"  {line}")


# A site


def init(
    folder: Own = Path("site"),
    server: Annotated[str, typer.Option(help="Where the server is: name:port.")] = "localhost:8443",
    data: Annotated[Path, typer.Option(help="Your images: a folder made by `fedperl data prepare`.")] = Path("store"),
) -> None:
    """Make this site's keys and a commented site.toml."""
    from fedperl.engines.flower.environment import need_flower
    from fedperl.engines.flower.site_folder import SiteFolder

    need_flower()
    site = SiteFolder(folder)
    site.create(server, data)
    print(f"Settings in {site.file}. Send {site.path / 'site.pub'} to the server's operator, who sends you ca.crt;")
    print(f"put that into {site.path}. The key in {site.key} never leaves this machine.")


def check(folder: Own = Path("site"), as_json: AsJson = False) -> None:
    """Look at the site's images and say what would leave the building; nothing is sent."""
    from fedperl.engines.flower.site_folder import SiteFolder, findings
    from fedperl.opening import check_device

    site = SiteFolder(folder)
    check_device(site.settings().device)
    found = findings(site.open_store())
    if as_json:
        print(json.dumps(found))
        return
    print(f"{found['images']} images of {found['size']} px, {found['groups']} lesions or patients")
    for name, counts in found["by_class"].items():
        of = ", ".join(f"{label} {count}" for label, count in counts.items() if count)
        print(f"{name:11} {found['counts'][name]:6}   {of}")
    if found["known_of_patients"]:
        print(f"known of patients: {', '.join(found['known_of_patients'])}")
    for warning in found["warnings"]:
        print(f"note: {warning}")
    print("What leaves the building:")
    for line in found["leaves"]:
        print(f"  {line}")


def join(folder: Own = Path("site")) -> None:
    """Take part in the federation until it is stopped."""
    from fedperl.engines.flower.environment import need_flower
    from fedperl.engines.flower.site_folder import SiteFolder
    from fedperl.engines.flower.supervising import keep_running

    need_flower()
    site = SiteFolder(folder)
    site.open_store()
    command, env = site.supernode()
    site.come_back()
    os.umask(0o077)
    print(f"Joining {site.settings().server}. Ctrl-C ends it; the federation goes on without.", flush=True)
    raise SystemExit(keep_running(command, site.start_worker(env)))


def leave(
    folder: Own = Path("site"),
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the server has been told.")] = 600,
) -> None:
    """Withdraw: the server deletes this site's model, profile and state, and asks it no more."""
    from fedperl.engines.flower.environment import need_flower
    from fedperl.engines.flower.site_folder import SiteFolder

    need_flower()
    site = SiteFolder(folder)
    command, env = site.supernode()
    site.leave()
    print("This site answers nothing from now on. Waiting until the server has been told ...")
    node = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + wait
        while not site.told() and time.monotonic() < until:
            time.sleep(0.5)
            if node.poll() is not None:  # refused while the server still waits for the process that runs, or ran, here
                time.sleep(5)
                node = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(5)  # the answer is on its way
    finally:
        node.terminate()
        node.wait()
    if not site.told():
        print(
            "fedperl: the server has not asked: no training runs, or it cannot be reached. Have its operator take this "
            "site out: fedperl server remove"
        )
        raise SystemExit(1)
    print("The server has been told.")
