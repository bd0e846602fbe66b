"""Twins: planted copies are all found, other lesions never; each formula against a slow one; groups that merge."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from fedperl.data import twins
from fedperl.data.dermsim import CLASSES, STYLES, draw
from fedperl.data.packed import decode, in_order
from fedperl.data.twins import Fingerprints, Pair, find_twins, fingerprints, merge_groups
from fedperl.errors import DataError

Images = npt.NDArray[np.uint8]
Change = Callable[[Image.Image], Image.Image]

LESIONS = 300
PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "isic2019_msk_224.npz"


def _drawn(count: int, size: int) -> Images:
    number = np.arange(count)
    return draw(number % len(CLASSES), number, np.zeros_like(number), number // len(CLASSES) % len(STYLES), size=size)


@pytest.fixture(scope="module")
def lesions() -> Images:
    return _drawn(LESIONS, 64)


@pytest.fixture(scope="module")
def prints(lesions: Images) -> Fingerprints:
    return fingerprints(lesions)


def _changed(images: Images, *changes: Change) -> Images:
    """Return the images after all the changes, one after the other."""
    out = np.empty_like(images)
    for row, image in enumerate(images):
        picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
        for change in changes:
            picture = change(picture)
        out[row] = np.asarray(picture).transpose(2, 0, 1)
    return out


def _jpeg(quality: int) -> Change:
    def change(image: Image.Image) -> Image.Image:
        content = io.BytesIO()
        image.save(content, "JPEG", quality=quality)
        return Image.open(io.BytesIO(content.getvalue())).convert("RGB")

    return change


def _through(edge: int) -> Change:
    """Resize to another edge and back."""
    return lambda image: image.resize((edge, edge), Image.Resampling.BICUBIC).resize(image.size)


def _light(factor: float) -> Change:
    return lambda image: ImageEnhance.Brightness(image).enhance(factor)


def _cropped(left: float, top: float, right: float, bottom: float) -> Change:
    """Cut these shares off the four sides and enlarge what is left."""

    def change(image: Image.Image) -> Image.Image:
        edge = image.width
        box = (left * edge, top * edge, (1 - right) * edge, (1 - bottom) * edge)
        return image.resize(image.size, Image.Resampling.BICUBIC, box=box)

    return change


def _turned(way: Image.Transpose) -> Change:
    return lambda image: image.transpose(way)


def _pairs(*parts: Fingerprints) -> list[tuple[int, int]]:
    return [pair[:2] for pair in find_twins(Fingerprints.concatenate(parts))]


CHANGES: dict[str, tuple[Change, ...]] = {
    "exact copy": (),
    "jpeg 90": (_jpeg(90),),
    "jpeg 70": (_jpeg(70),),
    "smaller and back": (_through(44),),
    "larger and back": (_through(150),),
    "brighter": (_light(1.15), _jpeg(85)),
    "darker": (_light(0.7), _jpeg(85)),
    "cropped by 3 % at a corner": (_cropped(0.03, 0.03, 0.0, 0.0), _jpeg(85)),
    "cropped by 3 % all around": (_cropped(0.03, 0.03, 0.03, 0.03), _jpeg(85)),
    "magnified": (_cropped(0.1, 0.1, 0.1, 0.1), _jpeg(85)),
    "everything": (_cropped(0.0, 0.02, 0.03, 0.01), _light(0.85), _turned(Image.Transpose.TRANSVERSE), _jpeg(80)),
} | {f"turned, {way.name}": (_turned(way), _jpeg(85)) for way in Image.Transpose}


def test_no_two_lesions_are_twins(prints: Fingerprints) -> None:
    assert find_twins(prints) == []


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES.keys())
def test_a_changed_copy_is_found_and_nothing_else(
    lesions: Images, prints: Fingerprints, changes: tuple[Change, ...]
) -> None:
    rows = np.arange(0, LESIONS, 10)
    copies = fingerprints(_changed(lesions[rows], *changes))
    assert _pairs(prints, copies) == [(int(row), LESIONS + copy) for copy, row in enumerate(rows)]


def test_a_copy_stored_at_another_size_is_found() -> None:
    large = _drawn(40, 128)
    small = np.stack([np.asarray(decode(image.transpose(1, 2, 0).copy(), 64)).transpose(2, 0, 1) for image in large])
    assert _pairs(fingerprints(large), fingerprints(small)) == [(row, 40 + row) for row in range(40)]


def test_copies_of_copies_are_all_paired_and_agreement_tells_how_close(lesions: Images) -> None:
    first = lesions[:1]
    chain = np.concatenate([first, lesions[1:5], first, _changed(first, _jpeg(80)), first])
    found = find_twins(fingerprints(chain))
    assert [pair[:2] for pair in found] == [(0, 5), (0, 6), (0, 7)]
    assert found[0].agreement == found[2].agreement == 1.0
    assert twins.AGREEMENT <= found[1].agreement < 1.0
    assert [pair[:2] for pair in find_twins(fingerprints(chain), agreement=0.999)] == [(0, 5), (0, 7)]


def test_batches_give_the_same_fingerprints_as_all_at_once(lesions: Images, prints: Fingerprints) -> None:
    parts = [fingerprints(lesions[start : start + 70]) for start in range(0, LESIONS, 70)]
    together = Fingerprints.concatenate(parts)
    for name in ("digest", "coarse", "fine"):
        assert np.array_equal(getattr(together, name), getattr(prints, name))


def test_without_images_there_are_no_twins(lesions: Images) -> None:
    assert len(Fingerprints.concatenate([])) == 0
    assert find_twins(Fingerprints.concatenate([])) == []
    assert find_twins(fingerprints(lesions[:0])) == []
    assert find_twins(fingerprints(lesions[:1])) == []


@pytest.mark.parametrize("size", [64, 128])
def test_flat_images_are_twins_only_when_they_are_the_same(size: int) -> None:
    generator = np.random.default_rng(0)
    slope = np.linspace(-1.0, 1.0, size)
    flat = []
    for number in range(90):
        image = np.broadcast_to(generator.uniform(60, 230, (3, 1, 1)), (3, size, size)).copy()
        if number % 3 == 1:
            image += generator.normal(0, 12) * slope + generator.normal(0, 12) * slope[:, None]
        if number % 3 == 2:
            image += generator.normal(0, 1.5, image.shape)
        flat.append(np.clip(image, 0, 255).astype(np.uint8))
    encoded = _changed(np.stack(flat), _jpeg(85))
    assert _pairs(fingerprints(encoded)) == []
    assert _pairs(fingerprints(encoded), fingerprints(encoded[:6])) == [(row, 90 + row) for row in range(6)]


def test_wrong_input_is_refused(lesions: Images, prints: Fingerprints) -> None:
    with pytest.raises(ValueError, match=r"float64 .* wanted uint8"):
        fingerprints(lesions.astype(float))
    with pytest.raises(ValueError, match=r"\(300, 64, 64, 3\); wanted"):
        fingerprints(lesions.transpose(0, 2, 3, 1))
    with pytest.raises(ValueError, match="0.9.*wanted none below 1"):
        find_twins(prints, zooms=(0.9, 1.0))


def test_images_that_all_look_alike_are_refused_before_they_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, lesions: Images
) -> None:
    monkeypatch.setattr(twins, "ALIKE", 20)
    noise = np.random.default_rng(0).integers(0, 2, (80, 3, 64, 64), dtype=np.uint8)
    alike = np.minimum(lesions[:1], 254) + noise
    with pytest.raises(DataError, match="look like more than 20 others"):
        find_twins(fingerprints(alike))


def _textures(count: int, edge: int) -> npt.NDArray[np.int8]:
    """Return smooth random maps; every other one is the one before it in another orientation, with noise."""
    generator = np.random.default_rng(1)
    coarse = generator.normal(0, 40, (count, edge // 4, edge // 4))
    maps = np.kron(coarse, np.ones((4, 4))) + generator.normal(0, 6, (count, edge, edge))
    for row in range(1, count, 2):
        way = row // 2 % 8
        other = np.rot90(maps[row - 1], way % 4)
        maps[row] = (other[::-1] if way >= 4 else other) + generator.normal(0, 6, (edge, edge))
    return np.clip(maps, -127, 127).astype(np.int8)


def test_the_eight_orientations_are_all_turns_and_mirrors() -> None:
    image = _textures(1, 64)
    turned = twins._oriented(np.repeat(image, 8, axis=0), np.arange(8))
    naive = [np.rot90(side, times) for side in (image[0], image[0, ::-1]) for times in range(4)]
    assert {one.tobytes() for one in turned} == {one.tobytes() for one in naive}
    assert np.array_equal(turned[0], image[0])


@pytest.mark.parametrize("zoom", [1.0, 1.14])
def test_candidates_are_those_of_comparing_every_pair_in_every_orientation(
    monkeypatch: pytest.MonkeyPatch, zoom: float
) -> None:
    monkeypatch.setattr(twins, "COARSE_AGREEMENT", 0.3)
    monkeypatch.setattr(twins, "ROWS_AT_ONCE", 64)
    coarse = _textures(150, 32)
    search = twins._Search(twins._keys(coarse, 1.0), twins._keys(coarse, zoom), mirrored=zoom == 1)
    strips = [search.candidates(start) for start in range(0, 150, twins.COLUMNS)]
    found = {
        (int(left), int(right), int(orientation))
        for strip in strips
        for left, right, orientation in zip(*strip, strict=True)
    }
    left = twins._keys(coarse, 1.0).reshape(150, -1)
    naive = {}
    for orientation in range(8):
        turned = twins._oriented(coarse, np.full(150, orientation))
        agreement = left @ twins._keys(turned, zoom).reshape(150, -1).T
        for one, two in np.argwhere(agreement > 0.3 - 1e-5).tolist():
            if one < two if zoom == 1 else one != two:
                naive[one, two, orientation] = agreement[one, two]
    certain = {pair for pair, value in naive.items() if value > 0.3 + 1e-5}  # the sums differ in the last digit
    assert len(certain) > 75
    assert certain <= found <= naive.keys()


def test_keys_are_the_low_cosine_coefficients_of_the_map() -> None:
    coarse = _textures(2, 32)
    pixel = np.arange(32)
    naive = np.zeros((2, 10, 10))
    for u in range(10):
        for v in range(10):
            if 0 < u * u + v * v < 100:
                scale = (0.5**0.5 if u == 0 else 1.0) * (0.5**0.5 if v == 0 else 1.0)
                wave = np.outer(np.cos(np.pi * u * (2 * pixel + 1) / 64), np.cos(np.pi * v * (2 * pixel + 1) / 64))
                naive[:, u, v] = scale * (coarse * wave).sum(axis=(1, 2))
    naive /= np.linalg.norm(naive, axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(twins._keys(coarse, 1.0), naive, atol=1e-5)


SHIFTS = [(3, -5), (0, 0), (-7, 7), (1, 2)]


def _shifted_pairs() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    one = _textures(4, 64).astype(np.float32)
    noise = np.random.default_rng(2).normal(0, 20, one.shape)
    shifted = [np.roll(image, shift, (0, 1)) for image, shift in zip(one, SHIFTS, strict=True)]
    return one, (np.stack(shifted) + noise).astype(np.float32)


def test_alignment_is_the_best_correlation_over_all_shifts() -> None:
    one, two = _shifted_pairs()
    correlation, down, right = twins._alignment(one, two)
    assert list(zip(down.tolist(), right.tolist(), strict=True)) == SHIFTS
    for row in range(len(one)):
        naive = max(
            np.corrcoef(one[row, 8:56, 8:56].ravel(), two[row, 8 + y : 56 + y, 8 + x : 56 + x].ravel())[0, 1]
            for y in range(-7, 8)
            for x in range(-7, 8)
        )
        assert correlation[row] == pytest.approx(naive, abs=1e-4)


def test_agreement_is_the_mean_over_blocks_of_the_best_of_nine_places() -> None:
    one, two = _shifted_pairs()
    two[:, 30:40, 30:40] = 0.0  # nothing to compare there
    _, down, right = twins._alignment(one, two)
    for row, score in enumerate(twins._block_agreement(one, two)):
        blocks = []
        for top in range(8, 56, 12):
            for left in range(8, 56, 12):
                a = one[row, top : top + 12, left : left + 12]
                best = -1.0
                for y in range(down[row] - 1, down[row] + 2):
                    for x in range(right[row] - 1, right[row] + 2):
                        b = two[row, top + y : top + y + 12, left + x : left + x + 12]
                        covariance = ((a - a.mean()) * (b - b.mean())).mean()
                        floor = twins.NOISE * twins.CODE**2
                        best = max(best, covariance / np.sqrt((a.var() + floor) * (b.var() + floor)))
                blocks.append(best)
        assert score == pytest.approx(np.mean(blocks), abs=1e-4)


def _naive_groups(groups: list[str], pixels: list[int], pairs: list[tuple[int, int]]) -> list[str]:
    """Return each row's smallest name after spreading names along all bonds until nothing changes."""
    names = list(groups)
    together = {frozenset(pair) for pair in pairs}
    changed = True
    while changed:
        changed = False
        for a in range(len(names)):
            for b in range(len(names)):
                bond = groups[a] == groups[b] or pixels[a] == pixels[b] or frozenset((pixels[a], pixels[b])) in together
                if bond and names[a] > names[b]:
                    names[a], changed = names[b], True
    return names


