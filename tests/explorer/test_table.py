"""A run's capsule table, its CSV file and its page, checked against the model and against plain NumPy."""

import base64
import csv
import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import torch
from explorer.samples import HOSTILE, parsed, random_table, trained
from PIL import Image
from scipy.linalg import subspace_angles
from sklearn.datasets import load_digits

from cappronet.cli.exploring import explore
from cappronet.data.batches import Batches
from cappronet.data.datasets import load_dataset
from cappronet.data.features import FeatureData, with_test
from cappronet.explorer import capsule_table, page, table, write_csv, write_page
from cappronet.models.network import CapProNet
from cappronet.probing.comparison import probe
from cappronet.probing.folder import save
from cappronet.probing.settings import ProbeOptions
from cappronet.reporting import silent
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

RECIPES = {
    1: Recipe(backbone="pixels", capsule_dim=1, epochs=2, train_size=300),
    2: Recipe(backbone="resnet8", capsule_dim=2, epochs=1, train_size=200, normalize=True, scale="learned"),
    4: Recipe(backbone="pixels", capsule_dim=4, epochs=2, train_size=300, scale=3, eps=1e-4),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs on digits, by their capsule dimension."""
    return {c: trained(tmp_path_factory.mktemp("runs") / f"c{c}", recipe) for c, recipe in RECIPES.items()}


@pytest.mark.parametrize("c", RECIPES)
@torch.no_grad()
def test_the_table_holds_what_the_head_computes(runs, c):
    capsules = capsule_table(runs[c])
    model, data = CapProNet.from_pretrained(runs[c]), RECIPES[c].selection.load()
    batches = Batches(data.test, 400, normalize=model.normalization, shuffle=False)
    ((images, labels),) = batches.epoch(0)
    x = model.features(images)
    assert np.array_equal(capsules.labels, labels)
    assert np.array_equal(capsules.index, np.arange(360))
    assert np.array_equal(capsules.predictions, model(images).argmax(-1))
    assert np.allclose(capsules.lengths * capsules.scale, model(images), rtol=1e-4, atol=1e-5)
    coordinates = model.head.coordinates(x)
    for label in range(10):
        assert np.allclose(capsules.coordinates(label), coordinates[:, label], rtol=1e-4, atol=1e-4)
    input_norms = torch.ones(len(x)) if RECIPES[c].normalize else x.norm(dim=-1)
    expected = model.head.residuals(x).norm(dim=-1).amin(-1) / input_norms
    assert np.allclose(capsules.residuals, expected, atol=1e-3)
    assert (capsules.capsule_dim, capsules.total, capsules.split) == (c, 360, "test")
    assert (capsules.thumbnails[..., 0] == data.test.pixels[:, 0].numpy()).all()


def test_a_zero_feature_vector_is_outside_of_every_subspace(runs):
    model = CapProNet.from_pretrained(runs[4])
    model.backbone = Zeros()
    images = load_dataset("digits").test.subset(torch.arange(3))
    capsules = table._projected(model, model.head, images, silent)
    assert (capsules["lengths"] == 0).all()
    assert (capsules["residuals"] == 1).all()


class Zeros(torch.nn.Module):
    def forward(self, images):
        return torch.zeros(len(images), 64)


def test_images_are_chosen_by_class_and_always_the_same(runs):
    capsules, again = capsule_table(runs[1], "train", 100), capsule_table(runs[1], "train", 100)
    images = RECIPES[1].selection.load().train
    assert np.array_equal(capsules.index, again.index)
    assert len(capsules) == len(set(capsules.index)) == 100
    assert np.array_equal(capsules.labels, images.labels[capsules.index])
    assert (np.abs(np.bincount(capsules.labels) - np.bincount(images.labels) / 3) < 1).all()
    assert (capsules.thumbnails[..., 0] == images.pixels[capsules.index, 0].numpy()).all()


@pytest.mark.parametrize("c", RECIPES)
def test_subspaces(runs, c):
    capsules = capsule_table(runs[c], images=50)
    weight = CapProNet.from_pretrained(runs[c]).head.weight.detach().double().numpy()
    for one, other in [(0, 1), (3, 8), (9, 2)]:
        expected = np.sort(np.degrees(subspace_angles(weight[one].T, weight[other].T)))
        assert np.allclose(capsules.angles[one, other], expected, atol=1e-3)
        assert np.allclose(capsules.angles[one, other], capsules.angles[other, one], atol=1e-3)
    assert capsules.angles[range(10), range(10)].max() < 0.01
    gram = weight @ weight.transpose(0, 2, 1) + RECIPES[c].eps * np.eye(c)
    assert np.allclose(capsules.conditions, np.linalg.cond(gram), rtol=1e-3)
    assert 0 < capsules.random_angle < 90


def test_principal_directions_keep_the_most_of_the_own_capsules(runs):
    capsules = capsule_table(runs[4])
    own = capsules.coordinates(7)[capsules.labels == 7].astype(np.float64)
    directions, shares = capsules.principal_directions(7)
    assert np.allclose(directions @ directions.T, np.eye(4), atol=1e-5)
    singular = np.linalg.svd(own, compute_uv=False)
    assert np.allclose(shares, singular**2 / (singular**2).sum(), atol=1e-5)
    assert np.allclose(shares, ((own @ directions.T) ** 2).sum(0) / (own**2).sum(), atol=1e-5)
    nobody = dataclasses.replace(capsules, labels=np.where(capsules.labels == 7, 6, capsules.labels))
    assert np.isfinite(nobody.principal_directions(7)[0]).all()


def test_csv_has_every_number(runs, tmp_path):
    capsules = capsule_table(runs[2], images=30)
    write_csv(capsules, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    for i in (0, 17):
        assert (int(rows[i]["index"]), int(rows[i]["label"])) == (capsules.index[i], capsules.labels[i])
        assert (rows[i]["class"], rows[i]["predicted_class"]) == (
            str(capsules.labels[i]),
            str(capsules.predictions[i]),
        )
        assert float(rows[i]["residual"]) == pytest.approx(capsules.residuals[i], rel=1e-5)
        assert float(rows[i]["length 3"]) == pytest.approx(capsules.lengths[i, 3], rel=1e-5)
        assert [float(rows[i][f"coordinate 5 {k}"]) for k in (1, 2)] == pytest.approx(
            capsules.coordinates(5)[i], rel=1e-4
        )
    with pytest.raises(FileExistsError):
        write_csv(capsules, tmp_path / "out.csv")


def test_pages_hold_the_numbers_of_the_table(runs):
    capsules = capsule_table(runs[4])
    meta, arrays = page.packed(capsules)
    lengths = arrays["lengths"].reshape(360, 10) * arrays["lengthScale"][:, None]
    assert np.allclose(lengths, capsules.lengths, atol=capsules.lengths.max() / 65535)
    assert meta["shown"] == 360
    assert "members" not in arrays
    for label in (0, 9):
        largest = np.abs(capsules.coordinates(label)).max()
        coordinates = arrays["coordinates"][label] * arrays["coordinateScale"][label]
        assert np.allclose(coordinates, capsules.coordinates(label), atol=largest / 32767)
    assert np.allclose(arrays["angles"] / 65535 * 90, capsules.angles, atol=0.001)


def test_with_many_classes_each_has_the_images_that_matter_to_it(monkeypatch):
    monkeypatch.setattr(page, "MOST_COORDINATES", 20 * 30 * 4)
    monkeypatch.setattr(page, "FEWEST_IMAGES", 5)
    capsules = random_table(300, 20, 4, 8, d=16)
    _, arrays = page.packed(capsules)
    assert arrays["members"].shape == (20, 30)
    for label, members in enumerate(arrays["members"]):
        assert (np.diff(members.astype(int)) > 0).all()
        mine = set(np.flatnonzero(capsules.labels == label))
        taken = set(np.flatnonzero(capsules.predictions == label))
        assert mine <= set(members)
        assert taken <= set(members) or len(mine | taken) > 30
        rest = [i for i in range(300) if i not in mine | taken]
        longest = sorted(rest, key=lambda i: -capsules.lengths[i, label])[: max(0, 30 - len(mine | taken))]
        assert set(longest) <= set(members)
        coordinates = arrays["coordinates"][label] * arrays["coordinateScale"][label]
        assert np.allclose(coordinates, capsules.coordinates(label)[members], atol=1e-3)


@pytest.mark.parametrize(("shape", "lossless"), [((70, 8, 8, 1), True), ((70, 30, 20, 3), False)])
def test_sprites_give_back_every_thumbnail(monkeypatch, shape, lossless):
    monkeypatch.setattr(page, "SHEET_SIDE", 100)
    monkeypatch.setattr(page, "LOSSLESS_BYTES", 10**6 if lossless else 0)
    levels = np.random.default_rng(0).integers(0, 6, shape[0]) * 45 + 15  # neighbours differ by 45 or are alike
    smooth = levels[:, None, None, None] + np.linspace(-15, 15, shape[1])[:, None, None]
    thumbnails = np.broadcast_to(smooth, shape).clip(0, 255).astype(np.uint8)
    tile, sheets = page.sprite_sheets(thumbnails)
    assert len(sheets) == tile["sheets"] > (0 if lossless else 1)
    for i in range(shape[0]):
        sheet = np.asarray(Image.open(io.BytesIO(sheets[i // tile["tilesPerSheet"]])).convert("RGB")).astype(int)
        row, column = divmod(i % tile["tilesPerSheet"], tile["columns"])
        y, x = row * tile["pitchY"], column * tile["pitchX"]
        difference = sheet[y : y + shape[1], x : x + shape[2]] - thumbnails[i]
        assert np.abs(difference).mean() <= (0 if lossless else 5)


def test_large_images_become_small_thumbnails():
    images = torch.zeros(2, 3, 96, 48)
    images[0, 0] = 255.0
    small = table._thumbnails(images)
    assert small.shape == (2, 48, 24, 3)
    assert (small[0] == torch.tensor([255, 0, 0])).all()
    assert (small[1] == 0).all()
    assert table._thumbnails(torch.rand(1, 2, 5, 5)).shape == (1, 5, 5, 1)
    assert table._thumbnails(torch.rand(1, 6, 5, 5)).shape == (1, 5, 5, 3)


def test_files_are_shown_by_their_path_below_the_data(tmp_path):
    g = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 3)):
        for label, name in enumerate(("cats", "<img src=x onerror=alert(1)>")):
            folder = tmp_path / "data" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = g.integers(100 * label, 100 * label + 100, (60 + i, 70, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i} & <b>.png")
    recipe = Recipe(data=str(tmp_path / "data"), backbone="pixels", capsule_dim=2, epochs=1, batch_size=6)
    run = trained(tmp_path / "run", recipe)
    capsules = capsule_table(run)
    assert capsules.thumbnails.shape == (6, 48, 48, 3)
    assert sorted(capsules.classes) == ["<img src=x onerror=alert(1)>", "cats"]
    assert "test/cats/2 & <b>.png" in capsules.paths
    write_page(capsules, run, tmp_path / "out.html")
    assert parsed(tmp_path / "out.html").meta["paths"] == list(capsules.paths)


def test_images_of_one_size_keep_their_file_names(tmp_path):
    """They are decoded into memory when they are loaded."""
    g = np.random.default_rng(0)
    values = {}
    for label, name in enumerate(("cats", "dogs")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(10):
            path, grey = f"{name}/{i}.png", 100 * label + g.integers(100)
            values[path] = grey
            Image.fromarray(np.full((8, 8), grey, np.uint8)).save(tmp_path / "data" / path)
    recipe = Recipe(data=str(tmp_path / "data"), backbone="pixels", capsule_dim=2, epochs=1, batch_size=8, validation=4)
    run = trained(tmp_path / "run", recipe)
    for split, count in (("test", 4), ("train", 12)):
        capsules = capsule_table(run, split)
        assert len(capsules.paths) == count
        assert [values[path] for path in capsules.paths] == capsules.thumbnails[:, 0, 0, 0].tolist()
        write_csv(capsules, tmp_path / f"{split}.csv")
        with (tmp_path / f"{split}.csv").open(newline="") as file:
            assert [row["path"] for row in csv.DictReader(file)] == list(capsules.paths)


def test_a_probe_of_texts_shows_them(tmp_path):
    """Its folder keeps the texts of a table; without test samples, the training samples are shown."""
    x, y = load_digits(n_class=3, return_X_y=True)
    data = FeatureData(
        tmp_path / "a.csv",
        ("a", "b", "c"),
        x[:90].astype(np.float32),
        y[:90],
        text_train=tuple(f"text {i} <b>" for i in range(90)),
    )
    test = dataclasses.replace(data, path=tmp_path / "b.csv", text_train=tuple(f"test {i}" for i in range(90)))
    options = ProbeOptions(("capsule",), folds=2, settings=1, jobs=1)
    for name, features, split, start in (
        ("one", data, "train", "text"),
        ("both", with_test(data, test), "test", "test"),
    ):
        rows, head = probe(features, options)
        save(tmp_path / name, features, rows, head, options)
        capsules = capsule_table(tmp_path / name, images=30)
        assert (capsules.split, capsules.thumbnails, len(capsules)) == (split, None, 30)
        assert [text.removesuffix(" <b>") for text in capsules.texts] == [f"{start} {i}" for i in capsules.index]
        write_csv(capsules, tmp_path / f"{name}.csv")
        with (tmp_path / f"{name}.csv").open(newline="") as file:
            assert [row["text"] for row in csv.DictReader(file)] == list(capsules.texts)
        write_page(capsules, tmp_path / name, tmp_path / f"{name}.html")
        meta = parsed(tmp_path / f"{name}.html").meta
        assert (meta["texts"], meta["noun"]) == (list(capsules.texts), "sample")
        assert not any(tag == "b" for tag in parsed(tmp_path / f"{name}.html").tags)
    with pytest.raises(ValueError, match="no test part"):
        capsule_table(tmp_path / "one", "test")


def test_words_from_outside_can_not_become_markup(runs, tmp_path):
    capsules = capsule_table(runs[4], images=40)
    write_page(capsules, runs[4], tmp_path / "plain.html")
    hostile = dataclasses.replace(
        capsules, classes=(HOSTILE, "<b>&amp;</b>", *capsules.classes[2:]), paths=(HOSTILE,) * 40
    )
    write_page(hostile, runs[4], tmp_path / "hostile.html")
    plain, changed = parsed(tmp_path / "plain.html"), parsed(tmp_path / "hostile.html")
    assert changed.tags == plain.tags
    assert changed.meta["classes"][:2] == [HOSTILE, "<b>&amp;</b>"]
    assert changed.meta["paths"][3] == HOSTILE
    assert "hacked" not in changed.scripts[""]


def test_a_page_needs_nothing_else(runs, tmp_path):
    capsules = capsule_table(runs[4], images=40)
    write_page(capsules, runs[4], tmp_path / "out.html")
    text = (tmp_path / "out.html").read_text()
    assert text.count("http://") == text.count("http://www.w3.org/2000/svg")
    assert "https://" not in text
    result = parsed(tmp_path / "out.html")
    assert [tag for tag in result.tags if tag in ("img", "iframe", "object", "embed", "video", "audio")] == []
    sheet = Image.open(io.BytesIO(base64.b64decode(result.scripts["block-sheet0"])))
    assert sheet.format == "WEBP"
    assert result.meta["run"]["summary"] == Run(runs[4]).summary
    assert len(result.meta["run"]["metrics"]) == 2
    options = {option["name"]: option["value"] for option in result.meta["run"]["options"]}
    assert options == RECIPES[4].to_dict()
    with pytest.raises(FileExistsError, match=r"out\.html exists"):
        write_page(capsules, runs[4], tmp_path / "out.html")


def test_json_has_no_numbers_that_json_lacks():
    text = page.embedded_json({"a": [float("nan"), float("inf"), 1.5], "b": "</script>&\u2028", "c": {1: None}})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": [None, None, 1.5], "b": "</script>&\u2028", "c": {"1": None}}


@pytest.mark.parametrize(("n", "L", "c", "size", "most"), [(2000, 10, 8, 32, 8e6), (2000, 1000, 8, 16, 30e6)])
def test_size_of_pages(runs, tmp_path, n, L, c, size, most):
    write_page(random_table(n, L, c, size), runs[4], tmp_path / "out.html")
    assert (tmp_path / "out.html").stat().st_size < most


def test_the_command_writes_both_files_and_says_so(runs, tmp_path, capsys):
    explore(runs[2], images=60, output=tmp_path / "out.html", csv=tmp_path / "out.csv")
    said = " ".join(capsys.readouterr().out.split())
    assert "60 of 360 test images" in said
    assert f"Written to {tmp_path / 'out.html'}" in said
    assert parsed(tmp_path / "out.html").meta["images"] == 60
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 61


def test_refusals(runs, tmp_path):
    out = tmp_path / "out.html"
    linear = trained(tmp_path / "linear", Recipe(backbone="pixels", head="linear", epochs=1, train_size=100))
    with pytest.raises(ValueError, match=r"'linear' head.*'capsule'"):
        explore(linear, output=out)
    with pytest.raises(ValueError, match=r"images.*at least 1, got 0"):
        explore(runs[1], images=0, output=out)
    with pytest.raises(ValueError, match="'test' or 'train', got 'valid'"):
        capsule_table(runs[1], "valid")
    with pytest.raises(FileNotFoundError, match=r"recipe\.toml"):
        explore(tmp_path, output=out)
    with pytest.raises(FileNotFoundError, match=r"missing.*create it"):
        explore(runs[1], output=tmp_path / "missing" / "out.html")
    with pytest.raises(ValueError, match=r"out\.html.*-o"):
        explore(runs[1], output=out, csv=out)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(FileExistsError, match=r"out\.html exists.*-o"):
        explore(runs[1], output=out)
    with pytest.raises(FileExistsError, match=r"out\.html exists.*--csv"):
        explore(runs[1], output=tmp_path / "new.html", csv=out)
    assert out.read_text() == "mine"
    begun = Run.new(tmp_path / "begun")
    begun.begin(RECIPES[1])
    with pytest.raises(FileNotFoundError, match=r"not finished.*--resume"):
        capsule_table(begun.folder)


def test_a_probe_has_no_recipe(runs, tmp_path):
    """Its folder names the data in `probe.json`."""
    shutil.copytree(runs[1], tmp_path / "probe")
    (tmp_path / "probe" / "recipe.toml").unlink()
    (tmp_path / "probe" / "probe.json").write_text(json.dumps({"data": RECIPES[1].selection.to_dict()}))
    explore(tmp_path / "probe", images=20, output=tmp_path / "out.html")
    meta = parsed(tmp_path / "out.html").meta
    assert meta["images"] == 20
    assert meta["run"]["options"] == []
    assert meta["run"]["head"] == "capsule c=1"


def test_data_that_changed_since_is_refused(runs, tmp_path):
    digits = load_dataset("digits").test
    arrays = {"x": digits.pixels[:, 0].numpy()[digits.labels < 9], "y": digits.labels.numpy()[digits.labels < 9]}
    np.savez(tmp_path / "nine.npz", x_train=arrays["x"], y_train=arrays["y"], x_test=arrays["x"], y_test=arrays["y"])
    folder = tmp_path / "run"
    folder.mkdir()
    for file in runs[1].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    recipe = RECIPES[1].changed(data=str(tmp_path / "nine.npz"), train_size=0)
    (folder / "recipe.toml").write_text(recipe.to_toml())
    with pytest.raises(ValueError, match=r"9 classes.* 10"):
        capsule_table(folder)
