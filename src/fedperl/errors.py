"""Errors a person can act on: each message names the file or key, what was found and what was wanted."""


class FedPerlError(Exception):
    """Something outside the program is wrong; the command line prints the message alone and exits with 2."""


class ConfigError(FedPerlError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another."""


class DataError(FedPerlError):
    """A store, manifest or partition cannot be used as it is."""


class RunError(FedPerlError):
    """A run folder cannot be started, resumed or read."""


class BusyError(RunError):
    """Another process is working in the folder."""
