"""The settings of a run as frozen, validated objects; the defaults are the preset `recommended`.

Numbers in brackets are rows of docs/paper_and_code.md: where the paper's text and its authors' code differ.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedperl.errors import ConfigError

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the configuration file: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def changed(self, **values: Any) -> Self:
        """Return the same with other values, checked as if read from a file; `model_copy` would check nothing.

        Raises:
            ConfigError: a value is wrong, or contradicts another.
        """
        try:
            return type(self).model_validate(dict(self) | values)
        except ValidationError as error:
            raise ConfigError(explain(error)) from None


def explain(error: ValidationError) -> str:
    """Return what is wrong with which setting, in one line."""
    problems = []
    for problem in error.errors(include_url=False):
        where = ".".join(str(part) for part in problem["loc"] if not str(part).startswith(("literal", "constrained")))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            problems.append(f"{where} is missing")
            continue
        shown = where and not isinstance(problem["input"], Mapping)
        problems.append(f"{where} = {problem['input']!r}: {message}" if shown else message)
    return "; ".join(problems)


class Data(Section):
    """Which images, at which size, dealt to which clients."""

    source: str = "dermsim"
    """`dermsim` (drawn lesions, nothing to download) or the folder of a store."""
    size: Annotated[int, Field(ge=16, le=224)] = 64
    scale: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """dermsim only: the share of the paper's client sizes."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Draws images and splits; apart from the run's seed, so that seeds are compared on one data set."""


class Partitioning(Section):
    """Who holds which images of a store (docs/data.md)."""

    kind: Literal[
        "auto", "paper", "iid", "dirichlet", "site", "fedmatch_iid", "fedmatch_noniid", "fedmatch_streaming"
    ] = "auto"
    """auto: the store's own partition where it has one, otherwise the paper's ten clients."""
    file: str = ""
    """A partition file, used instead of `kind`."""
    ham_in_isic19: Literal["share", "exclude", "overlap"] = "share"
    """paper: ISIC 2019 contains HAM10000; each lesion to one of the two pools, all to HAM10000, or to both (a leak)."""
    ham_share: Share = 2 / 3
    """paper, share: the share of HAM10000's lesions that go to the ISIC 2019 clients."""
    group_by: Literal["group", "image"] = "group"
    """paper: keep lesions, patients and twins together, or split image by image as the paper did (a leak)."""
    clients: Positive | None = None
    """iid, dirichlet: 10; fedmatch: 100, 100 and 10."""
    alpha: Annotated[float, Field(gt=0.0)] = 0.5
    """dirichlet."""
    shares: Annotated[tuple[Share, Share, Share, Share], Field(strict=False)] = (0.125, 0.375, 0.125, 0.375)
    """iid, dirichlet, site: labelled, unlabelled, validation, test; the paper's proportions."""
    server: Share = 0.03
    """iid, dirichlet, site: share of the images that the server holds."""
    labels_per_class: Positive = 5
    """fedmatch: labels of each class at each client."""
    held_out: Annotated[float, Field(gt=0.0, lt=0.5)] = 0.05
    """fedmatch: the share of the images that validates, and as many test but with `official_test`: 3,000 of CIFAR-10,
    where FedMatch's code has 2,000."""
    official_test: bool = False
    """fedmatch: test on the published test images instead of pooling all."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if sum(self.shares) <= 0:
            raise ValueError("shares are all 0; wanted the proportions of labelled, unlabelled, validation and test")
        return self


class Scenario(Section):
    """Who has labels (paper, section 3.1; docs/scenarios.md)."""

    labels: Literal["clients", "server", "few_clients"] = "clients"
    """At every client; at the server only, which then trains in every round; at a few clients."""
    labelled_clients: Annotated[tuple[int, ...], Field(strict=False)] = (1, 9)
    """few_clients: those whose training images all have labels; the others have none."""
    server_steps: Literal["auto"] | Positive = "auto"
    """server: its optimiser steps a round; auto: one pass over its labelled images."""
    server_validation: Share = 0.2
    """server: the share of its images that validate, where the partition gives it none to train on."""


class Model(Section):
    """The network."""

    net: Literal["efficientnet_b0", "resnet9", "small_cnn"] = "efficientnet_b0"
    weights: str = "none"
    """[30] what training starts from: `none` (drawn at random), `imagenet` (imported by `fedperl weights import`), or a
    file of `fedperl pretrain`."""
    input_scale: Literal["unit", "imagenet"] = "unit"
    """[31] pixels in [0, 1], or normalised by ImageNet's statistics."""
    init_scale: Annotated[float, Field(gt=0.0)] = 1.0
    """Weights that are drawn at random are multiplied by this; FedMatch's sigma + psi starts at 1.2 times the usual."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """Before the classifier; None: the network's own, 0.2 in EfficientNet-B0 and 0 in the others."""
    orientations: Literal[1, 2, 4, 8, "views"] = 1
    """In how many a trained model is shown an image, its answer the mean: as it is; mirrored too; upside down too, both
    ways; turned by quarters too. `views`: in those that weak views have, 4 where they flip and 1 where they do not. In
    validation, tests and use alone: neither training nor labels change."""
    norm: Literal["batch", "group"] = "batch"
    """group: group norm in the place of batch norm, so that no image changes what another one gives; ResNet-9 has
    neither."""


OBJECTIVES = ("supervised", "fixmatch", "uda", "mean_teacher", "fedirm", "fixmatch_irm", "fedmatch", "cbafed")
PLUGIN = r"^[^:]+\.py:[A-Za-z_]\w*$"
"""A researcher's own objective: file and class (docs/extending.md)."""


