"""What the paper claims, each claim as comparisons between rows, and what the lines say to it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean

import skin
from side_by_side import Line, table
from skin_notes import collapsed
from skin_rows import (
    BASE,
    CHANCE,
    CHOICES,
    FEDPERL,
    GATED,
    GATES,
    HAM,
    ISIC,
    OTHERS,
    OUTLIER,
    RARE,
    WITHOUT,
    Rows,
    apart,
    by_class,
    by_client,
    cell_of,
    f1_of,
    helped_by_outlier,
    helpers_of,
    own_community,
    paper_gain,
    shown,
    starred,
    under,
    unseen,
    with_peers,
)

from fedperl.evaluate import Interval, paired_interval
from fedperl.paper.printed import printed

MARGIN = 0.01
"""What counts as no difference, in F1."""
UNDECIDED, HOLDS, DOES_NOT, NOT_TRAINED = "undecided", "**holds**", "**does not**", "not trained yet"
PAPERS_HEADROOM = (f1_of("Upper") or 0.0) - (f1_of(BASE) or 0.0)


Rule = Callable[[Interval | None, float | None], str]
"""What an interval, and the difference that the paper reports, say to a claim."""


def better(found: Interval | None, paper: float | None) -> str:
    """Return whether one is above another: not where the interval ends below 0, or below half of what is claimed."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > 0:
        return HOLDS
    return DOES_NOT if found.high < max(0.0, (paper or 0.0) / 2) else UNDECIDED


def no_worse(found: Interval | None, _: float | None = None) -> str:
    """Return whether one is not below another: by MARGIN at most, at the interval's lower end."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > -MARGIN:
        return HOLDS
    return DOES_NOT if found.high < 0 else UNDECIDED


def same(found: Interval | None, _: float | None = None) -> str:
    """Return whether there is no difference beyond MARGIN either way."""
    if found is None or found.low is None or found.high is None:
        return UNDECIDED
    if found.low > -MARGIN and found.high < MARGIN:
        return HOLDS
    return DOES_NOT if found.low > MARGIN or found.high < -MARGIN else UNDECIDED


@dataclass(frozen=True)
class Comparison:
    """One row less another."""

    about: str
    find: Callable[[Rows], Interval | None]
    paper: float | None
    """What the paper reports, the same way round."""


@dataclass(frozen=True)
class Claim:
    """What the paper claims, and the comparisons that say whether it holds here; all must, but `also`."""

    says: str
    comparisons: tuple[Comparison, ...]
    verdict: Rule = better
    also: tuple[Comparison, ...] = ()
    untested: Callable[[Rows], str] = lambda _: ""
    """Why these rows cannot say, where they cannot."""


def more_f1(one: str, other: str) -> Comparison:
    """Return the comparison of two rows' weighted F1."""
    mine, theirs = f1_of(one), f1_of(other)
    paper = None if mine is None or theirs is None else mine - theirs
    find = lambda rows: apart(rows, one, other, by_client("weighted_f1"))  # noqa: E731
    return Comparison(f"weighted F1, {one} less {other}", find, paper)


def at_outlier(one: str, other: str) -> Comparison:
    """Return the comparison of two rows' weighted F1 at the client that is unlike all others."""
    return Comparison(
        f"weighted F1 of client {OUTLIER}, {one} less {other}",
        lambda rows: apart(rows, one, other, by_client("weighted_f1"), (OUTLIER,)),
        cell_of("table10", one, OUTLIER) - cell_of("table10", other, OUTLIER),
    )


def less_harm(row: str, other: str) -> Comparison:
    """Return by how much less the other clients lose by the outlier's part in training, in one row than in another."""

    def find(rows: Rows) -> Interval | None:
        four = [rows.get(name, {}) for name in (WITHOUT + other, other, WITHOUT + row, row)]
        found = []
        for seed in (seed for seed in four[0] if all(seed in lines for lines in four)):
            values = [by_client("weighted_f1")(lines[seed]) for lines in four]
            found.append([values[0][c] - values[1][c] - (values[2][c] - values[3][c]) for c in OTHERS])
        return paired_interval(found) if found else None

    paper = paper_gain(other) - paper_gain(row)
    return Comparison(f"what client {OUTLIER} costs the others, {other} less {row}", find, paper)


