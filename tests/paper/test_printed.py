"""The printed numbers against the paper's source, where it is at hand, and against each other."""

import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedperl.evaluate import ac_paper, relative_improvement
from fedperl.paper.printed import Value, printed

SOURCE = Path(__file__).parents[3] / "shared" / "paper" / "fedperl_melba_2022_011.tex"
LABELS = {
    "table1": "tabelFedMatchDetails",
    "table2": "table1",
    "table3": "tableCommu",
    "table4": "table2",
    "table5": "table4",
    "table6": "tableROC",
    "table7": "tablePRC",
    "table8": "tableUL",
    "table9": "tableISIC20",
    "table10": "tablePol",
}
COLUMNS = {
    "F1-score": "f1",
    "RI(%)": "ri",
    "AC(%)": "ac",
    "C_ISIC": "isic",
    "C_HAM": "ham",
    "Avg_/C8": "without_8",
    "Diff.%": "diff",
    "CIFAR10IID": "cifar10_iid",
    "CIFAR10NonIID": "cifar10_noniid",
    "FMNISTNonIID": "fmnist_noniid",
} | {name: name.lower() for name in ("Precision", "Recall", "Avg")}
BASELINES = {
    ("Lower", "Local"): "Local lower",
    ("Lower", "FedAvg"): "Lower",
    ("SSL", "FixMatch"): "Local FixMatch",
    ("SSFL", "FedAvg"): "SSFL",
    ("Upper", "Local"): "Local upper",
    ("Upper", "FedAvg"): "Upper",
}
POC = {
    ("*", "FedMatch"): "FedMatch as printed there",
    ("w/oPA", "FedMatch(Ourrun)"): "FedMatch",
    ("w/PA", "FedMatch(Ourrun)"): "FedMatch PA",
    ("w/oPA", "FedPerl"): "FedPerl raw",
    ("w/PA", "FedPerl"): "FedPerl",
}
PASSAGES = {
    "figure3": "\\label{exp:BC}",
    "figure4": "Fig.~\\ref{figAccLog}, we",
    "figure5": "in Fig.\\ref{figAURC}.",
    "figure6": "in Fig.\\ref{figVS}.",
    "figure9": "\\label{secRD}",
    "random_peers": "\\label{rcc}",
    "training_hours": "textbf{Implementation Details}",
}
"""What stands before the text with a figure's numbers."""
Rows = dict[str, dict[str, Value]]


# Against the source


@pytest.fixture(scope="module")
def source() -> str:
    if not SOURCE.is_file():
        pytest.skip(f"the paper's source is not at {SOURCE}")
    return SOURCE.read_text(encoding="utf-8")


def tabular(source: str, label: str) -> str:
    body = source.partition(f"\\label{{{label}}}")[2].partition("\\begin{tabular}")[2].partition("\\end{tabular}")[0]
    return body.partition("\\hline")[2]


def passage(source: str, artefact: str) -> str:
    return re.split(r"\\(?:paragraph|subsection|begin)\b", source.partition(PASSAGES[artefact])[2])[0]


def plain(cell: str) -> str:
    """Return a cell without LaTeX and spaces."""
    return re.sub(r"\\(hline|textbf|underline|d+agger)|[{}$\s\\]", "", cell.replace("\\pm", "±"))


def value_of(cell: str) -> Value | None:
    numbers = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", cell)]
    return None if not numbers else numbers[0] if len(numbers) == 1 else numbers


def run_name(label: list[str], setting: str, scenario: str) -> str:
    """Return the run that a row's label means; `setting` is the last that was given."""
    if len(label) == 1:  # table 3
        T = int(re.findall(r"T=(\d)", label[0])[0])
        return "SSFL" if T == 0 else "FedPerl raw T=1" if T == 1 else f"FedPerl T={T}"
    own, model = label
    if rule := re.fullmatch(r"PA([+-])(?:\((\d\d)\))?FedPerl\(T=2\)", model):  # table 10
        raw, policy = rule[1] == "-", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", setting).lower()
        if policy.startswith("no policy"):
            return f"{scenario}FedPerl {'raw ' * raw}T=2"
        return " ".join(filter(None, [f"{scenario}{'raw ' * raw}{policy.removesuffix(' policy')}", rule[2]]))
    if peers := re.fullmatch(r"FedPerl\((T=\d)\)", model):
        return f"{scenario}FedPerl {'raw ' * (own == 'w/oPA')}{peers[1]}"
    if own == "*" or (own, model) in POC:
        return POC.get((own, model), model)
    return scenario + BASELINES.get((setting, model), model)


