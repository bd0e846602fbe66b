"""Data sets laid out as their publishers do, small and drawn: what the readers, splits and stores are compared on."""

import gzip
import io
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

Files = Iterator[tuple[str, bytes]]
"""Path below the set's folder, and content."""

SKIN = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
SIDE = 24
"""Pixels along an edge of a photograph."""


def write_layout(name: str, folder: Path) -> Path:
    """Write a data set into a new folder of its name and return that."""
    for path, content in LAYOUTS[name]():
        file = folder / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder / name


def photograph(number: int, form: str = "JPEG", quality: int = 90) -> bytes:
    """Return an encoded image of coloured blocks, another for another number."""
    blocks = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    pixels = np.kron(blocks, np.ones((SIDE // 6, SIDE // 6, 1), dtype=np.uint8))
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, quality=quality)
    return out.getvalue()


def table(*rows: str) -> bytes:
    """Return lines as a file."""
    return ("\n".join(rows) + "\n").encode()


def ham10000() -> Files:
    """Yield 120 images of 80 lesions from four institutions; every third lesion was photographed twice."""
    diagnoses = ("nv", "mel", "bkl", "bcc", "akiec", "vasc", "df")
    datasets = ("vidir_modern", "rosendahl", "vienna_dias", "vidir_molemax")
    rows = ["lesion_id,image_id,dx,dx_type,age,sex,localization,dataset"]
    for number in range(120):
        lesion = number * 2 // 3
        sex, site = ("male", "female", "unknown")[lesion % 3], ("back", "scalp", "unknown")[lesion % 3]
        about = f"histo,{20 + lesion % 60}.0,{sex},{site},{datasets[lesion % 4]}"
        rows.append(f"HAM_{lesion:07d},ISIC_{24000 + number:07d},{diagnoses[lesion % 7]},{about}")
        yield f"HAM10000_images_part_{1 + number % 2}/ISIC_{24000 + number:07d}.jpg", photograph(number)
    yield "HAM10000_metadata.csv", table(*rows)


def isic2019() -> Files:
    """Yield 180 images: 60 of HAM10000's, 60 of Barcelona, 40 of MSK, and 20 without a lesion, one of no class."""
    truth, about = ["image," + ",".join(SKIN) + ",UNK"], ["image,age_approx,anatom_site_general,lesion_id,sex"]
    for number in range(180):
        lesion = number * 2 // 3
        of_ham = number < 60
        names = (f"HAM_{lesion:07d}", f"BCN_{lesion:07d}", f"MSK4_{lesion:07d}", "")
        owner = names[0 if of_ham else 1 if number < 120 else 2 if number < 160 else 3]
        label = ("NV", "MEL", "BKL", "BCC", "AK", "VASC", "DF")[lesion % 7] if of_ham else SKIN[lesion % 8]
        label = "UNK" if number == 179 else label
        name = f"ISIC_{24000 + number if of_ham else number:07d}" + ("_downsampled" if number % 50 == 49 else "")
        truth.append(f"{name}," + ",".join("1.0" if one == label else "0.0" for one in (*SKIN, "UNK")))
        about.append(f"{name},{25 + lesion % 50}.0,{('anterior torso', '')[lesion % 2]},{owner},female")
        yield f"ISIC_2019_Training_Input/{name}.jpg", photograph(number if of_ham else 1000 + number)
    yield "ISIC_2019_Training_GroundTruth.csv", table(*truth)
    yield "ISIC_2019_Training_Metadata.csv", table(*about)


def pad_ufes20() -> Files:
    """Yield 80 photographs of 50 patients; the last is the first once more, encoded otherwise: a near duplicate."""
    diagnoses = ("NEV", "BCC", "ACK", "SEK", "SCC", "MEL")
    columns = (
        "patient_id,lesion_id,smoke,drink,background_father,background_mother,age,pesticide,gender,"
        "skin_cancer_history,cancer_history,has_piped_water,has_sewage_system,fitspatrick,region,diameter_1,"
        "diameter_2,diagnostic,itch,grew,hurt,changed,bleed,elevation,img_id,biopsed"
    )
    rows, signs = [columns], "False,False,False,False,False,False"
    for number in range(80):
        patient = number * 5 // 8
        image = f"PAT_{patient}_{number}_{number}.png"
        history = (
            f"False,False,BRAZIL,BRAZIL,{30 + patient},False,{('FEMALE', 'MALE')[patient % 2]},True,True,True,True"
        )
        lesion = f"{1 + patient % 6}.0,{('ARM', 'FACE')[patient % 2]},6.0,5.0,{diagnoses[patient % 6]}"
        rows.append(f"PAT_{patient},{number},{history},{lesion},{signs},{image},True")
        twin = photograph(2000, "JPEG", quality=70)
        yield f"images/imgs_part_{1 + number % 3}/{image}", twin if number == 79 else photograph(2000 + number, "PNG")
    yield "metadata.csv", table(*rows)


def derm7pt() -> Files:
    """Yield 60 cases with the publishers' own split; two diagnoses are dropped."""
    diagnoses = ("clark nevus", "basal cell carcinoma", "melanoma", "lentigo", "dermatofibroma", "vascular lesion")
    rows = ["case_num,diagnosis,seven_point_score,elevation,location,sex,management,clinic,derm,case_id,notes"]
    for number in range(60):
        diagnosis = ("melanosis", "miscellaneous")[number % 2] if number >= 58 else diagnoses[number % 6]
        image = f"NEL/Nel{number:03d}.jpg"
        rows.append(f'{number + 1},{diagnosis},1,flat,back,female,excision,NEL/NEL{number:03d}.JPG,{image},,"a, b"')
        yield f"images/{image}", photograph(3000 + number)
    yield "meta/meta.csv", table(*rows)
    for place, split in enumerate(("train", "valid", "test")):
        yield f"meta/{split}_indexes.csv", table("indexes", *(str(n) for n in range(60) if n % 3 == place))


def isic2020() -> Files:
    """Yield 90 images of 45 patients, one in nine malignant, one in ten without a patient."""
    rows = [
        "image_name,patient_id,lesion_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target"
    ]
    for number in range(90):
        name, sick = f"ISIC_{90000 + number:07d}", number % 9 == 0
        patient = "" if number % 10 == 7 else f"IP_{number // 2:07d}"
        kind = "melanoma,malignant,1" if sick else "nevus,benign,0"
        rows.append(f"{name},{patient},IL_{number:07d},female,{30 + number % 50}.0,torso,{kind}")
        yield f"ISIC_2020_Training_JPEG/train/{name}.jpg", photograph(4000 + number)
    yield "ISIC_2020_Training_GroundTruth_v2.csv", table(*rows)
    yield "ISIC_2020_Training_Duplicates.csv", table("image_name_1,image_name_2", "ISIC_0090000,ISIC_0090002")


def cifar10() -> Files:
    """Yield five training batches of 80 images and a test batch of 80."""
    names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    yield "cifar-10-batches-bin/batches.meta.txt", table(*names, "")
    for batch in range(1, 7):
        records = np.random.default_rng(batch).integers(0, 256, (80, 3073), dtype=np.uint8)
        records[:, 0] = (np.arange(80) + batch) % 10
        yield f"cifar-10-batches-bin/{f'data_batch_{batch}' if batch < 6 else 'test_batch'}.bin", records.tobytes()


def fashion_mnist() -> Files:
    """Yield 200 training images and 50 test images."""
    for prefix, count in (("train", 200), ("t10k", 50)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8).tobytes()
        labels = bytes(n % 10 for n in range(count))
        parts = (("images-idx3", (0x803, count, 28, 28), pixels), ("labels-idx1", (0x801, count), labels))
        for kind, head, body in parts:
            content = struct.pack(f">{len(head)}I", *head) + body
            yield f"{prefix}-{kind}-ubyte.gz", gzip.compress(content, mtime=0)


LAYOUTS: dict[str, Callable[[], Files]] = {
    "ham10000": ham10000,
    "isic2019": isic2019,
    "pad_ufes20": pad_ufes20,
    "derm7pt": derm7pt,
    "isic2020": isic2020,
    "cifar10": cifar10,
    "fashion_mnist": fashion_mnist,
}
