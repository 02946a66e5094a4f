"""A folder of class subfolders with images.

Either `PATH/train/<class>/*` and `PATH/test/<class>/*`, or `PATH/<class>/*`, from which a random fifth of each class
becomes the test set. Every image is scaled and centrally cropped to one square size.
"""

import itertools
import warnings
from pathlib import Path

import numpy as np

from asymtrain.errors import UsageError
from asymtrain.lab.data.arrays import Bytes, Dataset, Examples, whole_number

IMAGE_SIZE = 32
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
# Pillow's names for these: by default it tries all its formats, and runs Ghostscript on PostScript named x.png.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_MOST_PIXELS = 1 << 26  # of an image, since each takes some 20 bytes
_NAMED = 5  # unusable images that an error lists
_TILE_SIDES = (322, 323)  # tags of a TIFF

Listing = dict[str, list[Path]]  # class name -> its images, both in order of name


def load(path: Path, *, image_size: int = IMAGE_SIZE, seed: int = 0) -> Dataset:
    """Read the folder; the seed matters only without a test folder."""
    image_size = whole_number("image_size", image_size, 1, 1024)
    seed = whole_number("seed", seed, 0)
    if not path.is_dir():
        raise UsageError(f"{path} is not a folder; give a folder with one subfolder of images for each class")
    try:
        train, test = _list_parts(path, seed)
    except OSError as error:
        raise UsageError(f"{path} cannot be listed ({error}); check its permissions") from None
    problems = dict[Path, UsageError]()
    to_train, to_test = (_read(listing, image_size, problems) for listing in (train, test))
    if problems:
        first = next(iter(problems.values()))
        if len(problems) == 1:
            raise first
        named = ", ".join(map(str, list(problems)[:_NAMED]))
        more = f" and {len(problems) - _NAMED:,} more" if len(problems) > _NAMED else ""
        raise UsageError(f"{len(problems):,} images cannot be used, {named}{more}. Of the first: {first}")
    return Dataset(f"folder:{path}", to_train, to_test, tuple(train))


def count_classes(path: Path) -> int:
    """The number of classes in a folder, without reading an image."""
    return len(_folders_in(next(iter(_parts_of(path)), path)))


def _parts_of(path: Path) -> list[Path]:
    """The existing folders among those for training and testing.

    Folders that hold images are classes, even if they are called train or test.
    """
    parts = (path / "train", path / "test")
    return [folder for folder in parts if folder.is_dir() and _folders_in(folder)]


def _list_parts(path: Path, seed: int) -> tuple[Listing, Listing]:
    train_folder, test_folder = path / "train", path / "test"
    parts = _parts_of(path)
    if len(parts) == 2:
        train, test = _list_classes(train_folder), _list_classes(test_folder)
        for name in sorted(train.keys() ^ test.keys()):
            lacking = test_folder if name in train else train_folder
            raise UsageError(f"{lacking} has no folder {name!r}; train and test must have the same classes")
        return train, test
    if parts:
        lacking = test_folder if parts == [train_folder] else train_folder
        raise UsageError(f"{lacking} with class folders is missing; add it, or put the class folders into {path}")
    return _hold_out(_list_classes(path), seed)


def _folders_in(folder: Path) -> list[Path]:
    return [entry for entry in _entries(folder) if entry.is_dir()]


def _entries(folder: Path) -> list[Path]:
    entries = sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if not entry.exists():
            raise UsageError(f"{entry} is a link that leads nowhere: mend or remove it")
    return entries


def _list_classes(folder: Path) -> Listing:
    classes = _folders_in(folder)
    if len(classes) < 2:
        raise UsageError(
            f"{folder} has {len(classes) or 'no'} class folder{'s'[: len(classes) != 1]}; it needs at least two, with "
            "images in each"
        )
    listing: Listing = {}
    for entry in classes:
        listing[entry.name] = [file for file in _entries(entry) if file.suffix.lower() in SUFFIXES and file.is_file()]
        if not listing[entry.name]:
            raise UsageError(f"{entry} has no images ({' '.join(SUFFIXES)}); add some or remove it")
    return listing


def _hold_out(listing: Listing, seed: int) -> tuple[Listing, Listing]:
    """Hold out a fifth of each class, at least one image, for testing."""
    from asymtrain.lab.data.subsets import hold_out  # here: it loads torch

    train: Listing = {}
    test: Listing = {}
    for images in listing.values():
        if len(images) < 2:
            raise UsageError(f"{images[0].parent} has one image; it needs two, one to train and one to test on")
    chosen = hold_out([len(images) for images in listing.values()], seed)
    for (name, images), rows in zip(listing.items(), map(set, chosen), strict=True):
        train[name] = [image for i, image in enumerate(images) if i not in rows]
        test[name] = [image for i, image in enumerate(images) if i in rows]
    return train, test


def _read(listing: Listing, image_size: int, problems: dict[Path, UsageError]) -> Examples:
    """Read the images; unusable ones are added to `problems`, so that one error can list them."""
    counts = [len(images) for images in listing.values()]
    pixels = np.empty((sum(counts), 3, image_size, image_size), np.uint8)
    for i, file in enumerate(itertools.chain.from_iterable(listing.values())):
        try:
            pixels[i] = _read_image(file, image_size)
        except UsageError as problem:
            problems[file] = problem
    return Examples(pixels, np.repeat(np.arange(len(counts), dtype=np.int64), counts))


def _read_image(file: Path, image_size: int) -> Bytes:
    """The image as (3, S, S): rotated by its EXIF data, scaled to cover the square, cropped at the centre."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's warnings do not concern the pixels
            with Image.open(file, formats=_FORMATS) as image:  # reads only the header
                # A TIFF's tile is decoded completely, and may be larger than the image.
                tile = [getattr(image, "tag_v2", {}).get(side, 1) for side in _TILE_SIDES]
                for width, height in (image.size, tile):
                    if width * height > _MOST_PIXELS:
                        raise UsageError(
                            f"{file} has {width} x {height} pixels, more than {_MOST_PIXELS}: scale or remove it"
                        )
                if image.mode == "F" or image.mode.startswith("I"):
                    raise UsageError(f"{file} has more than 8 bits a channel; convert it to an 8-bit image")
                upright = ImageOps.exif_transpose(image)
                if upright.has_transparency_data:
                    clear = upright.convert("RGBA")
                    upright = Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
                rgb = upright.convert("RGB")
        fitted = ImageOps.fit(rgb, (image_size, image_size), Image.Resampling.BILINEAR)
    except UsageError:
        raise
    except Exception as error:  # each of Pillow's decoders fails in its own way
        raise UsageError(f"{file} cannot be read as an image ({error}); repair or remove it") from None
    return np.ascontiguousarray(np.asarray(fitted, np.uint8).transpose(2, 0, 1))
