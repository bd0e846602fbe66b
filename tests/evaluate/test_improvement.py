import pytest

from fedperl.evaluate import ac_paper, additional_cost, relative_improvement

# Table 1 of the paper: F1, RI (%), AC (%), and what AC follows from: peers and whether they are anonymized.
ROWS = [
    ("Lower FedAvg", 0.698, 7.88, None, None),
    ("FixMatch", 0.664, 2.63, None, None),
    ("SSFL", 0.734, 13.44, 0, (0, False)),
    ("FedMatch", 0.739, 14.22, 200, (2, False)),
    ("FedPerl T=1 w/o PA", 0.746, 15.30, 100, (1, False)),
    ("FedPerl T=2 w/o PA", 0.747, 15.46, 200, (2, False)),
    ("FedPerl T=3 w/o PA", 0.746, 15.30, 300, (3, False)),
    ("FedPerl T=4 w/o PA", 0.741, 14.53, 400, (4, False)),
    ("FedPerl T=5 w/o PA", 0.744, 15.00, 500, (5, False)),
    ("FedMatch+", 0.745, 15.15, 100, (2, True)),
    ("FedPerl T=2", 0.746, 15.30, 100, (2, True)),
    ("FedPerl T=3", 0.746, 15.30, 100, (3, True)),
    ("FedPerl T=4", 0.746, 15.30, 100, (4, True)),
    ("FedPerl T=5", 0.749, 15.77, 100, (5, True)),
    ("Upper Local", 0.726, 12.21, None, None),
    ("Upper FedAvg", 0.773, 19.47, None, None),
]
LOWER_LOCAL = 0.647
SLIPS = {"SSFL": 13.45, "FedPerl T=5 w/o PA": 14.99}
"""Rows whose last digit is not what the printed F1 gives."""


@pytest.mark.parametrize(("name", "f1", "printed", "cost", "peers"), ROWS)
def test_the_papers_columns(
    name: str, f1: float, printed: float, cost: float | None, peers: tuple[int, bool] | None
) -> None:
    assert round(100 * relative_improvement(f1, LOWER_LOCAL), 2) == SLIPS.get(name, printed)
    if cost is not None and peers is not None:
        T, anonymized = peers
        assert ac_paper(T, anonymized=anonymized) == cost


@pytest.mark.parametrize(("T", "anonymized"), [(0, False), (0, True), (1, False), (1, True), (4, False), (4, True)])
def test_what_is_counted_is_the_papers_ac_where_every_round_has_its_peers(T: int, anonymized: bool) -> None:
    model, client_rounds = 16_000_000, 500
    models = 1 + (min(T, 1) if anonymized else T)
    bytes_down = sum(models * model for _ in range(client_rounds))
    assert additional_cost(bytes_down, model, client_rounds) == pytest.approx(ac_paper(T, anonymized=anonymized))


def test_rounds_without_peers_and_sparse_models_cost_less_and_both_directions_half() -> None:
    assert additional_cost(90 * 20 + 10 * 10, 10, 100) == pytest.approx(90)
    assert additional_cost(40, 10, 5) == pytest.approx(-20)
    assert additional_cost(20 * 100 + 10 * 100, 2 * 10, 100) == pytest.approx(ac_paper(2, anonymized=True) / 2)


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="improvement over 0; wanted a baseline above 0"):
        relative_improvement(0.5, 0)
    for wrong in ((10, 0, 1), (10, 1, 0), (-1, 1, 1)):
        with pytest.raises(ValueError, match="wanted at least 0, 1 and 1"):
            additional_cost(*wrong)
    with pytest.raises(ValueError, match="T = -1"):
        ac_paper(-1, anonymized=True)
