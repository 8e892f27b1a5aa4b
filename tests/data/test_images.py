"""Which image files are opened: regular ones, in raster formats, whatever their names are."""

import os
import random
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from cappronet.data.datasets import load_dataset
from cappronet.data.images import FORMATS, decoded, read_image
from experiments.robustness.files import damaged

PIXELS = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def class_folders(root):
    for name in ("a", "b"):
        (root / name).mkdir()
        for number in range(3):
            Image.fromarray(PIXELS).save(root / name / f"{number}.png")


@pytest.mark.parametrize("kind", FORMATS)
def test_the_documented_formats_are_opened_whatever_the_suffix(tmp_path, kind):
    Image.fromarray(PIXELS).save(tmp_path / "x.png", format=kind)
    assert read_image(tmp_path / "x.png").size == (8, 8)


def test_an_eps_file_never_reaches_an_interpreter(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *arguments, **options: started.append(arguments))
    (tmp_path / "x.png").write_bytes(EPS)
    for read in (read_image, lambda path: decoded([path], 2**20)):
        with pytest.raises(ValueError, match=r"x\.png can't be read as an image .*none of BMP, GIF, JPEG") as caught:
            read(tmp_path / "x.png")
        assert "\n" not in str(caught.value)
    assert started == []


@pytest.mark.parametrize("kind", ["PDF", "TGA", "ICO", "PCX", "SGI"])
def test_other_formats_are_refused(tmp_path, kind):
    Image.fromarray(PIXELS).save(tmp_path / "x.png", format=kind)
    with pytest.raises(ValueError, match="none of BMP"):
        read_image(tmp_path / "x.png")


def special_file(path, kind):
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else "nowhere")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "dangling link"])
def test_anything_but_a_regular_file_is_refused_before_it_is_opened(tmp_path, kind):
    class_folders(tmp_path)
    special_file(tmp_path / "b" / "x.png", kind)
    for read in (read_image, lambda path: load_dataset(str(path.parents[1]))):
        with pytest.raises((ValueError, FileNotFoundError), match=re.escape("x.png")) as caught:
            read(tmp_path / "b" / "x.png")
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_damaged_tiff_is_one_line_and_pillow_says_nothing_else(tmp_path):
    """Pillow warns of strange tags, and logs an error of its own."""
    Image.new("RGB", (12, 12)).save(tmp_path / "a.tif")
    whole = (tmp_path / "a.tif").read_bytes()
    chance = random.Random(1)
    for number in range(40):
        (tmp_path / f"{number}.tif").write_bytes(damaged(whole, chance))
    code = (
        "import sys, pathlib\n"
        "from cappronet.data.images import read_image\n"
        "for path in pathlib.Path(sys.argv[1]).glob('*.tif'):\n"
        "    try: read_image(path)\n"
        "    except ValueError as error: print(error)\n"
        "import logging; logging.getLogger('PIL.TiffImagePlugin').error('more samples than this decoder knows')"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert all("fix or delete it" in line for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) > 10


def test_links_to_images_are_images(tmp_path):
    (tmp_path / "data").mkdir()
    class_folders(tmp_path / "data")
    Image.fromarray(255 - PIXELS).save(tmp_path / "x.png")
    (tmp_path / "data" / "b" / "x.png").symlink_to(tmp_path / "x.png")
    data = load_dataset(str(tmp_path / "data"))
    assert len(data.train) + len(data.test) == 7


def test_a_class_whose_name_is_not_utf8_is_refused_at_loading(tmp_path):
    class_folders(tmp_path)
    bad = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(bad)  # noqa: PTH102
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(ValueError, match=r"'caf\\udce9' .* not UTF-8: rename it"):
        load_dataset(str(tmp_path))


def test_names_of_image_files_need_not_be_utf8(tmp_path):
    class_folders(tmp_path)
    Image.fromarray(PIXELS[:4]).save(tmp_path / "a" / "small.png")  # of another size: images stay files
    try:
        (tmp_path / "a" / "0.png").rename(os.fsdecode(os.fsencode(tmp_path) + b"/a/caf\xe9.png"))
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    assert len(load_dataset(str(tmp_path)).fingerprint()) == 16
