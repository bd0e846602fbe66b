"""Small data sets laid out as their publishers do: path below the set's folder, and content."""

import gzip
import io
import struct
from pathlib import Path

import numpy as np
from PIL import Image

Tree = dict[str, bytes]


def picture(seed: int, form: str = "JPEG", size: int = 24) -> bytes:
    """Return an encoded image, another for another seed."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def lines(*rows: str) -> bytes:
    return ("\n".join(rows) + "\n").encode()


def write(folder: Path, tree: Tree) -> Path:
    for name, content in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def ham10000() -> Tree:
    return {
        "HAM10000_metadata.csv": lines(
            "lesion_id,image_id,dx,dx_type,age,sex,localization,dataset",
            "HAM_0000118,ISIC_0027419,bkl,histo,80.0,male,scalp,vidir_modern",
            "HAM_0000118,ISIC_0025030,bkl,histo,80.0,male,scalp,vidir_modern",
            "HAM_0002730,ISIC_0026769,nv,histo,45.0,female,back,rosendahl",
            "HAM_0001466,ISIC_0031633,akiec,histo,,unknown,unknown,vienna_dias",
            "HAM_0001467,ISIC_0031634,mel,histo,0.0,male,ear,vidir_molemax",
            "HAM_0001468,ISIC_0031635,bcc,histo,75.0,male,ear,vidir_molemax",
            "HAM_0001469,ISIC_0031636,vasc,histo,75.0,male,ear,vidir_molemax",
            "HAM_0001470,ISIC_0031637,df,histo,75.0,male,ear,vidir_molemax",
        ),
        "HAM10000_images_part_1/ISIC_0027419.jpg": picture(0),
        "HAM10000_images_part_1/ISIC_0025030.jpg": picture(1),
        "HAM10000_images_part_1/ISIC_0026769.jpg": picture(2),
        "HAM10000_images_part_1/ISIC_0031633.jpg": picture(3),
        "HAM10000_images_part_2/ISIC_0031634.jpg": picture(4),
        "HAM10000_images_part_2/ISIC_0031635.jpg": picture(5),
        "HAM10000_images_part_2/ISIC_0031636.jpg": picture(6),
        "HAM10000_images_part_2/ISIC_0031637.jpg": picture(7),
    }


def isic2019() -> Tree:
    return {
        "ISIC_2019_Training_GroundTruth.csv": lines(
            "image,MEL,NV,BCC,AK,BKL,DF,VASC,SCC,UNK",
            "ISIC_0000000,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0",
            "ISIC_0000017_downsampled,1,0,0,0,0,0,0,0,0",
            "ISIC_0024306,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0",
            "ISIC_0053453,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0,0.0",
            "ISIC_0010850,0.0,0.0,0.0,0.0,1.0,0.0,0.0,0.0,0.0",
            "ISIC_0099999,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,1.0",
        ),
        "ISIC_2019_Training_Metadata.csv": lines(
            "image,age_approx,anatom_site_general,lesion_id,sex",
            "ISIC_0000000,55.0,anterior torso,,female",
            "ISIC_0000017_downsampled,50,posterior torso,,female",
            "ISIC_0024306,45.0,,HAM_0000550,male",
            "ISIC_0053453,70.0,palms/soles,BCN_0002083,male",
            "ISIC_0010850,,head/neck,MSK4_0010850,",
            "ISIC_0099999,,,,",
            "ISIC_0999998,,,,",
        ),
        "ISIC_2019_Training_Input/ISIC_0000000.jpg": picture(10),
        "ISIC_2019_Training_Input/ISIC_0000017_downsampled.jpg": picture(11),
        "ISIC_2019_Training_Input/ISIC_0024306.jpg": picture(12),
        "ISIC_2019_Training_Input/ISIC_0053453.jpg": picture(13),
        "ISIC_2019_Training_Input/ISIC_0010850.jpg": picture(14),
        "ISIC_2019_Training_Input/ISIC_0099999.jpg": picture(15),
    }


def pad_ufes20() -> Tree:
    header = (
        "patient_id,lesion_id,smoke,drink,background_father,background_mother,age,pesticide,gender,"
        "skin_cancer_history,cancer_history,has_piped_water,has_sewage_system,fitspatrick,region,diameter_1,"
        "diameter_2,diagnostic,itch,grew,hurt,changed,bleed,elevation,img_id,biopsed"
    )
    signs = "False,False,False,False,False,False"
    return {
        "metadata.csv": lines(
            header,
            f"PAT_1516,1765,,,,,8,,,,,,,,ARM,,,NEV,{signs},PAT_1516_1765_530.png,False",
            f"PAT_46,881,False,False,POMERANIA,POMERANIA,55,False,FEMALE,True,True,True,True,3.0,NECK,6.0,5.0,BCC,"
            f"{signs},PAT_46_881_939.png,True",
            f"PAT_46,882,False,False,POMERANIA,POMERANIA,55,False,FEMALE,True,True,True,True,3.0,FACE,6.0,5.0,ACK,"
            f"{signs},PAT_46_882_940.png,True",
            f"PAT_7,1,False,False,BRAZIL,BRAZIL,70,False,MALE,True,True,True,True,1.0,HAND,6.0,5.0,SEK,"
            f"{signs},PAT_7_1_2.png,False",
            f"PAT_8,2,,,,,70,,,,,,,,BACK,,,SCC,{signs},PAT_8_2_3.png,True",
            f"PAT_9,3,,,,,70,,,,,,,,BACK,,,MEL,{signs},PAT_9_3_4.png,True",
        ),
        "images/imgs_part_1/PAT_1516_1765_530.png": picture(20, "PNG"),
        "images/imgs_part_1/PAT_46_881_939.png": picture(21, "PNG"),
        "images/imgs_part_2/PAT_46_882_940.png": picture(22, "PNG"),
        "images/imgs_part_2/PAT_7_1_2.png": picture(23, "PNG"),
        "images/imgs_part_3/PAT_8_2_3.png": picture(24, "PNG"),
        "images/imgs_part_3/PAT_9_3_4.png": picture(25, "PNG"),
    }


def derm7pt() -> Tree:
    return {
        "meta/meta.csv": lines(
            "case_num,diagnosis,seven_point_score,elevation,location,sex,management,clinic,derm,case_id,notes",
            "1,basal cell carcinoma,0,nodular,abdomen,female,excision,NEL/NEL025.JPG,NEL/Nel026.jpg,,",
            '2,melanoma (less than 0.76 mm),1,palpable,head neck,male,excision,A1l/Aal001.jpg,A1l/Aal002.jpg,1a,"a, b"',
            "3,clark nevus,1,flat,back,female,excision,A1l/Aal003.jpg,A1l/Aal004.jpg,,",
            "4,melanosis,1,flat,genital areas,female,excision,A1l/Aal005.jpg,A1l/Aal006.jpg,,",
            "5,miscellaneous,1,flat,back,female,excision,A1l/Aal007.jpg,A1l/Aal008.jpg,,",
            "6,lentigo,1,flat,back,male,excision,NEL/NEL034.JPG,NEL/Nel035.jpg,,",
        ),
        "meta/train_indexes.csv": lines("indexes", "0", "2"),
        "meta/valid_indexes.csv": lines("indexes", "1", "3"),
        "meta/test_indexes.csv": lines("indexes", "4"),
        "images/NEL/NEL025.JPG": picture(30),
        "images/NEL/NEL026.JPG": picture(31),
        "images/A1L/aal002.jpg": picture(32),
        "images/A1L/Aal004.jpg": picture(33),
        "images/A1L/Aal006.jpg": picture(34),
        "images/A1L/Aal008.jpg": picture(35),
        "images/nel/nel035.jpg": picture(36),
    }


def isic2020() -> Tree:
    return {
        "ISIC_2020_Training_GroundTruth_v2.csv": lines(
            "image_name,patient_id,lesion_id,sex,age_approx,anatom_site_general_challenge,diagnosis,benign_malignant,target",
            "ISIC_0015719,IP_3075186,IL_7972535,female,45.0,upper extremity,unknown,benign,0",
            "ISIC_0052212,IP_2842074,IL_7140280,female,50.0,lower extremity,nevus,benign,0",
            "ISIC_0068279,IP_6890425,IL_1234567,,,head/neck,melanoma,malignant,1",
            "ISIC_0074268,,IL_7654321,male,55.0,,unknown,benign,0",
            "ISIC_0074269,,,male,55.0,torso,unknown,benign,0",
            "ISIC_0074270,IP_2842074,IL_7140281,female,50.0,torso,nevus,benign,0",
        ),
        "ISIC_2020_Training_Duplicates.csv": lines("image_name_1,image_name_2", "ISIC_0015719,ISIC_0052212"),
        "ISIC_2020_Training_JPEG/train/ISIC_0015719.jpg": picture(40),
        "ISIC_2020_Training_JPEG/train/ISIC_0052212.jpg": picture(40),
        "ISIC_2020_Training_JPEG/train/ISIC_0068279.jpg": picture(42),
        "ISIC_2020_Training_JPEG/train/ISIC_0074268.jpg": picture(43),
        "ISIC_2020_Training_JPEG/train/ISIC_0074269.jpg": picture(44),
        "ISIC_2020_Training_JPEG/train/ISIC_0074270.jpg": picture(45),
    }


CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def cifar_records(count: int, seed: int) -> bytes:
    records = np.random.default_rng(seed).integers(0, 256, (count, 3073), dtype=np.uint8)
    records[:, 0] = (np.arange(count) + seed) % 10
    return records.tobytes()


def cifar10() -> Tree:
    tree = {f"cifar-10-batches-bin/data_batch_{n}.bin": cifar_records(2, n) for n in range(1, 6)}
    tree["cifar-10-batches-bin/test_batch.bin"] = cifar_records(3, 6)
    tree["cifar-10-batches-bin/batches.meta.txt"] = lines(*CIFAR_CLASSES, "")
    return tree


def idx(magic: int, *sides: int, content: bytes) -> bytes:
    return struct.pack(f">{1 + len(sides)}I", magic, *sides) + content


def fashion_mnist() -> Tree:
    tree = {}
    for prefix, count in (("train", 4), ("t10k", 3)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = bytes((9 - n) % 10 for n in range(count))
        tree[f"{prefix}-images-idx3-ubyte.gz"] = gzip.compress(
            idx(0x803, count, 28, 28, content=pixels.tobytes()), mtime=0
        )
        tree[f"{prefix}-labels-idx1-ubyte.gz"] = gzip.compress(idx(0x801, count, content=labels), mtime=0)
    return tree


def generic_table() -> Tree:
    return {
        "images.csv": lines(
            "image,label,group,age,institution",
            "clinic/a.jpg,nv,p1,40.0,North 2.0",
            "clinic/b,MEL,p1,unknown,South",
            "c.png,,,,",
        ),
        "clinic/a.jpg": picture(50),
        "clinic/b.JPG": picture(51),
        "c.png": picture(52, "PNG"),
    }


def generic_folders() -> Tree:
    return {
        "nevus/a.jpg": picture(60),
        "nevus/deeper/b.jpg": picture(61),
        "melanoma/a.jpg": picture(62),
        "unlabelled/c.png": picture(63, "PNG"),
        "LICENSE.txt": b"free\n",
    }
