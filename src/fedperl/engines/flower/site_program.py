"""What a site starts for every message, in place of Flower's own program: no code that is sent to it runs there.

Flower ships a bundle of Python with every run and has each node install and run it. Whoever holds the server could so
read a hospital's images. A site therefore leaves the bundle unread, and answers with what is installed here.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

import flwr.supernode.cli
from flwr.app import Context, Message, RecordDict
from flwr.supernode.runtime import run_clientapp

from fedperl.engines.flower.exchange import WITHDRAWN
from fedperl.engines.flower.records import ERROR, kind_of, record_of
from fedperl.engines.flower.rules import config_of
from fedperl.engines.flower.site import Asking, Site, answer, app_of, as_client
from fedperl.engines.flower.site_folder import VARIABLE, SiteFolder
from fedperl.errors import FedPerlError
from fedperl.federation.wire import Parcel


class Withdrawn(FedPerlError):  # noqa: N818
    """The site has left: its name is all that the server is told."""


def _answer(message: Message, context: Context, what: str) -> Message:
    try:
        content = _content(SiteFolder(Path(os.environ[VARIABLE])), message, context, what)
    except Exception as error:  # Flower would send its text
        logging.getLogger(__name__).exception("a message was not answered")
        content = record_of(Parcel("{}"), {ERROR: type(error).__name__})
    return Message(content, reply_to=message)


def _content(folder: SiteFolder, message: Message, context: Context, what: str) -> RecordDict:
    def do(parcel: Parcel, asked: Asking) -> Parcel:
        if folder.leaving():
            raise Withdrawn("the site has left")
        config = folder.own_settings(config_of(str(context.run_config["config"])))
        store, model = as_client(folder.open_store(), asked.client), folder.model_of(config.name, asked.run)
        site = Site(asked.client, store, config, folder.state, model)
        found: Parcel = getattr(site, what)(parcel, asked)
        if folder.leaving():  # while it was at work
            raise Withdrawn("the site has left")
        return found

    content = answer(message.content, do)
    if kind_of(content) == WITHDRAWN:
        folder.has_told()
    return content


app = app_of(_answer)


def main() -> None:
    """Answer one message as Flower's own program does, with this application instead of the one that was sent."""
    assert Withdrawn.__name__ == WITHDRAWN
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    def nothing(*_: Any, **__: Any) -> None:
        """Install nothing."""

    replaced = {"install_from_fab": nothing, "get_load_client_app_fn": lambda **_: lambda *__: app}
    for name, value in replaced.items():
        if not hasattr(run_clientapp, name):  # another version of Flower: better no answer than its code
            sys.exit(f"this version of Flower has no {name} to replace; the site answers nothing")
        setattr(run_clientapp, name, value)
    flwr.supernode.cli.flwr_clientapp()


if __name__ == "__main__":
    main()
