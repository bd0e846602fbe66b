"""Models: weights to start from, a trained model on a client it never saw."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedperl.cli.common import AllowBad, AllowMissing, AsJson, Quiet, bar, console, stopped


def import_weights(
    file: Annotated[
        Path | None, typer.Argument(help="The published file efficientnet-b0-355c32eb.pth; downloaded without one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Where to write it; by default where `imagenet` is looked for.")
    ] = None,
) -> None:
    """Check the published ImageNet weights of EfficientNet-B0 and write them as safetensors."""
    from fedperl.learn.weights import default_imagenet_path, import_imagenet

    with bar("bytes", hidden=file is not None) as progress:
        task = progress.add_task("download", total=None)
        written = import_imagenet(
            file,
            out or default_imagenet_path(),
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    print(f"Weights in {written}" + ("" if out else '; use them with model.weights = "imagenet"'))


def pretrain(
    store: Annotated[Path, typer.Argument(help="A store with labels.")],
    out: Annotated[Path, typer.Option(help="The safetensors file to write; use it as model.weights.")],
    net: Annotated[str, typer.Option(help="efficientnet_b0, resnet9 or small_cnn.")] = "efficientnet_b0",
    size: Annotated[
        int | None, typer.Option(min=16, max=224, help="Enlarge small images: EfficientNet sees little in 32 px.")
    ] = None,
    epochs: Annotated[int, typer.Option(min=1)] = 20,
    lr: Annotated[float, typer.Option(min=1e-8, help="Of Adam, at the start; it falls by half a cosine.")] = 1e-3,
    batch: Annotated[int, typer.Option(min=2)] = 64,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a backbone on all labelled images of a store; the same command goes on after a stop."""
    from fedperl.data.store import Store
    from fedperl.learn.nets import NETS
    from fedperl.pretraining import Pretraining
    from fedperl.pretraining import pretrain as pretrain_backbone
    from fedperl.training import check_device

    if net not in NETS:
        raise typer.BadParameter(f"{net!r}; wanted one of {', '.join(NETS)}", param_hint="--net")
    check_device(device)
    settings = Pretraining(net=net, size=size, epochs=epochs, lr=lr, batch=batch, seed=seed, device=device)
    try:
        with bar("epochs", hidden=quiet or as_json, number="validation accuracy") as progress:
            task = progress.add_task("pretrain", total=epochs, accuracy="")
            about = pretrain_backbone(
                Store.open(store),
                out,
                settings,
                progress=lambda done, total, accuracy: progress.update(
                    task, completed=done, total=total, accuracy=f"{accuracy:.3f}"
                ),
            )
    except KeyboardInterrupt:
        stopped("the same command goes on after the last whole epoch")
    if as_json:
        print(json.dumps({name: value for name, value in about.items() if name != "seen"}))
    elif not quiet:
        print(f"Validation accuracy {about['accuracy']} on {about['validation_images']} images; weights in {out}")


def evaluate(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    data: Annotated[
        str, typer.Option(help="A store, an archive as published (isic2020), or dermsim for a drawn unseen hospital.")
    ],
    model: Annotated[str, typer.Option(help="Which of the run's models.")] = "last",
    source: Annotated[str | None, typer.Option(help="Only the images of this data set of the store.")] = None,
    allow_missing: AllowMissing = False,
    allow_bad: AllowBad = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test a trained model on a client it never saw: all classes where it has them, malignant against benign."""
    from fedperl.evaluating import evaluate as evaluate_run
    from fedperl.evaluating import open_unseen
    from fedperl.report.tables import evaluation_tables
    from fedperl.training import check_device

    check_device(device)
    with bar("images", hidden=quiet or as_json) as progress:
        task = progress.add_task("images", total=None)
        store = open_unseen(
            run,
            data,
            allow_missing=allow_missing,
            allow_bad=allow_bad,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
        progress.update(task, completed=len(store.images), total=len(store.images))
    name = Path(data.partition("=")[2] or data).name or "unseen"
    found = evaluate_run(run, store, model=model, source=source, name=name, device=device)
    if as_json:
        print(json.dumps(found))
    elif not quiet:
        for shown in evaluation_tables(found):
            console.print(shown)
        print(f"Also in {run / 'evaluations'}")