def rare(line: Line) -> dict[str, float]:
    """Return the mean F1 of the rarest classes."""
    return {"rare": fmean(by_class(line)[name] for name in RARE)}


def lead(line: Line) -> dict[str, float]:
    """Return how far the rarest classes are above the others."""
    return {"lead": rare(line)["rare"] - fmean(f1 for name, f1 in by_class(line).items() if name not in RARE)}


def rare_classes(row: str, other: str, *, more: bool = False) -> Comparison:
    """Return the gain of the rarest classes, or by how much more than the others they gain."""
    gains = {name: cell_of("table5", row, name) - cell_of("table5", other, name) for name in printed("table5")[row]}
    paper = fmean(gains[name] for name in RARE)
    if more:
        paper -= fmean(gain for name, gain in gains.items() if name not in RARE)
    about = f"F1 of {', '.join(RARE)}{' less that of the other classes' if more else ''}, {row} less {other}"
    return Comparison(about, lambda rows: apart(rows, row, other, lead if more else rare), paper)


def less_error(row: str, other: str, metric: str) -> Comparison:
    """Return the comparison of a calibration error, the other's less the row's, so that above 0 is better."""
    paper = cell_of("figure9", other, metric) - cell_of("figure9", row, metric)
    find = lambda rows: apart(rows, other, row, by_client(metric))  # noqa: E731
    return Comparison(f"{metric.upper()}, {other} less {row}", find, paper)


def ranked_unseen(row: str, other: str) -> Comparison:
    """Return the comparison of how well malignant lesions are told from others there, at whatever threshold."""
    of = lambda line: {OUTLIER: line["unseen"]["malignancy"]["auroc"]} if "unseen" in line else {}  # noqa: E731
    find = lambda rows: apart(rows, WITHOUT + row, WITHOUT + other, of)  # noqa: E731
    return Comparison(f"AUROC of malignant lesions of the unseen client, {row} less {other}", find, None)


def on_unseen(row: str, other: str) -> Comparison:
    """Return the comparison of malignant F1 on the client that was kept out of training."""
    paper = cell_of("table9", row, "malignant_f1") - cell_of("table9", other, "malignant_f1")
    names = [WITHOUT + name for name in (row, other)]
    find = lambda rows: apart(rows, names[0], names[1], unseen("malignant_f1"))  # noqa: E731
    return Comparison(f"malignant F1 of the unseen client, {row} less {other}", find, paper)


def opened(rows: Rows) -> str:
    """Return the highest gate on similarity that ever gave a client peers; the paper's, 95, where none is trained."""
    for gate in reversed(GATES[1]):
        if with_peers(rows, gate).get(0, 1.0) < 1:
            return gate
    return GATED


def gate_at_outlier(rows: Rows) -> Interval | None:
    """Return what the client that is unlike all others has more under the highest gate that ever opened."""
    return at_outlier(opened(rows), FEDPERL).find(rows)


def shut(rows: Rows) -> str:
    """Return that no gate ever opened, where none did."""
    return "no gate ever opened" if with_peers(rows, opened(rows)).get(0) == 1 else ""


def both_collapsed(rows: Rows) -> str:
    """Return that neither row of claim 12 learnt to tell classes apart, where that is so."""
    pair = ("few: FedPerl 30%", "few: FedIRM 30%")
    return "both rows collapse to one class" if all(collapsed(rows, [name]) for name in pair) else ""


def within(who: str, clients: tuple[str, ...]) -> Comparison:
    """Return by how much more often than by chance a client's helpers are of its own community."""
    chance = (len(clients) - 1) / 9  # of the paper's nine other clients

    def find(rows: Rows) -> Interval | None:
        shares = [own_community(line) for line in rows.get(FEDPERL, {}).values()]
        known = [client for client in clients if shares and all(client in one for one in shares)]
        return paired_interval([[one[c] - CHANCE[c] for c in known] for one in shares]) if known else None

    return Comparison(
        f"share of helpers of the own community, clients of {who}, {FEDPERL} less chance",
        find,
        cell_of("figure3", FEDPERL, {"ISIC 2019": "isic", "HAM10000": "ham"}[who]) / 100 - chance,
    )


