"""Hostile data sets: each is read or refused with a sentence, and nothing outside its folder is ever opened.

The last is observed, not assumed: Python reports every file opened and every folder listed to an audit hook.
"""

import gzip
import os
import random
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from fedperl.data import readers
from fedperl.data.manifest import ABOUT
from fedperl.data.packed import BadImageError, decode
from fedperl.errors import DataError
from tests.data.readers import trees

SIZE = 8


class Watch:
    """While it is on, notes what is opened or listed outside the folder and outside Python's own."""

    def __init__(self) -> None:
        self.inside: Path | None = None
        self.opened: list[str] = []
        self.outside: list[str] = []
        python = (sys.prefix, sys.base_prefix, sys.exec_prefix, *sys.path, str(Path(readers.__file__).parents[2]))
        self.python = tuple(os.path.realpath(path) for path in python if path)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.inside is None or event not in ("open", "os.listdir", "os.scandir"):
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a file that is open already
        real = Path(os.path.realpath(os.fsdecode(path)))
        if real.is_relative_to(self.inside):
            self.opened.append(str(real))
        elif not any(real.is_relative_to(folder) for folder in self.python):
            self.outside.append(f"{event} {real}")

    @contextmanager
    def on(self, folder: Path) -> Iterator[None]:
        self.opened.clear()
        self.outside.clear()
        self.inside = folder.resolve()
        try:
            yield
        finally:
            self.inside = None


@cache  # an audit hook cannot be taken away again
def the_watch() -> Watch:
    found = Watch()
    sys.addaudithook(found)
    return found


@pytest.fixture(name="watch")
def _watch() -> Watch:
    return the_watch()


