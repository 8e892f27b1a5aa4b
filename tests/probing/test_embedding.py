"""Features of a frozen network: those it computes itself, bit for bit, even after the process was killed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from cappronet.cli import app
from cappronet.cli.features import embed as command
from cappronet.data.batches import Batches
from cappronet.data.datasets import load_dataset
from cappronet.data.features import read_features
from cappronet.data.selection import Selection
from cappronet.models.network import CapProNet
from cappronet.probing import embedding
from cappronet.probing.embedding import embed, embedded_selection, load_source, rebuild_network
from cappronet.training.loop import Hardware, train
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

DIGITS = Selection("digits")


def contents(folder):
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small trained network."""
    folder = tmp_path_factory.mktemp("embedding") / "run"
    train(Recipe(epochs=1, train_size=300, head="linear"), Run(folder), Hardware(accelerator="cpu"))
    return folder


@pytest.fixture(scope="module")
def embedded(run, tmp_path_factory):
    """The features of all digits, in one go."""
    path = tmp_path_factory.mktemp("features") / "digits"
    reports = []
    sizes = embed(str(run), DIGITS, path, batch_size=100, report=lambda *now: reports.append(now))
    assert sizes == (1437, 360, 64)
    assert reports[0] == ("training features", 0, 15)
    assert reports[-1] == ("test features", 4, 4)
    return path


def test_a_runs_features_are_its_own_bit_for_bit(run, embedded):
    data, digits, model = read_features(embedded), load_dataset("digits"), CapProNet.from_pretrained(run)
    for images, x, y in ((digits.train, data.x_train, data.y_train), (digits.test, data.x_test, data.y_test)):
        batches = Batches(images, 100, normalize=model.normalization, shuffle=False)
        with torch.no_grad():
            expected = torch.cat([model.features(batch) for batch, _ in batches.epoch(0)])
        assert torch.from_numpy(x).equal(expected)
        assert torch.from_numpy(y).equal(images.labels)
    assert data.classes == digits.classes
    assert not embedded.with_name("digits.part").exists()


def test_every_file_has_a_digest_and_damaged_weights_are_refused(embedded, tmp_path):
    copy = tmp_path / "digits"
    shutil.copytree(embedded, copy)
    described = json.loads((copy / "features.json").read_text())
    assert set(described["sha256"]) == set(contents(copy))
    source = read_features(copy).source
    rebuild_network(copy, source, head="linear")
    weights = bytearray((copy / "backbone.safetensors").read_bytes())
    weights[-5] ^= 1
    (copy / "backbone.safetensors").write_bytes(weights)
    with pytest.raises(ValueError, match=r"backbone\.safetensors was damaged or changed"):
        rebuild_network(copy, source, head="linear")


def test_an_embedding_killed_before_its_folder_gets_its_name_is_finished(run, embedded, tmp_path):
    part = tmp_path / "digits.part"
    shutil.copytree(embedded, part)  # with its digests, but not renamed
    embed(str(run), DIGITS, tmp_path / "digits", batch_size=100)
    assert contents(tmp_path / "digits") == contents(embedded)


def test_pixels_are_the_image_from_0_to_1(tmp_path):
    embed("pixels", Selection("digits", classes=(7, 2)), tmp_path / "a")
    data, digits = read_features(tmp_path / "a"), load_dataset("digits")
    assert data.classes == ("7", "2")
    for number, name in enumerate((7, 2)):
        expected = digits.train.pixels[digits.train.labels == name].flatten(1) / 255
        torch.testing.assert_close(torch.from_numpy(data.x_train[data.y_train == number]), expected, rtol=1e-6, atol=0)


def test_numpy_reads_the_arrays(embedded):
    data = read_features(embedded)
    assert isinstance(data.x_train, np.memmap)
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(np.load(embedded / f"{name}.npy"), getattr(data, name))
    names = {"x_train.npy", "y_train.npy", "x_test.npy", "y_test.npy", "features.json", "backbone.safetensors"}
    assert set(contents(embedded)) == names