def one_pool(_: Rows) -> str:
    """Return how much the two communities are one, where it is written down what they hold."""
    path = skin.LINES / "split.json"
    if not path.exists():
        return ""
    sources = [json.loads(path.read_text())["clients"][int(client)]["sources"] for client in ISIC]
    shared = sum(one["HAM10000"] for one in sources) / sum(sum(one.values()) for one in sources)
    if shared < 0.5:
        return ""
    return f"{100 * shared:.0f} % of what the one community holds is of the other's archive"


BETTER_STILL = Comparison(
    f"ECE, {BASE} less Lower (in the paper Lower is the better calibrated)",
    lambda rows: apart(rows, BASE, "Lower", by_client("ece")),
    None,
)
ALL_CLAIMS = (
    Claim(
        "Federated training beats training alone.",
        (more_f1("Lower", "Local lower"), more_f1(BASE, "Local FixMatch"), more_f1("Upper", "Local upper")),
    ),
    Claim("Unlabelled images help (SSFL beats the lower bound).", (more_f1(BASE, "Lower"),)),
    Claim("Peers help (FedPerl beats SSFL).", (more_f1(FEDPERL, BASE),), also=(more_f1("FedPerl raw T=2", BASE),)),
    Claim("Similar peers beat random ones.", (more_f1(FEDPERL, "Random peers"),)),
    Claim(
        "Anonymization costs nothing.",
        (more_f1(FEDPERL, "FedPerl raw T=2"),),
        no_worse,
        (more_f1("FedMatch+", "FedMatch"),),
    ),
    Claim(
        "How many peers hardly matters, below the size of a community.",
        tuple(more_f1(row, FEDPERL) for row in ("FedPerl raw T=1", "FedPerl T=3", "FedPerl T=4")),
        same,
        (more_f1("FedPerl T=5", FEDPERL),),
    ),
    Claim(
        f"A gate helps the client that is unlike all others, {OUTLIER}.",
        (
            Comparison(
                f"weighted F1 of client {OUTLIER}, the highest gate on similarity that ever opened less {FEDPERL}",
                gate_at_outlier,
                cell_of("table10", GATED, OUTLIER) - cell_of("table10", FEDPERL, OUTLIER),
            ),
        ),
        also=(
            *(at_outlier(gate, FEDPERL) for gate in (*reversed(GATES[1]), "validation")),
            more_f1(GATED, FEDPERL),
        ),
        untested=shut,
    ),
    Claim(
        f"Client {OUTLIER} harms the others least under FedPerl.",
        tuple(less_harm(FEDPERL, other) for other in (BASE, "Lower", "FedMatch+", "Upper")),
    ),
    Claim(
        "Rare classes gain most.",
        (rare_classes(FEDPERL, BASE, more=True),),
        also=(rare_classes(FEDPERL, BASE), rare_classes(BASE, "Lower", more=True), rare_classes(BASE, "Lower")),
    ),
    Claim(
        "FedPerl is better calibrated than SSFL.",
        (less_error(FEDPERL, BASE, "ece"),),
        also=(less_error(FEDPERL, BASE, "mce"), BETTER_STILL),
    ),
    Claim(
        "FedPerl is better on a client that no model saw.",
        (on_unseen(FEDPERL, BASE),),
        also=(ranked_unseen(FEDPERL, BASE), on_unseen(FEDPERL, "Lower"), on_unseen(FEDPERL, "Upper")),
    ),
    Claim(
        "With few labelled clients, three of all in a round, FedPerl is on par with FedIRM.",
        (more_f1("few: FedPerl 30%", "few: FedIRM 30%"),),
        no_worse,
        (more_f1("few: FedPerl 30%, start 20", "few: FedIRM 30%"),),
        both_collapsed,
    ),
    Claim("Where no client has labels, FedPerl beats SSFL too.", (more_f1(f"server: {FEDPERL}", f"server: {BASE}"),)),
    Claim(
        "Clients are helped by their own community.",
        (within("ISIC 2019", ISIC), within("HAM10000", HAM)),
        untested=one_pool,
    ),
)


