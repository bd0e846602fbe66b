import hashlib
import tomllib
from pathlib import Path

import pytest

from fedperl.config import config_hash, dump, hospital_note, load_config, methods, resolve
from fedperl.errors import ConfigError
from fedperl.settings import loss_note


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("peers.warm_up=3", "did you mean 'peers.warmup'"),
        ("warmup=3", "did you mean 'peers.warmup'"),
        ("peers.anonymize=False", "peers.anonymize = 'False'"),  # the authors' flag that meant True
        ("peers.anonymize=1", "peers.anonymize = 1"),
        ("peers.T=1", "mean of one model"),
        ("peers.T=2.0", "peers.T = 2.0"),
        ("peers=3", "wanted a table"),
        ("federation={cohort=3, quorum=4}", "quorum = 4 is larger than federation.cohort = 3"),
        ("federation.steps=0", "federation.steps"),
        ("objective.kind='fixmach'", "did you mean 'fixmatch'"),
        ("objective.tau=nan", "finite"),
        ("method='fedprl'", "did you mean 'fedperl'"),
        ("preset='papper'", "did you mean 'paper'"),
        ("method='../../secret'", "unknown"),
        ("seed", "wanted key=value"),
        ("peers.anonymize=false", "privacy = 'research'"),
        ("federation.quorum=1", "a global model of one update is that client's model"),
        ("views.magnitude=5", "is for views.strong = 'standard'"),
        ("name='../x'", "name"),
        ("name='a/b'", "name"),
    ],
)
def test_bad_settings_are_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=".") as error:
        load_config(None, [override])
    assert message in str(error.value)


def test_supervised_with_peers_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no use for peers"):
        load_config(None, ["method=lower", "peers.selector='profile'"])


