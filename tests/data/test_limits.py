"""Files that announce more than fits into memory are refused by their headers."""

import os
import struct
import tracemalloc
import zipfile

import numpy as np
import pandas as pd
import pytest

from cappronet.data import limits
from cappronet.data.datasets import load_dataset
from cappronet.data.features import holds_features, read_features
from cappronet.data.limits import max_bytes

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.array([0, 1, 2] * 4)


def refused_without_reading(read, match, most=10e6):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=match) as caught:
            read()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < most


def test_the_limit_is_the_available_memory_or_what_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("CAPPRONET_MAX_BYTES", raising=False)
    assert 2**26 < max_bytes() < 2**50
    monkeypatch.setattr(limits, "MEMORY_INFO", limits.Path("/nowhere"))
    assert 2**26 < max_bytes() < 2**50
    (tmp_path / "memory.max").write_text("1000\n")
    monkeypatch.setattr(limits, "CONTAINER_LIMIT", tmp_path / "memory.max")
    assert max_bytes() == 1000
    monkeypatch.setenv("CAPPRONET_MAX_BYTES", "123")
    assert max_bytes() == 123
    for wrong in ("many", "-1", "0", "1.5"):
        monkeypatch.setenv("CAPPRONET_MAX_BYTES", wrong)
        with pytest.raises(ValueError, match="CAPPRONET_MAX_BYTES must be a number of bytes"):
            max_bytes()


@pytest.mark.parametrize("images", [True, False])
def test_an_archive_that_unpacks_to_much_more_is_refused_by_its_directory(tmp_path, monkeypatch, images):
    shape, kind = ((40_000, 28, 28), np.uint8) if images else ((40_000, 256), np.float32)
    arrays = {"x_train": np.zeros(shape, kind), "x_test": np.zeros((2, *shape[1:]), kind)}
    np.savez_compressed(tmp_path / "a.npz", **arrays, y_train=np.arange(40_000) % 2, y_test=np.arange(2))
    assert (tmp_path / "a.npz").stat().st_size < 1e6
    load_dataset(str(tmp_path / "a.npz"))
    monkeypatch.setenv("CAPPRONET_MAX_BYTES", str(10 * 2**20))
    match = r"a\.npz is not read.* the limit is 10\.0 MiB; set CAPPRONET_MAX_BYTES to raise it"
    refused_without_reading(lambda: load_dataset(str(tmp_path / "a.npz")), match)


def npy_header(rows, width=5):
    text = repr({"descr": "<f4", "fortran_order": False, "shape": (rows, width)}).encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_a_header_of_ten_thousand_million_rows_is_refused(tmp_path):
    content = npy_header(10**10) + X.tobytes()
    np.save(tmp_path / "y.npy", Y)
    (tmp_path / "x.npy").write_bytes(content)
    refused_without_reading(lambda: read_features(tmp_path / "x.npy", tmp_path / "y.npy"), "x.npy can't be read")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x_train.npy", content)
        archive.write(tmp_path / "y.npy", "y_train.npy")
    refused_without_reading(lambda: read_features(tmp_path / "a.npz"), r"200,000,000,000 bytes, but the archive has")


def test_mapped_features_are_not_limited_but_copies_of_them_are(tmp_path, monkeypatch):
    np.save(tmp_path / "x_train.npy", X)
    np.save(tmp_path / "y_train.npy", Y)
    monkeypatch.setenv("CAPPRONET_MAX_BYTES", str(Y.nbytes))
    np.testing.assert_array_equal(read_features(tmp_path).x_train, X)
    np.save(tmp_path / "x_train.npy", X.astype(np.float64))
    with pytest.raises(ValueError, match="features as float32 would take 240 bytes"):
        read_features(tmp_path)


def test_wide_tables_are_refused_by_their_first_line(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPPRONET_MAX_BYTES", str(2**30))
    (tmp_path / "wide.csv").write_text(",".join(["1"] * 1_000_000) + "\n")
    refused_without_reading(lambda: read_features(tmp_path / "wide.csv"), "table of 2 x 1,000,000 would take")
    (tmp_path / "short.csv").write_text(",".join(["1"] * 10_000) + "\n" + "1\n" * 10_000)  # pandas fills the lines up
    refused_without_reading(lambda: read_features(tmp_path / "short.csv"), "table of 10,002 x 10,000 would take")


def test_parquet_is_refused_by_its_metadata(tmp_path, monkeypatch):
    pd.DataFrame({"f": np.zeros(1_000_000), "label": np.zeros(1_000_000, int)}).to_parquet(tmp_path / "a.parquet")
    monkeypatch.setenv("CAPPRONET_MAX_BYTES", str(2**20))
    with pytest.raises(ValueError, match="table of 1,000,000 x 2 would take"):
        read_features(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "a.parquet", "folder"])
def test_pipes_do_not_hang_readers_of_features(tmp_path, name):
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
        os.mkfifo(path / "x_train.npy")
    else:
        os.mkfifo(path)
    assert not holds_features(path)
    with pytest.raises(ValueError, match="not a regular file"):
        read_features(path)
