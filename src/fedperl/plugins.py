"""A researcher's own class, from a file named in the configuration: `my_objective.py:MyObjective`."""

import importlib.util
import sys
from pathlib import Path
from typing import TypeVar

from fedperl.errors import ConfigError
from fedperl.files import digest

T = TypeVar("T")


def load(spec: str, base: type[T]) -> type[T]:
    """Return the class of that name in that file; the file is run once a process and content.

    Raises:
        ConfigError: there is no such file, it cannot be run, or it has no such class of the wanted kind.
    """
    path, _, name = spec.rpartition(":")
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{spec!r}: {path} cannot be read: {getattr(error, 'strerror', error)}") from None
    module_name = f"fedperl_plugin_{digest(content)[:16]}"
    if module_name not in sys.modules:
        spec_of_file = importlib.util.spec_from_file_location(module_name, Path(path).resolve())
        assert spec_of_file is not None
        assert spec_of_file.loader is not None
        module = importlib.util.module_from_spec(spec_of_file)
        sys.modules[module_name] = module
        try:
            spec_of_file.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise ConfigError(f"{spec!r}: {path} cannot be run: {type(error).__name__}: {error}") from None
    found = getattr(sys.modules[module_name], name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{spec!r}: {path} has no class {name} derived from {base.__name__}")
    return found


def digest_of(spec: str) -> str:
    """Return the hash of a plugin's file: a run is resumed with the same one only."""
    return digest(Path(spec.rpartition(":")[0]).read_bytes())
