"""What may run across real sites: methods of the closed list, anonymized peers alone, and no code from elsewhere."""

import tomllib

from fedperl.config import resolve
from fedperl.errors import ConfigError
from fedperl.settings import OBJECTIVES, Config


def config_of(text: str) -> Config:
    """Return the configuration that a server sent, if it may run across sites.

    Raises:
        ConfigError: it is none, or may not.
    """
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the run's configuration is no TOML: {error}") from None
    config = resolve(table, source="the run's configuration")
    check_deployable(config)
    return config


def check_deployable(config: Config) -> None:
    """Refuse a run that would send raw peers, train without a server, or ask a site to run a file.

    Raises:
        ConfigError: naming the setting.
    """
    refused = {
        "peers.anonymize = false: raw peers never leave the local engine; wanted anonymize = true": (
            config.peer_learning and not config.peers.anonymize
        ),
        "peers.snapshot = false: clients of a round would have to wait for each other; wanted true": (
            config.peer_learning and not config.peers.snapshot
        ),
        "federation.alone = true: clients that train by themselves have nothing to send; wanted false": (
            config.federation.alone
        ),
        f"objective.kind = {config.objective.kind!r}: sites run no code that is sent to them; wanted one of "
        f"{', '.join(sorted(OBJECTIVES))}": config.objective.kind not in OBJECTIVES,
        f"device = {config.device!r}: the server only averages; wanted 'cpu', each site's site.toml names its own": (
            config.device != "cpu"
        ),
        f"dp.unit = {config.dp.unit!r}: sites keep no durable count of private steps yet; wanted 'none'": (
            config.dp.unit != "none"
        ),
        "privacy = 'research': not for real patients; wanted 'recommended'": config.privacy == "research",
    }
    found = [what for what, is_so in refused.items() if is_so]
    if found:
        raise ConfigError(f"method {config.method!r} cannot run across sites: {found[0]}")
