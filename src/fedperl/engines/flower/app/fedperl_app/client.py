"""What Flower starts at a site."""

from fedperl.engines.flower.client_app import app

__all__ = ["app"]
