"""What is said of the numbers on real lesions: sentences that stand, and those that the lines decide."""

from collections.abc import Collection, Iterable
from statistics import fmean

from skin_rows import (
    BASE,
    CHOICES,
    ONE_CLASS,
    OUTLIER,
    WITHOUT,
    Rows,
    apart,
    benign_melanomas,
    better_alone,
    by_client,
    commonest,
    commonest_answer,
    course,
    never_open,
    sensitivity,
    shown,
    starred,
    tested,
    under,
)

from fedperl.errors import ConfigError

NOTES = [
    "Mean over clients and seeds 1 to 3 where nothing else is said, each client with the model whose accuracy was best "
    "on its validation images. Differences are paired by client and seed, with an interval of 95 % over clients and "
    "seeds; * excludes 0, which one in twenty does by chance. With one seed the interval is over clients alone, too "
    "narrow, and has no star. All differences of a table share the runs of SSFL. Macro F1 is over the classes that a "
    "client has, some with a handful of images. The learning rate was chosen for Lower and SSFL; no other row was "
    "tuned. The paper's F1 is the mean of its ten clients, on other splits, from ImageNet weights, at 224 px and after "
    "500 rounds: levels cannot be compared, and differences between rows with care. Seeds draw the classifier's first "
    "weights, cohorts, batches and views; backbone, split and test images are the same for all. † marks a row of whose "
    "last models one names one class for more than 95 % of the validation images.",
]
FINDING_NOTE = (
    "What a clinic would ask first: how many melanomas are called melanoma, how many malignant lesions (MEL, BCC, AK, "
    "SCC, as the paper groups them; AK is a precursor) malignant and how many others not, by the likeliest class; over "
    "all, of the dermatoscopic images of clients 0 to 7, and of the photographs of client 8. Rows differ in both "
    "sensitivity and specificity: a part of each difference is where they draw the line. Intervals are over seeds."
)
CHOICE_NOTE = (
    "Above, each client has the model whose accuracy was best on its own validation images, which are 85 to 237: the "
    "best of 60 by chance too. Beside it the model that was best on all clients' and the last one."
)
COURSE_NOTE = (
    "Of the global model, before any is chosen, the mean over clients and seeds; and the share of unlabelled images "
    "whose label counted, at those clients of that round that have any."
)
IRM_NOTE = (
    "- FedIRM has the settings of its own paper: unlabelled terms that come in between rounds 20 and 50 and count 15 "
    "times from then on, no class weights (the other rows have them), smoothed labels, dropout, an optimiser that is "
    "kept. In its paper a client has labels or none; here each has both kinds of images, but with few labelled clients "
    "([above](#labels-at-few-clients)), where the row falls too."
)
FEW_NOTE = [
    "Clients 1 and 8 have labels of all their training images, the others none; three of all take part in a round, of "
    "Lower one of the two. FedIRM begins with 20 rounds of the two alone, as its own paper does; the other rows do "
    "not, and `start 20` are rows that would. The learning rate is the one that was chosen where all clients have "
    "labels.",
    "",
]
GUARD_NOTE = [
    "`recommended` audits what is sent to every single client, `hospital` to any two together. `hospital` has five "
    "clients in a round in place of three, so two thirds more training, wants four updates for a round to count, makes "
    "peers of three clients or more, and cuts a client's change to the median length of the cohort's: what the guards "
    "by themselves cost is not measured. Beside the same number of peers under `research`, with seed 1; the same seed "
    "draws other cohorts.",
    "",
]
UNSEEN_NOTE = (
    "The best global models of training without client 8, on the images of PAD-UFES-20: photographs by smartphones, "
    "where the paper has dermatoscopic images of ISIC 2020, few of them malignant. Malignant: where the likeliest "
    "class is MEL, BCC, AK or SCC. AUROC does not hang on where that line is drawn."
)
SETUP = [
    "`bench/skin.toml` describes it. The images of HAM10000 are in ISIC 2019 too: clients 0 to 4 and 5 to 7 share them "
    "out, no lesion is with two clients, and of ISIC 2019's own images most are missing: the larger part of what "
    "clients 0 to 4 hold is HAM10000 too, and the two communities differ by the rest alone. HAM10000's class of "
    "actinic keratoses has carcinomas in it that ISIC 2019 calls SCC: clients 5 to 7 call them AK "
    "([data.md](../data.md)). Client 8 has photographs, all others dermatoscopic images; the paper's text numbers it 9 "
    "and Derm7pt 8, its figures and code the other way round, as here. Derm7pt is not at hand; with few labelled "
    "clients, 1 and 8 have labels.",
    "",
]
PAIRS = (("Local lower", "Lower"), ("Local FixMatch", BASE), ("Local upper", "Upper"))


