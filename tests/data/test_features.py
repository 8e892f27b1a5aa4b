"""Arrays in any file become features with numbered classes, and what is wrong with them is said in one line."""

import json
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from cappronet.data import features as feature_files
from cappronet.data.datasets import load_dataset
from cappronet.data.features import has_test_part, holds_features, read_features, with_test
from cappronet.data.samples import Vectors

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
    with pytest.raises(ValueError, match="--labels"):
        read_features(tmp_path / "x.npy")
    np.save(tmp_path / "short.npy", Y[:5])
    with pytest.raises(ValueError, match=r"12 features .* \(5,\)"):
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
    with pytest.raises(ValueError, match=r"'art'.*d, e, kind"):
        read_features(tmp_path / "b.csv", label_column="art")


def test_tables_need_pandas_and_say_so(tmp_path, monkeypatch):
    table().to_csv(tmp_path / "a.csv", index=False)
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pandas"):
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
        ({"X": X, "y": Y[:-1]}, "(11,)"),
        ({"X": X[0], "y": Y}, "expected numbers (n, d)"),
        ({"X": X.reshape(12, 5, 1, 1), "y": Y}, "cappronet embed"),
        ({"X": X[:0], "y": Y[:0]}, "expected numbers (n, d)"),
        ({"X": NAMES[Y].reshape(12, 1), "y": Y}, "expected numbers (n, d)"),
        ({"X": X, "y": Y + 0.5}, "labels of"),
        ({"X": X, "y": np.where(Y == 0, np.nan, Y)}, "fractions or NaN"),
        ({"X": X, "y": Y, "classes": NAMES[:2]}, "0 to 1"),
        ({"X": X, "y": Y, "x_test": X}, "only one of x_test and y_test"),
        ({"X": X, "y": Y, "x_test": X, "y_test": Y + 1}, "class '3' of"),
        ({"X": X, "y": Y, "x_test": X[:, :4], "y_test": Y}, "5 wide"),
        ({"data": X, "target": Y}, "data, target: expected x_train and y_train"),
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
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        read_features(tmp_path / "missing.npz")
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ValueError, match="not a feature file"):
        read_features(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.assign(f1="red"), "column 'f1' of"),
        (lambda frame: frame.assign(label=[None, *NAMES[Y][1:]]), "row 0 of column 'label'"),
        (lambda frame: frame.assign(f4=[*X[:11, 4], None]), "NaN or infinity in row 11"),
        (lambda frame: frame[["label"]], "1 columns"),
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
    assert not data.self_contained
    with pytest.raises(ValueError, match="test part"):
        with_test(data, read_features(tmp_path / "b.npz"))


def write_folder(path, **description):
    path.mkdir(exist_ok=True)
    for name, array in {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4]}.items():
        np.save(path / f"{name}.npy", array)
    if description:
        (path / "features.json").write_text(json.dumps(description))


def test_a_folder_of_arrays_is_mapped(tmp_path):
    write_folder(tmp_path / "a", classes=NAMES.tolist(), source={"network": 1})
    data = read_features(tmp_path / "a")
    same(data, classes=("cat", "dog", "eel"))
    assert data.y_test.tolist() == [0, 1, 2, 0]
    assert isinstance(data.x_train, np.memmap)
    assert data.source == {"network": 1}
    before = (tmp_path / "a" / "x_train.npy").read_bytes()
    data.x_train[:] = 0  # in memory only
    assert (tmp_path / "a" / "x_train.npy").read_bytes() == before


def test_a_folder_needs_no_description(tmp_path):
    write_folder(tmp_path / "a")
    np.save(tmp_path / "a" / "y_train.npy", NAMES[Y])
    np.save(tmp_path / "a" / "y_test.npy", NAMES[:4])
    np.save(tmp_path / "a" / "x_test.npy", X[:3])
    data = read_features(tmp_path / "a")
    same(data, classes=("cat", "dog", "eel"))
    assert data.source is None