@given(
    rows=st.lists(st.tuples(st.sampled_from("abcdefghijklm"), st.integers(0, 12)), max_size=14),
    bonds=st.lists(st.tuples(st.integers(0, 14), st.integers(0, 14)), max_size=8),
)
def test_groups_merge_as_the_transitive_closure_in_any_order(
    rows: list[tuple[str, int]], bonds: list[tuple[int, int]]
) -> None:
    groups, pixels = [name for name, _ in rows], [image for _, image in rows]
    bonds = [bond for bond in bonds if bond[0] != bond[1]]
    pairs = [Pair(min(bond), max(bond), 0.9) for bond in bonds]
    expected = _naive_groups(groups, pixels, bonds)
    merged = merge_groups(np.array(groups, dtype=np.str_), np.array(pixels, dtype=np.int64), pairs)
    assert merged.tolist() == expected

    shuffle = np.random.default_rng(len(rows)).permutation(len(rows))
    shuffled = merge_groups(
        np.array(groups, dtype=np.str_)[shuffle], np.array(pixels, dtype=np.int64)[shuffle], pairs[::-1]
    )
    assert shuffled.tolist() == [expected[row] for row in shuffle]


def test_merging_keeps_what_has_no_bond_apart() -> None:
    groups = np.array(["lesion 3", "lesion 1", "lesion 2", "lesion 3", "lesion 4"])
    pixels = np.array([0, 1, 2, 3, 4])
    merged = merge_groups(groups, pixels, [Pair(2, 3, 0.8), Pair(4, 99, 0.8)])
    assert merged.tolist() == ["lesion 2", "lesion 1", "lesion 2", "lesion 2", "lesion 4"]


