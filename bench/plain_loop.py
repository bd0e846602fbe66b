"""FedPerl as its paper describes it and as one would first write it in PyTorch: what `fedperl bench` shows beside.

    python bench/plain_loop.py STORE [--device cuda] [--steps 26] [--batch 16] [--cohort 3] [--clients-rounds 1]

Eager and in single precision, with torch's defaults. Images are augmented one by one with PIL in the workers of two
data loaders, one for labelled and one for unlabelled images; clients train one after the other, each with a new Adam
and the global weights loaded; labelled, weak, strong and peer views are passes of their own; a peer's weights are
loaded at every step; losses are read off at every step; states are averaged in Python. One thing is kinder than most
loops: images come from memory, not from files.

Prints one line of JSON. The number of workers is the best of those tried, each for a few steps.
"""

import argparse
import copy
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler

from fedperl.data.partition import Partition
from fedperl.data.store import Store
from fedperl.data.views import STRONG_RECIPES, WEAK_RECIPES, Operation, StrongRecipe, WeakRecipe
from fedperl.learn.nets import build_net
from fedperl.machine import cores

Picture = Image.Image
State = dict[str, Tensor]

GREY = (128, 128, 128)
BILINEAR, AFFINE = Image.Resampling.BILINEAR, Image.Transform.AFFINE
SEARCH = 8
"""Steps for which a number of workers is tried."""


def moved(picture: Picture, *matrix: float) -> Picture:
    return picture.transform(picture.size, AFFINE, matrix, BILINEAR, fillcolor=GREY)


STRONG: dict[Operation, Callable[[Picture, float], Picture]] = {
    Operation.IDENTITY: lambda picture, _: picture,
    Operation.ROTATE: lambda picture, degrees: picture.rotate(degrees, BILINEAR, fillcolor=GREY),
    Operation.SHEAR_X: lambda picture, factor: moved(picture, 1, factor, 0, 0, 1, 0),
    Operation.SHEAR_Y: lambda picture, factor: moved(picture, 1, 0, 0, factor, 1, 0),
    Operation.TRANSLATE_X: lambda picture, share: moved(picture, 1, 0, share * picture.width, 0, 1, 0),
    Operation.TRANSLATE_Y: lambda picture, share: moved(picture, 1, 0, 0, 0, 1, share * picture.height),
    Operation.AUTOCONTRAST: lambda picture, _: ImageOps.autocontrast(picture),
    Operation.EQUALIZE: lambda picture, _: ImageOps.equalize(picture),
    Operation.SOLARIZE: lambda picture, threshold: ImageOps.solarize(picture, int(threshold)),
    Operation.POSTERIZE: lambda picture, bits: ImageOps.posterize(picture, int(bits)),
    Operation.COLOUR: lambda picture, factor: ImageEnhance.Color(picture).enhance(factor),
    Operation.CONTRAST: lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor),
    Operation.BRIGHTNESS: lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor),
    Operation.SHARPNESS: lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor),
}


def weak_view(picture: Picture, recipe: WeakRecipe) -> Picture:
    if recipe.flips and random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if recipe.flips and random.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    if recipe.degrees:
        picture = picture.rotate(random.uniform(-recipe.degrees, recipe.degrees), BILINEAR)
    jitter = [(ImageEnhance.Brightness, recipe.brightness), (ImageEnhance.Color, recipe.saturation)]
    random.shuffle(jitter)
    for enhance, most in jitter:
        if most:
            picture = enhance(picture).enhance(1 + random.uniform(-most, most))
    return picture


def strong_view(picture: Picture, recipe: StrongRecipe) -> Picture:
    for choice in random.choices(recipe.choices, k=recipe.operations):
        index = random.randrange(recipe.bins) if recipe.magnitude is None else recipe.magnitude
        sign = random.choice((-1, 1)) if choice.signed else 1
        picture = STRONG[choice.operation](picture, choice.centre + sign * choice.magnitudes[index])
    return picture


def to_tensor(picture: Picture) -> Tensor:
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255