class Spoiler:
    """Spoils a written tree at random; `outside` holds the files it tries to have opened."""

    def __init__(self, chance: random.Random, root: Path, outside: Path) -> None:
        self.chance, self.root, self.outside = chance, root, outside

    def spoil(self) -> None:
        ways = [self.bytes, self.bytes, self.table, self.table, self.reach, self.name, self.link, self.extra]
        self.chance.choice(ways)()

    def files(self, *suffixes: str) -> list[Path]:
        found = (Path(folder, name) for folder, _, names in os.walk(self.root) for name in names)
        return sorted(path for path in found if path.suffix.lower() in suffixes or not suffixes)

    def pick(self, *suffixes: str) -> Path | None:
        found = [path for path in self.files(*suffixes) if path.is_file() and not path.is_symlink()]
        return self.chance.choice(found) if found else None

    def token(self) -> bytes:
        chance = self.chance
        return chance.choice(
            [
                b'"',
                b'""',
                b"\0",
                b",",
                b"\n",
                b"\r",
                b";",
                b"\xff\xfe",
                b"\xef\xbb\xbf",
                "é\u202e\U0001f4a9".encode(),
                self.path_out(),
                b".",
                b"..",
                b"secret",
                b"",
                b" ",
                b"nan",
                b"-1",
                b"1e999",
                b"0",
                b"1",
                b"=1+1",
                b"$(touch x)",
                b"x" * chance.choice([300, 600, 5_000, 140_000]),
                chance.randbytes(chance.randrange(1, 20)),
            ]
        )

    def path_out(self) -> bytes:
        secret = self.chance.choice([self.outside / "secret.jpg", self.outside / "secret"])
        start = self.chance.choice([self.root, *sorted({path.parent for path in self.files()})])
        relative = os.path.relpath(secret, start)
        ways = [str(secret), str(secret), relative, relative, f"./x/../{relative}", relative.replace("/", "\\")]
        others = ["../../../../etc/passwd", "C:\\secret", "//host/share/secret", "~/secret", "file:///etc/passwd"]
        return os.fsencode(self.chance.choice([*ways, *others]))

    def reach(self) -> None:
        """Have a table name a file outside in place of an image."""
        path = self.pick(".csv")
        if path is None:
            return self.link()
        rows = [line.split(b",") for line in path.read_bytes().split(b"\n")]
        images = {os.fsencode(image.stem.lower()) for image in self.files()}
        named = [
            (row, cell)
            for row, cells in enumerate(rows)
            for cell, text in enumerate(cells)
            if text.rpartition(b"/")[2].partition(b".")[0].lower() in images
        ]
        if named:
            row, cell = self.chance.choice(named)
            rows[row][cell] = self.path_out()
        path.write_bytes(b"\n".join(b",".join(cells) for cells in rows))
        return None

    def table(self) -> None:
        path = self.pick(".csv", ".txt")
        if path is None:
            return self.bytes()
        chance, rows = self.chance, path.read_bytes().split(b"\n")
        row, other = chance.randrange(len(rows)), chance.randrange(len(rows))
        cells = rows[row].split(b",")
        cell = chance.randrange(len(cells))
        way = chance.randrange(9)
        if way <= 2:
            cells[cell] = self.token()
        elif way == 3:
            at = chance.randrange(len(cells[cell]) + 1)
            cells[cell] = cells[cell][:at] + self.token() + cells[cell][at:]
        elif way == 4:
            cells.insert(cell, self.token())
        elif way == 5:
            del cells[cell]
        rows[row] = b",".join(cells)
        if way == 6:
            rows.insert(other, rows[row])
        elif way == 7:
            del rows[row]
        elif way == 8:
            rows[row], rows[other] = rows[other], rows[row]
        path.write_bytes(b"\n".join(rows))
        return None

    def bytes(self) -> None:
        path = self.pick()
        if path is None:
            return
        chance, content = self.chance, bytearray(path.read_bytes())
        way = chance.randrange(7)
        if way == 0:
            del content[chance.randrange(len(content) + 1) :]
        elif way == 1:
            for _ in range(chance.randrange(1, 8)):
                if content:
                    content[chance.randrange(min(len(content), chance.choice([32, 10**9])))] ^= 1 << chance.randrange(8)
        elif way == 2:
            at = chance.randrange(len(content) + 1)
            content[at:at] = self.token()
        elif way == 3:
            content += chance.randbytes(chance.choice([1, 100, 3073]))
        elif way == 4:
            content = bytearray(
                chance.choice([b"", b"GIF89a", b"%PDF-1.4", bytes(128) + b"DICM", b"\x80\x04.", b"II*\0"])
            )
        elif way == 5:
            content = bytearray(trees.picture(1, chance.choice(["PNG", "BMP", "TIFF", "WEBP", "GIF"])))
        else:  # a picture whose header announces 60,000 x 60,000
            content = bytearray(trees.picture(1, "PNG"))
            content[16:24] = (60_000).to_bytes(4, "big") * 2
        path.write_bytes(content)

    def name(self) -> None:
        path = self.pick()
        if path is None:
            return
        chance = self.chance
        names = [
            path.name.swapcase(),
            path.stem
            + chance.choice([".dcm", ".DICOM", ".jpg", ".PNG", ".tiff", ".txt", "", ".jpg.exe", "_downsampled.jpg"]),
            chance.choice(
                ["..jpg", " .jpg", "-rf.jpg", "a\nb.jpg", "\x1b[31m.jpg", "é.jpg", "e\u0301.jpg", "con.jpg", "*.jpg"]
            ),
            os.fsdecode(b"\xff\xfe.jpg"),
            "x" * 200 + ".jpg",
        ]
        target = path.with_name(chance.choice(names))
        if target.exists() or chance.random() < 0.3:
            path.unlink()
        else:
            path.rename(target)

    def link(self) -> None:
        """Put a link in place of a file or of a folder: out, to itself, to nowhere, or to a neighbour."""
        folders = sorted({path.parent for path in self.files()} - {self.root})
        path = self.chance.choice(folders) if folders and self.chance.random() < 0.3 else self.pick()
        if path is None or path.is_symlink():
            return
        out = self.outside / ("secret.csv" if path.suffix == ".csv" else "secret.jpg")
        goals = [
            out,
            out,
            self.outside,
            Path(os.path.relpath(out, path.parent)),
            Path(path.name),
            Path("nowhere"),
            Path("/dev/zero"),
            self.root,
        ]
        neighbour = self.pick()
        if path.is_dir():
            goals.append(self.outside)
            shutil.rmtree(path)
        else:
            goals += [neighbour] if neighbour else []
            path.unlink()
        path.symlink_to(self.chance.choice(goals))

    def extra(self) -> None:
        """Add something beside a file: a copy under another name or folder, a folder named as an image, a pipe."""
        path = self.pick()
        if path is None:
            return
        chance, way = self.chance, self.chance.randrange(6)
        relative = path.relative_to(self.root)
        target = self.root / chance.choice([str(relative).upper(), str(relative).lower(), f"copy/{relative.name}"])
        if way == 0:
            target = path.with_suffix(chance.choice([".png", ".JPG", ".dcm"]))
        if way == 1:
            path.with_name(f"x{chance.randrange(99)}.jpg").mkdir(exist_ok=True)
        elif way == 2:
            path.unlink()
            os.mkfifo(path)
        elif way == 3:
            path.unlink()
            path.mkdir()
        elif not any(parent.is_file() or parent.is_symlink() for parent in (target, *target.parents)):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes() + (b"" if chance.random() < 0.5 else b"x"))


