"""The paper's RI and AC columns: relative improvement and additional cost (paper, 3.2, table 1)."""


def relative_improvement(a: float, b: float) -> float:
    """Return (a - b) / b, by how much a is better than b, as a share of b.

    Raises:
        ValueError: b is not above 0.
    """
    if not b > 0:
        raise ValueError(f"improvement over {b}; wanted a baseline above 0")
    return (a - b) / b


def additional_cost(bytes_down: float, model_bytes: int, client_rounds: int) -> float:
    """Return what was sent down beyond one global model for each client and round, in percent of that.

    It is the paper's AC from what was really sent: rounds without a peer, relation matrices and sparse models count
    as they were. For both directions, give the bytes of both and twice the model's.

    Args:
        bytes_down: what the ledger counts towards the clients.
        client_rounds: how often a client took part in a round.
    Raises:
        ValueError: a model without bytes, no client in any round, or fewer than 0 bytes.
    """
    if model_bytes < 1 or client_rounds < 1 or bytes_down < 0:
        raise ValueError(
            f"{bytes_down} bytes down, {model_bytes} a model, {client_rounds} client rounds; wanted at least 0, 1 and 1"
        )
    return 100.0 * (bytes_down / (model_bytes * client_rounds) - 1.0)


def ac_paper(T: int, *, anonymized: bool) -> float:
    """Return the paper's AC in percent: the models that every client gets in every round besides the global one.

    As many as there are peers, T, or one if they are anonymized. It leaves out the rounds before there are peers, what
    the clients send, and what FedMatch saves.

    Raises:
        ValueError: fewer than 0 peers.
    """
    if T < 0:
        raise ValueError(f"T = {T}; wanted 0 or more peers")
    return 100.0 * (min(T, 1) if anonymized else T)
