"""A run's capsule table, its CSV file and its page, against the model itself and against plain numpy."""

import base64
import csv
import dataclasses
import io
import json
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.linalg import subspace_angles

from cappronet.batches import Batches
from cappronet.commands.exploring import explore
from cappronet.datasets import load_dataset
from cappronet.explorer import CapsuleTable, capsule_table, page, table, write_csv, write_page
from cappronet.ingredients import prepare
from cappronet.model import CapProNet
from cappronet.recipe import Recipe
from cappronet.runs import Run
from cappronet.training import Hardware, train

HOSTILE = "</script><script>window.hacked = 1</script><!--"
RECIPES = {
    1: Recipe(backbone="pixels", capsule_dim=1, epochs=2, train_size=300),
    2: Recipe(backbone="resnet8", capsule_dim=2, epochs=1, train_size=200, normalize=True, scale="learned"),
    4: Recipe(backbone="pixels", capsule_dim=4, epochs=2, train_size=300, scale=3, eps=1e-4),
}


def trained(folder, recipe):
    train(recipe, Run.new(folder), Hardware(accelerator="cpu"))
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs on digits, by their capsule dimension."""
    return {c: trained(tmp_path_factory.mktemp("runs") / f"c{c}", recipe) for c, recipe in RECIPES.items()}


def made_up(n, L, c, size, d=48, **values):
    """A table as large as one likes, with no training; noise is what packs worst."""
    g = np.random.default_rng(0)
    basis = np.linalg.qr(g.normal(size=(L, d, c)))[0].transpose(0, 2, 1).astype(np.float32)
    labels = np.arange(n) % L
    features = (g.normal(size=(n, d)) + 4 * basis[labels].sum(1)).astype(np.float32)
    lengths = np.linalg.norm((features @ basis.reshape(L * c, d).T).reshape(n, L, c), axis=-1)
    fields = {
        "classes": tuple(f"class {i}" for i in range(L)),
        "split": "test",
        "total": n,
        "index": np.arange(n),
        "labels": labels,
        "predictions": lengths.argmax(1),
        "features": features,
        "lengths": lengths,
        "residuals": np.sqrt(1 - (lengths.max(1) / np.linalg.norm(features, axis=1)) ** 2),
        "basis": basis,
        "angles": g.uniform(0, 90, (L, L, c)).astype(np.float32),
        "conditions": g.uniform(1, 10, L),
        "random_angle": 60.0,
        "thumbnails": g.integers(0, 256, (n, size, size, 3), dtype=np.uint8),
        "paths": (),
        "normalize": False,
        "scale": 1.0,
    }
    return CapsuleTable(**(fields | values))


@pytest.mark.parametrize("c", RECIPES)
@torch.no_grad()
def test_the_table_holds_what_the_head_computes(runs, c):
    found = capsule_table(runs[c])
    model, data = CapProNet.from_pretrained(runs[c]), prepare(RECIPES[c])
    batches = Batches(data.test, 400, mean=model.config["mean"], std=model.config["std"], shuffle=False)
    ((images, labels),) = batches.epoch(0)
    x = model.features(images)
    assert np.array_equal(found.labels, labels)
    assert np.array_equal(found.index, np.arange(360))
    assert np.array_equal(found.predictions, model(images).argmax(-1))
    assert np.allclose(found.lengths * found.scale, model(images), rtol=1e-4, atol=1e-5)
    coordinates = model.head.coordinates(x)
    for label in range(10):
        assert np.allclose(found.coordinates(label), coordinates[:, label], rtol=1e-4, atol=1e-4)
    seen = x / x.norm(dim=-1, keepdim=True) if RECIPES[c].normalize else x
    away = model.head.residuals(x).norm(dim=-1).amin(-1) / seen.norm(dim=-1)
    assert np.allclose(found.residuals, away, atol=1e-3)
    assert (found.capsule_dim, found.total, found.split) == (c, 360, "test")
    assert (found.thumbnails[..., 0] == data.test.pixels[:, 0].numpy()).all()


def test_images_are_chosen_by_class_and_always_the_same(runs):
    found, again = capsule_table(runs[1], "train", 100), capsule_table(runs[1], "train", 100)
    images = prepare(RECIPES[1]).train
    assert np.array_equal(found.index, again.index)
    assert len(found) == len(set(found.index)) == 100
    assert np.array_equal(found.labels, images.labels[found.index])
    assert (np.abs(np.bincount(found.labels) - np.bincount(images.labels) / 3) < 1).all()
    assert (found.thumbnails[..., 0] == images.pixels[found.index, 0].numpy()).all()


@pytest.mark.parametrize("c", RECIPES)
def test_subspaces(runs, c):
    found = capsule_table(runs[c], images=50)
    weight = CapProNet.from_pretrained(runs[c]).head.weight.detach().double().numpy()
    for one, other in [(0, 1), (3, 8), (9, 2)]:
        expected = np.sort(np.degrees(subspace_angles(weight[one].T, weight[other].T)))
        assert np.allclose(found.angles[one, other], expected, atol=1e-3)
        assert np.allclose(found.angles[one, other], found.angles[other, one], atol=1e-3)
    assert found.angles[range(10), range(10)].max() < 0.01
    gram = weight @ weight.transpose(0, 2, 1) + RECIPES[c].eps * np.eye(c)
    assert np.allclose(found.conditions, np.linalg.cond(gram), rtol=1e-3)
    assert 0 < found.random_angle < 90


def test_principal_directions_keep_the_most_of_the_own_capsules(runs):
    found = capsule_table(runs[4])
    own = found.coordinates(7)[found.labels == 7].astype(np.float64)
    directions, shares = found.principal_directions(7)
    assert np.allclose(directions @ directions.T, np.eye(4), atol=1e-5)
    singular = np.linalg.svd(own, compute_uv=False)
    assert np.allclose(shares, singular**2 / (singular**2).sum(), atol=1e-5)
    assert np.allclose(shares, ((own @ directions.T) ** 2).sum(0) / (own**2).sum(), atol=1e-5)
    nobody = dataclasses.replace(found, labels=np.where(found.labels == 7, 6, found.labels))
    assert np.isfinite(nobody.principal_directions(7)[0]).all()


def test_csv_has_every_number(runs, tmp_path):
    found = capsule_table(runs[2], images=30)
    write_csv(found, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 30
    for i in (0, 17):
        assert (int(rows[i]["index"]), int(rows[i]["label"])) == (found.index[i], found.labels[i])
        assert (rows[i]["class"], rows[i]["predicted_class"]) == (str(found.labels[i]), str(found.predictions[i]))
        assert float(rows[i]["residual"]) == pytest.approx(found.residuals[i], rel=1e-5)
        assert float(rows[i]["length 3"]) == pytest.approx(found.lengths[i, 3], rel=1e-5)
        assert [float(rows[i][f"coordinate 5 {k}"]) for k in (1, 2)] == pytest.approx(found.coordinates(5)[i], rel=1e-4)
    with pytest.raises(FileExistsError):
        write_csv(found, tmp_path / "out.csv")


def test_pages_hold_the_numbers_of_the_table(runs):
    found = capsule_table(runs[4])
    meta, arrays = page.packed(found)
    lengths = arrays["lengths"].reshape(360, 10) * arrays["lengthScale"][:, None]
    assert np.allclose(lengths, found.lengths, atol=found.lengths.max() / 65535)
    assert meta["shown"] == 360
    assert "members" not in arrays
    for label in (0, 9):
        largest = np.abs(found.coordinates(label)).max()
        coordinates = arrays["coordinates"][label] * arrays["coordinateScale"][label]
        assert np.allclose(coordinates, found.coordinates(label), atol=largest / 32767)
    assert np.allclose(arrays["angles"] / 65535 * 90, found.angles, atol=0.001)


def test_with_many_classes_each_has_the_images_that_matter_to_it(monkeypatch):
    monkeypatch.setattr(page, "COORDINATES", 20 * 30 * 4)
    monkeypatch.setattr(page, "FEWEST_IMAGES", 5)
    found = made_up(300, 20, 4, 8, d=16)
    _, arrays = page.packed(found)
    assert arrays["members"].shape == (20, 30)
    for label, members in enumerate(arrays["members"]):
        assert (np.diff(members.astype(int)) > 0).all()
        mine = set(np.flatnonzero(found.labels == label))
        taken = set(np.flatnonzero(found.predictions == label))
        assert mine <= set(members)
        assert taken <= set(members) or len(mine | taken) > 30
        rest = [i for i in range(300) if i not in mine | taken]
        longest = sorted(rest, key=lambda i: -found.lengths[i, label])[: max(0, 30 - len(mine | taken))]
        assert set(longest) <= set(members)
        coordinates = arrays["coordinates"][label] * arrays["coordinateScale"][label]
        assert np.allclose(coordinates, found.coordinates(label)[members], atol=1e-3)


@pytest.mark.parametrize(("shape", "lossless"), [((70, 8, 8, 1), True), ((70, 30, 20, 3), False)])
def test_sprites_give_back_every_thumbnail(monkeypatch, shape, lossless):
    monkeypatch.setattr(page, "SHEET", 100)
    monkeypatch.setattr(page, "LOSSLESS", 10**6 if lossless else 0)
    levels = np.random.default_rng(0).integers(0, 6, shape[0]) * 45 + 15  # neighbours differ by 45 or are alike
    smooth = levels[:, None, None, None] + np.linspace(-15, 15, shape[1])[:, None, None]
    thumbnails = np.broadcast_to(smooth, shape).clip(0, 255).astype(np.uint8)
    tile, sheets = page.sprite_sheets(thumbnails)
    assert len(sheets) == tile["sheets"] > (0 if lossless else 1)
    for i in range(shape[0]):
        sheet = np.asarray(Image.open(io.BytesIO(sheets[i // tile["forEach"]])).convert("RGB")).astype(int)
        row, column = divmod(i % tile["forEach"], tile["columns"])
        y, x = row * tile["pitchY"], column * tile["pitchX"]
        difference = sheet[y : y + shape[1], x : x + shape[2]] - thumbnails[i]
        assert np.abs(difference).mean() <= (0 if lossless else 5)


def test_large_images_become_small_thumbnails():
    images = torch.zeros(2, 3, 96, 48)
    images[0, 0] = 1.0
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
    found = capsule_table(run)
    assert found.thumbnails.shape == (6, 48, 48, 3)
    assert sorted(found.classes) == ["<img src=x onerror=alert(1)>", "cats"]
    assert "cats/2 & <b>.png" in found.paths
    write_page(found, run, tmp_path / "out.html")
    assert parsed(tmp_path / "out.html").meta["paths"] == list(found.paths)


class Parsed(HTMLParser):
    """The elements of a page, and the texts of its scripts by id."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.current = [], {}, None
        self.feed(text)
        self.meta = json.loads(self.scripts["meta"])

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.current = dict(attributes).get("id", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self.current = None

    def handle_data(self, data):
        if self.current is not None:
            self.scripts[self.current] = self.scripts.get(self.current, "") + data


def parsed(path):
    return Parsed(path.read_text(encoding="utf-8"))


def test_words_from_outside_can_not_become_markup(runs, tmp_path):
    found = capsule_table(runs[4], images=40)
    write_page(found, runs[4], tmp_path / "plain.html")
    hostile = dataclasses.replace(found, classes=(HOSTILE, "<b>&amp;</b>", *found.classes[2:]), paths=(HOSTILE,) * 40)
    write_page(hostile, runs[4], tmp_path / "hostile.html")
    plain, changed = parsed(tmp_path / "plain.html"), parsed(tmp_path / "hostile.html")
    assert changed.tags == plain.tags
    assert changed.meta["classes"][:2] == [HOSTILE, "<b>&amp;</b>"]
    assert changed.meta["paths"][3] == HOSTILE
    assert "hacked" not in changed.scripts[""]


def test_a_page_needs_nothing_else(runs, tmp_path):
    found = capsule_table(runs[4], images=40)
    write_page(found, runs[4], tmp_path / "out.html")
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
        write_page(found, runs[4], tmp_path / "out.html")


def test_json_has_no_numbers_that_json_lacks():
    text = page.embedded_json({"a": [float("nan"), float("inf"), 1.5], "b": "</script>&\u2028", "c": {1: None}})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": [None, None, 1.5], "b": "</script>&\u2028", "c": {"1": None}}


@pytest.mark.parametrize(("n", "L", "c", "size", "most"), [(2000, 10, 8, 32, 8e6), (2000, 1000, 8, 16, 30e6)])
def test_size_of_pages(runs, tmp_path, n, L, c, size, most):
    write_page(made_up(n, L, c, size), runs[4], tmp_path / "out.html")
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
    with pytest.raises(ValueError, match=r"head 'linear', which has no subspaces: explore a run with head 'capsule'"):
        explore(linear, output=out)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        explore(runs[1], images=0, output=out)
    with pytest.raises(ValueError, match="'test' or 'train', got 'valid'"):
        capsule_table(runs[1], "valid")
    with pytest.raises(FileNotFoundError, match="not a run folder"):
        explore(tmp_path, output=out)
    with pytest.raises(FileNotFoundError, match="make it first"):
        explore(runs[1], output=tmp_path / "missing" / "out.html")
    with pytest.raises(ValueError, match="can't both be"):
        explore(runs[1], output=out, csv=out)
    assert not out.exists()
    out.write_text("mine")
    with pytest.raises(FileExistsError, match="choose another file with -o"):
        explore(runs[1], output=out)
    with pytest.raises(FileExistsError, match="choose another file with --csv"):
        explore(runs[1], output=tmp_path / "new.html", csv=out)
    assert out.read_text() == "mine"
    begun = Run.new(tmp_path / "begun")
    begun.begin(RECIPES[1])
    with pytest.raises(FileNotFoundError, match="not finished; continue it with"):
        capsule_table(begun.folder)


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
    with pytest.raises(ValueError, match=r"has 9 classes now, but .* was trained on 10"):
        capsule_table(folder)
