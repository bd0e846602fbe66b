"""Tasks and answers as bytes and text, for an engine that carries them to other machines. Nothing else is carried.

A model is one piece of bytes, a safetensors file: an engine that sends tensor by tensor takes six times as long. What
comes back is checked as it is read: of a fixed form, of a bounded size, no number that is not on the lists.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from fedperl.evaluate import BinnedSums, GroupCounts
from fedperl.federation.messages import EvaluateTask, Evaluation, GlobalModel, ReceivedPeer, TrainTask, Update
from fedperl.files import digest
from fedperl.learn.local_round import LocalSettings
from fedperl.learn.packing import packed
from fedperl.learn.state import State
from fedperl.peers import AnonymizedPeer
from fedperl.settings import Objective, Optimizer, Views

MODEL, PEER, RELATION = "model", "peer", "relation"
SECTIONS: dict[str, Any] = {"objective": Objective, "optimizer": Optimizer, "views": Views}
MOST_TEXT = 2**20
"""Characters: counts in bins of a reported model are the longest."""


class WireError(ValueError):
    """What came over the wire is not of the form it should have."""


@dataclass(frozen=True)
class Parcel:
    """One message: its text, JSON, and pieces of bytes by name."""

    text: str
    pieces: Mapping[str, bytes] = field(default_factory=dict)


def train_parcel(task: TrainTask, model: bytes | None = None) -> Parcel:
    """Return a training task to be sent.

    Args:
        model: its global model, packed, where it is at hand.
    Raises:
        ValueError: it carries raw peers, which are never sent to another machine.
    """
    pieces = {MODEL: model or packed(task.model.state)}
    if isinstance(task.peer, AnonymizedPeer):
        pieces[PEER] = packed(task.peer.state)
    elif task.peer is not None:
        raise ValueError(f"a task with {type(task.peer).__name__}: only anonymized peers are sent to other machines")
    if task.relation is not None:
        pieces[RELATION] = packed({RELATION: task.relation})
    settings = {f.name: getattr(task.settings, f.name) for f in fields(LocalSettings)}
    settings |= {name: settings[name].model_dump(mode="json") for name in SECTIONS}
    head = {"run": task.run, "round": task.round, "client": task.client, "model": task.model.round, "seed": task.seed}
    return Parcel(json.dumps(head | {"settings": settings}), pieces)


def read_train(parcel: Parcel) -> TrainTask:
    """Return the training task that a client received.

    Raises:
        WireError: it is not one.
    """
    found = _object(parcel.text)
    try:
        settings = {name: value for name, value in found["settings"].items()}
        settings |= {name: section.model_validate(settings[name], strict=False) for name, section in SECTIONS.items()}
        return TrainTask(
            found["run"],
            found["round"],
            found["client"],
            GlobalModel(found["model"], _state(parcel, MODEL)),
            ReceivedPeer(_state(parcel, PEER)) if PEER in parcel.pieces else None,
            LocalSettings(**settings),
            found["seed"],
            _state(parcel, RELATION)[RELATION] if RELATION in parcel.pieces else None,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"a training task cannot be read: {type(error).__name__}: {error}") from None


def update_parcel(update: Update) -> Parcel:
    """Return an update to be sent."""
    pieces = {MODEL: packed(update.state)}
    if update.relation is not None:
        pieces[RELATION] = packed({RELATION: update.relation})
    head = {"run": update.run, "round": update.round, "client": update.client, "numbers": update.numbers}
    return Parcel(json.dumps(head), pieces)


def read_update(parcel: Parcel) -> Update:
    """Return the update that the server received; whether it fits the model is for `absorb` to say.

    Raises:
        WireError: it is none, or carries what no update may.
    """
    found = _object(parcel.text, {"run": str, "round": int, "client": int, "numbers": dict})
    relation = _state(parcel, RELATION).get(RELATION) if RELATION in parcel.pieces else None
    try:
        return Update(found["run"], found["round"], found["client"], _state(parcel, MODEL), found["numbers"], relation)
    except (TypeError, ValueError) as error:
        raise WireError(str(error)) from None


def evaluate_parcel(task: EvaluateTask, model: bytes | None = None) -> Parcel:
    """Return an evaluation task to be sent; `model` is its global model, packed, where it is at hand."""
    head = {"run": task.run, "round": task.round, "client": task.client, "model": task.model.round}
    head |= {"part": task.part, "full": task.full, "to_use": task.to_use}
    return Parcel(json.dumps(head), {MODEL: model or packed(task.model.state)})


def read_evaluate(parcel: Parcel) -> EvaluateTask:
    """Return the evaluation task that a client received.

    Raises:
        WireError: it is not one.
    """
    wanted = {"run": str, "round": int, "client": int, "model": int, "part": str, "full": bool, "to_use": bool}
    found = _object(parcel.text, wanted)
    if found["part"] not in ("validation", "test"):
        raise WireError(f"an evaluation of part {found['part']!r}; wanted validation or test")
    model = GlobalModel(found["model"], _state(parcel, MODEL))
    return EvaluateTask(
        found["run"], found["round"], found["client"], model, found["part"], found["full"], found["to_use"]
    )


def evaluation_parcel(evaluation: Evaluation) -> Parcel:
    """Return an evaluation to be sent: no pieces, its numbers and counts alone."""
    found = {name: getattr(evaluation, name) for name in ("run", "round", "client", "part", "numbers")}
    found["sums"] = None if evaluation.sums is None else evaluation.sums.to_dict()
    found["groups"] = {name: counts.to_dict() for name, counts in evaluation.groups.items()}
    return Parcel(json.dumps(found))


def read_evaluation(parcel: Parcel) -> Evaluation:
    """Return the evaluation that the server received.

    Raises:
        WireError: it is none, or carries what no evaluation may.
    """
    wanted = {"run": str, "round": int, "client": int, "part": str, "numbers": dict, "groups": dict, "sums": object}
    found = _object(parcel.text, wanted)
    try:
        return Evaluation(
            found["run"],
            found["round"],
            found["client"],
            found["part"],
            found["numbers"],
            None if found["sums"] is None else BinnedSums.from_dict(found["sums"]),
            {name: GroupCounts.from_dict(counts) for name, counts in found["groups"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"{type(error).__name__}: {error}") from None


def model_hash(parcel: Parcel) -> str:
    """Return the hash of the model that a parcel carries."""
    return digest(parcel.pieces[MODEL])


def _object(text: str, wanted: Mapping[str, type] | None = None) -> dict[str, Any]:
    """Return the JSON object of a text, with exactly the wanted keys and types."""
    if len(text) > MOST_TEXT:
        raise WireError(f"a text of {len(text)} characters; wanted at most {MOST_TEXT}")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise WireError("a text that is no JSON") from None
    if not isinstance(found, dict):
        raise WireError(f"JSON of a {type(found).__name__}; wanted an object")
    for name, kind in (wanted or {}).items():
        if name not in found or not isinstance(found[name], kind) or (kind is int and isinstance(found[name], bool)):
            raise WireError(f"{name!r} is missing or no {kind.__name__}")
    other = sorted(found.keys() - wanted.keys()) if wanted else []
    if other:
        raise WireError(f"{other[0]!r} is not part of it")
    return found


def _state(parcel: Parcel, name: str) -> State:
    """Return the tensors of a piece."""
    if name not in parcel.pieces:
        raise WireError(f"piece {name!r} is missing")
    try:
        loaded: dict[str, Tensor] = safetensors.torch.load(parcel.pieces[name])
    except (SafetensorError, ValueError, KeyError) as error:
        raise WireError(f"piece {name!r} is no safetensors: {error}") from None
    return {key: loaded[key] for key in sorted(loaded)}