WITHOUT_PEERS = ("supervised", "mean_teacher", "fedirm", "cbafed")
ONLY = {
    "thresholds": ("fixmatch", "fixmatch_irm", "uda"),
    "prior_correction": ("fixmatch", "fixmatch_irm", "uda"),
    "targets": ("fixmatch", "fixmatch_irm"),
    "label_source": ("fixmatch", "fixmatch_irm", "uda"),
    "mixup": ("supervised", "fixmatch"),
}
"""Settings that some kinds of objective would silently ignore."""


class UDA(Section):
    """Unsupervised data augmentation (Xie et al. 2020); the confidence mask is `objective.tau`."""

    temperature: Annotated[float, Field(gt=0.0)] = 0.4
    """Of the sharpened targets."""
    tsa: Literal["none", "linear", "log", "exp"] = "exp"
    """Schedule of training signal annealing: labelled images that are right enough by then do not count."""


class Teacher(Section):
    """The mean teacher and FedIRM's relation matching (Liu et al. 2021)."""

    weight: Annotated[float, Field(ge=0.0)] = 15.0
    """Of the unlabelled terms, after the ramp-up."""
    ramp: Annotated[int, Field(ge=0)] = 30
    """Rounds over which the weight rises, exp(-5 (1 - t / ramp)^2)."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sharpens the teacher's probabilities; 1 leaves them."""
    relation: bool = True
    """fedirm: match the averaged relation matrix of the labelled clients."""
    relation_temperature: Annotated[float, Field(gt=0.0)] = 2.0
    confidence: Share = 0.3
    """Least probability of a pseudo label that enters the relation matrix."""
    passes: Annotated[int, Field(ge=1)] = 11
    """Forward passes with dropout that measure the uncertainty."""
    uncertainty: Annotated[float, Field(gt=0.0)] = 0.8
    """Most entropy of the mean of these passes, as a share of ln C; the authors' 2 nats are more than ln C up to seven
    classes, so that their filter never cuts."""
    nats: Annotated[float, Field(gt=0.0)] | None = None
    """The most entropy in nats instead: the authors' 2."""
    count_weighted: bool = True
    """Rows of the relation matrix are means over images; false: over batches, a missing class being uniform there."""


class FedMatch(Section):
    """FedMatch's own terms (Jeong et al. 2021); `objective.labelled_weight` is its lambda_s."""

    decompose: bool = True
    """theta = sigma + psi: labelled images train sigma, unlabelled ones psi."""
    helpers: Annotated[float, Field(ge=0.0)] = 1e-2
    """Of the divergence from the helpers (lambda_iccs)."""
    votes: Annotated[float, Field(ge=0.0)] = 1e-2
    """Of the cross-entropy with the label that own model and helpers vote for."""
    sparsity: Annotated[float, Field(ge=0.0)] = 1e-4
    """Of the L1 norm of psi."""
    closeness: Annotated[float, Field(ge=0.0)] = 10.0
    """Of the squared L2 distance of sigma and psi."""
    psi: Annotated[float, Field(ge=0.0)] = 0.2
    """psi starts at this share of sigma."""
    zero: Annotated[float, Field(ge=0.0)] = 5e-6
    """Entries of psi up to this size are taken as 0 when the model is used."""


class CBAFed(Section):
    """CBAFed's class thresholds (Li et al. 2023); `objective.tau` caps them."""

    base: Share = 0.84
    tail: Share = 0.03
    """A class with a smaller share is a tail class, taken as second best too."""