def verdict(claim: Claim, rows: Rows) -> str:
    """Return what its comparisons say; undecided where it rests on one seed, or on which model is reported."""
    if why := claim.untested(rows):
        return f"not tested: {why}"
    if not any(one.find(rows) for one in claim.comparisons):
        return NOT_TRAINED
    said, hint = _of_all(claim, rows), _of_all(claim, rows, fewest=1)
    if said == UNDECIDED:
        return said if hint == UNDECIDED else f"{UNDECIDED}: one seed, which says {hint}"
    others = {named: _of_all(claim, under(rows, choice)) for choice, named in CHOICES.items()}
    if other := [f"{found} with {named}" for named, found in others.items() if found != said]:
        return f"{UNDECIDED}: {said} with each client's best model, {', '.join(other)}"
    return said


def _of_all(claim: Claim, rows: Rows, fewest: int = 2) -> str:
    """Return what all its comparisons of so many seeds say: it holds where each does, and does not where one does not.

    Those of fewer seeds decide nothing.
    """
    found = [(one.find(rows), one.paper) for one in claim.comparisons]
    said = [UNDECIDED if one and one.seeds < fewest else claim.verdict(one, paper) for one, paper in found]
    return DOES_NOT if DOES_NOT in said else UNDECIDED if UNDECIDED in said else HOLDS


def gate_note(rows: Rows) -> list[str]:
    """Return what is to be known of the gates of claim 7: how often each was shut, and who helped the outlier."""
    told = [
        f"{gate} was shut in {100 * with_peers(rows, gate).get(0, 0.0):.0f} % of the client-rounds in which peers "
        f"could help, and client {OUTLIER} had {helpers_of(rows, gate, OUTLIER)} helpers"
        for gate in reversed(GATES[1])
        if with_peers(rows, gate)
    ]
    if not told:
        return []
    return [
        f"- Claim 7: {'; '.join(told)}. Where a gate is shut a client trains as in {BASE}. Profiles are scaled over "
        "the clients here, as the authors' code does; unscaled, as the text has them, similarities lie near 1 and no "
        "gate of the paper's would close ([paper_and_code.md](../paper_and_code.md))."
    ]


def headroom(rows: Rows) -> list[str]:
    """Return what all labels are worth: no claim about the others can be tested where that is little."""
    metrics = {
        "weighted F1": "weighted_f1",
        "macro F1": "macro_f1",
        "balanced accuracy": "balanced_accuracy",
        "AUROC": "macro_auroc",
        "ECE": "ece",
    }
    found = {name: apart(rows, "Upper", BASE, by_client(metric)) for name, metric in metrics.items()}
    if found["weighted F1"] is None or f1_of("Upper") is None:
        return []
    told = f"- All labels, Upper less {BASE}: {', '.join(f'{name} {shown(one)}' for name, one in found.items())}"
    narrow = "" if found["weighted F1"].excludes_zero else " In weighted F1 no claim has much room here."
    return [f"{told} (paper, weighted F1: {PAPERS_HEADROOM:+.3f}).{narrow}"]


def outlier_note(rows: Rows) -> list[str]:
    """Return how often the outlier helps, which similarity and chance decide differently."""
    said = {name: helped_by_outlier(rows, name) for name in (FEDPERL, "Random peers")}
    if None in said.values():
        return []
    told = " and ".join(f"{100 * (share or 0):.1f} % with {name}" for name, share in said.items())
    return [
        f"- Claims 3, 4 and 14: of all that help clients 0 to 7, client {OUTLIER} is {told}; claim 14 is about "
        "the helpers of clients 0 to 7 among themselves."
    ]


