"""No flipped bit of a feature file passes unnoticed."""

import json
import random
import shutil

import numpy as np
import pytest

from cappronet.data.digests import with_digests
from cappronet.data.features import read_features
from experiments.robustness.files import KINDS, flipped_bit

FOLDER_FILES = ("x_train.npy", "y_train.npy", "features.json")


@pytest.mark.parametrize("kind", [*(f"feature folder, {name}" for name in FOLDER_FILES), "features, .npz"])
def test_of_100_flipped_bits_none_is_silent(tmp_path, kind):
    target = KINDS[kind].write(tmp_path)
    intact, original = target.read_bytes(), KINDS[kind].read(tmp_path)
    chance = random.Random(0)
    refused = 0
    for _ in range(100):
        target.write_bytes(flipped_bit(intact, chance))
        try:
            content = KINDS[kind].read(tmp_path)
        except (ValueError, OSError):
            refused += 1
        else:
            assert content == original  # the bit means nothing, as those of dates
    assert refused >= (100 if target.suffix == ".npy" else 60)


@pytest.fixture
def folder(tmp_path):
    KINDS["feature folder, x_train.npy"].write(tmp_path)
    return tmp_path


def test_the_error_says_what_to_do(folder):
    np.save(folder / "y_test.npy", np.zeros(6, int))
    with pytest.raises(ValueError, match=r"y_test\.npy was damaged or changed.*cappronet embed.*'sha256'"):
        read_features(folder)
    described = json.loads((folder / "features.json").read_text())
    del described["sha256"]
    (folder / "features.json").write_text(json.dumps(described))
    assert read_features(folder).y_test.tolist() == [0] * 6


def test_a_lost_test_part_is_noticed(folder):
    for name in ("x_test.npy", "y_test.npy"):
        (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"x_test\.npy is missing"):
        read_features(folder)


@pytest.mark.parametrize("digests", [[], "no", {"../x_train.npy": "0"}])
def test_digests_that_are_none_are_refused(folder, digests):
    described = json.loads((folder / "features.json").read_text())
    (folder / "features.json").write_text(json.dumps({**described, "sha256": digests}))
    with pytest.raises(ValueError, match="not a table of digests"):
        read_features(folder)


def test_folders_of_earlier_versions_are_read_silently(folder, recwarn):
    expected = read_features(folder)
    (folder / "features.json").write_text(json.dumps({"classes": ["ant", "bee", "cat"], "source": None}))
    data = read_features(folder)
    assert data.classes == expected.classes
    np.testing.assert_array_equal(data.x_train, expected.x_train)
    assert not recwarn.list


def test_the_layout_of_the_description_does_not_matter(folder, tmp_path_factory):
    described = json.loads((folder / "features.json").read_text())
    (folder / "features.json").write_text(json.dumps(described, sort_keys=True))
    read_features(folder)
    copy = tmp_path_factory.mktemp("copy") / "features"
    shutil.copytree(folder, copy)
    read_features(copy)
    assert set(with_digests(copy, {})["sha256"]) == {path.name for path in copy.iterdir()}
