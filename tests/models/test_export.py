"""Exported files compute what the model computes, and run where this package is not."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from cappronet import CapProNet
from cappronet.data.batches import Batches
from cappronet.data.datasets import load_dataset
from cappronet.data.normalization import Normalization
from cappronet.models.export import FORMATS, Deployed, description, export
from cappronet.training.loop import Hardware, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

pytest.importorskip("onnxscript")
runtime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.xdist_group("export")  # one process trains what all of them use


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on digits with what a capsule head can have."""
    folder = tmp_path_factory.mktemp("export") / "run"
    recipe = Recipe(epochs=2, capsule_dim=3, normalize=True, scale="learned", head_start="features")
    train(recipe, Run.new(folder), Hardware(accelerator="cpu"))
    return folder


@pytest.fixture(scope="module")
def digits():
    return load_dataset("digits").test.pixels


@pytest.fixture(scope="module")
def scores(run, digits):
    """The scores of PyTorch for all test digits, read as in training."""
    model, images = CapProNet.from_pretrained(run), load_dataset("digits").test
    batches = Batches(
        images, len(images), normalize=Normalization.of(model.config["mean"], model.config["std"]), shuffle=False
    )
    with torch.no_grad():
        return torch.cat([model(x) for x, _ in batches.epoch(0)])


# Numpy and onnxruntime are all it has: whatever of torch or of this package is imported ends it.
ELSEWHERE = """
import json, sys
for name in ("torch", "cappronet", "onnx", "onnxscript"):
    sys.modules[name] = None
import numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == [str(i) for i in range(10)]
pixels = numpy.load(sys.argv[2])
for batch in (1, 7, 360):
    parts = [session.run(["scores"], {"images": pixels[i : i + batch]})[0] for i in range(0, len(pixels), batch)]
    numpy.save(f"{sys.argv[2]}-{batch}.npy", numpy.concatenate(parts))
"""


@pytest.mark.slow
def test_onnx_gives_the_same_classes_without_torch_for_any_batch(run, digits, scores, tmp_path):
    exported = export(CapProNet.from_pretrained(run), tmp_path / "model.onnx")
    assert exported.deviation <= 1e-4
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    images = tmp_path / "digits"
    np.save(images, digits.numpy())
    command = [sys.executable, "-c", ELSEWHERE, str(exported.path), f"{images}.npy"]
    subprocess.run(command, check=True, timeout=120, cwd=tmp_path)
    for batch in (1, 7, 360):
        output = np.load(f"{images}.npy-{batch}.npy")
        assert len(output) == 360
        np.testing.assert_allclose(output, scores.numpy(), atol=1e-4, rtol=0)
        assert (output.argmax(1) == scores.argmax(1).numpy()).all()


PROGRAM = """
import json, sys
sys.modules["cappronet"] = None
import torch
texts = {"classes.json": ""}
program = torch.export.load(sys.argv[1], extra_files=texts).module()
assert json.loads(texts["classes.json"]) == [str(i) for i in range(10)]
pixels = torch.load(sys.argv[2], weights_only=True)
torch.save([program(pixels[:batch])[0] for batch in (1, 7, 360)], sys.argv[3])
"""


@pytest.mark.slow
def test_a_torch_program_runs_without_this_package(run, digits, scores, tmp_path):
    exported = export(CapProNet.from_pretrained(run), tmp_path / "model.pt2", "torch-export")
    torch.save(digits, tmp_path / "digits.pt")
    files = [str(exported.path), str(tmp_path / "digits.pt"), str(tmp_path / "scores.pt")]
    subprocess.run([sys.executable, "-c", PROGRAM, *files], check=True, timeout=120, cwd=tmp_path)
    for output in torch.load(files[2], weights_only=True):
        torch.testing.assert_close(output, scores[: len(output)], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_folded_weights_give_the_lengths_by_hand(run, tmp_path):
    from safetensors import safe_open

    model = CapProNet.from_pretrained(run)
    exported = export(model, tmp_path / "model.safetensors", "safetensors")
    with safe_open(exported.path, "pt") as file:
        about, basis = file.metadata(), file.get_tensor("head.weight")
    assert json.loads(about["classes"]) == model.config["classes"]
    assert json.loads(about["model"]) == model.config
    x = torch.randn(5, model.feature_dim)
    lengths = (x / x.norm(dim=1, keepdim=True) @ basis.T).view(5, 10, 3).norm(dim=2)
    torch.testing.assert_close(lengths * model.head.scale, model.head(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"backbone": "resnet8", "head": "linear", "pool": 2, "resize": 12, "image_size": (16, 20)},
        {"backbone": "speedrun", "head": "subcenter", "in_channels": 1},
        {"backbone": "features", "head": "capsule", "in_channels": 1, "solver": "hyperpower"},
        {"backbone": "pixels", "head": "capsule", "in_channels": 1, "normalize": True, "centered": True},
        {"backbone": "features", "head": "mlp", "in_channels": 1, "width": 20},
    ],
    ids=lambda options: f"{options['backbone']}-{options['head']}",
)
def test_every_kind_of_model(options, tmp_path):
    model = CapProNet(**{"image_size": 16, **options}, num_classes=4, capsule_dim=3).eval()
    exported = export(model, tmp_path / "model.onnx")
    session = runtime.InferenceSession(exported.path)
    (given,), outputs = session.get_inputs(), session.get_outputs()
    assert [given.shape[0], *(output.shape[0] for output in outputs)] == ["batch"] * 3
    assert [given.name, given.shape] == [description(model)["input"][key] for key in ("name", "shape")]
    assert description(model)["input"]["type"] in given.type.replace("tensor(float)", "float32")
    assert [output.name for output in outputs] == ["scores", "probabilities"]
    deployed = Deployed(model)
    with torch.no_grad():
        expected = deployed(x := deployed.example(9))
    for output, value in zip(session.run(None, {given.name: x.numpy()}), expected, strict=True):
        torch.testing.assert_close(torch.from_numpy(output), value, atol=1e-4, rtol=1e-4)


def test_an_existing_file_stays(tmp_path):
    model = CapProNet("pixels", 3, 2, image_size=4)
    for kind, form in FORMATS.items():
        path = tmp_path / f"mine{form.suffix}"
        path.write_text("mine")
        with pytest.raises(FileExistsError, match=r"mine.*exists.*--output"):
            export(model, path, kind)
        assert path.read_text() == "mine"
    with pytest.raises(ValueError, match=r"'tflite'.*onnx"):
        export(model, tmp_path / "x", "tflite")


def test_a_file_that_computes_something_else_is_not_kept(tmp_path, monkeypatch):
    model = CapProNet("pixels", 3, 2, image_size=4)
    monkeypatch.setattr(type(model.head), "fold", lambda self: torch.nn.Linear(48, 3))
    with pytest.raises(ValueError, match=r"torch-export.*nothing was written"):
        export(model, tmp_path / "model.pt2", "torch-export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_says_what_it_wrote(run, capsys):
    from cappronet.cli import app

    app(["export", str(run)], result_action="return_value")
    shown = capsys.readouterr().out
    assert (run / "exported.onnx").is_file()
    assert "images, uint8 (batch, 1, 8, 8)" in shown
    assert "of the model's" in shown
    with pytest.raises(FileExistsError):
        app(["export", str(run)], result_action="return_value")