class Objective(Section):
    """What a client minimises (paper, Eq. 2 and 7)."""

    kind: str = "fixmatch"
    """One of OBJECTIVES, or a file and the name of a class in it: `my_objective.py:MyObjective`."""
    options: dict[str, float | int | str | bool] = {}
    """Settings of an objective from a file."""
    mu: Annotated[float, Field(ge=0.0)] = 0.0
    """FedProx: mu / 2 times the squared distance from the received model, on top of any objective; 0 is FedAvg [34]."""
    start: Annotated[int, Field(ge=0)] = 0
    """Rounds on labelled images alone before the unlabelled ones count."""
    labelled_weight: Annotated[float, Field(ge=0.0)] = 1.0
    """Of the labelled loss."""
    labelled_loss: Literal["cross_entropy", "logit_adjusted"] = "cross_entropy"
    """logit_adjusted: log class shares of the client's labels are added to its logits (Menon et al. 2021)."""
    label_smoothing: Share = 0.0
    mixup: Share = 0.0
    """Up to which share another labelled image of the batch, with its label, is mixed into each (Zhang et al. 2018):
    the share is drawn uniformly; 0.5 mixes evenly in the extreme, 0 not at all."""
    labels: Literal["labelled", "all"] = "labelled"
    """`all` exposes every training label: the upper bound."""
    tau: Annotated[float, Field(ge=0.0)] = 0.6
    beta: Annotated[float, Field(ge=0.0)] = 0.5
    gamma: Annotated[float, Field(ge=0.0)] = 0.01
    combine: Literal["mean", "sum", "logit_mean"] = "mean"
    """[1] how own and peer probabilities become one."""
    peer_weight: Share | None = None
    """[1] the share of all peers together; None gives every model the same weight."""
    label_source: Literal["current", "round_start", "ema"] = "current"
    """[3] whose own probabilities label: the weights of this step, the received model, or a running average."""
    ema_decay: Share = 0.99
    thresholds: Literal["fixed", "class_aware"] = "fixed"
    """class_aware: tau, lowered for the classes that are predicted more rarely (per client, over the rounds)."""
    prior_correction: Share = 0.0
    """Divide the labelling probabilities by the running mean of all of them to this power, and normalise again."""
    prior_decay: Share = 0.99
    """Of the running class shares behind class-aware thresholds and prior correction."""
    targets: Literal["hard", "agreement"] = "hard"
    """agreement: a soft target of the models' labels, each weighted by how close its confidence is to the best one."""
    agreement_scale: Annotated[float, Field(gt=0.0)] = 0.05
    """agreement: the gap of confidence that halves a model's weight."""
    label_mode: Literal["train", "eval"] = "train"
    """[9] batch-norm and dropout mode of the labelling pass."""
    unlabelled_mean: Literal["batch", "accepted"] = "batch"
    """[5] average the unlabelled loss over all images of the batch or over those accepted."""
    strong_pass: Literal["all", "accepted"] = "all"
    """[9] which strong views go through the network; `accepted` changes what batch norm sees."""
    consistency: Literal["gradient", "detached"] = "gradient"
    """[7] `detached` only changes the logged loss, as in the authors' code."""
    class_weights: Literal["median_frequency", "root_median_frequency", "none"] = "median_frequency"
    """How much more a client's rare classes count: as they are rarer, by the square root of that, or no more; in its
    validation loss too, so that losses with other weights cannot be compared."""
    absent_class_weight: Annotated[float, Field(ge=0.0)] = 1.0
    """[6] weight of a class the client has no label of: it never trains, but it counts in the validation loss."""
    uda: UDA = UDA()
    teacher: Teacher = Teacher()
    fedmatch: FedMatch = FedMatch()
    cbafed: CBAFed = CBAFed()

    @property
    def teacher_source(self) -> Literal["none", "round_start", "ema"]:
        """Where a second network comes from that labels or teaches: nowhere, the received model, a running average."""
        if self.kind in ("mean_teacher", "fedirm", "fixmatch_irm"):
            return "ema"
        return "none" if self.label_source == "current" else self.label_source

    @property
    def decomposed(self) -> bool:
        """Whether the model is a sum of two parameter sets."""
        return self.kind == "fedmatch" and self.fedmatch.decompose

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        plugin = re.fullmatch(PLUGIN, self.kind) is not None
        if self.kind not in OBJECTIVES and not plugin:
            guess = difflib.get_close_matches(self.kind, OBJECTIVES, n=1)
            raise ValueError(
                f"objective.kind = {self.kind!r} is unknown{f'; did you mean {guess[0]!r}?' if guess else ''}; wanted "
                f"one of {', '.join(OBJECTIVES)}, or a file and a class, 'my_objective.py:MyObjective'"
            )
        if self.options and not plugin:
            raise ValueError("objective.options are for an objective from a file; this kind has its own settings")
        for name, kinds in ONLY.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.kind not in kinds and not plugin:
                raise ValueError(
                    f"objective.{name} = {getattr(self, name)!r} has no effect on kind = {self.kind!r}; "
                    f"wanted kind = {' or '.join(repr(kind) for kind in kinds)}"
                )
        if self.teacher_source == "ema" and self.label_source == "round_start":
            raise ValueError(
                f"objective.kind = {self.kind!r} keeps a running average as its teacher; "
                "wanted label_source = 'current' or 'ema'"
            )
        return self


class Peers(Section):
    """Who helps whom (paper, sections 2.3.1 to 2.3.3)."""

    selector: Literal["none", "profile", "random", "predictions"] = "profile"
    """predictions: FedMatch's, nearest in what the models say about one image of noise."""
    policy: Literal["all", "validation", "gated_validation", "gated_similarity"] = "all"
    """Which of the T candidates are kept (section 2.3.5); `all` is the static policy, the others are set in [gate]."""
    T: Annotated[int, Field(ge=0)] = 2
    sizes: Literal["fixed", "spectral_gap"] = "fixed"
    """spectral_gap: at most T, by the size of the client's community as the similarity matrix shows it."""
    every: Positive = 1
    """Peers in every such round only; FedMatch's helpers come every ten rounds."""
    anonymize: bool = True
    """Average the committee into one anonymized peer before it leaves the server."""
    k_min: Positive = 2
    """Distinct organisations of which an anonymized peer is made at least; with fewer the client gets none. 1, for
    `privacy = "research"` alone, lets a peer be one client's model."""
    warmup: Annotated[int, Field(ge=0)] = 10
    """[19] rounds without peers."""
    min_profiles: Annotated[int, Field(ge=2)] = 3
    """[16] clients that must be known before anyone gets a peer."""
    unprofiled: Literal["none", "random"] = "none"
    """[19] peers of a client that never trained."""
    max_age: Positive | None = None
    """[18] rounds after which a banked model no longer helps."""
    snapshot: bool = True
    """[18] peers are those of the round's start; false lets a client see one trained earlier in the same round."""
    batch_norm: Literal["receiver", "mean", "moment_match", "recalibrate"] = "receiver"
    """[21] the peer's running statistics: left out (the receiver's are used), averaged, pooled as moments, or left out
    and measured anew on the receiver's own images."""
    noise: Annotated[tuple[float, float], Field(strict=False)] = (125.0, 125.0)
    """predictions: mean and standard deviation of the image of noise, cut to [0, 255]; the authors' code has (0, 1),
    an almost black image [42]."""
    embedding: Literal["softmax", "logits"] = "softmax"
    """predictions: what is compared."""
    exclude: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """[20] clients that never serve as peers."""


class Gate(Section):
    """What opens the dynamic policies (section 2.3.5; the text leaves metric and scale open)."""

    rho: Share = 0.85
    metric: Literal["server_acc", "own_val_acc", "train_acc"] = "server_acc"
    """Accuracy of a client's last upload on the server's images, on its own validation or labelled training images."""
    scale: Literal["absolute", "relative_to_best", "minmax"] = "absolute"
    """gated_validation compares rho with the accuracy itself, divided by the best, or scaled over the clients."""


