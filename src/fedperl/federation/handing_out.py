"""What the file of a model that is handed out says of itself: all that is needed to use it."""

import json
from collections.abc import Sequence

from fedperl import __version__
from fedperl.settings import Config


def about_model(config: Config, classes: Sequence[str], size: int, round: int) -> dict[str, str]:
    """Return the metadata of a run's model: the network and how it is asked, classes, and the round that made it.

    Args:
        size: pixels along an image's edge.
    """
    model = config.model
    return {
        "net": model.net,
        "input": model.input_scale,
        "classes": json.dumps(list(classes)),
        "size": str(size),
        "by": f"fedperl {__version__}",
        **({} if model.norm == "batch" else {"norm": model.norm}),
        **({} if config.orientations == 1 else {"orientations": str(config.orientations)}),
        "round": str(round),
    }
