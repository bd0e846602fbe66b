"""What a person should know after a minute: sentences made from the numbers, and none beyond them."""

from collections.abc import Mapping, Sequence

from fedperl.evaluate import BinnedSums, BootstrapInterval, extremes, interval_of_difference, one_answer
from fedperl.evaluate.scaling import COLDEST, HOTTEST
from fedperl.report.page_data import CHOICES, SERVER, PageRun

RISK = 0.1
"""The share of wrong answers that the example of abstaining allows."""
FEW = 10
"""A class with fewer test images says little of itself."""
ADAPTIVE_ECE = "ECE, adaptive bins (paper)"
"""The ECE of one client, or its mean over clients; that of all images together is over bins of equal width."""


def summary(runs: Sequence[PageRun], choice: str) -> dict[str, list[str]]:
    """Return question -> answers, one a run; all runs are finished, the first is what the others are compared with."""
    first, others = runs[0], runs[1:]
    intervals = [difference_intervals(first, run, choice) for run in others]
    compared = list(zip(others, intervals, strict=True))
    found = {
        "Who gains?": [_gains(first, run, choice, one, higher=True) for run, one in compared],
        "Who is harmed?": [_gains(first, run, choice, one, higher=False) for run, one in compared],
        "Which client is served worst?": [_worst(run, choice) for run in runs],
        "Can its confidence be believed?": [_calibrated(run, choice) for run in runs],
        "Where should it abstain?": [_abstain(run, choice) for run in runs],
        "Which class does it know least?": [_class(run, choice) for run in runs],
    }
    if not others:
        found["Who gains?"] = ["One run alone cannot say: give two or more, the one to compare with first."]
        del found["Who is harmed?"]
    elif not any(found["Who gains?"]):
        found["Who gains?"] = found["Who is harmed?"] = ["The runs share no client that was tested."]
    return {question: [answer for answer in answers if answer] for question, answers in found.items()}


def cautions(runs: Sequence[PageRun], choice: str) -> list[str]:
    """Return what keeps the numbers from being compared or believed further than they go."""
    found, finished = [], [run for run in runs if run.results is not None]
    for run in runs:
        if run.results is None:
            found.append(
                f"{run.name} is not finished: {run.rounds_done} of {run.rounds} rounds. It has no test results yet; "
                "the page shows its training alone."
            )
    if len({run.results.get("partition") for run in finished if run.results}) > 1:
        found.append("The runs were not trained and tested on the same partition: their numbers are not like for like.")
    if len(finished) > 1:
        found.append(
            "Each run is one training. Another seed moves these numbers too: differences between runs may be chance "
            "(“fedperl compare” repeats runs and gives intervals)."
        )
    images = [int(one["images"]) for run in finished for one in run.tested("last").values() if "images" in one]
    if images and min(images) < 100:
        found.append(
            f"Clients have {min(images)} to {max(images)} test images: one image more or less right moves a client's "
            "numbers visibly."
        )
    for run in finished:
        found += [note for one in dict.fromkeys((choice, "last")) if (note := one_class(run, one))]
    for run in finished:
        ends = sum(at_end(one.get("temperature")) for one in run.tested(choice).values())
        if ends:
            found.append(
                f"{run.name}: at {ends} of {len(run.tested(choice))} clients the temperature is at the end of what is "
                f"tried ({COLDEST:g} to {HOTTEST:g}): their validation images, all of them right or hardly any, do not "
                "determine one. Leave these temperatures, and means over them, aside."
            )
    for run in runs:
        if run.config.privacy == "research" and not run.config.federation.alone:
            found.append(f"{run.name} was trained with privacy = 'research', which is not for real patients.")
    if any(run.config.data.source == "dermsim" for run in runs):
        found.append("The images are drawn by a program (dermsim): the numbers say nothing about patients.")
    return found


def one_class(run: PageRun, choice: str) -> str:
    """Return that models name one class for nearly all test images; nothing where they do not."""
    sums = run.pooled(choice)
    answer = None if sums is None else one_answer(sums.confusion)
    if answer is None or sums is None or run.results is None:
        return ""
    label, share = answer
    truly = float(sums.confusion[label].sum() / sums.confusion.sum())
    return (
        f"{run.name}: what is tested ({CHOICES[choice]}) names {run.results['classes'][label]} for {100 * share:.0f} % "
        f"of the test images, of which {100 * truly:.0f} % are. It tells nothing apart: its numbers are no result."
    )


def at_end(temperature: float | None) -> bool:
    """Return whether a temperature is the coldest or the hottest that is tried."""
    return temperature is not None and not COLDEST < temperature < HOTTEST


def client_name(run: PageRun, client: str) -> str:
    """Return how a client is called, with what its images are like."""
    if client == SERVER:
        return "the server's images"
    source = run.sources[int(client)] if int(client) < len(run.sources) else ""
    return f"client {client} ({source})" if source else f"client {client}"


def f1_by_client(run: PageRun, choice: str) -> dict[str, float]:
    """Return weighted F1 by client, on test images."""
    return {client: numbers["weighted_f1"] for client, numbers in run.tested(choice).items()}


def differences(first: PageRun, run: PageRun, choice: str) -> dict[str, float]:
    """Return by how much a run's weighted F1 is above the first run's, at every client that both have."""
    before, after = f1_by_client(first, choice), f1_by_client(run, choice)
    return {client: value - before[client] for client, value in after.items() if client in before}