class Profile(Section):
    """What the server compares (paper, Eq. 4)."""

    tensors: Literal["all", "parameters", "modules"] = "all"
    """[13] every float tensor of the state, parameters only, or one entry a module."""
    std: Literal["population", "unbiased"] = "population"
    """[14] unbiased is undefined for one element and taken as 0 there."""
    scale: Literal["minmax", "zscore", "none"] = "minmax"
    """[16] scaling of each feature over the clients seen so far."""
    server_score: bool = False
    """[15] append accuracy and loss of the client's model on the server's images."""


class Federation(Section):
    """Rounds, cohorts and averaging."""

    rounds: Positive = 500
    cohort: Literal["auto"] | Positive = "auto"
    """Clients a round; auto: one more than the quorum, or all where there are fewer: 4 under `privacy = "recommended"`,
    5 under "hospital", 3 under "research". The run's own config.toml has the number."""
    client_sampling: Literal["uniform", "size"] = "uniform"
    """[24] size: probability proportional to the number of training images, as FedVC has it."""
    steps: Literal["auto_min"] | Positive = "auto_min"
    """[24] optimiser steps a client and round; auto_min: min(100, smallest client's unlabelled images / batch)."""
    batch: Annotated[int, Field(ge=2)] = 16
    unlabelled_batch: Annotated[int, Field(ge=2)] | None = None
    """Unlabelled images a step; None: as many as labelled ones [11]."""
    weights: Literal["equal", "size"] = "equal"
    """[26] of the clients in the average."""
    aggregator: Literal["fedavg", "similarity", "distance", "consensus"] = "fedavg"
    """What further weighs the clients: nothing, the mean similarity with the others, the distance from the mean, or
    RSCFed's consensus of random subsets."""
    subsets: Positive = 3
    members: Annotated[int, Field(ge=2)] = 5
    """consensus: how many subsets, of how many clients."""
    distance_scale: Annotated[float, Field(ge=0.0)] = 1.0
    """consensus: how much distance from a subset's mean lowers a weight."""
    robust: Literal["none", "clip", "trimmed_mean", "multi_krum", "fltrust"] = "none"
    """What keeps a few hostile clients from steering the average: no change counts longer than the cohort's median
    (`clip`, and with all others too); the extremes of every number left out; those far from the rest left out; those
    left out, and weighed, that do not point where the server's own training points (labels at the server)."""
    faulty: Positive = 1
    """trimmed_mean, multi_krum: how many clients of a cohort may be anything."""
    labelled_factor: Annotated[float, Field(ge=1.0)] = 1.0
    """Weight of a client with labels beside one without (RSCFed 200, CBAFed 10): the average is then mostly theirs."""
    residual_every: Annotated[int, Field(ge=0)] = 0
    """CBAFed: rounds after which the global model is averaged with its stored predecessor; 0 is never."""
    running_average: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """What is validated, chosen and handed out: the running mean of the global models with this decay (over the first
    rounds their plain mean), which swings less from cohort to cohort; 0: each round's own, from which training goes on
    in any case."""
    own_share: Share | Literal["validation"] = 0.0
    """Of the running mean of a client's own trained models in the model that it validates, tests and uses; the rest is
    the global one. The mean stays with the client, and nobody trains from the mixture; 0: the global model alone.
    `validation`: each client takes the share, of a few, with which its validation images are least surprising."""
    batch_norm: Literal["average", "local"] = "average"
    """[27] local: a client trains and is tested with batch-norm layers of its own; averaged ones are for strangers."""
    sparse: Annotated[float, Field(ge=0.0)] = 0.0
    """FedMatch: entries that moved no more than this are not sent, either way; the receiver keeps its old ones."""
    alone: bool = False
    """Local models: each client trains by itself, for as many steps as it would on average in the federation."""
    eval_slip: bool = False
    """[40] local models: eval mode from the second round on, as the authors' script has it."""
    exclude: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Clients that take no part: the paper's rows without client 8."""
    rounds_per_step: Positive = 10
    """Where unlabelled images stream in: the rounds that each piece of them is there for."""
    server_validation: bool = False
    """The server, too, validates global models on its own images; always where it has labels to train on."""
    validate_every: Positive = 1
    """Rounds from one validation of the global model to the next, by clients and server; the last is always validated.
    """
    quorum: Literal["auto"] | Positive = "auto"
    """Accepted updates needed for a new global model; with fewer the round is void and the old model stays. auto: most
    of the cohort, and at least as many as `privacy` and `robust` ask for."""
    organisations: Annotated[tuple[Annotated[tuple[int, ...], Field(strict=False)], ...], Field(strict=False)] = ()
    """Clients that belong to one organisation, as lists: they count as one wherever others are to be mixed in. A client
    that is in no list is an organisation of its own."""

    @property
    def personal(self) -> str:
        """What of its own every client validates and tests with; nothing where all use the same model."""
        if self.batch_norm == "local":
            return "batch-norm layers of its own"
        if self.own_share == "validation":
            return "a share of its own models' running mean, chosen on its validation images"
        return f"{100 * self.own_share:g} % of its own models' running mean" if self.own_share else ""


class Audit(Section):
    """What clients may solve for from what they are sent (docs/privacy.md)."""

    coalition: Annotated[int, Field(ge=0)] | None = None
    """No so many organisations that put together all they were ever sent can solve for another's model or its change;
    0: nothing is audited. None: 1, under `privacy = "hospital"` 2, under "research" 0."""
    keep_uploads: Annotated[int, Field(ge=0)] = 0
    """Keep so many numbers of every model that is sent, either way, for `fedperl privacy`: for research alone."""


