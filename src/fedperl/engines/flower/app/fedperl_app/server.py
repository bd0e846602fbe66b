"""What Flower starts on the server."""

from fedperl.engines.flower.server_app import app

__all__ = ["app"]
