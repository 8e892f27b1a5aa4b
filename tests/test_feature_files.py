"""Anyone's arrays become features with numbered classes, and what is wrong with them is said in one line."""

import re
import zipfile

import numpy as np
import pandas as pd
import pytest

from cappronet.datasets import load_dataset
from cappronet.feature_files import holds_features, pack, read_features, with_test

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.array([0, 1, 2] * 4)
NAMES = np.array(["cat", "dog", "eel"])


def same(data, x=X, classes=("0", "1", "2")):
    assert data.x_train.dtype == np.float32
    assert data.y_train.dtype == np.int64
    np.testing.assert_array_equal(data.x_train, x)
    np.testing.assert_array_equal(data.y_train, Y)
    assert data.classes == classes


@pytest.mark.parametrize("names", [("features", "labels"), ("X", "y"), ("x_train", "y_train"), ("X_train", "Y_train")])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_under_the_usual_names(tmp_path, names, save):
    save(tmp_path / "a.npz", **dict(zip(names, (X, Y), strict=True)))
    data = read_features(tmp_path / "a.npz")
    same(data)
    assert data.x_test is None
    assert data.source is None


def test_text_as_labels_is_sorted_and_a_test_part_follows_its_numbers(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=NAMES[Y], x_test=X[:3], y_test=np.array(["eel", "dog", "eel"]))
    data = read_features(tmp_path / "a.npz")
    same(data, classes=("cat", "dog", "eel"))
    assert data.y_test.tolist() == [2, 1, 2]
    np.testing.assert_array_equal(data.x_test, X[:3])


def test_numbers_of_any_kind_become_float32_and_whole_floats_labels(tmp_path):
    whole = (100 * X).astype(np.int16)
    np.savez(tmp_path / "a.npz", X=whole, y=Y.astype(float).reshape(-1, 1))
    same(read_features(tmp_path / "a.npz"), whole.astype(np.float32))
    np.savez(tmp_path / "b.npz", X=np.asfortranarray(X.astype(np.float64)), y=Y)
    same(read_features(tmp_path / "b.npz"))


def test_npy_pairs(tmp_path):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", NAMES[Y])
    same(read_features(tmp_path / "x.npy", tmp_path / "y.npy"), classes=("cat", "dog", "eel"))
    with pytest.raises(ValueError, match=r"--labels names the \.npy of labels"):
        read_features(tmp_path / "x.npy")
    np.save(tmp_path / "short.npy", Y[:5])
    with pytest.raises(ValueError, match=r"has 12 features but labels of shape \(5,\)"):
        read_features(tmp_path / "x.npy", tmp_path / "short.npy")


def table():
    frame = pd.DataFrame(X, columns=[f"f{i}" for i in range(5)])
    frame.insert(2, "label", NAMES[Y])
    return frame


def test_tables_with_a_column_called_label_wherever_it_stands(tmp_path):
    table().to_csv(tmp_path / "a.csv", index=False)
    table().to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    table().to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.tsv", "a.parquet"):
        same(read_features(tmp_path / name), classes=("cat", "dog", "eel"))


def test_the_number_of_a_row_that_pandas_writes_is_no_feature(tmp_path):
    table().to_csv(tmp_path / "a.csv")
    same(read_features(tmp_path / "a.csv"), classes=("cat", "dog", "eel"))


def test_tables_without_names_and_with_numbers_as_names(tmp_path):
    frame = pd.DataFrame(X).assign(kind=Y)
    frame.to_csv(tmp_path / "bare.csv", index=False, header=False)
    same(read_features(tmp_path / "bare.csv"))
    frame.to_csv(tmp_path / "counted.csv", index=False)
    same(read_features(tmp_path / "counted.csv"))


def test_the_label_column_can_be_named_and_is_the_last_otherwise(tmp_path):
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame.insert(0, "kind", Y)
    frame.to_csv(tmp_path / "a.csv", index=False)
    same(read_features(tmp_path / "a.csv", label_column="kind"))
    frame[["a", "b", "c", "d", "e", "kind"]].to_csv(tmp_path / "b.csv", index=False)
    same(read_features(tmp_path / "b.csv"))
    with pytest.raises(ValueError, match=r"no column 'art' for --label-column; its last columns are d, e, kind"):
        read_features(tmp_path / "b.csv", label_column="art")


def test_tables_need_pandas_and_say_so(tmp_path, monkeypatch):
    table().to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="tables need pandas, which is not installed: pip install pandas"):
        read_features(tmp_path / "a.csv")