def difference_intervals(first: PageRun, run: PageRun, choice: str) -> dict[str, BootstrapInterval]:
    """Return the same with intervals, at every client whose counts both runs have."""
    found = {}
    for client in differences(first, run, choice):
        counts = [sums for one in (first, run) if (sums := one.pooled(choice, client=client)) is not None]
        if len(counts) == 2 and all(one.confusion.any() for one in counts):
            found[client] = interval_of_difference(counts[0].confusion, counts[1].confusion)
    return found


def _gains(
    first: PageRun, run: PageRun, choice: str, intervals: Mapping[str, BootstrapInterval], *, higher: bool
) -> str:
    found = differences(first, run, choice)
    if not found:
        return ""
    bounds = {client: [float(v or 0.0) for v in (one.value, one.low, one.high)] for client, one in intervals.items()}
    moved = {client: one for client, one in bounds.items() if (one[1] > 0 if higher else one[2] < 0)}
    where = f"{len(moved) or 'none'} of {len(intervals)} clients"
    if moved:
        most = max(moved, key=lambda client: abs(moved[client][0]))
        value, low, high = map(_signed, moved[most])
        where += f", most at {client_name(run, most)}, {value} [{low}, {high}]"
    unknown = f"; of {len(found) - len(intervals)} more no counts are told" if len(intervals) < len(found) else ""
    mean = f" Mean difference {_signed(sum(found.values()) / len(found))}." if higher else ""
    return (
        f"{run.name}: weighted F1 is {'higher' if higher else 'lower'} than with {first.name} at {where}{unknown}; a "
        f"client counts where the 95 % interval of its difference excludes 0.{mean}"
    )


def _worst(run: PageRun, choice: str) -> str:
    values = f1_by_client(run, choice)
    found = extremes(values)
    if len(values) == 1:
        return f"{run.name}: tested on {client_name(run, found.worst)} alone, weighted F1 {found.worst_value:.3f}."
    return (
        f"{run.name}: {client_name(run, found.worst)}, weighted F1 {found.worst_value:.3f}; the best, "
        f"{client_name(run, found.best)}, has {found.best_value:.3f}."
    )


def _calibrated(run: PageRun, choice: str) -> str:
    sums = run.pooled(choice)
    if sums is None or not sums.images or run.results is None:
        return ""
    confidence = float(sums.total_confidence.sum() / sums.images)
    accuracy = float(sums.confidence[:, 1].sum() / sums.images)
    gap = confidence - accuracy
    if abs(gap) < 0.01:
        what = "on the whole neither too sure nor too unsure"
    else:
        what = f"on the whole too {'sure' if gap > 0 else 'unsure'} by {100 * abs(gap):.0f} points"
    over = run.results["over_clients"][choice]
    mean = f"; {ADAPTIVE_ECE}: {over['ece']['mean']:.3f} as a mean over clients" if "ece" in over else ""
    if mean and "ece_scaled" in over:
        mean += f", {over['ece_scaled']['mean']:.3f} with a temperature fitted on each client's validation images"
    return (
        f"{run.name}: says {100 * confidence:.0f} % on average and is right in {100 * accuracy:.0f} % of the images: "
        f"{what}{mean}."
    )


def kept_at(sums: BinnedSums, threshold: float) -> tuple[float, float | None]:
    """Return the share of images answered from a confidence on, and the share of those that is wrong."""
    start = round(threshold * len(sums.confidence))
    wrong, right = (int(value) for value in sums.confidence[start:].sum(axis=0))
    kept = wrong + right
    return kept / max(1, sums.images), wrong / kept if kept else None


def _abstain(run: PageRun, choice: str) -> str:
    validation, test = run.pooled(choice, "validation"), run.pooled(choice)
    if validation is None or test is None or not validation.images:
        return f"{run.name}: no validation images to choose a threshold on." if test is not None else ""
    threshold = validation.threshold_at_risk(RISK)
    wanted = f"at most {100 * RISK:.0f} % wrong answers"
    if threshold is None:
        return f"{run.name}: no confidence, however high, gives {wanted} on the validation images of all clients."
    on, _ = kept_at(validation, threshold)
    chosen = f"below a confidence of {threshold:.3f}, chosen for {wanted} on validation images ({100 * on:.0f} % kept)"
    coverage, risk = kept_at(test, threshold)
    if risk is None:
        return f"{run.name}: {chosen}. It then answers none of the test images."
    return (
        f"{run.name}: {chosen}. On test images it then answers {100 * coverage:.0f} %, {100 * risk:.0f} % of these "
        "wrongly."
    )


def _class(run: PageRun, choice: str) -> str:
    sums = run.pooled(choice)
    if sums is None or not sums.images or run.results is None:
        return ""
    known = {
        name: (one.f1, one.support)
        for name, one in zip(run.results["classes"], sums.classification().per_class, strict=True)
        if one.f1 is not None
    }
    lowest = min(f1 for f1, _ in known.values())
    least = {name: support for name, (f1, support) in known.items() if f1 == lowest}
    images = sum(least.values())
    few = ", too few to say much" if images < FEW else ""
    return f"{run.name}: {', '.join(least)}, F1 {lowest:.3f} over all clients together ({images} test images{few})."


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")
