"""What a user reads after a mistake: what was wrong, and what to do, without going in a circle."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

from cappronet import CapProNet
from cappronet.cli import app
from cappronet.cli.shared import recipe_names
from cappronet.data.files import locked
from cappronet.training.recipe import GROUPS, Recipe
from cappronet.training.run_folder import Run


def call(*arguments):
    app(list(map(str, arguments)), result_action="return_value")


def message(*arguments):
    with pytest.raises((OSError, ValueError)) as raised:
        call(*arguments)
    assert len(str(raised.value).splitlines()) == 1
    return str(raised.value)


@pytest.fixture
def unfinished(tmp_path):
    Run(tmp_path / "run").begin(Recipe(data="digits"))
    return tmp_path / "run"


@pytest.fixture
def finished(tmp_path):
    """The folder of a run whose model takes digits."""
    run = Run(tmp_path / "done")
    run.begin(Recipe(backbone="pixels"))
    CapProNet("pixels", 10, 2, image_size=8, in_channels=1).save_pretrained(run.folder)
    run.write_json("summary.json", {"error": 1.234})
    return run.folder


@pytest.fixture
def vectors(tmp_path):
    """A model of 5 features, and some of them."""
    CapProNet("features", 3, 2, image_size=5, in_channels=1, classes=("a", "b", "c")).save_pretrained(
        tmp_path / "model"
    )
    return tmp_path / "model", torch.randn(4, 5).numpy()


def test_an_existing_run_says_whether_it_is_finished(finished, unfinished):
    assert f"cappronet train --resume {unfinished}" in message("train", "--run", unfinished)
    for arguments in (["--run", finished], ["--resume", finished]):
        line = message("train", *arguments)
        assert "finished run (test error 1.23 %)" in line
        assert "--run" in line
        assert "--resume" not in line


def test_an_existing_folder_that_is_no_run(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    assert "holds no run: choose another folder with --run" in message("train", "--run", tmp_path / "mine")
    folder = tmp_path / "all" / "pixels-linear-seed0"
    folder.mkdir(parents=True)
    (folder / "thesis.tex").touch()
    options = ["--backbones", "pixels", "--heads", "linear", "--seeds", "1"]
    assert "choose another folder with --folder" in message("compare", "--folder", tmp_path / "all", *options)


@pytest.mark.parametrize("command", ["export", "evaluate", "predict", "explore"])
def test_an_unfinished_run_says_how_to_resume_it(command, unfinished):
    images = ["a.png"] if command == "predict" else []
    output = ["-o", unfinished.parent / "page.html"] if command == "explore" else []
    line = message(command, unfinished, *images, *output)
    assert f"not finished; resume it with: cappronet train --resume {unfinished}" in line
    with locked(unfinished):
        assert "is in progress" in message("predict", unfinished, "a.png")


@pytest.mark.parametrize("command", ["export", "evaluate", "predict"])
def test_a_run_that_is_not_there_names_the_nearest(command, unfinished):
    images = ["a.png"] if command == "predict" else []
    line = message(command, unfinished.with_name("runn"), *images)
    assert f"there is no folder {unfinished}n; did you mean '{unfinished}'?" in line


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["train", "--data", "cifar1"], "cifar10"),
        (["train", "--head", "capsul"], "capsule"),
        (["train", "--recipe", "cpu/digit"], "cpu/digits"),
        (["compare", "--heads", "capsule-units"], "capsule-unit"),
        (["compare", "--recipe", "paper/svhn-resnet110-liner"], "paper/svhn-resnet110-linear"),
    ],
)
def test_a_wrong_name_suggests_the_nearest(arguments, nearest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert f"did you mean '{nearest}'?" in message(*arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "nearest"), [("nois", "noise"), ("heldout", "held-out"), ("cifar1", "cifar10")])
def test_a_wrong_ood_name_suggests_the_nearest(name, nearest, finished):
    assert f"did you mean '{nearest}'?" in message("evaluate", finished, "--ood", name)


def test_a_wrong_recipe_lists_where_the_names_are():
    assert "cpu/digits" in recipe_names()
    assert message("train", "--recipe", "xyzzy").endswith("a name that cappronet list recipes shows")


def image(path):
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(torch.randint(256, (8, 8), dtype=torch.uint8).numpy()).save(path)
    return path


def test_predict_says_what_is_wrong_with_an_input(finished, tmp_path):
    (tmp_path / "notes.txt").write_text("buy milk")
    assert "notes.txt can't be read as an image" in message("predict", finished, tmp_path / "notes.txt")
    assert "delete" not in message("predict", finished, tmp_path / "notes.txt")
    image(tmp_path / "photo.png")
    line = message("predict", finished, tmp_path / "phto.png")
    assert f"there is no file or folder {tmp_path / 'phto.png'}; did you mean '{tmp_path / 'photo.png'}'?" in line
    assert "choose one" in message("predict", finished, tmp_path / "photo.png", "--json", "--csv")
    assert "no file matches" in message("predict", finished, tmp_path / "*.jpg")
    (tmp_path / "empty").mkdir()
    assert "empty is a folder without images" in message("predict", finished, tmp_path / "empty")
    assert "--label-column is for tables" in message("predict", finished, tmp_path / "photo.png", "--label-column", "x")


def test_predict_takes_folders_and_patterns(finished, tmp_path, capsys):
    files = [image(tmp_path / "new" / name) for name in ("a.png", "b.png")] + [image(tmp_path / "other" / "c.png")]
    (tmp_path / "new" / "notes.txt").touch()
    call("predict", finished, tmp_path / "new", tmp_path / "o*" / "*.png", "--json")
    records = json.loads(capsys.readouterr().out)
    assert [record["file"] for record in records] == list(map(str, files))
    call("predict", finished, tmp_path / "new", files[2], "--csv")
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["label"] for row in rows] == [record["label"] for record in records]
    assert [float(row["residual"]) for row in rows] == pytest.approx([record["residual"] for record in records])
    call("predict", finished, tmp_path / "new")
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("a.png", "b.png", records[0]["label"], f"{records[0]['probability']:.4f}"))


@pytest.mark.parametrize("kind", ["csv", "named.csv", "parquet", "npy", "npz", "folder"])
def test_predict_takes_features_as_probe_does(kind, vectors, tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    folder, x = vectors
    table = pandas.DataFrame(x, columns=[f"f{i}" for i in range(5)])
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        table.to_csv(path, index=False)  # without labels
    elif kind == "named.csv":
        table.assign(species=["x", "y", "x", "y"]).to_csv(path, index=False)
    elif kind == "parquet":
        table.assign(label=1).to_parquet(path)
    elif kind == "npy":
        np.save(path, x)
    elif kind == "npz":
        np.savez(path, X=x, y=np.zeros(4))
    else:
        path.mkdir()
        np.save(path / "x_train.npy", x[:1])
        np.save(path / "x_test.npy", x)
    call("predict", folder, path, "--json")
    records = json.loads(capsys.readouterr().out)
    scores = CapProNet.from_pretrained(folder)(torch.from_numpy(x))
    assert [record["label"] for record in records] == ["abc"[i] for i in scores.argmax(-1)]
    assert [record["score"] for record in records] == pytest.approx(scores.amax(-1).tolist(), rel=1e-4)
    assert [record["row"] for record in records] == [0, 1, 2, 3]
    call("predict", folder, path)
    assert ("labels in column 'species'" in capsys.readouterr().out) == (kind == "named.csv")


def test_predict_refuses_features_that_do_not_fit(vectors, tmp_path):
    folder, x = vectors
    np.save(tmp_path / "wide.npy", np.zeros((2, 7)))
    assert "7 wide, but this model takes 5" in message("predict", folder, tmp_path / "wide.npy")
    np.savez(tmp_path / "other.npz", weights=x)
    assert "its arrays are weights" in message("predict", folder, tmp_path / "other.npz")
    np.save(tmp_path / "nan.npy", np.where(np.arange(5) == 2, np.nan, x))
    assert "NaN or infinity in row 0" in message("predict", folder, tmp_path / "nan.npy")
    (tmp_path / "text.csv").write_text("a,b,c,d,e,f,g\n1,2,x,4,5,6,7\n")
    assert "column 'c'" in message("predict", folder, tmp_path / "text.csv")
    assert "'h'" in message("predict", folder, tmp_path / "text.csv", "--label-column", "h")
    assert "expected a folder of cappronet embed" in message("predict", folder, image(tmp_path / "a.png"))


def test_a_guessed_label_column_is_named(tmp_path, capsys):
    pandas = pytest.importorskip("pandas")
    x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * (np.arange(40) % 2)[:, None]
    species = np.array(["cat", "dog"])[np.arange(40) % 2]
    pandas.DataFrame(x).assign(species=species).to_csv(tmp_path / "t.csv", index=False)
    options = ["--heads", "linear", "--tries", "1", "--folds", "2", "--jobs", "1"]
    call("probe", tmp_path / "t.csv", "--folder", tmp_path / "p", *options)
    assert "Labels: column 'species'; --label-column names another" in capsys.readouterr().out
    call("probe", tmp_path / "t.csv", "--folder", tmp_path / "q", "--label-column", "species", *options)
    assert "Labels: column" not in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "compare"])
def test_the_options_of_help_are_grouped(command, capsys):
    call(command, "--help")
    shown = capsys.readouterr().out
    places = [shown.index(f"─ {group} ─") for group in GROUPS]
    assert places == sorted(places)
    assert "─ Recipe ─" not in shown
    assert shown.index("─ Hardware ─") < shown.index("--precision")


def test_quiet_is_an_option_of_every_command(capsys):
    app.meta(["list", "heads", "--quiet"], result_action="return_value", exit_on_error=False)
    assert "capsule" in capsys.readouterr().out