NAN, INF = X.copy(), X.copy()
NAN[7, 3] = np.nan
INF[2, 0] = np.inf


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": NAN, "y": Y}, "NaN or infinity in row 7"),
        ({"X": INF, "y": Y}, "NaN or infinity in row 2"),
        ({"X": X.astype(np.float64) * 1e200, "y": Y}, "NaN or infinity in row 0"),
        ({"X": X, "y": Y[:-1]}, r"has 12 training features but labels of shape (11,)"),
        ({"X": X[0], "y": Y}, "expected numbers (n, d)"),
        ({"X": X.reshape(12, 5, 1, 1), "y": Y}, "expected numbers (n, d); for images there is: cappronet embed"),
        ({"X": X[:0], "y": Y[:0]}, "expected numbers (n, d)"),
        ({"X": NAMES[Y].reshape(12, 1), "y": Y}, "expected numbers (n, d)"),
        ({"X": X, "y": Y + 0.5}, "labels of"),
        ({"X": X, "y": np.where(Y == 0, np.nan, Y)}, "fractions or NaN"),
        ({"X": X, "y": Y, "classes": NAMES[:2]}, "must be 0 to 1 for its 2 named classes"),
        ({"X": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"X": X, "y": Y, "x_test": X, "y_test": Y + 1}, "class '3' of"),
        ({"X": X, "y": Y, "x_test": X[:, :4], "y_test": Y}, "are 5 wide, those of"),
        ({"data": X, "target": Y}, "its arrays are data, target: expected x_train and y_train"),
        ({"X": X, "y": NAMES[Y].astype(object)}, "can't be read as an .npz file"),
    ],
)
def test_bad_arrays_are_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_features(tmp_path / "a.npz")
    assert "\n" not in str(caught.value)
    assert "a.npz" in str(caught.value)


def test_bad_files_are_refused_in_one_line(tmp_path):
    np.savez(tmp_path / "a.npz", X=X, y=Y)
    whole = (tmp_path / "a.npz").read_bytes()
    for name, content in (
        ("cut.npz", whole[:300]),
        ("no.npz", b"nothing"),
        ("no.npy", b"nothing"),
        ("no.parquet", b"x"),
    ):
        (tmp_path / name).write_bytes(content)
        labels = tmp_path / "no.npy" if name.endswith("npy") else None
        with pytest.raises(ValueError, match="can't be read as") as caught:
            read_features(tmp_path / name, labels)
        assert "\n" not in str(caught.value)
    with pytest.raises(FileNotFoundError, match="there is no feature file"):
        read_features(tmp_path / "missing.npz")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no kind of feature file that is known: expected .npz"):
        read_features(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.assign(f1="red"), "column 'f1' of"),
        (lambda frame: frame.assign(label=[None, *NAMES[Y][1:]]), "no label in row 0 of column 'label'"),
        (lambda frame: frame.assign(f4=[*X[:11, 4], None]), "NaN or infinity in row 11"),
        (lambda frame: frame[["label"]], "has 1 columns, expected features and a label"),
    ],
)
def test_bad_tables_are_refused_in_one_line(tmp_path, change, message):
    change(table()).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(ValueError, match=message) as caught:
        read_features(tmp_path / "a.csv")
    assert "\n" not in str(caught.value)


def test_a_second_file_is_the_test_part(tmp_path):
    np.savez(tmp_path / "a.npz", X=X, y=NAMES[Y])
    np.savez(tmp_path / "b.npz", X=X[:2], y=NAMES[[2, 0]])
    data = with_test(read_features(tmp_path / "a.npz"), read_features(tmp_path / "b.npz"))
    assert data.y_test.tolist() == [2, 0]
    assert not data.alone
    with pytest.raises(ValueError, match="has a test part already"):
        with_test(data, read_features(tmp_path / "b.npz"))


def test_packed_arrays_are_mapped_and_numpy_reads_them(tmp_path):
    pack(tmp_path / "a.npz", {"classes": NAMES, "x_train": X, "y_train": Y, "source": np.array('{"network": 1}')})
    data = read_features(tmp_path / "a.npz")
    same(data, classes=("cat", "dog", "eel"))
    assert isinstance(data.x_train, np.memmap)
    assert data.x_train.ctypes.data % 64 == 0
    assert data.source == {"network": 1}
    np.savez(tmp_path / "b.npz", X=X, y=Y, source=NAMES)
    assert read_features(tmp_path / "b.npz").source is None
    with np.load(tmp_path / "a.npz") as archive:
        np.testing.assert_array_equal(archive["x_train"], X)
        assert str(archive["source"]) == '{"network": 1}'
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        assert archive.testzip() is None


def test_a_feature_file_is_a_dataset_of_vectors(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4])
    assert holds_features(tmp_path / "a.npz")
    data = load_dataset(str(tmp_path / "a.npz"))
    assert data.train.pixels.shape == (12, 1, 5, 1)
    np.testing.assert_array_equal(data.test.pixels.flatten(1).numpy(), X[:4])
    assert data.train.holds_features
    np.savez(tmp_path / "b.npz", X=X, y=Y)
    with pytest.raises(ValueError, match="has no test part"):
        load_dataset(str(tmp_path / "b.npz"))
    assert not load_dataset("digits").train.holds_features


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, lambda path, **arrays: pack(path, arrays)])
def test_damage_anywhere_is_one_line_or_harmless(tmp_path, save):
    path = tmp_path / "a.npz"
    save(path, x_train=X, y_train=Y, x_test=X, y_test=Y, classes=NAMES)
    whole = path.read_bytes()
    for place in range(0, len(whole), 3):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        try:
            data = read_features(path)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017 - not every byte matters
        else:
            assert data.x_train.shape[1] == 5
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match="can't be read as"):
            read_features(path)
