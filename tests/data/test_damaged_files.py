"""Damaged files of every kind give an error of one line, and nothing else."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cappronet.data.features import read_features
from cappronet.training.recipe import Recipe
from experiments.robustness.files import KINDS, damaged_files


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore")  # of Pillow and NumPy, about what is strange in a file
def test_damaged_files_are_refused_in_one_line_or_read(tmp_path, kind):
    (row,) = damaged_files(tmp_path, 60, seed=0, kinds=(kind,))
    assert row["failures"] == {}
    assert row["refused"] > 0
    assert row["refused"] + row["handled"] == row["inputs"] == 60


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="0123456789abz,.\n\r\t\"'-+e\x00é", max_size=80))
def test_any_text_as_a_table(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("table") / "a.csv"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        assert np.isfinite(read_features(path).x_train).all()
    except ValueError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message


MANY = ".a" * 100_000


@pytest.mark.parametrize(
    "text",
    [
        *("a=" + "[" * 100_000, "seed=" + "1" * 5000, "a" + ".a" * 999 + "=1", "\x00", "a={" * 999),
        *(f"a{MANY}=1", f"[a{MANY}]", f"x=1 # {MANY}", ("a" + ".a" * 90 + "=1\n") * 6000),
    ],
)
def test_hostile_toml_is_refused_in_one_line(tmp_path, text):
    path: Path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        Recipe.from_toml(path)
    assert "\n" not in str(caught.value)


def test_deeply_nested_json_is_refused_in_one_line(tmp_path):
    np.save(tmp_path / "x_train.npy", np.zeros((4, 2), np.float32))
    np.save(tmp_path / "y_train.npy", np.arange(4) % 2)
    (tmp_path / "features.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"features\.json can't be read as JSON"):
        read_features(tmp_path)


def test_a_table_with_a_giant_cell_is_refused_or_read(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n1," + "x" * 200_000 + "\n2,y\n")
    assert len(read_features(tmp_path / "a.csv").classes) == 2
    (tmp_path / "b.csv").write_text("1," + "x" * 200_000 + "\n2,y\n")
    with pytest.raises(ValueError, match=r"b\.csv can't be read as a table"):
        read_features(tmp_path / "b.csv")
