"""How many models clients get at by algebra, from all that a toy federation has sent them."""

from pathlib import Path

from fedperl.attack import Attacker, coalitions, read_history
from fedperl.benchmarking.reliability.columns import ToyExchange
from fedperl.benchmarking.reliability.toy import Clients, initial
from fedperl.config import HOSPITAL, merged, resolve
from fedperl.federation.kept_uploads import FOLDER, KeptUploads, read_kept
from fedperl.federation.rounds import Rounds
from fedperl.federation.run_folder import RunFolder
from fedperl.federation.server import Server
from fedperl.federation.stopwatch import Stopwatch

MEMBERS, ROUNDS, TOGETHER = 10, 40, 2


def recovered(folder: Path, *, guards: bool) -> int:
    """Return how many models the pairs of clients recover, each pair's counted.

    Both federations have a hospital's cohorts and committees; they differ in the auditor alone.
    """
    config = resolve(
        merged(
            HOSPITAL,
            {
                "privacy": "research",
                "threads": 1,
                "audit": {"coalition": TOGETHER if guards else 0, "keep_uploads": 1000},
                "federation": {"rounds": ROUNDS, "cohort": 5, "quorum": 4, "steps": 1, "batch": 2},
                "peers": {"warmup": 1},
            },
        )
    )
    run = RunFolder(folder)
    run.open()
    try:
        kept = KeptUploads(run.state / FOLDER, config.audit.keep_uploads)
        server = Server(config, [20] * MEMBERS, 1, initial(), run.bank, run.ledger, kept=kept)
        rounds = Rounds(server, ToyExchange(Clients({})), run, Stopwatch())
        rounds.restore()
        rounds.run()
    finally:
        run.close()
    history = read_history(run.ledger.path, anonymized=True)
    attacker = Attacker(history, read_kept(run.state / FOLDER))
    findings = [attacker.attack(pair) for pair in coalitions(history.clients, TOGETHER, [])]
    return sum(found.uploads.recovered or 0 for found in findings)