def test_file_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such.toml: no such file"):
        load_config(tmp_path / "no_such.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("a = [")
    with pytest.raises(ConfigError, match="broken.toml: cannot be read as TOML"):
        load_config(broken)
    broken.write_text("[peers]\nrho = 0.5\n")
    with pytest.raises(ConfigError, match="broken.toml: unknown key 'peers.rho'"):
        load_config(broken)


@pytest.mark.parametrize("text", ['method = "fedprl"', 'preset = "papr"'])
def test_a_method_that_is_not_there_is_told_with_its_file(text: str, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"mine.toml: .* is unknown; did you mean"):
        load_config(tmp_path / "mine.toml")


@pytest.mark.parametrize("preset", ["recommended", "paper", "authors_code"])
def test_resolved_configuration_is_accepted_back(preset: str) -> None:
    for method in methods():
        config = load_config(None, [f"preset={preset}", f"method={method}", "peers.exclude=[8]"])
        again = resolve(tomllib.loads(dump(config)))
        assert again.model_copy(update={"written_by": ""}) == config
        assert config_hash(again) == config_hash(config)


def test_a_resolved_configuration_is_not_relabelled(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(dump(load_config()))
    for change in ("method=ssfl", "preset=paper"):
        with pytest.raises(ConfigError, match="would only change the name"):
            load_config(file, [change])
    assert load_config(file, ["method=fedperl", "seed=9"]).seed == 9


def test_later_layers_win(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('preset = "paper"\n[federation]\nrounds = 7\ncohort = 5\n')
    config = load_config(file, ["federation.rounds=9"])
    assert (config.federation.rounds, config.federation.cohort, config.federation.quorum) == (9, 5, 2)


def test_presets_differ_where_paper_and_code_do() -> None:
    ours, paper, code = (load_config(None, [f"preset={p}"]) for p in ("recommended", "paper", "authors_code"))
    assert [c.objective.combine for c in (ours, paper, code)] == ["mean", "sum", "mean"]
    assert [c.objective.unlabelled_mean for c in (ours, paper, code)] == ["batch", "batch", "accepted"]
    assert [c.objective.consistency for c in (ours, paper, code)] == ["gradient", "gradient", "detached"]
    assert [c.profile.scale for c in (ours, paper, code)] == ["minmax", "none", "minmax"]
    assert [c.profile.server_score for c in (ours, paper, code)] == [False, False, True]
    assert [c.peers.batch_norm for c in (ours, paper, code)] == ["receiver", "mean", "mean"]
    assert [c.peers.warmup for c in (ours, paper, code)] == [10, 10, 1]
    assert [c.peers.snapshot for c in (ours, paper, code)] == [True, True, False]
    assert [c.views.weak for c in (ours, paper, code)] == ["fedperl", "geometric", "fedperl"]
    assert [(c.cohort, c.quorum) for c in (ours, paper, code)] == [(4, 3), (3, 2), (10, 2)]


def test_hash_ignores_name_and_version_only() -> None:
    config = load_config()
    assert config_hash(config) == config_hash(config.model_copy(update={"name": "x", "written_by": "y"}))
    assert config_hash(config) != config_hash(config.model_copy(update={"seed": 2}))


WITHOUT_WEIGHTS = ("objective.class_weights=none", "method=lower")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["method=fedirm", "federation.rounds=20"], "objective.start = 20 leaves none of the 20 rounds"),
        (["method=fedmatch", "objective.targets=agreement"], "objective.targets = 'agreement' has no effect on kind"),
        (["method=lower", "objective.thresholds=class_aware"], "objective.thresholds = 'class_aware' has no effect"),
        (["method=fedirm", "objective.label_source=round_start"], "has no effect on kind = 'fedirm'"),
        (["method=fedirm_fedperl", "objective.label_source=round_start"], "keeps a running average"),
        (["checkpoint_every=2"], "rounds would be repeated that clients were sent things in"),
        (["checkpoint_every=2", "privacy=research", "audit.coalition=1"], "rounds would be repeated"),
        (
            ["checkpoint_every=2", "privacy=research", "dp.unit=record", "model.net=resnet9", *WITHOUT_WEIGHTS],
            "or spent epsilon in",
        ),
        (["model.init_scale=1.2", "model.weights=imagenet"], "is for weights drawn at random"),
        (["method=fedmatch", "optimizer.lr=0.1"], "each step throws psi further from sigma"),
        (["method=fedmatch_lite_pa", "peers.policy=gated_similarity"], "compares profiles"),
        (["method=fedirm", "scenario.labels=server"], "leaves no client a label"),
        (["method=cbafed", "scenario.labels=server"], "leaves them none; wanted start = 0"),
        (
            ["method=fedperl", "federation.sparse=1e-3", "federation.batch_norm=local"],
            "both decide what a client keeps",
        ),
        (["method=cbafed", "federation.running_average=0.9"], "running_average = 0.9 is of models that all clients"),
        (["method=local_lower", "federation.running_average=0.9"], "wanted alone = false, residual_every = 0"),
        (["method=fedperl_local_norm", "federation.running_average=0.9"], "and batch_norm = 'average'"),
        (["method=fedperl_local_norm", "federation.own_share=0.5"], "own_share = 0.5 mixes a client's models"),
        (["method=fedmatch", "privacy=research", "federation.own_share=validation"], "own_share = 'validation' mixes"),
        (["federation.own_share=best"], "federation.own_share"),
        (["objective.mixup=1.5"], "objective.mixup"),
        (
            ["method=uda", "objective.mixup=0.5"],
            "mixup = 0.5 has no effect on kind = 'uda'; wanted kind = 'supervised'",
        ),
        (["method=local_lower", "federation.own_share=0.5"], "wanted alone = false, batch_norm = 'average'"),
        (["method=fedmatch", "privacy=research", "federation.own_share=0.5"], "no objective.fedmatch.decompose"),
    ],
)
def test_settings_that_contradict_a_method_are_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(None, settings)


def test_what_changes_no_number_changes_no_hash() -> None:
    expected = config_hash(load_config(None, []))
    for setting in (
        "name=other",
        "at_once=2",
        "image_memory=host",
        "engine=flower-simulation",
        "gpu=fast",
        "federation.server_validation=false",
        "federation.organisations=[]",
        "peers.k_min=2",
    ):
        assert config_hash(load_config(None, [setting])) == expected
    research = [config_hash(load_config(None, ["privacy=research", f"checkpoint_every={n}"])) for n in (1, 5)]
    assert research[0] == research[1]
    others = ["gpu=reference", "federation.server_validation=true", "seed=2", "federation.organisations=[[0, 1]]"]
    others += ["federation.running_average=0.9", "federation.own_share=0.5", "model.orientations=8"]
    others += ["views.labelled=strong", "objective.mixup=0.5", "federation.own_share=validation"]
    for setting in others:
        assert config_hash(load_config(None, [setting])) != expected
    text = load_config(None, []).model_dump_json(
        exclude={
            **dict.fromkeys(("name", "written_by", "at_once", "image_memory", "engine", "gpu"), True),
            "checkpoint_every": True,
            "federation": {
                "server_validation",
                "organisations",
                "robust",
                "faulty",
                "validate_every",
                "running_average",
                "own_share",
            },
            "partition": {"held_out"},
            "objective": {"mixup"},
            "peers": {"k_min"},
            "audit": {"keep_uploads"},
            "model": {"norm", "init_scale", "orientations"},
            "views": {"labelled"},
            "dp": True,
        }
    )
    assert hashlib.sha256(text.encode()).hexdigest() == expected


# Values changed later


def test_a_changed_value_is_checked_like_one_of_a_file() -> None:
    config = load_config()
    with pytest.raises(ConfigError, match="name = 'exp\\[1\\]'"):
        config.changed(name="exp[1]")
    with pytest.raises(ConfigError, match="colour"):
        config.changed(colour="red")
    with pytest.raises(ConfigError, match="quorum = 4 is larger"):
        config.changed(federation=config.federation.changed(cohort=3, quorum=4))
    with pytest.raises(ConfigError, match=r"lr = 0"):
        config.optimizer.changed(lr=0.0)
    other = config.changed(seed=7, federation=config.federation.changed(rounds=9))
    assert (other.seed, other.federation.rounds, other.peers) == (7, 9, config.peers)


# Cohort and quorum


@pytest.mark.parametrize(
    ("settings", "clients", "numbers"),
    [
        ([], 10, (4, 3)),
        ([], 3, (3, 3)),
        (["method=lower", "audit.coalition=0"], 10, (3, 2)),
        (["method=local_lower"], 10, (4, 3)),  # as many steps as the federation's
        (["method=local_lower"], 2, (2, 2)),
        (["privacy=hospital"], 10, (5, 4)),
        (["privacy=hospital"], 5, (5, 4)),
        (["preset=paper", "privacy=hospital", "peers.batch_norm=receiver"], 10, (5, 4)),
        (["privacy=research"], 10, (3, 2)),
        (["privacy=research"], 2, (2, 2)),
        (["privacy=research", "federation.quorum=1"], 10, (3, 1)),
        (["federation.robust=trimmed_mean"], 10, (6, 5)),
        (["federation.robust=multi_krum", "federation.faulty=2"], 10, (8, 7)),
        (["federation.robust=multi_krum", "federation.faulty=2"], 7, (7, 7)),
        (["federation.quorum=5"], 10, (6, 5)),
        (["federation.cohort=8"], 10, (8, 5)),
        (["federation.cohort=3"], 10, (3, 3)),
        (["preset=paper"], 10, (3, 2)),
        (["preset=authors_code"], 10, (10, 2)),
    ],
)
def test_cohort_and_quorum_that_are_not_written(settings: list[str], clients: int, numbers: tuple[int, int]) -> None:
    counted = load_config(None, settings).counted(clients)
    assert (counted.federation.cohort, counted.federation.quorum) == (counted.cohort, counted.quorum) == numbers
    assert counted.counted(clients + 3) is counted


@pytest.mark.parametrize(("settings", "clients"), [([], 2), (["privacy=hospital"], 4), (["federation.quorum=5"], 4)])
def test_too_few_clients_for_the_quorum_are_told(settings: list[str], clients: int) -> None:
    with pytest.raises(ConfigError, match=f"there are {clients} clients with something to train on"):
        load_config(None, settings).counted(clients)


def test_what_one_lost_answer_costs_is_told() -> None:
    def told(*settings: str, clients: int = 10) -> str:
        return loss_note(load_config(None, settings).counted(clients))

    assert told() == told("federation.cohort=8") == told("federation.cohort=5", "federation.quorum=4") == ""
    assert "14% of rounds" in told("federation.cohort=3")
    assert "14% of rounds" in told(clients=3)
    assert "23% of rounds" in told("federation.cohort=5", "federation.quorum=5")
    assert not told("preset=paper", "federation.cohort=2")
    assert not told("method=local_lower", clients=3)


# A hospital's committees


def test_a_hospitals_committees_are_no_smaller_than_three(tmp_path: Path) -> None:
    def peers(*settings: str) -> tuple[int, int, str]:
        config = load_config(None, ["privacy=hospital", *settings])
        return config.peers.T, config.peers.k_min, hospital_note(config)

    assert peers("method=fedperl_spectral") == (5, 3, "")
    T, k_min, told = peers("method=fedperl")
    assert (T, k_min) == (3, 3)
    assert "peers.T = 3" in told
    assert "has 2" in told
    assert peers("peers.T=4") == (4, 3, "")
    assert peers("method=ssfl")[2] == ""
    assert hospital_note(load_config()) == ""
    file = tmp_path / "own.toml"
    for T in (1, 2):
        file.write_text(f'privacy = "hospital"\nmethod = "fedperl_spectral"\n[peers]\nT = {T}\n')
        for source, settings in ((file, []), (None, ["privacy=hospital", f"peers.T={T}"])):
            with pytest.raises(ConfigError, match=rf"peers\.T = {T} .*wanted.* at least 3"):
                load_config(source, settings)