def few_note(rows: Rows) -> list[str]:
    """Return which rows of claim 12 collapsed, where one did."""
    names = [name for name in ("few: SSFL 30%", "few: FedPerl 30%", "few: FedIRM 30%") if collapsed(rows, [name])]
    if not names:
        return []
    return [
        f"- Claim 12: {', '.join(names)} end with one class for nearly all images "
        "([skin.md](skin.md#labels-at-few-clients)). SSFL and FedPerl do so with a small network too (one seed), which "
        "shows how: a client without labels has nothing that holds its own, and within a local round of 26 steps calls "
        "everything the same; 20 rounds of the labelled clients alone at the start do not keep it from that, and with "
        "a tenth of the learning rate it takes some rounds more. EfficientNet-B0 was not looked at step by step, and "
        "FedIRM has no such labels."
    ]


def intervals(rows: Rows) -> int:
    """Return of how many comparisons of more than one seed there is an interval."""
    found = [one.find(rows) for claim in ALL_CLAIMS for one in claim.comparisons + claim.also]
    return sum(one is not None and one.low is not None and one.seeds > 1 for one in found)


def stars(rows: Rows) -> int:
    """Return how many of these exclude 0."""
    return sum(starred(one.find(rows)) for claim in ALL_CLAIMS for one in claim.comparisons + claim.also)


def claims_page(rows: Rows) -> str:
    """Return the page of claims."""
    cells = []
    for number, claim in enumerate(ALL_CLAIMS, start=1):
        for place, one in enumerate(claim.comparisons + claim.also):
            first = [f"{number}. {claim.says}", verdict(claim, rows)] if not place else ["", ""]
            aside = "also: " if one in claim.also else ""
            paper = "·" if one.paper is None else f"{one.paper:+.3f}"
            cells.append([first[0], aside + one.about, paper, shown(one.find(rows)), first[1]])
    return (
        "\n".join(
            [
                "# The paper's claims on real lesions",
                "",
                "Made by `python bench/skin_page.py` from the runs of [skin.md](skin.md), which says how they were "
                "trained and how this differs from the paper.",
                "",
                *table(["claim", "comparison", "paper", "ours [95 %]", "verdict"], cells),
                "",
                *headroom(rows),
                *gate_note(rows),
                *outlier_note(rows),
                *few_note(rows),
                "- Claim 5: an anonymized peer has the receiver's batch statistics and half of the vote, raw peers "
                "have their own and a third each; the comparison is of all that together.",
                "",
                "Ours: the mean over clients and seeds, paired, with an interval of 95 % over both; over clients "
                "alone with one seed, which says nothing of other seeds, and over seeds alone of one client and of "
                "classes, whose F1 is that of all clients' images together (the paper's seems to be a mean over "
                "clients). `·`: not trained yet, or not printed in the paper. Differences are in F1 or as named. * "
                f"excludes 0: {stars(rows)} of {intervals(rows)} intervals do; one in twenty would by chance, and they "
                "are not independent, since many share a row.",
                "",
                "The paper's column is what its tables give as differences of means over clients; those of claims 8, 9 "
                "and 14 are derived from several of its numbers, and the wording of the claims is ours.",
                "",
                "The seeds draw weights, cohorts, batches and views, on one split with one set of test images; clients "
                f"0 to 7 are shares of nearly one pool, and {OUTLIER} is one clinic: the intervals are not about other "
                "hospitals.",
                "",
                "- A claim that one is better **holds** where the whole interval is above 0, and **does not** where it "
                "ends below 0, or below half of the difference that the paper reports.",
                f"- A claim that something costs nothing holds where the interval begins above -{MARGIN:.2f}, and does "
                "not where it begins below and ends before 0.",
                f"- A claim that something hardly matters holds where the interval is within ±{MARGIN:.2f}, and does "
                "not where it is outside altogether.",
                "- Everything else is undecided, and so is what rests on one seed, or comes out otherwise with the "
                "last model or the best global one than with each client's best; of claims 9 and 11 no other "
                "model's numbers are kept, and 14 is of none. A claim with several comparisons "
                "holds where all do, and does not where one does not; those marked `also` have no say. A single number "
                "has no interval, and decides nothing.",
            ]
        )
        + "\n"
    )
