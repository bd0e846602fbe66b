"""What Flower starts for every message of a simulation: the client that holds one part of the run's images."""

from functools import lru_cache
from pathlib import Path

from flwr.app import Context, Message

from fedperl.data.store import Store
from fedperl.engines.flower.rules import config_of
from fedperl.engines.flower.site import Asking, Site, answer, app_of
from fedperl.errors import RunError
from fedperl.federation.wire import Parcel
from fedperl.opening import open_store
from fedperl.settings import Config


@lru_cache(maxsize=1)
def _opened(text: str) -> tuple[Config, Store]:
    """Return a run's configuration and images; a simulation's processes live for many messages."""
    config = config_of(text)
    return config, open_store(config)


def _answer(message: Message, context: Context, what: str) -> Message:
    def do(parcel: Parcel, asked: Asking) -> Parcel:
        if not context.run_config["simulated"]:
            raise RunError("this program is for simulations alone; a site runs the program that is installed there")
        config, store = _opened(str(context.run_config["config"]))
        run = Path(str(context.run_config["out"]))
        model = run / "models" / f"client_{asked.client}_best.safetensors"
        site = Site(asked.client, store, config, run / "sites" / str(asked.client), model)
        found: Parcel = getattr(site, what)(parcel, asked)
        return found

    return Message(answer(message.content, do), reply_to=message)


app = app_of(_answer)
