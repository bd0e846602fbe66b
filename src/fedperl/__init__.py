"""FedPerl: semi-supervised federated peer learning for medical images."""

from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["__version__", "load_config", "train"]

if TYPE_CHECKING:
    from fedperl.config import load_config
    from fedperl.training import train


def __getattr__(name: str) -> Any:
    """Import torch and the rest only when something that needs them is asked for."""
    if name == "load_config":
        from fedperl.config import load_config

        return load_config
    if name == "train":
        from fedperl.training import train

        return train
    raise AttributeError(f"module 'fedperl' has no attribute {name!r}")
