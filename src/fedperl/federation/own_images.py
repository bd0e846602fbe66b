"""What the server does with images of its own: train on them, score models on them, test what clients sent."""

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from fedperl.data.manifest import Indices
from fedperl.data.partition import SERVER_PARTS
from fedperl.data.store import Store
from fedperl.evaluate import Description, classification, describe_fully
from fedperl.evaluate.classification import Labels, Probabilities
from fedperl.federation.client import EvaluationImages, Workspace, groups_of, placed
from fedperl.federation.known import model_of
from fedperl.federation.server import Server
from fedperl.learn.local_images import LocalImages
from fedperl.learn.local_round import LocalSettings, local_round
from fedperl.learn.predict import predict
from fedperl.learn.schedule import of_round
from fedperl.learn.state import State, load_into, state_of
from fedperl.learn.steps import AtWork, EagerSteps
from fedperl.peers.predictions import embedding, noise_image
from fedperl.seeds import seed_for
from fedperl.settings import ONLY, Config, Objective


class OwnImages:
    """The server's images, by use, and the network they are shown to."""

    def __init__(
        self, config: Config, store: Store, work: Workspace, *, resident: bool = True, at_work: AtWork | None = None
    ) -> None:
        """Hold the images.

        Args:
            at_work: where the server trains; by default operation by operation on the network of `work`.
        """
        self.config, self.work, self.classes = config, work, len(store.classes)
        self._at_work: AtWork = at_work or (lambda: nullcontext((work.net, EagerSteps)))
        self.parts: dict[str, EvaluationImages] = {
            part: _images(store, rows, config.device, part, resident=resident)
            for part in SERVER_PARTS
            if len(rows := getattr(store.partition.server, part))
        }
        peers = config.peers
        self.noise = noise_image(store.size, mean=peers.noise[0], std=peers.noise[1], seed=config.seed)
        self.streams = any(len(client.step) for client in store.partition.clients)

    def score(self, state: State) -> tuple[float, float]:
        """Return a model's accuracy and mean loss on the validation images."""
        own = self.parts["validation"]
        load_into(self.work.net, state)
        probabilities = predict(self.work.net, own.images)
        accuracy = (probabilities.argmax(1) == own.labels).float().mean()
        return float(accuracy), float(F.nll_loss(probabilities.clamp_min(1e-12).log(), own.labels))

    def embed(self, state: State) -> npt.NDArray[np.float64]:
        """Return what a model says about the image of noise, which is the same for all models of a run."""
        load_into(self.work.net, state)
        return embedding(self.work.net, self.noise, self.config.peers.embedding)

    def evaluate(self, state: State, part: str) -> dict[str, float]:
        """Return the numbers of a model on one part."""
        return classification(*self._predictions(state, part)).to_dict()

    def evaluate_fully(self, state: State, part: str) -> Description:
        """Return all numbers and counts of a model on one part; of test images also with a fitted temperature."""
        fits = part == "test" and "validation" in self.parts
        fit_on = self._predictions(state, "validation") if fits else None
        truth, probabilities = self._predictions(state, part)
        return describe_fully(truth, probabilities, groups=self.parts[part].groups, fit_on=fit_on)

    def _predictions(self, state: State, part: str) -> tuple[Labels, Probabilities]:
        load_into(self.work.net, state)
        probabilities = self.work.predict(self.parts[part].images).cpu().numpy()
        return self.parts[part].labels.cpu().numpy(), probabilities

    def teach(self, state: State, round: int) -> State:
        """Return the model after this round's supervised steps on the server's labelled images."""
        config, own = self.config, self.parts["labelled"]
        steps, batch = config.scenario.server_steps, config.federation.batch
        settings = LocalSettings(
            lesson(config.objective),
            of_round(config.optimizer, max(1, round), config.federation.rounds),
            config.views,
            -(-len(own.labels) // batch) if steps == "auto" else steps,
            batch,
        )
        every = torch.arange(len(own.labels), device=own.images.device)
        images = LocalImages(own.images, own.labels, every, every[:0], self.classes)
        with self._at_work() as (net, make_steps):
            load_into(net, state)
            seed = seed_for(config.seed, "server's round", round)
            local_round(net, images, settings, seed=seed, make_steps=make_steps)
            return state_of(net)

    def measure(self, server: Server) -> dict[str, dict[str, float]]:
        """Return the global model's numbers on the validation images, where it is validated in this round.

        At the end of a stream's piece, the clients' too:

        FedMatch reports the mean accuracy of the clients' *local* models in its streaming task: those they last sent.
        """
        found: dict[str, dict[str, float]] = {}
        if "validation" in self.parts and self.config.validates(server.round):
            found["server"] = self.evaluate(server.shown.state, "validation")
        federation = self.config.federation
        ends = server.round % federation.rounds_per_step == 0 or server.round == federation.rounds
        if self.streams and "test" in self.parts and ends:
            found["local"] = self.local_accuracy(server)
        return found

    def local_accuracy(self, server: Server) -> dict[str, float]:
        """Return mean, smallest and largest test accuracy of the clients' last models."""
        values = []
        for client in sorted(server.bank.records):
            values.append(self.evaluate(model_of(server.bank.get(client)), "test")["accuracy"])
        if not values:
            return {}
        return {"accuracy": float(np.mean(values)), "least": min(values), "most": max(values), "clients": len(values)}


def lesson(objective: Objective) -> Objective:
    """Return what the server minimises on its labelled images: by sigma alone where a model is a sum, or by all."""
    kind = "fedmatch" if objective.decomposed else "supervised"
    unused = {name: Objective.model_fields[name].default for name, kinds in ONLY.items() if kind not in kinds}
    return objective.changed(**unused, kind=kind, mu=0.0, options={})


def _images(store: Store, rows: Indices, device: str, part: str, *, resident: bool) -> EvaluationImages:
    labels = torch.from_numpy(store.manifest.label[rows])
    groups = groups_of(store.manifest, rows, "the server") if part == "test" else {}
    return EvaluationImages(placed(store.pixels(rows), device, resident=resident), labels.to(device), groups)