def numbered(seeds: Collection[int]) -> str:
    """Return some seeds in words."""
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, sorted(seeds)))}"


def fell(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return which rows lost more than a third of their validation macro F1 again, and of which rounds models are."""
    found = []
    for name in names:
        macro = course(rows, name, "macro_f1")
        best = max(macro, key=lambda round: macro[round], default=0)
        low = min((round for round in macro if round >= best), key=lambda round: macro[round], default=0)
        if macro and macro[low] < macro[best] * 2 / 3:
            chosen = {seed: [int(one["round"]) for one in tested(line).values()] for seed, line in rows[name].items()}
            told = "; ".join(f"{min(some)} to {max(some)} (seed {seed})" for seed, some in sorted(chosen.items()))
            found.append(
                f"- **{name}** falls from {macro[best]:.3f} after round {best} to {macro[low]:.3f} after round {low}. "
                f"The models that are reported of it are of rounds {told}."
            )
    return found


def irm_note(rows: Rows) -> list[str]:
    """Return what is to be known of FedIRM's row, and what a smaller weight and class weights change."""
    milder = "FedIRM, weight 1"
    if milder not in rows:
        return [f"{IRM_NOTE} What of it makes the row fall was not tried: `{milder}`, with class weights, is to tell."]
    macro = course(rows, milder, "macro_f1")
    less = apart(rows, milder, BASE, by_client("weighted_f1"))
    return [
        f"{IRM_NOTE} With a weight of 1 and class weights (`{milder}`, {numbered(rows[milder])}) validation macro F1 "
        f"is {macro[min(macro)]:.3f} after round {min(macro)} and {macro[max(macro)]:.3f} after round {max(macro)}, "
        f"weighted F1 {shown(less)} beside {BASE}'s. Which of the two makes the difference was not tried."
    ]


def collapsed(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return which rows' last models name one class nearly always, and of which rounds the reported ones are."""
    found = []
    for name in names:
        for seed, (label, share) in commonest_answer(rows, name).items():
            if share > ONE_CLASS:
                chosen = [int(one["round"]) for one in tested(rows[name][seed]).values()]
                found.append(
                    f"- **{name}** collapses (seed {seed}): its last model calls {100 * share:.0f} % of the validation "
                    f"images {label}; the models that are reported are of rounds {min(chosen)} to {max(chosen)}."
                )
    return found


def gates_note(rows: Rows) -> list[str]:
    """Return which gates never opened, which higher ones need not be trained, and that such a run repeats SSFL.

    Raises:
        ConfigError: it does not, client by client.
    """
    found = []
    for gate, higher in never_open(rows).items():
        told = (
            f"- {gate} never gave a client two peers ({numbered(rows[gate])}), and one alone is not sent: it is {BASE}"
        )
        both = {seed: (line, rows[BASE][seed]) for seed, line in rows[gate].items() if seed in rows.get(BASE, {})}
        for seed, (ours, theirs) in both.items():
            if ours["results"]["test"] != theirs["results"]["test"]:
                raise ConfigError(f"{gate}, seed {seed}: had no peers, and other numbers than {BASE}")
        if both:
            told += ", every number of every client"
        if later := [seed for seed, (ours, theirs) in both.items() if ours["date"] != theirs["date"]]:
            ours, theirs = both[later[0]]
            told += f", though one was trained on {theirs['date']} and the other on {ours['date']}"
        if untrained := [row for row in higher if row not in rows]:
            told += f". So would be {' and '.join(untrained)}, which are not trained"
        found.append(f"{told}.")
    return found


def alone_note(rows: Rows) -> list[str]:
    """Return which clients do better by themselves, and with how many seeds that was tried."""
    told, seeds = [], set[int]()
    for alone, together in PAIRS:
        if alone in rows and together in rows:
            some = [f"{client} ({a:.3f} to {b:.3f})" for client, (a, b) in better_alone(rows, alone, together).items()]
            told.append(f"{alone} to {together}: {', '.join(some) or 'none'}")
            seeds |= set(rows[alone])
    if not told:
        return []
    of = numbered(seeds)
    spread = [by_client("weighted_f1")(line).get(OUTLIER) for _, line in sorted(rows.get(BASE, {}).items())]
    known = [f"{one:.3f}" for one in spread if one is not None]
    return [
        f"Clients that do better alone, weighted F1 ({of}): {'; '.join(told)}. {BASE} has {', '.join(known)} at client "
        f"{OUTLIER} with its seeds. Local rows keep their optimiser, and Local FixMatch has a threshold of 0.9 where "
        "the others have 0.6.",
        "",
    ]


def poor_note(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return how far these models are from any use: melanomas that are missed, and what no model at all would have."""
    known = [name for name in names if name in rows and len(rows[name]) > 1 and not name.startswith(WITHOUT)]
    if BASE not in known:
        return []
    found = {name: fmean(sensitivity(one)["melanoma sensitivity"] for one in rows[name].values()) for name in known}
    least, most = min(found, key=lambda name: found[name]), max(found, key=lambda name: found[name])
    base = list(rows[BASE].values())
    return [
        "",
        f"**Not for clinical use:** of the rows with several seeds, {least} finds {100 * found[least]:.0f} % of the "
        f"melanomas and {most} {100 * found[most]:.0f} %; {BASE} calls "
        f"{100 * fmean(map(benign_melanomas, base)):.0f} % of them benign. Always naming a client's commonest class "
        f"has a weighted F1 of {fmean(map(commonest, base)):.3f}.",
    ]


def steady_note(rows: Rows, names: Iterable[str]) -> list[str]:
    """Return which differences from SSFL exclude 0 whichever model is reported."""
    metrics, kept, every = {"weighted F1": "weighted_f1", "macro F1": "macro_f1"}, [], 0
    others = [under(rows, choice) for choice in CHOICES]
    for name in (name for name in names if name in rows and name != BASE and not name.startswith(WITHOUT)):
        for title, metric in metrics.items():
            found = [apart(some, name, BASE, by_client(metric)) for some in (rows, *others)]
            if starred(found[0]):
                every += 1
                if all(starred(one) and one and found[0] and one.mean * found[0].mean > 0 for one in found[1:]):
                    kept.append(f"{name} ({title})")
    if not every:
        return []
    stay = f"these stay: {', '.join(kept)}" if kept else "none stays"
    return [f"Of the {every} stars, with the best global model and with the last one too {stay}."]


def unseen_note(rows: Rows) -> str:
    """Return how many of its images are malignant, and what calling all of them so would give."""
    for lines in rows.values():
        for line in lines.values():
            if "unseen" in line and "malignant" in line["unseen"]["malignancy"]:
                about = line["unseen"]["malignancy"]
                share = about["malignant"] / about["images"]
                return (
                    f" Of the {about['images']:,} images {100 * share:.0f} % are malignant: calling all of them so has "
                    f"a malignant F1 of {2 * share / (1 + share):.3f}."
                )
    return ""