def test_reading_takes_a_few_megabytes_however_many_features_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_files, "CHUNK_BYTES", 2**20)
    rows = np.lib.format.open_memmap(tmp_path / "x_train.npy", "w+", np.float32, (100_000, 256))
    rows[::1000] = np.arange(256)
    np.save(tmp_path / "y_train.npy", np.arange(100_000) % 3)
    tracemalloc.start()
    try:
        data = read_features(tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows.nbytes > 100e6
    assert peak < 10e6
    assert np.array_equal(data.x_train[::1000], rows[::1000])
    assert not data.x_train[1::1000].any()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "x_train.npy").unlink(), "x_train.npy is missing"),
        (lambda folder: (folder / "y_train.npy").unlink(), "y_train.npy is missing"),
        (lambda folder: (folder / "y_test.npy").unlink(), "only one of x_test and y_test"),
        (lambda folder: (folder / "features.json").write_text("{"), "features.json"),
        (lambda folder: (folder / "features.json").write_text("[]"), "features.json"),
        (lambda folder: (folder / "x_train.npy").write_bytes(b"no"), "x_train.npy can't be read"),
        (lambda folder: folder.rename(folder.with_name("a.part")), "not complete: run the same cappronet embed"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, damage, message):
    write_folder(tmp_path / "a", classes=NAMES.tolist())
    damage(tmp_path / "a")
    (folder,) = tmp_path.iterdir()
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_features(folder)
    assert "\n" not in str(caught.value)


def test_an_npz_of_earlier_versions_of_embed(tmp_path):
    source = json.dumps({"network": {"backbone": "pixels"}, "recipe": {"data": "digits", "epochs": 30}})
    arrays = {"x_train": X, "y_train": Y, "x_test": X[:4], "y_test": Y[:4], "classes": NAMES}
    np.savez(tmp_path / "a.npz", **arrays, source=np.array(source), backbone=np.zeros(9, np.uint8))
    data = read_features(tmp_path / "a.npz")
    same(data, classes=("cat", "dog", "eel"))
    assert data.source["recipe"]["data"] == "digits"
    np.savez(tmp_path / "b.npz", X=X, y=Y, source=NAMES)  # an array that happens to have this name
    assert read_features(tmp_path / "b.npz").source is None


def test_feature_files_are_datasets_of_vectors(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:4], y_test=Y[:4])
    write_folder(tmp_path / "folder", classes=NAMES.tolist())
    for name in ("a.npz", "folder"):
        assert holds_features(tmp_path / name)
        data = load_dataset(str(tmp_path / name))
        assert isinstance(data.train, Vectors)
        np.testing.assert_array_equal(data.train.x.numpy(), X)
        np.testing.assert_array_equal(data.test.x.numpy(), X[:4])
    np.savez(tmp_path / "b.npz", X=X, y=Y)
    with pytest.raises(ValueError, match="no test part"):
        load_dataset(str(tmp_path / "b.npz"))
    np.savez(tmp_path / "images.npz", x_train=np.zeros((4, 2, 2), np.uint8), y_train=Y[:4])
    for path in (tmp_path / "images.npz", tmp_path, tmp_path / "nothing", tmp_path / "folder" / "x_train.npy"):
        assert not holds_features(path)


def flipped_and_cut(whole):
    """What a file may become by damage: one byte inverted, or the end missing; and whether it is cut."""
    for position in range(0, len(whole), 3):
        yield whole[:position] + bytes([whole[position] ^ 0xFF]) + whole[position + 1 :], False
    for length in range(0, len(whole), 7):
        yield whole[:length], True


def assert_refused_or_harmless(path, is_cut):
    try:
        data = read_features(path)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017 - not every byte matters
    else:
        assert not is_cut
        assert data.x_train.shape[1] == 5


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_anywhere_in_an_npz_is_one_line_or_harmless(tmp_path, save):
    path = tmp_path / "a.npz"
    save(path, x_train=X, y_train=Y, x_test=X, y_test=Y, classes=NAMES)
    for damaged, is_cut in flipped_and_cut(path.read_bytes()):
        path.write_bytes(damaged)
        assert_refused_or_harmless(path, is_cut)