def check(listing: readers.Listing, root: Path) -> None:
    """Assert that a listing is sound, and that each of its images is one or is refused as one."""
    assert len({row.image for row in listing.rows}) == len(listing.rows)
    for row in listing.rows:
        assert row.label in (*listing.classes, "")
        assert row.image
        assert row.group
        assert set(row.about) <= set(ABOUT)
        for text in (row.image, row.label, row.group, *row.about.values()):
            assert len(text.encode()) < 3_000
            assert "\0" not in text
        if isinstance(row.pixels, np.ndarray):
            assert row.pixels.shape == (32, 32, 3)
            content: bytes | readers.base.Array = row.pixels
        else:
            assert row.pixels.resolve().is_relative_to(root.resolve())
            assert stat.S_ISREG(row.pixels.stat().st_mode)
            assert row.pixels.suffix.lower() not in (".dcm", ".dicom")
            content = row.pixels.read_bytes()
            assert b"CANARY" not in content
        with suppress(BadImageError):
            image = decode(content, SIZE, pixel_cap=1_000_000)
            assert (image.size, image.mode) == ((SIZE, SIZE), "RGB")


def outcome(root: Path, kind: str | None) -> str:
    try:
        check(readers.read(root, kind), root)
        return "read"
    except DataError as error:
        return str(error)


def half_zipped() -> trees.Tree:
    """Fashion-MNIST, its test images unzipped: gzip's own check sum would refuse every change of a byte."""
    zipped = trees.fashion_mnist()
    return {
        name.removesuffix(".gz") if "t10k" in name else name: gzip.decompress(content) if "t10k" in name else content
        for name, content in zipped.items()
    }


@pytest.fixture(name="outside")
def _outside(tmp_path: Path) -> Path:
    """Files that no data set may reach; each would be read without complaint."""
    return trees.write(
        tmp_path / "outside",
        {
            "secret.jpg": trees.picture(99) + b"CANARY",
            "secret.csv": trees.lines("image,label,CANARY", "secret,NV,"),
            "meta.csv": trees.lines("case_num,diagnosis,derm", "1,clark nevus,secret.jpg"),
            "ISIC_0027419.jpg": trees.picture(98) + b"CANARY",
        },
    )


LAYOUTS: dict[str, tuple[str, Callable[[], trees.Tree], int]] = {  # its kind; cases of the slow tier: 2,000 in all
    "ham10000": ("ham10000", trees.ham10000, 250),
    "isic2019": ("isic2019", trees.isic2019, 250),
    "pad_ufes20": ("pad_ufes20", trees.pad_ufes20, 250),
    "derm7pt": ("derm7pt", trees.derm7pt, 250),
    "isic2020": ("isic2020", trees.isic2020, 250),
    "cifar10": ("cifar10", trees.cifar10, 200),
    "fashion_mnist": ("fashion_mnist", half_zipped, 200),
    "generic_table": ("generic", trees.generic_table, 200),
    "generic_folders": ("generic", trees.generic_folders, 150),
}


@pytest.mark.parametrize("most", [60, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_case_is_read_or_refused_and_stays_inside(
    layout: str, most: int, tmp_path: Path, outside: Path, watch: Watch
) -> None:
    kind, tree, cases = LAYOUTS[layout]
    cases = min(cases, most)
    written = tree()
    outcomes: Counter[str] = Counter()
    for case in range(cases):
        chance = random.Random(f"{layout} {case}")
        root = trees.write(tmp_path / "root", written)
        spoiler = Spoiler(chance, root, outside)
        for _ in range(chance.choice([1, 1, 2, 4])):
            spoiler.spoil()
        with watch.on(root):
            try:
                said = outcome(root, chance.choice([kind, kind, None]))
            except BaseException as error:
                error.add_note(f"{layout} {case}")
                raise
        assert not watch.outside, f"{layout} {case}"
        assert 0 < len(said.strip()) < 3_000, f"{layout} {case}"
        outcomes["read" if said == "read" else "refused"] += 1
        shutil.rmtree(root)
    # A fuzz whose every case is refused at once, or read, would show nothing.
    assert min(outcomes["read"], outcomes["refused"]) > cases // 20, outcomes


def test_the_watch_sees_what_is_opened(tmp_path: Path, outside: Path, watch: Watch) -> None:
    root = trees.write(tmp_path / "root", {"a.jpg": b"a"})
    (root / "link.jpg").symlink_to(outside / "secret.jpg")
    with watch.on(root):
        (root / "a.jpg").read_bytes()
        assert not watch.outside
        (root / "link.jpg").read_bytes()
        list(outside.iterdir())
        list(os.scandir(root / ".."))
    assert watch.opened == [str((root / "a.jpg").resolve())]
    assert [seen.split()[0] for seen in watch.outside] == ["open", "os.listdir", "os.scandir"]
    (outside / "secret.jpg").read_bytes()
    assert len(watch.outside) == 3
