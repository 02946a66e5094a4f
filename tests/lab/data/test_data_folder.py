import os
import struct
import zlib

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from asymtrain.errors import UsageError
from asymtrain.lab.data import folder


def write_image(path, colour, size=(8, 8), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def write_classes(root, per_class, names=("ant", "bee", "cat")):
    for c, name in enumerate(names):
        for i in range(per_class):
            write_image(root / name / f"{i:02d}.png", (c * 40, i, 100))


def test_given_parts(tmp_path):
    write_classes(tmp_path / "train", 4)
    write_classes(tmp_path / "test", 2)
    data = folder.load(tmp_path, image_size=8)
    assert data.class_names == ("ant", "bee", "cat")
    assert data.name == f"folder:{tmp_path}"
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert data.train.images.shape == (12, 3, 8, 8)
    assert data.train.images.dtype == np.uint8
    assert data.train.images.flags.c_contiguous
    assert data.train.masks is None
    assert (data.train.images[:, 0, 0, 0] == data.train.labels * 40).all()
    assert data.train.images[:4, 1, 3, 3].tolist() == [0, 1, 2, 3]


def test_a_fifth_of_each_class_is_held_out_by_the_seed(tmp_path):
    write_classes(tmp_path, 10)
    data, again, other = (folder.load(tmp_path, image_size=4, seed=seed) for seed in (0, 0, 1))
    assert np.bincount(data.train.labels).tolist() == [8, 8, 8]
    assert np.bincount(data.test.labels).tolist() == [2, 2, 2]
    seen = [tuple(image[:, 0, 0]) for part in (data.train, data.test) for image in part.images]
    assert len(set(seen)) == 30
    assert (data.test.images == again.test.images).all()
    assert (data.test.images != other.test.images).any()


def test_small_classes_keep_one_image_on_each_side(tmp_path):
    write_classes(tmp_path, 2)
    data = folder.load(tmp_path)
    assert data.train.labels.tolist() == data.test.labels.tolist() == [0, 1, 2]
    (tmp_path / "bee" / "00.png").unlink()
    with pytest.raises(UsageError, match="bee has one image"):
        folder.load(tmp_path)


def test_images_are_scaled_to_cover_the_square_and_cropped_at_the_centre(tmp_path):
    write_classes(tmp_path, 2, ("a", "b"))
    wide = np.zeros((16, 48, 3), np.uint8)
    wide[:, :16], wide[:, 16:32], wide[:, 32:] = (255, 0, 0), (0, 255, 0), (0, 0, 255)
    for i in range(2):
        Image.fromarray(wide).save(tmp_path / "a" / f"0{i}.png")
    data = folder.load(tmp_path, image_size=8)
    centre = data.train.images[0, :, 2:6, 2:6]
    assert (centre[1] == 255).all()
    assert (centre[[0, 2]] == 0).all()


def test_every_usual_kind_of_image(tmp_path):
    write_classes(tmp_path / "train", 1, ("a", "b"))
    for name in ("a", "b"):
        root = tmp_path / "test" / name
        write_image(root / "1.png", 200, mode="L")
        write_image(root / "2.png", (200, 200, 200, 255), mode="RGBA")
        write_image(root / "3.JPG", (200, 200, 200))
        write_image(root / "4.png", (0, 0, 0, 0), mode="RGBA")
        palette = Image.new("P", (8, 8), 0)
        palette.putpalette([200] * 768)
        palette.save(root / "5.gif")
        (root / "notes.txt").write_text("not an image")
        (root / ".hidden.png").write_text("not an image")
    images = folder.load(tmp_path, image_size=8).test.images
    assert len(images) == 10
    assert images[:5].mean(axis=(1, 2, 3)).tolist() == [200, 200, 200, 255, 200]


def test_a_turned_photograph_is_put_upright(tmp_path):
    write_classes(tmp_path, 2, ("a", "b"))
    halves = np.zeros((8, 8, 3), np.uint8)
    halves[:4] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # turned by half
    for i in range(2):
        Image.fromarray(halves).save(tmp_path / "a" / f"0{i}.png", exif=exif)
    image = folder.load(tmp_path, image_size=8).train.images[0]
    assert (image[:, :4] == 0).all()
    assert (image[:, 4:] == 255).all()


@pytest.mark.parametrize("content", [b"", b"hello", None])
def test_an_unreadable_image_is_named(tmp_path, content):
    write_classes(tmp_path, 3)
    bad = tmp_path / "bee" / "01.png"
    if content is None:
        noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(noise).save(bad)
        content = bad.read_bytes()[:5000]
    bad.write_bytes(content)
    with pytest.raises(UsageError, match="cannot be read as an image") as caught:
        folder.load(tmp_path)
    assert str(bad) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["dog", "bee/03.png"])