class DP(Section):
    """Differential privacy of a client's training images: DP-SGD (Abadi et al. 2016; docs/dp.md)."""

    unit: Literal["none", "record", "patient"] = "none"
    """Whose presence the model hides: nobody's, one image's, or that of all images of one group: a patient, or a lesion
    where the set knows no patients."""
    noise: Annotated[float, Field(ge=1e-12)] = 1.0
    """sigma: the noise's standard deviation in each step, as a multiple of `clip`."""
    clip: Annotated[float, Field(gt=0.0)] = 1.0
    """C: the largest norm that the gradient of one unit may have."""
    delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
    """The chance that the promise of epsilon may fail; below 1 / units of every client."""
    epsilon_max: Annotated[float, Field(gt=0.0)] | None = None
    """A client declines a task whose steps would take it beyond this."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, field in type(self).model_fields.items():
            if self.unit == "none" and getattr(self, name) != field.default:
                raise ValueError(f"dp.{name} = {getattr(self, name)!r} has no effect with dp.unit = 'none'")
        return self


class Optimizer(Section):
    """Made anew in every client round, so that nothing is carried from one round to the next [29], unless `carry`."""

    kind: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0.0)] = 5e-5
    schedule: Literal["constant", "cosine"] = "constant"
    """Over the rounds: the paper's constant rate, or half a cosine down to nearly 0, which ends on a steadier model."""
    momentum: Share = 0.0
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    carry: bool = False
    """Each client keeps its optimiser's moments from round to round: FedIRM, and local models."""


class Views(Section):
    """Weak and strong views [32, 33]."""

    weak: Literal["fedperl", "geometric", "none"] = "fedperl"
    strong: Literal["fedperl", "standard"] = "fedperl"
    labelled: Literal["weak", "strong"] = "weak"
    """Which of the two labelled images are shown in: strong ones keep a few images from being learnt by heart."""
    operations: Positive | None = None
    """Operations an image; None: 6 in the recipe `fedperl`, 2 in `standard`."""
    magnitude: Annotated[int, Field(ge=0, le=30)] | None = None
    """`standard` only; None: 10 of 30."""


