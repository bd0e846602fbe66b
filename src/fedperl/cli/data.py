"""Images: archives into a store, leaks and counts, who holds what."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedperl.cli.common import AllowBad, AllowMissing, AsJson, Quiet, Settings, bar, console, stopped

if TYPE_CHECKING:
    from fedperl.data.store import Store

What = Annotated[
    Path | None, typer.Argument(help="A store's folder, or a configuration; the demo's images without either.")
]


def prepare(
    folders: Annotated[
        list[str],
        typer.Argument(help="Published archives, unpacked; each is known by its files, or named: isic2019=FOLDER."),
    ],
    out: Annotated[Path, typer.Option(help="The store to write: a new folder.")],
    size: Annotated[
        int | None, typer.Option(min=16, max=224, help="Pixels along an edge; 224, and 32 for CIFAR-10 and the like.")
    ] = None,
    fit: Annotated[str, typer.Option(help="crop: the largest centred square; squash: the whole image.")] = "crop",
    codec: Annotated[str, typer.Option(help="auto, jpeg (quality 85) or png (loses nothing).")] = "auto",
    pixel_cap: Annotated[
        int, typer.Option(min=1, max=178_000_000, help="Files with more pixels are skipped unread.")
    ] = 100_000_000,
    twins: Annotated[bool, typer.Option(help="Look for near duplicates and keep them in one group.")] = True,
    allow_missing: AllowMissing = False,
    allow_bad: AllowBad = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Turn published archives into one packed store; the same command goes on after a stop."""
    from fedperl.data.prepare import prepare as prepare_store
    from fedperl.data.prepare import recipe_of
    from fedperl.data.readers import read_named
    from fedperl.data.store import read_about
    from fedperl.report.tables import sets_table

    listings = []
    for text in folders:
        listings.append(read_named(text))
        if not quiet and not as_json:
            print(f"{listings[-1].source}: {len(listings[-1].rows)} images, {len(listings[-1].missing)} missing")
    recipe = recipe_of(listings, size=size, fit=fit, codec=codec, pixel_cap=pixel_cap, twins=twins)
    try:
        with bar("images", hidden=quiet or as_json) as progress:
            task = progress.add_task("prepare", total=None)
            found = prepare_store(
                listings,
                out,
                recipe,
                allow_missing=allow_missing,
                allow_bad=allow_bad,
                progress=lambda done, total: progress.update(task, completed=done, total=total),
            )
    except KeyboardInterrupt:
        stopped("the same command goes on where it stopped")
    classes, made, _ = read_about(out)
    if as_json:
        print(json.dumps({"rows": found.rows, "images": found.images, "skipped": found.skipped, "made": made}))
    elif not quiet:
        console.print(sets_table(made, listings, classes))
        bytes_ = sum(file.stat().st_size for file in out.iterdir())
        print(
            f"{found.images} images stored for {found.rows} rows, pairs of twins: {made['twins']}, "
            f"{len(found.skipped)} files skipped (skipped.csv); {bytes_ / 2**20:.1f} MiB in {out}"
        )


def audit(
    what: What = None,
    settings: Settings = None,
    picture: Annotated[Path | None, typer.Option(help="Also draw the class counts into this SVG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Look for the same image, twin, lesion or patient on both sides of a split; exit code 1 if there is any."""
    from fedperl.data.audit import audit as audit_store
    from fedperl.report.pictures import class_counts_svg
    from fedperl.report.tables import audit_tables

    if picture is not None:
        _check_folder(picture, "--picture")
    store = _open(what, settings)
    found = audit_store(store)
    if picture is not None:
        picture.write_text(class_counts_svg(found.counts), encoding="utf-8")
    if as_json:
        print(json.dumps(found.to_dict()))
    else:
        for shown in audit_tables(store, found):
            console.print(shown)
        if found.leaks:
            print(f"{found.leaks} pairs and groups are on both sides of a split")
        elif store.partition.clients:
            print("Nothing is on both sides of a split")
        else:
            print("The store is not dealt to clients")
    if found.leaks:
        raise typer.Exit(1)


def partition(
    what: Annotated[Path, typer.Argument(help="A store's folder, or a configuration.")],
    out: Annotated[Path, typer.Option(help="The csv file to write: one line an image, by name.")],
    settings: Settings = None,
) -> None:
    """Deal a store to clients and write who holds what, to be read, compared and used again (partition.file)."""
    _check_folder(out, "--out")
    if out.exists():
        raise typer.BadParameter(f"{out} is there already", param_hint="--out")
    store = _open(what, settings, decode=False)
    store.partition.write(out, store.manifest)
    print(f"{len(store.partition.clients)} clients in {out}, hash {store.partition.hash(store.manifest)[:16]}")


def deal(
    out: Annotated[Path, typer.Option(help="Folder for the stores: client_0, client_1, ... and server.")],
    what: What = None,
    settings: Settings = None,
) -> None:
    """Write each client's images as a store of its own: to try a federation on one machine."""
    store = _open(what, settings)
    if out.exists() and any(out.iterdir()):
        raise typer.BadParameter(f"{out} is not empty", param_hint="--out")
    for number, client in enumerate(store.partition.clients):
        store.of_client(number).save(out / f"client_{number}")
        print(f"{out / f'client_{number}'}: {len(client)} images of {client.source}")
    if len(store.partition.server):
        store.of_server().save(out / "server")
        print(f"{out / 'server'}: {len(store.partition.server)} images")


def show(
    what: What = None,
    settings: Settings = None,
    sheet: Annotated[Path | None, typer.Option(help="Also draw a contact sheet of dermsim into this PNG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show who holds which images, for what and of which class."""
    from fedperl.data.audit import class_counts
    from fedperl.report.tables import store_table

    if sheet is not None:
        _check_folder(sheet, "--sheet")
        if sheet.suffix.lower() != ".png":
            raise typer.BadParameter(f"{sheet}; wanted a name that ends in .png", param_hint="--sheet")
    store = _open(what, settings, decode=False)
    if as_json:
        print(json.dumps({"made": store.made, "partition": dict(store.partition.made), "counts": class_counts(store)}))
    else:
        console.print(store_table(store))
    if sheet is not None:
        from fedperl.data.dermsim import contact_sheet

        contact_sheet(size=64).save(sheet, optimize=True)
        if not as_json:
            print(f"Contact sheet in {sheet}")


def _check_folder(file: Path, option: str) -> None:
    if not file.parent.is_dir():
        raise typer.BadParameter(f"{file}: there is no folder {file.parent}", param_hint=option)


def _open(what: Path | None, settings: list[str] | None, *, decode: bool = True) -> "Store":
    """Return the store that is meant, dealt as the settings say.

    A store that nobody asked to deal, and that is none of the paper's, stays undealt.
    """
    from fedperl.config import load_config
    from fedperl.data.partitions.paper import has_paper_sets
    from fedperl.data.store import Store
    from fedperl.demo import demo_config
    from fedperl.errors import DataError
    from fedperl.opening import dealt, open_store

    if what is not None and what.is_dir():
        store = Store.open(what, decode=decode)
        config = load_config(None, [f"data.source={json.dumps(str(what))}", *(settings or [])])
        undealt = not config.partition.model_fields_set and not store.partition.clients
        return store if undealt and not has_paper_sets(store.manifest) else dealt(store, config)
    if what is not None and not what.is_file():
        raise DataError(f"{what}: no such file; wanted a store's folder, or a configuration in TOML")
    if what is not None or settings:
        return open_store(load_config(what, settings or []))
    return open_store(demo_config("fedperl", 1))
