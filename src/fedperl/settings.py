"""The settings of a run as frozen, validated objects; the defaults are the preset `recommended`.

Numbers in brackets are rows of docs/paper_and_code.md: where the paper's text and its authors' code differ.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """A table of the configuration file: unknown keys and values of another type are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Data(Section):
    """Which images, at which size, dealt to which clients."""

    source: str = "dermsim"
    """`dermsim` (drawn lesions, nothing to download) or the folder of a store."""
    size: Annotated[int, Field(ge=16, le=224)] = 64
    scale: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """dermsim only: the share of the paper's client sizes."""
    seed: Annotated[int, Field(ge=0)] = 0
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


class Objective(Section):
    """What a client minimises (paper, Eq. 2 and 7)."""

    kind: Literal["supervised", "fixmatch"] = "fixmatch"
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
    label_mode: Literal["train", "eval"] = "train"
    """[9] batch-norm and dropout mode of the labelling pass."""
    unlabelled_mean: Literal["batch", "accepted"] = "batch"
    """[5] average the unlabelled loss over all images of the batch or over those accepted."""
    strong_pass: Literal["all", "accepted"] = "all"
    """[9] which strong views go through the network; `accepted` changes what batch norm sees."""
    consistency: Literal["gradient", "detached"] = "gradient"
    """[7] `detached` only changes the logged loss, as in the authors' code."""
    class_weights: Literal["median_frequency", "none"] = "median_frequency"
    absent_class_weight: Annotated[float, Field(ge=0.0)] = 1.0
    """[6] weight of a class the client has no label of: it never trains, but it counts in the validation loss."""


class Peers(Section):
    """Who helps whom (paper, sections 2.3.1 to 2.3.3)."""

    selector: Literal["none", "profile", "random"] = "profile"
    policy: Literal["all"] = "all"
    T: Annotated[int, Field(ge=0)] = 2
    anonymize: bool = True
    """Average the committee into one anonymized peer before it leaves the server."""
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
    batch_norm: Literal["receiver", "mean", "moment_match"] = "receiver"
    """[21] the peer's running statistics: left out (the receiver's are used), averaged, or pooled as moments."""
    exclude: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """[20] clients that never serve as peers."""


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
    cohort: Positive = 3
    client_sampling: Literal["uniform", "size"] = "uniform"
    """[24] size: probability proportional to the number of training images, as FedVC has it."""
    steps: Literal["auto_min"] | Positive = "auto_min"
    """[24] optimiser steps a client and round; auto_min: min(100, smallest client's unlabelled images / batch)."""
    batch: Annotated[int, Field(ge=2)] = 16
    weights: Literal["equal", "size"] = "equal"
    """[26] of the clients in the average."""
    exclude: Annotated[tuple[int, ...], Field(strict=False)] = ()
    """Clients that take no part: the paper's rows without client 8."""
    rounds_per_step: Positive = 10
    """Where unlabelled images stream in: the rounds that each piece of them is there for."""
    quorum: Positive = 3
    """Accepted updates needed for a new global model; with fewer the round is void and the old model stays."""


class Optimizer(Section):
    """Made anew in every client round, so nothing is carried from one round to the next [29]."""

    kind: Literal["adam", "sgd"] = "adam"
    lr: Annotated[float, Field(gt=0.0)] = 5e-5
    schedule: Literal["constant", "cosine"] = "constant"
    """Over the rounds: the paper's constant rate, or half a cosine down to nearly 0, which ends on a steadier model."""
    momentum: Share = 0.0
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0


class Views(Section):
    """Weak and strong views [32, 33]."""

    weak: Literal["fedperl", "geometric", "none"] = "fedperl"
    strong: Literal["fedperl", "standard"] = "fedperl"
    operations: Positive | None = None
    """Operations an image; None: 6 in the recipe `fedperl`, 2 in `standard`."""
    magnitude: Annotated[int, Field(ge=0, le=30)] | None = None
    """`standard` only; None: 10 of 30."""


class Config(Section):
    """One run, completely."""

    name: Annotated[str, Field(pattern=r"^[^/\\.\[][^/\\\[]*$")] = "run"
    preset: Literal["recommended", "paper", "authors_code"] = "recommended"
    method: str = "fedperl"
    seed: Annotated[int, Field(ge=0)] = 1
    device: str = "cpu"
    threads: Literal["auto"] | Positive = "auto"
    """Part of the configuration, because sums of another order round differently; auto: the cores of the machine
    that starts the run, written into its resolved configuration."""
    privacy: Literal["recommended", "research"] = "recommended"
    """`research` alone lets raw peers reach other clients."""
    data: Data = Data()
    partition: Partitioning = Partitioning()
    scenario: Scenario = Scenario()
    model: Model = Model()
    objective: Objective = Objective()
    peers: Peers = Peers()
    profile: Profile = Profile()
    federation: Federation = Federation()
    optimizer: Optimizer = Optimizer()
    views: Views = Views()
    written_by: str = ""
    """Version that resolved the configuration; filled in by the run."""

    @property
    def peer_learning(self) -> bool:
        """Whether any client can ever be given a peer."""
        return self.peers.selector != "none" and self.peers.T > 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        peers, federation = self.peers, self.federation
        if self.peer_learning:
            if peers.anonymize and peers.T == 1:
                raise ValueError(
                    "peers.T = 1 with peers.anonymize = true: the mean of one model is that model; "
                    "wanted T of at least 2, T = 0, or anonymize = false with privacy = 'research'"
                )
            if not peers.anonymize and self.privacy != "research":
                raise ValueError(
                    "peers.anonymize = false sends one client's model to another; wanted privacy = 'research'"
                )
            if self.objective.kind == "supervised":
                raise ValueError(
                    "peers.selector is set but objective.kind = 'supervised' labels nothing; "
                    "wanted selector = 'none' or kind = 'fixmatch'"
                )
        if self.model.weights == "imagenet" and self.model.net != "efficientnet_b0":
            raise ValueError(
                f"model.weights = 'imagenet' are those of efficientnet_b0; wanted weights = 'none' or a file for "
                f"net = {self.model.net!r}"
            )
        if federation.quorum > federation.cohort:
            raise ValueError(
                f"federation.quorum = {federation.quorum} is larger than federation.cohort = {federation.cohort}: "
                "no round could ever count"
            )
        if federation.quorum < 2 and self.privacy != "research":
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
        if self.objective.labels == "all" and self.objective.kind == "fixmatch":
            raise ValueError("objective.labels = 'all' leaves nothing unlabelled; wanted kind = 'supervised'")
        return self