class Views(Dataset[tuple[Tensor, ...]]):
    """A client's images of one kind: a weak view and the label, or a weak and a strong view."""

    def __init__(self, store: Store, rows: Any, weak: WeakRecipe, strong: StrongRecipe | None) -> None:
        self.images = store.pixels(rows).transpose(0, 2, 3, 1)
        self.labels = torch.from_numpy(store.manifest.label[rows])
        self.weak, self.strong = weak, strong

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, row: int) -> tuple[Tensor, ...]:
        picture = Image.fromarray(self.images[row])
        weak = to_tensor(weak_view(picture, self.weak))
        if self.strong is None:
            return weak, self.labels[row]
        return weak, to_tensor(strong_view(picture, self.strong))


def batches(views: Views, steps: int, batch: int, workers: int) -> DataLoader[tuple[Tensor, ...]]:
    sampler = RandomSampler(views, replacement=True, num_samples=steps * batch)
    return DataLoader(views, batch, sampler=sampler, num_workers=workers, pin_memory=torch.cuda.is_available())


def averaged(states: Sequence[State]) -> State:
    return {
        name: sum(state[name].float() for state in states).div(len(states)).to(tensor.dtype)  # type: ignore[union-attr]
        for name, tensor in states[0].items()
    }


@dataclass
class Loop:
    """The networks, the global weights and every client's last ones."""

    arguments: argparse.Namespace
    clients: list[tuple[Views, Views]]
    classes: int
    done: int = 0
    planned: int = 0
    waited: float = 0.0
    """Seconds until clients' first batches were there: workers start in every client round."""

    def __post_init__(self) -> None:
        device, net = self.arguments.device, self.arguments.net
        self.net = build_net(net, self.classes, seed=0).to(device)
        self.peer = build_net(net, self.classes, seed=0).to(device).eval()
        self.weights: State = copy.deepcopy(self.net.state_dict())
        self.last: dict[int, State] = {}

    def peers_of(self, client: int) -> list[State]:
        others = [state for number, state in self.last.items() if number != client]
        chosen = random.choices(others or [self.weights], k=self.arguments.T)
        return chosen if self.arguments.raw or not chosen else [averaged(chosen)]

    def train(self, client: int, steps: int, workers: int) -> float:
        """Train a client from the global weights, keep what it has learnt, and return the seconds it took."""
        peers = self.peers_of(client)  # the server's work
        begun = time.perf_counter()
        asked, (labelled, unlabelled) = self.arguments, self.clients[client]
        self.net.load_state_dict(copy.deepcopy(self.weights))
        self.net.train()
        optimizer = torch.optim.Adam(self.net.parameters(), lr=asked.lr)
        own = batches(labelled, steps, asked.batch, workers)
        others = repeat(None) if asked.supervised else batches(unlabelled, steps, asked.unlabelled_batch, workers)
        for number, ((images, labels), pair) in enumerate(zip(own, others, strict=False)):
            if number == 0:
                self.waited += time.perf_counter() - begun
            loss = self.labelled_loss(images, labels)
            if pair is not None:
                weak, strong = pair
                loss = loss + self.unlabelled_loss(peers, weak.to(asked.device), strong.to(asked.device))
            self.step(optimizer, loss)
        self.last[client] = copy.deepcopy(self.net.state_dict())
        if asked.device != "cpu":
            torch.cuda.synchronize(asked.device)
        return time.perf_counter() - begun

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        self.done += 1
        print(f"{self.done}/{self.planned} steps, loss {loss.item():.3f}", file=sys.stderr, flush=True)

    def labelled_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        device = self.arguments.device
        return F.cross_entropy(self.net(images.to(device)), labels.to(device))

    def unlabelled_loss(self, peers: list[State], weak: Tensor, strong: Tensor) -> Tensor:
        """Return 0.5 CE of the accepted strong views and 0.01 times the distance from the peers (Eq. 2 to 7)."""
        helping = []
        for state in peers:
            self.peer.load_state_dict(state)
            with torch.no_grad():
                helping.append(torch.softmax(self.peer(weak), 1))
        with torch.set_grad_enabled(bool(peers) and self.arguments.consistency == "gradient"):
            probabilities = torch.softmax(self.net(weak), 1)
        score, labels = torch.stack([probabilities.detach(), *helping]).mean(0).max(1)
        losses = F.cross_entropy(self.net(strong), labels, reduction="none")
        loss = 0.5 * (losses * (score >= 0.6)).mean()
        for each in helping:
            loss = loss + 0.01 * F.mse_loss(probabilities, each) / len(helping)
        return loss

    def round(self, workers: int) -> float:
        """Train a cohort, average its weights, and return the seconds that training took."""
        cohort = random.sample(range(len(self.clients)), self.arguments.cohort)
        seconds = sum(self.train(client, self.arguments.steps, workers) for client in cohort)
        self.weights = averaged([self.last[client] for client in cohort])
        return seconds


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--partition", type=Path, help="who holds which images, if not as the store says")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, help="of the main process; torch's default without")
    parser.add_argument("--net", default="efficientnet_b0")
    parser.add_argument("--size", type=int, help="pixels the store must have")
    parser.add_argument("--steps", type=int, default=26)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--unlabelled-batch", type=int, help="as many as labelled ones without")
    parser.add_argument("--cohort", type=int, default=3)
    parser.add_argument("--clients-rounds", type=int, default=1, help="rounds that are measured")
    parser.add_argument("--T", type=int, default=2, help="peers, averaged into one")
    parser.add_argument("--raw", action="store_true", help="each of the T peers as it is")
    parser.add_argument("--supervised", action="store_true", help="labelled images alone")
    parser.add_argument("--consistency", choices=("gradient", "detached"), default="gradient")
    parser.add_argument("--weak", choices=tuple(WEAK_RECIPES), default="fedperl")
    parser.add_argument("--strong", choices=tuple(STRONG_RECIPES), default="fedperl")
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--workers", type=int, nargs="+", help="tried; by default 4, 8 and 16, up to twice the cores")
    arguments = parser.parse_args()
    arguments.workers = arguments.workers or [count for count in (4, 8, 16) if count <= 2 * cores()] or [2]
    arguments.unlabelled_batch = arguments.unlabelled_batch or arguments.batch
    return arguments