def test_a_link_that_leads_nowhere_is_named(tmp_path, place):
    write_classes(tmp_path, 3)
    (tmp_path / place).symlink_to(tmp_path / "gone")
    with pytest.raises(UsageError, match=f"{place} is a link that leads nowhere: mend or remove it"):
        folder.load(tmp_path)


def test_unreadable_images_are_counted_and_the_first_named(tmp_path):
    write_classes(tmp_path / "train", 4)
    write_classes(tmp_path / "test", 3)
    bad = [tmp_path / "train" / "ant" / "01.png", *(tmp_path / "test").glob("*/*.png")]
    for file in bad:
        file.write_bytes(b"hello")
    with pytest.raises(UsageError, match=f"^10 images .*{bad[0]}, .* and 5 more") as caught:
        folder.load(tmp_path)
    told = str(caught.value)
    named, _, reason = told.partition(". Of the first: ")
    assert named.count(".png") == 5
    assert reason.startswith(f"{bad[0]} cannot be read as an image")
    assert "\n" not in told


def test_postscript_in_a_picture_s_name_is_not_run(tmp_path, monkeypatch):
    """Pillow hands PostScript to Ghostscript, a language that reads and writes files."""
    write_classes(tmp_path / "data", 3)
    bad = tmp_path / "data" / "bee" / "01.png"
    bad.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n")
    ghostscript = tmp_path / "bin" / "gs"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ghostscript.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # it is looked for once in a process
    with pytest.raises(UsageError, match=r"01.png cannot be read as an image"):
        folder.load(tmp_path / "data")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("suffix", folder.SUFFIXES)
def test_every_suffix_has_its_format(tmp_path, suffix):
    write_classes(tmp_path, 2, ("a", "b"))
    write_image(tmp_path / "a" / f"02{suffix}", (200, 100, 0))
    data = folder.load(tmp_path)
    assert len(data.train) + len(data.test) == 5


def test_an_image_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    write_classes(tmp_path, 3)
    bad = tmp_path / "bee" / "01.png"
    header = b"IHDR" + struct.pack(">IIBBBBB", 13_300, 13_300, 8, 2, 0, 0, 0)  # no pixels follow
    chunks = (header, b"IDAT", b"IEND")
    bad.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(len(c[4:]).to_bytes(4, "big") + c + zlib.crc32(c).to_bytes(4, "big") for c in chunks)
    )
    with pytest.raises(UsageError, match=r"01.png .*13300 x 13300"):
        folder.load(tmp_path)


def test_a_tile_of_too_many_pixels_is_refused_by_its_header(tmp_path):
    """The image has 8 x 8 pixels, its one tile 16384 x 16384: a decoder unpacks the tile."""
    write_classes(tmp_path, 3)
    packed = zlib.compress(bytes(64))
    tags = {256: 8, 257: 8, 258: 8, 259: 8, 262: 1, 277: 1, 322: 16384, 323: 16384, 324: 8, 325: len(packed)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    directory = struct.pack("<H", len(tags)) + entries + bytes(4)
    bad = tmp_path / "bee" / "01.tif"
    bad.write_bytes(b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed + directory)
    with pytest.raises(UsageError, match=r"01.tif .*16384 x 16384"):
        folder.load(tmp_path)


def test_more_than_eight_bits_are_refused(tmp_path):
    write_classes(tmp_path, 2)
    Image.fromarray(np.full((8, 8), 30000, np.uint16)).save(tmp_path / "ant" / "00.png")
    with pytest.raises(UsageError, match=r"00.png has more than 8 bits"):
        folder.load(tmp_path)


def test_bad_folders(tmp_path):
    with pytest.raises(UsageError, match="is not a folder"):
        folder.load(tmp_path / "nothing")
    with pytest.raises(UsageError, match="has no class folders"):
        folder.load(tmp_path)
    write_classes(tmp_path, 2, ("a",))
    with pytest.raises(UsageError, match="has 1 class folder;"):
        folder.load(tmp_path)
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="b has no images"):
        folder.load(tmp_path)
    with pytest.raises(UsageError, match="image_size"):
        folder.load(tmp_path, image_size=0)


@pytest.mark.parametrize("names", [("car", "train"), ("quiz", "test", "train")])
def test_train_and_test_can_be_classes(tmp_path, names):
    write_classes(tmp_path, 5, names)
    data = folder.load(tmp_path)
    assert data.class_names == names
    assert np.bincount(data.train.labels).tolist() == [4] * len(names)


def test_parts_must_match(tmp_path):
    write_classes(tmp_path / "train", 1)
    with pytest.raises(UsageError, match=r"test .*missing"):
        folder.load(tmp_path)
    write_classes(tmp_path / "test", 1, ("ant", "bee"))
    with pytest.raises(UsageError, match="test has no folder 'cat'"):
        folder.load(tmp_path)
    write_classes(tmp_path / "test", 1, ("cat", "dog"))
    with pytest.raises(UsageError, match="train has no folder 'dog'"):
        folder.load(tmp_path)