def parsed(source: str, table: str) -> Rows:
    """Return a table as its LaTeX has it: columns from the heading, runs from the labels."""
    rows: Rows = {}
    columns: list[str] = []
    labels, setting, scenario = 0, "", "server: " if table == "table8" else ""
    groups: list[str] = []
    for line in re.split(r"\\\\\s*\n", tabular(source, LABELS[table])):
        if "multicolumn" in line:
            groups = re.findall(r"multicolumn\{3\}\{c\}\{(\w+)\}", line)
            scenario = "server: " if "available on the server" in line else scenario
            continue
        cells = [plain(cell) for cell in line.split("&")]
        if any(re.match(r"(Model|Method)", cell) for cell in cells[:2]):
            labels = 2 if re.match(r"(Model|Method)", cells[1]) else 1
            columns = [COLUMNS.get(cell, cell) for cell in cells[labels:]]
            if groups:  # table 9
                columns = [f"{groups[place // 3].lower()}_{column}" for place, column in enumerate(columns)]
        elif re.search(r"\d\.\d", line):
            setting = cells[0] or setting
            values = {column: value_of(cell) for column, cell in zip(columns, cells[labels:], strict=False)}
            name = run_name(cells[:labels], setting, scenario)
            assert name not in rows
            rows[name] = {column: value for column, value in values.items() if value is not None}
    return rows


def flat(rows: Rows) -> Iterator[float]:
    for row in rows.values():
        for value in row.values():
            yield from value if isinstance(value, list) else [value]


@pytest.mark.parametrize("table", LABELS)
def test_a_table_is_the_sources_cell_by_cell(source: str, table: str) -> None:
    ours, theirs = printed(table), parsed(source, table)
    assert list(ours) == list(theirs)
    assert ours == theirs


@pytest.mark.parametrize("table", LABELS)
def test_no_number_of_a_table_is_missing(source: str, table: str) -> None:
    written = re.findall(r"\d+\.\d+", tabular(source, LABELS[table]).replace("}", ""))
    ours = Counter(value for value in flat(printed(table)) if not isinstance(value, int))
    assert written
    assert Counter(map(float, written)) == ours


def test_the_bars_of_figure_8(source: str) -> None:
    bars = [float(height) for height in re.findall(r"coordinates *\{\(\d,(\d\d\.\d)\)\}", source)]
    legend = re.findall(r"(Fed\w+)\(\d+\\%\)( w/o PA)?", source.partition("\\legend{")[2].partition("\\end{axis}")[0])
    methods = {("FedAvg", ""): "Lower", ("FedPerl", " w/o PA"): "FedPerl raw"}
    names = [methods.get(bar, bar[0]) for bar in legend]  # its seventh bar is marked 30 % in the source
    shares = ["30%"] * 4 + ["100%"] * 4
    theirs = {f"few: {name} {share}": {"f1": bar} for name, share, bar in zip(names, shares, bars, strict=True)}
    assert printed("figure8") == theirs


@pytest.mark.parametrize("artefact", [name for name in PASSAGES if name != "figure4"])
def test_numbers_of_the_text_stand_there_in_order(source: str, artefact: str) -> None:
    rows = printed(artefact)
    if artefact == "figure5":  # goes from SSFL to FedPerl for each group of clients
        columns = dict.fromkeys(column for run in ("FedPerl T=2", "SSFL") for column in rows[run])
        rows = {column: {run: row[column] for run, row in rows.items() if column in row} for column in columns}
    tokens = map(float, re.findall(r"\d+(?:\.\d+)?", passage(source, artefact)))
    for number in flat(rows):
        assert number in tokens, f"{number} is not there, or not after those before it"  # `in` moves on to it


def test_the_ranges_of_figure_4(source: str) -> None:
    ranges = [sorted(map(float, ends)) for ends in re.findall(r"(\d\d)-(\d\d)", passage(source, "figure4"))]
    assert [list(row.values()) for row in printed("figure4").values()] == [ranges]


# Against each other

