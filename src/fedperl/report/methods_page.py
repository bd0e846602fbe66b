"""docs/methods.md: every method as a composition, made from the method files themselves."""

from typing import Any

from fedperl.config import Method, methods, resolve
from fedperl.settings import Config

HEAD = """# Methods

Every method is a composition of shared parts: an objective at the client, a selector and a policy that choose its peers, anonymized or not, an aggregator at the server, and options. Each is one short file in `src/fedperl/methods`; a configuration names it with `method = "..."` and may override any of it ([extending.md](extending.md) shows how to add one, [comparing.md](comparing.md) how to put several on one split). All run on the same loop: the same backbone, images, cohorts and numbers of steps, whatever their own papers used.

This page is printed by `fedperl methods --markdown`. T, rho and the other numbers are the files' defaults: the paper's rows with T = 1 to 5 are `fedperl_raw` with `peers.T` set, those with T = 2 to 5 and anonymization are `fedperl`; rho = 0.75, 0.85 and 0.95 are `gate.rho` (0.85 where nothing is set). FedAvg-SL, FedAvg-FixMatch and so on of the proof of concept are `upper`, `ssfl` and so on; its network, optimiser, weights of the losses (tau 0.85, ten times the labelled loss, beta 1) and clean weak views are set in the configuration.

Without anonymization one client's model reaches another as it is: those methods set `privacy = "research"`, run on the local engine alone, and say so on the screen.

"""  # noqa: E501

PLUS = """
## FedPerl+

Beyond the paper, and not `recommended`: on real lesions it is far better calibrated than `fedperl`, but what was aimed at in macro F1 and in time is missed, and on CIFAR-10 all three seeds lose ([results/plus.md](results/plus.md), with what stands in the way). It grew out of a finding on real lesions ([results/claims.md](results/claims.md)): even *all* labels are worth only about as much macro F1 there, over a network that labels for itself, as is aimed at here, so that better pseudo labels alone could hardly reach it. But the global model swings from round to round with whoever took part, its confidence is too high, and one client is unlike all others. `fedperl_plus` is `fedperl` with five options. Two change training:

1. **Moments are kept** (`optimizer.carry = true`). Each client keeps Adam's moments from round to round; without, it begins with none in every round.
2. **Labels are smoothed** (`objective.label_smoothing = 0.1`), those of labelled images alone.

Three change what becomes of the models, and not one bit of training:

3. **A mean over rounds** (`federation.running_average = 0.9`). The server keeps m(r) = 0.9 m(r - 1) + 0.1 g(r), over the first rounds the plain mean, of the global models g. m is what clients validate and use; they go on training from g.
4. **A share of one's own, where it helps** (`federation.own_share = "validation"`). Each client keeps the running mean o of the models that it trained itself, which never leaves it, and uses m or (m + o) / 2, whichever has the smaller log loss on its validation images. With fewer than ten of these it uses m. Nobody trains from that mixture. Who takes half, and what choosing is worth beside half at every client (`own_share = 0.5`), is counted in [results/plus.md](results/plus.md#what-is-known-so-far).
5. **Orientations** (`model.orientations = "views"`). A trained model is shown an image as it is, mirrored, upside down and both, where training flips images too, and answers with the mean of the probabilities; once, where it does not (CIFAR-10 as the proof of concept has it).

| cost | beside `fedperl` |
| --- | --- |
| bytes | none: the mean takes the place of the global model in what is sent for validation |
| training steps | none; moments that are kept are put in place and taken away in every round, on a GPU without leaving it |
| validation | as many passes as there are orientations, and one more to choose the share; on a GPU all clients' images pass the global model together, and a mixture each for itself |
| time | measured in turns beside FedPerl, as a whole and by part: [results/plus.md](results/plus.md#what-stands-in-the-way) |
| use | as many passes as there are orientations |
| memory and disk | a model more at the server; at each client its moments, twice a model, and o, of several rounds ([deployment.md](deployment.md#known-limits-of-this-version)) |
| privacy | m is a mean of global models, which clients are sent in any case; moments and o stay at their client, and the file of the model that a client uses is its own alone, since with m it tells o |

Peers stay anonymized, and all guards of [privacy.md](privacy.md) apply.

The five options can be taken one by one. The last three change no training, and on validation images of lesions they gained in nearly all runs, whatever those were trained with ([counted](results/plus.md#what-is-known-so-far), on the images that also chose). Two guesses, which CIFAR-10 suggests and two seeds of a small network do not settle: that moments are better not kept where a client comes back after many rounds, and that `objective.tau` should be lower where labels are smoothed, since fewer pass it then ([what is known of both](results/plus.md#why-not)).
"""  # noqa: E501

COLUMNS = ("method", "objective", "selector", "policy", "anonymize", "aggregator", "options")


def methods_page() -> str:
    """Return the page: one table of compositions, one of where each comes from, and FedPerl+ at length."""
    found = methods()
    lines = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    lines += [_row([f"`{name}`", *_composition(method, resolve({"method": name}))]) for name, method in found.items()]
    lines += ["", "## Where each comes from, and where ours differs", ""]
    columns = ("method", "what it is", "in FedPerl's paper", "published as", "ours")
    lines += [_row(columns), _row(["---"] * len(columns))]
    lines += [_row([f"`{name}`", m.line, m.paper, m.source, m.here]) for name, m in found.items()]
    return HEAD + "\n".join(lines) + "\n" + PLUS


def _composition(method: Method, config: Config) -> list[str]:
    objective, peers, federation = config.objective, config.peers, config.federation
    kind = objective.kind + (" on all labels" if objective.labels == "all" else "")
    aggregator = "none: each client alone" if federation.alone else federation.aggregator
    shown = {"kind", "labels", "selector", "policy", "anonymize", "aggregator", "alone", "privacy", "T"}
    options = ", ".join(
        f"`{key} = {value}`" for key, value in _flat(method.settings) if key.split(".")[-1] not in shown
    )
    if not config.peer_learning:
        return [kind, "none", "", "", aggregator, options]
    T = f"{peers.selector}, T = {peers.T}"
    return [kind, T, peers.policy, "yes" if peers.anonymize else "no", aggregator, options]


def _flat(table: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{key}.")
        else:
            found.append((prefix + key, f'"{value}"' if isinstance(value, str) else str(value).lower()))
    return found


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