def main() -> None:
    arguments = options()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    random.seed(0)
    torch.manual_seed(0)
    store = Store.open(arguments.store)
    if arguments.size not in (None, store.size):
        sys.exit(f"{arguments.store}: holds images of {store.size} px; wanted {arguments.size}")
    dealt = Partition.read(arguments.partition, store.manifest) if arguments.partition else store.partition
    weak, strong = WEAK_RECIPES[arguments.weak], STRONG_RECIPES[arguments.strong]
    clients = [
        (Views(store, part.labelled, weak, None), Views(store, part.unlabelled, weak, strong))
        for part in dealt.clients
        if len(part.labelled) and len(part.unlabelled)
    ]
    loop, steps = Loop(arguments, clients, len(store.classes)), arguments.steps
    search, rounds = min(SEARCH, steps), arguments.clients_rounds
    loop.planned = steps + search * len(arguments.workers) + steps * arguments.cohort * rounds
    loop.train(0, steps, arguments.workers[0])  # libraries load and choose what they use
    tried = {}
    for count in arguments.workers:  # from the first batch on: starting more processes takes longer, once
        loop.waited = 0.0
        tried[count] = loop.train(0, search, count) - loop.waited
    best = min(tried, key=lambda count: tried[count])
    loop.waited = 0.0
    seconds = sum(loop.round(best) for _ in range(rounds))
    taken = rounds * arguments.cohort * steps
    step = seconds / taken
    drawn = arguments.batch + (0 if arguments.supervised else arguments.unlabelled_batch)
    found = {
        "device": arguments.device,
        "ms_per_step": 1e3 * step,
        "ms_waiting_per_step": 1e3 * loop.waited / taken,
        "images_per_second": drawn / step,
        "workers": best,
        "tried_ms_per_step": {str(count): 1e3 * tried[count] / search for count in tried},
        "seconds": seconds,
        "rounds": rounds,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
