"""Models: weights to start from, a trained model on a client it never saw, or on any image."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from fedperl.cli.common import AllowBad, AllowMissing, AsJson, Quiet, bar, console, stopped

if TYPE_CHECKING:
    from fedperl.predicting import Abstention, Prediction, Predictor

MOST_ROWS = 200
"""Of a table on the terminal; the rest is in --csv and --json."""


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
    from fedperl.opening import check_device
    from fedperl.pretraining import Pretraining
    from fedperl.pretraining import pretrain as pretrain_backbone

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
    fit: Annotated[
        str | None,
        typer.Option(
            help="Of an archive: crop or squash. By default as the run's own images; crop if their store is gone."
        ),
    ] = None,
    trust_unseen: Annotated[
        bool, typer.Option("--trust-unseen", help="After a run across sites: you know that nobody held these images.")
    ] = False,
    allow_missing: AllowMissing = False,
    allow_bad: AllowBad = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Test a trained model on a client it never saw: all classes where it has them, malignant against benign."""
    from fedperl.evaluating import evaluate as evaluate_run
    from fedperl.evaluating import held_by, name_of, open_unseen
    from fedperl.federation.run_folder import RunFolder
    from fedperl.opening import check_device
    from fedperl.predicting import open_predictor
    from fedperl.report.tables import evaluation_tables

    check_device(device)
    RunFolder(run).read_config()
    open_predictor(run, model, device=device)  # what is not there is told before an archive is read
    held_by(run, trust_unseen=trust_unseen)
    with bar("images", hidden=quiet or as_json) as progress:
        task = progress.add_task("images", total=None)
        store = open_unseen(
            run,
            data,
            fit=fit,
            allow_missing=allow_missing,
            allow_bad=allow_bad,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
        progress.update(task, completed=len(store.images), total=len(store.images))
    found = evaluate_run(
        run,
        store,
        model=model,
        source=source,
        name=name_of(store, data),
        trust_unseen=trust_unseen,
        device=device,
    )
    if as_json:
        print(json.dumps(found))
    elif not quiet:
        for shown in evaluation_tables(found):
            console.print(shown)
        print(f"Also in {run / 'evaluations'}")


def predict(
    model: Annotated[Path, typer.Argument(help="A run's .safetensors file, or a finished run's folder.")],
    images: Annotated[
        list[Path], typer.Argument(help="Files, folders (all levels), or csv files with a column image or path.")
    ],
    name: Annotated[
        str | None, typer.Option("--model", help="Which of a run folder's models; by default last.")
    ] = None,
    risk: Annotated[
        float | None, typer.Option(help="Abstain, so that at most this share of the kept validation images is wrong.")
    ] = None,
    threshold: Annotated[float | None, typer.Option(help="Abstain below this confidence.")] = None,
    fit: Annotated[str, typer.Option(help="crop or squash, as the training images were prepared.")] = "crop",
    out: Annotated[Path | None, typer.Option("--csv", help="Also write this csv, with all probabilities.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Images that the network sees at a time.")] = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Classify images, malignant or benign, or abstain. Exit code 1: some could not be read; 2: none could.

    Not a medical device: for research only.
    """
    from fedperl import predicting
    from fedperl.opening import check_device

    check_device(device)
    predictor = predicting.open_predictor(model, name, device=device)
    square = predicting.check_fit(predictor.run, fit)
    abstain = predicting.abstention(predictor, risk=risk, threshold=threshold)
    if out is not None:
        predicting.check_csv(out, images)
    try:
        entries = predicting.list_images(images, out=out)
        with bar("images", hidden=quiet or as_json) as progress:
            task = progress.add_task("images", total=len(entries))
            found = predicting.predict_images(
                predictor,
                entries,
                abstain=abstain,
                fit=square,
                batch=batch,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except KeyboardInterrupt:
        stopped("nothing was written")
    try:
        if out is not None:
            predicting.write_csv(out, predictor, found)
    finally:  # what took long is shown, even where the disk is full
        if as_json:
            print(json.dumps(predicting.summary(predictor, abstain, found)))
        elif not quiet:
            _print_predictions(predictor, abstain, found)
    if out is not None and not quiet and not as_json:
        print(f"All probabilities in {out}")
    if failed := sum(one.error is not None for one in found):
        raise typer.Exit(2 if failed == len(found) else 1)


def _print_predictions(predictor: "Predictor", abstain: "Abstention | None", found: Sequence["Prediction"]) -> None:
    console.print(_predictions_table(predictor, abstain, found))
    for line in _prediction_lines(abstain, found):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _predictions_table(predictor: "Predictor", abstain: "Abstention | None", found: Sequence["Prediction"]) -> Table:
    """Return one row an image, all that failed among them; where the model abstains, no class is shown."""
    title = f"Model {predictor.name}, round {predictor.round}. Not a medical device"
    table = Table(title=escape(title))
    table.add_column("image", overflow="fold")
    table.add_column("class")
    table.add_column("confidence", justify="right")
    grouped = predictor.malignant is not None
    if grouped:
        table.add_column("malignant or benign", no_wrap=True)
        table.add_column("P(malignant)", justify="right")
    if abstain is not None:
        table.add_column("decision")
    if any(one.error is not None for one in found):
        table.add_column("error", overflow="fold")
    shown = [one for place, one in enumerate(found) if place < MOST_ROWS or one.error is not None]
    for one in shown:
        silent = one.error is not None or one.decision == "abstains"
        cells = [one.image, "·" if silent else str(one.label)]
        cells.append("·" if one.confidence is None else f"{one.confidence:.3f}")
        if grouped:
            cells += ["·", "·"] if silent else [str(one.malignancy), f"{one.malignant_probability:.3f}"]
        if abstain is not None:
            cells.append(one.decision or "·")
        table.add_row(*(escape(cell) for cell in cells), *([escape(one.error)] if one.error is not None else []))
    return table


def _prediction_lines(abstain: "Abstention | None", found: Sequence["Prediction"]) -> list[str]:
    """Return what stands below the table: what the threshold rests on, how many failed, where the rest is."""
    lines = []
    if abstain is not None:
        kept = sum(one.decision == "keeps" for one in found)
        line = f"Abstains below a confidence of {abstain.threshold:g}: {kept} of {len(found)} images kept"
        if abstain.risk is not None:
            line += f"; {_evidence(abstain)}: no promise for other images"
        lines.append(line)
    failed = sum(one.error is not None for one in found)
    if failed:
        lines.append(f"{failed} of {len(found)} could not be predicted: see the column error")
    if len(found) > MOST_ROWS:
        lines.append(f"The table has the first {MOST_ROWS} and all that failed; --csv and --json give all")
    return lines


def _evidence(abstain: "Abstention") -> str:
    """Return what the validation images showed of a threshold."""
    holders = abstain.validation_holders or ()
    one = "the server" if holders == ("server",) else f"client {''.join(holders)}"
    whose = one if len(holders) == 1 else f"{len(holders)} clients"
    coverage, risk = abstain.validation_coverage or 0.0, abstain.validation_risk or 0.0
    images = f"the {abstain.validation_images} validation images of {whose}"
    return f"of {images} it kept {100 * coverage:.1f} %, and {100 * risk:.1f} % of these were wrong"