@pytest.mark.parametrize("earlier", [False, True])
def test_the_folder_holds_the_network_itself(run, embedded, tmp_path, earlier):
    data = read_features(embedded)
    if earlier:  # one .npz, with a whole recipe for the data
        source = {**data.source, "recipe": {**Recipe().to_dict(), **data.source["data"]}}
        del source["data"]
        weights = np.frombuffer((embedded / "backbone.safetensors").read_bytes(), np.uint8)
        embedded = tmp_path / "earlier.npz"
        arrays = {name: getattr(data, name) for name in ("x_train", "y_train", "x_test", "y_test")}
        classes = np.array(data.classes)
        np.savez(embedded, **arrays, classes=classes, source=np.array(json.dumps(source)), backbone=weights)
        data = read_features(embedded)
    assert data.source["from"] == str(run.resolve())
    assert embedded_selection(data.source) == DIGITS
    network = rebuild_network(embedded, data.source, head="capsule", capsule_dim=2)
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert network.features(x).equal(CapProNet.from_pretrained(run).features(x))
    assert network(x).shape == (3, 10)
    with pytest.raises(ValueError, match="does not hold the network"):
        rebuild_network(embedded, {"network": {**data.source["network"], "backbone": "resnet14"}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backbone": "hf-hub:attacker/model"}, "no path and no address"),
        ({"backbone": "local-dir:/etc"}, "no path and no address"),
        ({"backbone": "resnet9998"}, "9,998 layers"),
        ({"backbone": "no_such_network"}, "unknown backbone"),
        ({"backbone": "resnet14"}, "not those of 'resnet14'"),
        ({"backbone": "pixels"}, "not those of 'pixels'"),
        ({"num_classes": 10**15}, "num_classes"),
        ({"in_channels": 10**15}, "in_channels"),
        ({"image_size": 10**9}, "image_size is 1000000000"),
        ({"pool": 10**9}, "pool is 1000000000"),
        ({"pool": 2}, "expected 64"),
        ({"surprise": 1}, "unknown entry 'surprise'"),
        ({"classes": None}, "NoneType"),
    ],
)
def test_a_network_that_a_stranger_describes_is_a_known_one_of_the_weights_size(
    embedded, monkeypatch, changes, message
):
    def refuse(*_):
        raise AssertionError("a local folder reached the network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    data = read_features(embedded)
    source = {**data.source, "network": {**data.source["network"], **changes}}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        rebuild_network(embedded, source, data.dim, head="linear")
    assert "does not hold the network" in str(caught.value)
    assert str(caught.value).isprintable()


class Stop(BaseException):
    pass


def test_an_interrupted_call_resumes_to_the_same_bytes(run, embedded, tmp_path, monkeypatch):
    path = tmp_path / "a"
    for text, batch in (("training features", 3), ("training features", 11), ("test features", 2)):

        def stop(part, done, total, at=(text, batch)):
            if (part, done) == at:
                raise Stop

        with pytest.raises(Stop):
            embed(str(run), DIGITS, path, batch_size=100, report=stop)
        assert not path.exists()
        name = "x_train.npy" if text.startswith("training") else "x_test.npy"
        with (tmp_path / "a.part" / name).open("ab") as file:
            file.write(b"half of a batch")
    made = []
    original = embedding._features
    monkeypatch.setattr(embedding, "_features", lambda *given: made.append(given) or original(*given))
    embed(str(run), DIGITS, path, batch_size=100)
    assert len(made) == 2  # of 19 batches, the last two were missing
    assert contents(path) == contents(embedded)


@pytest.mark.slow
def test_a_killed_process_resumes_to_the_same_bytes(run, tmp_path, capsys):
    command = ["embed", str(run), "--train-size", "600", "--batch-size", "3", "-o"]
    program = [sys.executable, "-m", "cappronet.cli", *command, str(tmp_path / "killed")]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    growing = tmp_path / "killed.part" / "x_train.npy"
    deadline = time.monotonic() + 120
    while not growing.exists() or growing.stat().st_size < 20 * 256:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed").exists()
    assert growing.stat().st_size < 600 * 256
    for name in ("killed", "whole"):
        app([*command, str(tmp_path / name)], result_action="return_value")
        assert "600 training and 360 test features of 64 numbers" in capsys.readouterr().out
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_files_and_other_jobs_are_left_alone(embedded, tmp_path):
    before = contents(embedded)
    with pytest.raises(FileExistsError, match="exists"):
        embed("pixels", DIGITS, embedded)
    assert contents(embedded) == before

    def stop(text, done, total):
        raise Stop

    with pytest.raises(Stop):
        embed("pixels", DIGITS, tmp_path / "a", report=stop)
    with pytest.raises(FileExistsError, match="other features"):
        embed("pixels", Selection("digits", classes=(1, 2)), tmp_path / "a")
    (tmp_path / "b.part").mkdir()
    (tmp_path / "b.part" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"b\.part"):
        embed("pixels", DIGITS, tmp_path / "b")
    assert (tmp_path / "b.part" / "thesis.txt").read_text() == "mine"


def test_the_command_writes_a_folder_named_after_data_and_source(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    command("pixels", train_size=50)
    assert read_features(tmp_path / "features-digits-pixels").x_train.shape == (50, 64)
    assert "features-digits-pixels" in capsys.readouterr().out
    with pytest.raises(ValueError, match=r"-o high$"):
        command("pixels", output=Path("high.npz"))
    with pytest.raises(ValueError, match="cappronet probe"):
        command("pixels", data="features-digits-pixels", output=tmp_path / "again")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        command("pixels", output=tmp_path / "nowhere" / "a")


def test_pooling_keeps_quarters_of_the_feature_map(run, embedded, tmp_path):
    embed(str(run), DIGITS, tmp_path / "a", pool=2)
    four = read_features(tmp_path / "a").x_train.reshape(1437, 64, 4)
    np.testing.assert_allclose(four.mean(2), read_features(embedded).x_train, rtol=0, atol=1e-5)
    assert np.abs(four - four.mean(2, keepdims=True)).max() > 0.1
    with pytest.raises(ValueError, match="feature map"):
        embed("pixels", DIGITS, tmp_path / "b", pool=2)
    with pytest.raises(ValueError, match="feature map"):
        embed("resnet18", DIGITS, tmp_path / "b", pool=2)


def test_images_of_another_size_are_scaled_to_the_one_the_network_knows(run, tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 2)):
        for name in ("a", "b"):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                image = Image.fromarray(rng.integers(0, 255, (16, 16), dtype=np.uint8))
                image.save(tmp_path / part / name / f"{i}.png")
    data = load_dataset(str(tmp_path))
    network = load_source(str(run), data)
    assert network.config["resize"] == 8
    x = torch.rand(2, 1, 8, 8)
    doubled = x.repeat_interleave(2, 2).repeat_interleave(2, 3)  # whose means over 2x2 are x again, but for the border
    with torch.no_grad():
        smaller = torch.nn.functional.interpolate(doubled, (8, 8), mode="bilinear", antialias=True)
        assert network.features(doubled).equal(network.backbone(smaller))
    assert network.features(doubled).shape == (2, 64)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("resnet20", "no weights for 'resnet20'"),
        ("resnet1800", "depths of a CIFAR ResNet"),
        ("vit_base_patch16_225", "unknown backbone 'vit_base_patch16_225'; did you mean"),
        (".", "is not the folder of a finished run"),
    ],
)
def test_a_wrong_source_is_one_line(tmp_path, source, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        embed(source, DIGITS, tmp_path / "a")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_weights_that_can_not_be_fetched_are_one_line(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    with pytest.raises(OSError, match="the weights of test_resnet could not be loaded") as caught:
        embed("test_resnet", DIGITS, tmp_path / "a")
    assert "\n" not in str(caught.value)


def test_timm_brings_its_weights_its_size_and_its_normalization(tmp_path):
    import timm
    from safetensors.torch import save_file

    folder = tmp_path / "timm"
    folder.mkdir()
    torch.manual_seed(0)
    trained = timm.create_model("test_resnet", num_classes=7)
    save_file(trained.state_dict(), folder / "model.safetensors")
    known = {"input_size": [3, 24, 24], "mean": [0.3, 0.3, 0.6], "std": [0.2, 0.3, 0.4], "num_classes": 7}
    known |= {"first_conv": trained.pretrained_cfg["first_conv"], "classifier": trained.pretrained_cfg["classifier"]}
    (folder / "config.json").write_text(json.dumps({"architecture": "test_resnet", "pretrained_cfg": known}))

    network = load_source(f"local-dir:{folder}", load_dataset("digits"))
    assert network.config["resize"] == 24
    assert network.config["mean"] == pytest.approx([0.4])
    assert network.config["std"] == pytest.approx([0.3])
    # one grey channel gets the sum of the weights of three: as if the image were grey in colour
    x = torch.rand(2, 1, 24, 24)
    with torch.no_grad():
        expected = trained.eval().forward_head(trained.forward_features(x.expand(2, 3, 24, 24)), pre_logits=True)
        torch.testing.assert_close(network.features(x), expected, rtol=1e-4, atol=1e-4)
    n, _, d = embed(f"local-dir:{folder}", Selection("digits", train_size=50), tmp_path / "a")
    assert (n, d) == (50, network.feature_dim)


def test_weights_of_a_file_make_the_features(tmp_path):
    timm = pytest.importorskip("timm")
    torch.manual_seed(1)
    trained = timm.create_model("test_resnet", num_classes=7)
    torch.save(trained.state_dict(), tmp_path / "weights.pth")
    options = {"pretrained": str(tmp_path / "weights.pth"), "image_size": 24}
    network = load_source("test_resnet", load_dataset("digits"), **options)
    assert network.config["resize"] == 24
    x = torch.rand(2, 1, 24, 24)
    with torch.no_grad():
        expected = trained.eval().forward_head(trained.forward_features(x.expand(2, 3, 24, 24)), pre_logits=True)
        torch.testing.assert_close(network.features(x), expected, rtol=1e-4, atol=1e-4)
    embed("test_resnet", Selection("digits", train_size=20), tmp_path / "a", **options)
    described = json.loads((tmp_path / "a" / "features.json").read_text())["source"]
    assert described["pretrained"]["from"] == "weights.pth"
    with pytest.raises(ValueError, match="does not hold the weights of test_vit"):
        embed("test_vit", DIGITS, tmp_path / "b", pretrained=options["pretrained"])