@pytest.mark.parametrize("name", ["x_train.npy", "y_test.npy"])
def test_damage_anywhere_in_a_folder_is_one_line_or_harmless(tmp_path, name):
    write_folder(tmp_path / "a", classes=NAMES.tolist())
    path = tmp_path / "a" / name
    for damaged, is_cut in flipped_and_cut(path.read_bytes()):
        path.unlink()  # the file may still be mapped
        path.write_bytes(damaged)
        assert_refused_or_harmless(tmp_path / "a", is_cut)


SENTENCES = [f"sentence {i}, \N{GREEK SMALL LETTER LAMDA}" for i in range(len(X))]


def test_texts_of_tables_are_in_a_column_called_text(tmp_path):
    frame = table()
    frame.insert(0, "text", [None, *SENTENCES[1:]])
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for name in ("a.csv", "a.parquet"):
        data = read_features(tmp_path / name)
        same(data, classes=("cat", "dog", "eel"))
        assert data.text_train == ("", *SENTENCES[1:])
    last = frame[[*(name for name in frame if name not in ("label", "text")), "label", "text"]]
    last.rename(columns={"label": "kind"}).to_csv(tmp_path / "last.csv", index=False)
    data = read_features(tmp_path / "last.csv")  # the last column but the texts has the labels
    same(data, classes=("cat", "dog", "eel"))
    assert data.text_train[1:] == tuple(SENTENCES[1:])
    frame.assign(text=1.5).to_csv(tmp_path / "number.csv", index=False)  # numbers are a feature, whatever its name
    assert read_features(tmp_path / "number.csv").dim == 6
    frame.drop(columns="label").assign(text=NAMES[Y]).to_csv(tmp_path / "label.csv", index=False)
    data = read_features(tmp_path / "label.csv", label_column="text")
    assert (data.classes, data.text_train) == (("cat", "dog", "eel"), None)


def test_texts_of_arrays_are_shortened_and_never_objects(tmp_path):
    texts = np.array(["a" * 5000, "\ud800 half of a character", *SENTENCES[2:]])
    np.savez(
        tmp_path / "a.npz", x_train=X, y_train=Y, x_test=X[:3], y_test=Y[:3], text_train=texts, text_test=texts[:3]
    )
    data = read_features(tmp_path / "a.npz")
    assert [len(text) for text in data.text_train[:1]] == [1000]
    assert data.text_train[1] == "? half of a character"
    assert data.text_train[2:] == tuple(SENTENCES[2:])
    assert data.text_test == data.text_train[:3]
    np.savez(tmp_path / "b.npz", X=X, y=Y, text=np.array(SENTENCES))
    assert with_test(read_features(tmp_path / "b.npz"), data_without_test(data)).text_test == data.text_train
    for wrong, message in (
        (texts[:5], "12 training features but 5 texts"),
        (np.arange(12), r"int64 \(12,\), expected text"),
    ):
        np.savez(tmp_path / "c.npz", X=X, y=Y, text=wrong)
        with pytest.raises(ValueError, match=message):
            read_features(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", X=X, y=Y, text=np.array(SENTENCES, dtype=object))
    with pytest.raises(ValueError, match="without object arrays"):
        read_features(tmp_path / "d.npz")


def data_without_test(data):
    return replace(data, x_test=None, y_test=None, text_test=None)


def test_whether_a_file_has_a_test_part_is_known_without_reading_it(tmp_path):
    np.savez(tmp_path / "one.npz", X=X, y=Y)
    np.savez(tmp_path / "both.npz", x_train=X, y_train=Y, X_test=X, Y_test=Y)
    (tmp_path / "folder").mkdir()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.save(tmp_path / "folder" / f"{name}.npy", X)
    expected = {"one.npz": False, "both.npz": True, "folder": True, "missing.npz": False}
    assert {name: has_test_part(tmp_path / name) for name in expected} == expected
