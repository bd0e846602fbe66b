"""The data sets themselves, where they are beside the checkout."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedperl.data.readers import Listing, read

Published = Callable[[str], Path]


def counts(listing: Listing) -> Counter[str]:
    return Counter(row.label for row in listing.rows)


def groups(listing: Listing) -> int:
    return len({row.group for row in listing.rows})


def test_ham10000(published: Published) -> None:
    listing = read(published("ham10000"))
    assert counts(listing) == {"NV": 6705, "MEL": 1113, "BKL": 1099, "BCC": 514, "AK": 327, "VASC": 142, "DF": 115}
    assert (listing.source, len(listing.rows), len(listing.missing), groups(listing)) == ("HAM10000", 10_015, 0, 7_470)


@pytest.mark.slow
def test_isic2019(published: Published) -> None:
    listing = read(published("isic2019"))
    assert (listing.source, len(listing.rows), len(listing.missing)) == ("ISIC19", 12_907, 12_424)
    assert not listing.dropped
    assert Counter(row.about["institution"] for row in listing.rows) == {"HAM10000": 10_015, "MSK": 819, "": 2_073}
    others = Counter(row.label for row in listing.rows if row.about["institution"] != "HAM10000")
    assert others == {"NV": 1955, "MEL": 551, "BKL": 386}
    ham10000 = {row.image: row for row in read(published("ham10000")).rows}
    shared = [row for row in listing.rows if row.image in ham10000]
    assert len(shared) == 10_015
    assert all(row.group == ham10000[row.image].group for row in shared)
    assert Counter(row.label for row in shared if ham10000[row.image].label == "AK") == {"SCC": 197, "AK": 130}


@pytest.mark.slow
def test_pad_ufes20(published: Published) -> None:
    listing = read(published("pad_ufes20"))
    assert counts(listing) == {"BCC": 618, "AK": 289, "NV": 195, "BKL": 154, "SCC": 125, "MEL": 47}
    assert (len(listing.rows), len(listing.missing), groups(listing)) == (1_428, 870, 924)


@pytest.mark.slow
def test_cifar10(published: Published) -> None:
    listing = read(published("cifar10"))
    assert len(listing.rows) == groups(listing) == 60_000
    assert set(counts(listing).values()) == {6_000}
    assert Counter(row.about["split"] for row in listing.rows) == {"train": 50_000, "test": 10_000}


@pytest.mark.slow
def test_fashion_mnist(published: Published) -> None:
    listing = read(published("fashion_mnist"))
    assert len(listing.rows) == groups(listing) == 70_000
    assert set(counts(listing).values()) == {7_000}
    pixels = listing.rows[-1].pixels
    assert isinstance(pixels, np.ndarray)
    assert pixels.shape == (32, 32, 3)
    assert pixels.any()