SEEN = {  # each looked at: the same hairs, bubbles, dots; shifted, magnified, recoloured, turned by 180 degrees
    ("ISIC_0000162", "ISIC_0014826"),
    ("ISIC_0000171", "ISIC_0015124"),
    ("ISIC_0000173", "ISIC_0015110"),
    ("ISIC_0000186", "ISIC_0014698"),
    ("ISIC_0000189", "ISIC_0015161"),
    ("ISIC_0000191", "ISIC_0014907"),
    ("ISIC_0000198", "ISIC_0014667"),
    ("ISIC_0000212", "ISIC_0014927"),
    ("ISIC_0000217", "ISIC_0014973"),
    ("ISIC_0000222", "ISIC_0014846"),
    ("ISIC_0000223", "ISIC_0014818"),
    ("ISIC_0000225", "ISIC_0014778"),
    ("ISIC_0000228", "ISIC_0014964"),
    ("ISIC_0000519", "ISIC_0011295"),
    ("ISIC_0012672", "ISIC_0012673"),
    ("ISIC_0015945", "ISIC_0015946"),
}


@pytest.mark.slow
@pytest.mark.skipif(not PUBLISHED.exists(), reason=f"{PUBLISHED} is not there")
def test_the_twins_of_a_published_archive_are_found() -> None:
    with np.load(PUBLISHED) as pack:
        blob, offset = pack["jpeg"], pack["offset"]
        names = [str(name).removesuffix("_downsampled") for name in pack["name"]]

    def pixels(row: int) -> Images:
        picture = decode(blob[offset[row] : offset[row + 1]].tobytes(), 128)
        return np.asarray(picture).transpose(2, 0, 1)

    found = find_twins(fingerprints(np.stack(list(in_order(pixels, range(len(names)))))))
    pairs = {tuple(sorted((names[pair.first], names[pair.second]))) for pair in found}
    assert pairs >= SEEN
    assert 44 <= len(pairs) <= 56