HALF_DIGIT = 0.0005
ROUNDING = 2 * HALF_DIGIT + 1e-9
"""Half of the last digit in what is printed, half in what it is recomputed from."""
ISIC, HAM = ("0", "1", "2", "3", "4"), ("5", "6", "7")
CLIENTS = (*ISIC, *HAM, "8", "9")
RI_SLIPS = {"SSFL": 13.45, "FedPerl raw T=5": 14.99, "Random peers": 13.76}
"""RI that the printed F1 does not give, as it would be."""
COMMUNITY_SLIPS = {("server: gated validation 85", "ham"): 0.741}
"""Likewise means over clients."""
TABLE_3_SLIPS = {"FedPerl T=3": 0.748, "FedPerl T=4": 0.744, "FedPerl T=5": 0.748}
"""Means over all clients, from table 3, that are not table 2's: neither of that row nor of the one without PA."""
BENIGN_SLIP = "FedMatch"
"""The row of table 9 whose benign recall is another row's."""
ISIC20 = (584, 33_126)
"""Malignant and all images of the published set."""


def one(value: Value) -> float:
    assert not isinstance(value, list)
    return value


def several(value: Value) -> list[float]:
    assert isinstance(value, list)
    return value


def of(row: dict[str, Value], clients: tuple[str, ...]) -> list[float]:
    return [one(row[client]) for client in clients]


def test_relative_improvements_follow_from_f1() -> None:
    table = printed("table2")
    base = several(table["Local lower"]["f1"])[0]
    found = {name: (several(row["f1"])[0], row["ri"]) for name, row in table.items() if "ri" in row}
    assert found.keys() == table.keys() - {"Local lower"}
    peers = printed("random_peers")["Random peers"]
    found["Random peers"] = (one(peers["f1"]), peers["ri"])
    for name, (f1, ri) in found.items():
        assert round(100 * relative_improvement(f1, base), 2) == RI_SLIPS.get(name, ri), name
    over_ssfl = relative_improvement(one(peers["f1"]), several(table["SSFL"]["f1"])[0])
    assert round(100 * over_ssfl, 2) == peers["ri_over_ssfl"]


def test_additional_costs_are_the_rule() -> None:
    costs = {name: row["ac"] for name, row in printed("table2").items() if "ac" in row}
    raw = {f"FedPerl raw T={T}": ac_paper(T, anonymized=False) for T in range(1, 6)}
    anonymized = {f"FedPerl T={T}": ac_paper(T, anonymized=True) for T in range(2, 6)}
    fedmatch = {"FedMatch": ac_paper(2, anonymized=False), "FedMatch+": ac_paper(2, anonymized=True)}
    assert costs == {"SSFL": 0, **fedmatch, **raw, **anonymized}


@pytest.mark.parametrize("table", ["table4", "table10"])
def test_means_over_clients(table: str) -> None:
    for name, row in printed(table).items():
        average = several(row["avg"])[0] if table == "table4" else row["avg"]
        for column, clients, mean in (("isic", ISIC, row["isic"]), ("ham", HAM, row["ham"]), ("avg", CLIENTS, average)):
            slip = COMMUNITY_SLIPS.get((name, column))
            recomputed = statistics.fmean(of(row, clients))
            assert abs(recomputed - (slip or one(mean))) < ROUNDING, (name, column)
            assert slip is None or abs(recomputed - one(mean)) > ROUNDING


def test_the_summary_of_table_2_is_that_of_the_clients_in_table_4() -> None:
    summaries = printed("table2")
    for name, row in printed("table4").items():
        mean, median, std = several(summaries[name]["f1"])
        assert row["avg"] == [mean, std], name
        assert abs(statistics.median(of(row, CLIENTS)) - median) < ROUNDING, name
        assert abs(statistics.pstdev(of(row, CLIENTS)) - std) < ROUNDING, name


def test_without_client_8() -> None:
    same = set()
    for name, row in printed("table4").items():
        others = of(row, tuple(client for client in CLIENTS if client != "8"))
        mean, std = several(row["without_8"])
        if abs(statistics.fmean(others) - mean) < ROUNDING and abs(statistics.pstdev(others) - std) < ROUNDING:
            same.add(name)
        local = name.startswith("Local")
        assert ("diff" in row) != local
        assert local or round(100 * (mean - several(row["avg"])[0]), 1) == row["diff"], name
    # Local models do not depend on client 8; federated ones were trained anew, FedMatch's perhaps not.
    assert same == {"Local lower", "Local FixMatch", "Local upper", "FedMatch"}