class Config(Section):
    """One run, completely."""

    name: Annotated[str, Field(pattern=r"^[^/\\.\[\x00-\x1f][^/\\\[\x00-\x1f]*$", max_length=100)] = "run"
    preset: Literal["recommended", "paper", "authors_code"] = "recommended"
    method: str = "fedperl"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    device: str = "cpu"
    threads: Literal["auto"] | Positive = "auto"
    """Part of the configuration, because sums of another order round differently; auto: the cores of the machine
    that starts the run, written into its resolved configuration."""
    at_once: Literal["auto"] | Positive = "auto"
    """On a GPU: how many clients of a cohort train side by side; auto: up to 4."""
    image_memory: Literal["auto", "device", "host"] = "auto"
    """On a GPU: where images lie; auto: in its own memory if they fill less than half of it."""
    checkpoint_every: Positive = 1
    """Rounds from one checkpoint to the next, and so the most that a crash can cost; more than there are: none. Where
    many clients train for an instant each, writing their models after every round would take longer than training."""
    engine: Literal["local", "flower-simulation"] = "local"
    """What carries the messages: this process, or Flower's simulation (docs/deployment.md); changes no number."""
    gpu: Literal["fast", "reference"] = "fast"
    """On a GPU: bfloat16, recorded steps and kernels of our own, or float32 operation by operation."""
    privacy: Literal["recommended", "research", "hospital"] = "recommended"
    """`research` alone lets raw peers reach other clients, and releases go out unaudited; `hospital` is stricter:
    cohorts of 5, committees of 3, no two organisations together can solve for a third."""
    data: Data = Data()
    partition: Partitioning = Partitioning()
    scenario: Scenario = Scenario()
    model: Model = Model()
    objective: Objective = Objective()
    peers: Peers = Peers()
    gate: Gate = Gate()
    profile: Profile = Profile()
    federation: Federation = Federation()
    audit: Audit = Audit()
    dp: DP = DP()
    optimizer: Optimizer = Optimizer()
    views: Views = Views()
    written_by: str = ""
    """Version that resolved the configuration; filled in by the run."""

    @property
    def peer_learning(self) -> bool:
        """Whether any client can ever be given a peer."""
        return self.peers.selector != "none" and self.peers.T > 0

    @property
    def orientations(self) -> int:
        """In how many orientations a trained model is shown an image."""
        if self.model.orientations == "views":
            return 1 if self.views.weak == "none" else 4
        return self.model.orientations

    def validates(self, round: int) -> bool:
        """Return whether the global model of a round is validated."""
        return round % self.federation.validate_every == 0 or round == self.federation.rounds

    @property
    def coalition(self) -> int:
        """How many organisations may put together what they were sent; 0 where nothing is audited."""
        return 0 if self.federation.alone else self._together

    @property
    def _together(self) -> int:
        """The same, as if no client trained alone: those that do take as many steps as in the federation."""
        default = {"recommended": 1, "research": 0, "hospital": 2}[self.privacy]
        wanted = default if self.audit.coalition is None else self.audit.coalition
        return 0 if self.raw_peers else wanted

    @property
    def cohort(self) -> int:
        """Clients a round, where there are clients enough."""
        return self._numbers(None)[0]

    @property
    def quorum(self) -> int:
        """Updates needed for a new global model, where there are clients enough."""
        return self._numbers(None)[1]

    def counted(self, clients: int) -> Self:
        """Return the configuration with cohort and quorum in numbers.

        Args:
            clients: how many have something to train on.
        Raises:
            ConfigError: they are fewer than the quorum.
        """
        federation = self.federation
        if "auto" not in (federation.cohort, federation.quorum):
            return self
        cohort, quorum = self._numbers(clients)
        if federation.cohort == "auto" and cohort < quorum:
            raise ConfigError(
                f"there are {clients} clients with something to train on; privacy = {self.privacy!r} and "
                f"federation.robust = {federation.robust!r} need at least {quorum} in a round (federation.quorum)"
            )
        try:
            return self.changed(federation=federation.changed(cohort=cohort, quorum=quorum))
        except ConfigError as error:
            raise ConfigError(f"there are {clients} clients with something to train on: {error}") from None

    def _numbers(self, clients: int | None) -> tuple[int, int]:
        """Return cohort and quorum; for a number of clients, or where there are enough."""
        federation, fewest = self.federation, max(self._together + 2, needed_by_rule(self)[0])
        if federation.cohort == "auto":
            wanted = 1 + (fewest if federation.quorum == "auto" else max(fewest, federation.quorum))
            cohort = wanted if clients is None else max(1, min(wanted, clients))
        else:
            cohort = federation.cohort
        if federation.quorum != "auto":
            return cohort, federation.quorum
        quorum = max(fewest, cohort // 2 + 1)
        return cohort, min(quorum, cohort) if federation.alone else quorum  # nobody waits for clients that train alone

    @property
    def raw_peers(self) -> bool:
        """Whether one client's model reaches another as it is."""
        return self.peer_learning and not self.peers.anonymize

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        peers, federation = self.peers, self.federation
        if self.peer_learning:
            if peers.anonymize and peers.T == 1:
                raise ValueError(
                    "peers.T = 1 with peers.anonymize = true: the mean of one model is that model; wanted T of at "
                    f"least {HOSPITAL_PEERS if self.privacy == 'hospital' else 2}, T = 0, or anonymize = false with "
                    "privacy = 'research'"
                )
            if not peers.anonymize and self.privacy != "research":
                raise ValueError(
                    "peers.anonymize = false sends one client's model to another; wanted privacy = 'research'"
                )
            if self.objective.kind in WITHOUT_PEERS:
                raise ValueError(
                    f"peers.selector is set but objective.kind = {self.objective.kind!r} has no use for peers; "
                    "wanted selector = 'none' or a kind such as 'fixmatch'"
                )
            if peers.policy == "gated_similarity" and peers.selector == "predictions":
                raise ValueError(
                    "peers.policy = 'gated_similarity' compares profiles; wanted selector = 'profile' or another policy"
                )
        if self.model.weights == "imagenet" and self.model.net != "efficientnet_b0":
            raise ValueError(
                f"model.weights = 'imagenet' are those of efficientnet_b0; wanted weights = 'none' or a file for "
                f"net = {self.model.net!r}"
            )
        if self.model.norm == "group" and (self.model.net == "resnet9" or self.model.weights == "imagenet"):
            raise ValueError(
                "model.norm = 'group' has no effect on resnet9, and the weights of 'imagenet' are of a network with "
                f"batch norm; found net = {self.model.net!r}, weights = {self.model.weights!r}; wanted norm = 'batch'"
            )
        if self.quorum > self.cohort:
            by_rule = needed_by_rule(self)[0] > self.coalition + 2
            asked = f"federation.robust = {federation.robust!r}" if by_rule else f"privacy = {self.privacy!r}"
            why = "" if federation.quorum != "auto" else f", as {asked} asks for,"
            raise ValueError(
                f"federation.quorum = {self.quorum}{why} is larger than federation.cohort = {self.cohort}: "
                "no round could ever count"
            )
        if self.objective.start >= federation.rounds:
            raise ValueError(
                f"objective.start = {self.objective.start} leaves none of the {federation.rounds} rounds to unlabelled "
                "images; wanted a smaller start or more rounds"
            )
        if federation.alone and self.peer_learning:
            raise ValueError("federation.alone = true: a client by itself has no peers; wanted peers.selector = 'none'")
        if federation.running_average and (
            federation.alone or federation.residual_every or federation.batch_norm == "local"
        ):
            raise ValueError(
                f"federation.running_average = {federation.running_average:g} is of models that all clients share in "
                "full, and keeps no predecessor; wanted alone = false, residual_every = 0 and batch_norm = 'average'"
            )
        if federation.own_share and (federation.alone or federation.batch_norm == "local" or self.objective.decomposed):
            raise ValueError(
                f"federation.own_share = {federation.own_share!r} mixes a client's models with the global one in full; "
                "wanted alone = false, batch_norm = 'average' and no objective.fedmatch.decompose"
            )
        if federation.alone and self.scenario.labels != "clients":
            raise ValueError(
                f"federation.alone = true with scenario.labels = {self.scenario.labels!r}: a client without labels "
                "cannot learn by itself; wanted labels = 'clients'"
            )
        if self.quorum < 2 and not federation.alone and self.privacy != "research":
            raise ValueError(
                "federation.quorum = 1: a global model of one update is that client's model, and every client gets it; "
                "wanted at least 2, or privacy = 'research'"
            )
        if self.views.magnitude is not None and self.views.strong != "standard":
            raise ValueError("views.magnitude is for views.strong = 'standard'; 'fedperl' draws magnitudes at random")
        if self.scenario.labels == "server" and (self.objective.kind, self.objective.labels) == (
            "supervised",
            "labelled",
        ):
            raise ValueError(
                "scenario.labels = 'server' leaves the clients no labels, and objective.kind = 'supervised' trains on "
                "nothing else; wanted kind = 'fixmatch' or objective.labels = 'all'"
            )
        if self.scenario.labels == "server" and self.objective.kind in ("fedirm", "fixmatch_irm"):
            raise ValueError(
                f"objective.kind = {self.objective.kind!r} learns from the labelled clients' relations, and "
                "scenario.labels = 'server' leaves no client a label; wanted kind = 'mean_teacher' or 'fixmatch'"
            )
        if self.scenario.labels == "server" and self.objective.start:
            raise ValueError(
                f"objective.start = {self.objective.start} asks for rounds on the clients' labels, and "
                "scenario.labels = 'server' leaves them none; wanted start = 0"
            )
        closeness = 2 * self.objective.fedmatch.closeness * self.optimizer.lr
        if self.objective.decomposed and self.optimizer.kind == "sgd" and closeness >= 2:
            raise ValueError(
                f"objective.fedmatch.closeness = {self.objective.fedmatch.closeness:g} with optimizer.lr = "
                f"{self.optimizer.lr:g}: each step throws psi further from sigma; wanted a product below 1"
            )
        if self.checkpoint_every > 1 and (self.privacy != "research" or self.coalition or self.dp.unit != "none"):
            raise ValueError(
                f"checkpoint_every = {self.checkpoint_every}: after a crash rounds would be repeated that clients were "
                "sent things in, or spent epsilon in; wanted 1, or privacy = 'research' without audit and [dp]"
            )
        if self.model.init_scale != 1 and self.model.weights != "none":
            raise ValueError(
                f"model.init_scale = {self.model.init_scale:g} is for weights drawn at random; found weights = "
                f"{self.model.weights!r}; wanted 'none'"
            )
        if federation.labelled_factor > 1 and self.privacy != "research":
            raise ValueError(
                f"federation.labelled_factor = {federation.labelled_factor:g}: the average is then mostly the model of "
                "the labelled client, and every client gets it; wanted 1, or privacy = 'research'"
            )
        check_privacy(self)
        check_dp(self)
        if federation.sparse and federation.batch_norm == "local":
            raise ValueError("federation.sparse and federation.batch_norm = 'local' both decide what a client keeps")
        if self.objective.labels == "all" and self.objective.kind != "supervised":
            raise ValueError("objective.labels = 'all' leaves nothing unlabelled; wanted kind = 'supervised'")
        return self


HOSPITAL_PEERS = 3
"""Clients of which a peer is made at least under `privacy = "hospital"`."""


def check_privacy(config: Config) -> None:
    """Refuse settings by which clients could solve for each other's models.

    Raises:
        ValueError: naming them.
    """
    peers, federation, coalition, quorum = config.peers, config.federation, config.coalition, config.quorum
    if config.privacy == "hospital" and config.peer_learning and peers.T < HOSPITAL_PEERS:
        raise ValueError(f"peers.T = {peers.T} under privacy = 'hospital'; wanted at least {HOSPITAL_PEERS}")
    if config.peer_learning and peers.anonymize and peers.k_min > peers.T:
        raise ValueError(f"peers.T = {peers.T} is less than peers.k_min = {peers.k_min}: nobody would ever get a peer")
    listed = [client for group in federation.organisations for client in group]
    if len(set(listed)) < len(listed) or any(client < 0 for client in listed):
        raise ValueError(f"federation.organisations = {federation.organisations}: wanted each client once")
    check_robust(config)
    if config.privacy == "research":
        return
    if peers.k_min < 2:
        raise ValueError(
            f"peers.k_min = {peers.k_min}: a peer of one client is that client's model; wanted at least 2, or privacy "
            "= 'research'"
        )
    if config.peer_learning and not peers.snapshot:
        raise ValueError(
            "peers.snapshot = false: a client could be sent a peer of models that are not in any average yet, and "
            "subtract it from the next; wanted true, or privacy = 'research'"
        )
    if config.peer_learning and peers.batch_norm == "moment_match":
        raise ValueError(
            "peers.batch_norm = 'moment_match': the spread of two clients' statistics tells both; wanted 'receiver', "
            "'recalibrate' or 'mean', or privacy = 'research'"
        )
    if config.audit.keep_uploads:
        raise ValueError("audit.keep_uploads keeps every client's models; wanted 0, or privacy = 'research'")
    if coalition == 0 and not federation.alone and (config.peer_learning or config.privacy == "hospital"):
        raise ValueError(
            "audit.coalition = 0: clients could solve for each other's models from their peers; wanted at least "
            f"{2 if config.privacy == 'hospital' else 1}, or privacy = 'research'"
        )
    if coalition and quorum < coalition + 2:
        raise ValueError(
            f"federation.quorum = {quorum}: of a global model of so few, {coalition} of them could solve "
            f"for the last one; wanted at least {coalition + 2}, or, where no peers are sent, audit.coalition = "
            f"{max(0, quorum - 2)}"
        )
    if coalition and config.peer_learning and peers.k_min < coalition + 1:
        raise ValueError(
            f"peers.k_min = {peers.k_min} with audit.coalition = {coalition}; wanted at least {coalition + 1}"
        )
    if config.privacy != "hospital":
        return
    least = {
        "audit.coalition": (coalition, 2),
        "federation.cohort": (config.cohort, 5),
        **({"peers.k_min": (peers.k_min, HOSPITAL_PEERS)} if config.peer_learning else {}),
    }
    for key, (found, wanted) in least.items():
        if found < wanted:
            raise ValueError(f"{key} = {found} under privacy = 'hospital'; wanted at least {wanted}")
    if federation.robust == "none":
        raise ValueError("federation.robust = 'none' under privacy = 'hospital'; wanted 'clip' or stronger")
    if config.peer_learning and peers.batch_norm not in ("receiver", "recalibrate"):
        raise ValueError(
            f"peers.batch_norm = {peers.batch_norm!r} under privacy = 'hospital': running statistics are those of a "
            "client's images; wanted 'receiver' or 'recalibrate'"
        )


PRIVATE_KINDS = ("supervised", "fixmatch", "uda", "mean_teacher")
"""Objectives whose loss is a sum over images, each term a function of that image and of models alone."""


def dp_fault(objective: Objective) -> str | None:
    """Return which setting of an objective lets one image change what another one teaches; None where none does.

    A running average of the weights, peers and the optimiser's moments follow models that are noisy already.
    """
    found = [
        (objective.kind not in PRIVATE_KINDS, f"kind = {objective.kind!r}", f"one of {', '.join(PRIVATE_KINDS)}"),
        (objective.class_weights != "none", f"class_weights = {objective.class_weights!r}", "'none'"),
        (objective.labelled_loss != "cross_entropy", f"labelled_loss = {objective.labelled_loss!r}", "'cross_entropy'"),
        (objective.thresholds != "fixed", f"thresholds = {objective.thresholds!r}", "'fixed'"),
        (objective.prior_correction > 0, f"prior_correction = {objective.prior_correction:g}", "0"),
        (objective.mixup > 0, f"mixup = {objective.mixup:g}", "0"),
        (objective.unlabelled_mean != "batch", f"unlabelled_mean = {objective.unlabelled_mean!r}", "'batch'"),
        (objective.strong_pass != "all", f"strong_pass = {objective.strong_pass!r}", "'all'"),
    ]
    for is_so, what, wanted in found:
        if is_so:
            return f"objective.{what}: the loss of one image would depend on others, or may do so; wanted {wanted}"
    return None


def check_dp(config: Config) -> None:
    """Refuse settings with which epsilon would not be what it says.

    Raises:
        ValueError: naming the first.
    """
    if config.dp.unit == "none":
        return
    model, federation, metric = config.model, config.federation, config.gate.metric
    asks = config.peer_learning and config.peers.policy in ("validation", "gated_validation")
    found = [
        (
            model.norm == "batch" and model.net != "resnet9",
            f"model.norm = 'batch': {model.net} takes statistics over all images of a batch; wanted norm = 'group'",
        ),
        (dp_fault(config.objective) is not None, str(dp_fault(config.objective))),
        (federation.batch_norm == "local", "federation.batch_norm = 'local': there is no batch norm; wanted 'average'"),
        (
            federation.unlabelled_batch is not None,
            "federation.unlabelled_batch: a step draws from all of a client's images alike; wanted batch alone",
        ),
        (federation.alone, "federation.alone = true: nothing leaves a client; wanted dp.unit = 'none'"),
        (
            asks and metric != "server_acc",
            f"gate.metric = {metric!r}: clients would tell an accuracy without noise; wanted 'server_acc'",
        ),
        (config.engine != "local", f"engine = {config.engine!r} keeps no count of private steps; wanted 'local'"),
        (
            config.device != "cpu" and config.gpu == "fast",
            "gpu = 'fast' records steps, whose batches are of one size; wanted gpu = 'reference'",
        ),
    ]
    for is_so, what in found:
        if is_so:
            raise ValueError(f"with dp.unit = {config.dp.unit!r}: {what}")


def needed_by_rule(config: Config) -> tuple[int, str]:
    """Return how many updates the robust average needs, and why; 0 where it makes do with any number."""
    least, faulty = config.coalition + 2, config.federation.faulty
    if config.federation.robust == "trimmed_mean":
        return least + 2 * faulty, f"{least} clients in every number, beside {faulty} at either end"
    if config.federation.robust == "multi_krum":
        return max(2 * faulty + 3, least + faulty), f"2 x {faulty} + 3 clients, and {least} that are kept"
    return 0, ""


def check_robust(config: Config) -> None:
    """Refuse robust averages that cannot be made, or would hand out what is one client's.

    Raises:
        ValueError: naming the settings.
    """
    federation, quorum = config.federation, config.quorum
    wanted, why = needed_by_rule(config)
    if quorum < wanted:
        raise ValueError(
            f"federation.robust = {federation.robust!r} with federation.quorum = {quorum}: it needs {why}; wanted a "
            f"quorum of at least {wanted}"
        )
    if wanted and federation.aggregator != "fedavg":
        raise ValueError(
            f"federation.robust = {federation.robust!r} weighs clients by itself; wanted aggregator = 'fedavg', found "
            f"{federation.aggregator!r}"
        )
    if federation.robust == "fltrust" and config.scenario.labels != "server":
        raise ValueError(
            "federation.robust = 'fltrust' compares clients with the server's own training; wanted scenario.labels = "
            f"'server', found {config.scenario.labels!r}"
        )
    if federation.robust != "none" and (config.federation.sparse or federation.alone or not config.peers.snapshot):
        raise ValueError(
            f"federation.robust = {federation.robust!r}: wanted no federation.sparse, no federation.alone, and "
            "peers.snapshot = true"
        )


def research_note(config: Config) -> str:
    """Return what a run lets happen that is not for real patients; nothing where it lets nothing."""
    if config.raw_peers:
        return "clients are sent other clients' models as they are"
    if config.peer_learning and config.peers.k_min < 2:
        return "a client's only peer may be another client's model as it is"
    if config.coalition == 0 and not config.federation.alone:
        return "what clients could solve for from what they are sent is not audited"
    return "the guards of quorum, shares and relations are off" if config.privacy == "research" else ""


LOST = 0.05
"""A share of answers that do not come, for an example."""


def loss_note(config: Config) -> str:
    """Return what one answer that is lost costs, where each is needed; nothing where a round can do without one.

    The presets that print the paper have such rounds on purpose.
    """
    cohort = config.cohort
    if config.federation.alone or config.preset != "recommended" or config.quorum < cohort:
        return ""
    void = 1 - (1 - LOST) ** cohort
    return (
        f"federation.quorum = {config.quorum} of federation.cohort = {cohort}: one lost answer makes a round void; "
        f"where {LOST:.0%} of answers are lost, {void:.0%} of rounds are"
    )