def test_communities_of_table_3_are_those_of_table_4() -> None:
    clients, summaries = printed("table4"), printed("table2")
    both = [name for name in printed("table3") if name in clients]
    assert both == ["SSFL", "FedPerl T=2"]
    for name, row in printed("table3").items():
        assert name not in both or row == {column: clients[name][column] for column in row}
        recomputed = (5 * one(row["isic"]) + 3 * one(row["ham"]) + one(row["8"]) + one(row["9"])) / 10
        rows = [summaries[run] for run in {name, name.replace("FedPerl T", "FedPerl raw T")}]
        fits = any(abs(recomputed - several(summary["f1"])[0]) < ROUNDING for summary in rows)
        assert fits == (name not in TABLE_3_SLIPS), name
        assert fits or round(recomputed, 3) == TABLE_3_SLIPS[name]


def test_rows_without_a_policy_are_those_of_the_other_tables() -> None:
    policies, clients = printed("table10"), printed("table4")
    for name in ("FedPerl raw T=2", "FedPerl T=2"):
        row = clients[name]
        wanted = {column: row[column] for column in (*CLIENTS, "isic", "ham")} | {"avg": several(row["avg"])[0]}
        assert policies[name] == wanted
    row = policies["server: FedPerl T=2"]
    mean, median, std = several(printed("table8")["server: FedPerl T=2"]["f1"])
    assert row["avg"] == mean
    assert abs(statistics.median(of(row, CLIENTS)) - median) < ROUNDING
    assert abs(statistics.pstdev(of(row, CLIENTS)) - std) < ROUNDING


def test_f1_of_the_unseen_client_follows_from_precision_and_recall() -> None:
    for name, row in printed("table9").items():
        for kind in ("malignant", "benign"):
            f1, precision, recall = (one(row[f"{kind}_{metric}"]) for metric in ("f1", "precision", "recall"))
            least, most = (
                statistics.harmonic_mean([precision + half, recall + half]) + half for half in (-HALF_DIGIT, HALF_DIGIT)
            )
            fits = least <= f1 <= most
            assert fits == ((name, kind) != (BENIGN_SLIP, "benign")), (name, kind)


def test_both_halves_of_the_unseen_client_tell_of_the_same_images() -> None:
    malignant, images = ISIC20
    odds, half = malignant / (images - malignant), HALF_DIGIT
    for name, row in printed("table9").items():
        precision, recall, benign_recall, benign_precision = (
            one(row[column])
            for column in ("malignant_precision", "malignant_recall", "benign_recall", "benign_precision")
        )
        least = odds_told(precision - half, recall + half, benign_recall + half)
        most = odds_told(precision + half, recall - half, benign_recall - half)
        assert (least <= odds <= most) == (name != BENIGN_SLIP), name
        assert abs(benign_recall / (benign_recall + (1 - recall) * odds) - benign_precision) < ROUNDING, name


def odds_told(precision: float, recall: float, benign_recall: float) -> float:
    """Return malignant to benign images: a false positive is one by precision and by the benign images' recall."""
    return (1 - benign_recall) * precision / ((1 - precision) * recall)


def test_what_the_text_says_of_figures() -> None:
    shares = printed("figure3")["FedPerl T=2"]
    assert round(statistics.fmean(of(shares, ISIC)), 2) == shares["isic"]
    bars = {name: one(row["f1"]) for name, row in printed("figure8").items()}
    assert round(bars["few: FedIRM 100%"] - bars["few: FedPerl 100%"], 1) == 0.3
    assert round(bars["few: FedIRM 100%"] - bars["few: FedPerl raw 100%"], 1) == 1.4


def test_every_table_has_the_same_rows_and_measures_in_range() -> None:
    for table in ("table5", "table6", "table7"):
        assert list(printed(table)) == list(printed("table4"))
        assert {tuple(row) for row in printed(table).values()} == {
            ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
        }
    for table in ("table3", "table5", "table6", "table7", "table8", "table9", "table10", "figure9"):
        assert all(0 < value < 1 for value in flat(printed(table)))
    # A class is never ranked worse than at random.
    assert all(value > 0.5 for value in flat(printed("table6")))


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="no printed numbers of 'tabel4'; did you mean 'table4'"):
        printed("tabel4")
