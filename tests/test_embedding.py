"""Features of a frozen network: those it makes itself, bit for bit, also after a kill."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

from cappronet import embedding, feature_files
from cappronet.batches import Batches
from cappronet.datasets import load_dataset
from cappronet.embedding import embed, load_source, rebuilt
from cappronet.feature_files import pack, read_features
from cappronet.model import CapProNet
from cappronet.recipe import Recipe
from cappronet.runs import Run
from cappronet.training import Hardware, train

DIGITS = Recipe(data="digits")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small trained network."""
    folder = tmp_path_factory.mktemp("embedding") / "run"
    train(Recipe(epochs=1, train_size=300, head="linear"), Run(folder), Hardware(accelerator="cpu"))
    return folder


@pytest.fixture(scope="module")
def embedded(run, tmp_path_factory):
    """The features of all digits, in one go."""
    path = tmp_path_factory.mktemp("features") / "digits.npz"
    counts = []
    found = embed(str(run), DIGITS, path, batch_size=100, on_batch=lambda *now: counts.append(now))
    assert found == (1437, 360, 64)
    assert counts[0] == ("train", 0, 15)
    assert counts[-1] == ("test", 4, 4)
    return path


def test_a_runs_features_are_its_own_bit_for_bit(run, embedded):
    data, digits, model = read_features(embedded), load_dataset("digits"), CapProNet.from_pretrained(run)
    for images, x, y in ((digits.train, data.x_train, data.y_train), (digits.test, data.x_test, data.y_test)):
        config = model.config
        batches = Batches(images, 100, mean=config["mean"], std=config["std"], shuffle=False)
        with torch.no_grad():
            expected = torch.cat([model.features(batch) for batch, _ in batches.epoch(0)])
        assert torch.from_numpy(x).equal(expected)
        assert torch.from_numpy(y).equal(images.labels)
    assert data.classes == digits.classes
    assert not embedded.with_name("digits.npz.part").exists()


def test_pixels_are_the_image_from_0_to_1(tmp_path):
    embed("pixels", Recipe(classes=(7, 2)), tmp_path / "a.npz")
    data, digits = read_features(tmp_path / "a.npz"), load_dataset("digits")
    assert data.classes == ("7", "2")
    for number, name in enumerate((7, 2)):
        expected = digits.train.pixels[digits.train.labels == name].flatten(1) / 255
        torch.testing.assert_close(torch.from_numpy(data.x_train[data.y_train == number]), expected, rtol=1e-6, atol=0)


def test_the_file_holds_the_network_itself(run, embedded):
    data = read_features(embedded)
    assert data.source["from"] == str(run.resolve())
    assert data.source["recipe"]["data"] == "digits"
    network = rebuilt(embedded, data.source, head="capsule", capsule_dim=2)
    x = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert network.features(x).equal(CapProNet.from_pretrained(run).features(x))
    assert network(x).shape == (3, 10)
    with pytest.raises(ValueError, match="does not hold the network that made its features"):
        rebuilt(embedded, {"network": {**data.source["network"], "backbone": "resnet14"}})


class Stop(BaseException):
    pass


def test_what_was_cut_off_goes_on_to_the_same_bytes(run, embedded, tmp_path):
    path = tmp_path / "a.npz"

    def stop(part, done, total):
        if (part, done) == (stop.part, stop.done):
            raise Stop

    for stop.part, stop.done in (("train", 3), ("train", 11), ("test", 2)):
        with pytest.raises(Stop):
            embed(str(run), DIGITS, path, batch_size=100, on_batch=stop)
        assert not path.exists()
        with (tmp_path / "a.npz.part" / f"x_{stop.part}.f32").open("ab") as file:
            file.write(b"half of a batch")
    made = []
    original = embedding._features
    try:
        embedding._features = lambda *given: made.append(given) or original(*given)
        embed(str(run), DIGITS, path, batch_size=100)
    finally:
        embedding._features = original
    assert len(made) == 2  # of 19 batches, the last two were missing
    assert path.read_bytes() == embedded.read_bytes()


def test_a_killed_process_goes_on_to_the_same_bytes(run, tmp_path):
    def command(path):
        program = [sys.executable, "-m", "cappronet.cli", "embed", str(run), "--train-size", "600"]
        program += ["--batch-size", "3", "-o", str(path)]
        return subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = command(tmp_path / "killed.npz")
    grown = tmp_path / "killed.npz.part" / "x_train.f32"
    deadline = time.monotonic() + 120
    while not grown.exists() or grown.stat().st_size < 20 * 256:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed.npz").exists()
    assert grown.stat().st_size < 600 * 256
    for name in ("killed.npz", "whole.npz"):
        process = command(tmp_path / name)
        shown, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        assert "600 training and 360 test features of 64 numbers" in shown
    assert (tmp_path / "killed.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_files_and_other_jobs_are_left_alone(run, embedded, tmp_path):
    before = embedded.read_bytes()
    with pytest.raises(FileExistsError, match="exists and is left as it is"):
        embed("pixels", DIGITS, embedded)
    assert embedded.read_bytes() == before

    def stop(part, done, total):
        raise Stop

    with pytest.raises(Stop):
        embed("pixels", DIGITS, tmp_path / "a.npz", on_batch=stop)
    with pytest.raises(FileExistsError, match="holds the beginning of other features"):
        embed("pixels", Recipe(classes=(1, 2)), tmp_path / "a.npz")
    (tmp_path / "b.npz.part").mkdir()
    (tmp_path / "b.npz.part" / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is not the beginning of features"):
        embed("pixels", DIGITS, tmp_path / "b.npz")
    assert (tmp_path / "b.npz.part" / "thesis.txt").read_text() == "mine"


def test_packing_holds_a_few_megabytes_however_long_the_features(tmp_path, monkeypatch):
    monkeypatch.setattr(feature_files, "CHUNK", 2**20)
    rows = np.memmap(tmp_path / "x.f32", np.float32, "w+", shape=(100_000, 256))
    rows[::1000] = np.arange(256)
    tracemalloc.start()
    try:
        pack(tmp_path / "a.npz", {"x_train": rows, "y_train": np.arange(100_000) % 3})
        data = read_features(tmp_path / "a.npz")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows.nbytes > 100e6
    assert peak < 10e6
    assert np.array_equal(data.x_train[::1000], rows[::1000])
    assert not data.x_train[1::1000].any()


def test_pooling_keeps_quarters_of_the_feature_map(run, embedded, tmp_path):
    embed(str(run), DIGITS, tmp_path / "a.npz", pool=2)
    four = read_features(tmp_path / "a.npz").x_train.reshape(1437, 64, 4)
    np.testing.assert_allclose(four.mean(2), read_features(embedded).x_train, rtol=0, atol=1e-5)
    assert np.abs(four - four.mean(2, keepdims=True)).max() > 0.1
    with pytest.raises(ValueError, match="1 for pixels if it has no feature map"):
        embed("pixels", DIGITS, tmp_path / "b.npz", pool=2)
    with pytest.raises(ValueError, match="only our own backbones show their feature map"):
        embed("resnet18", DIGITS, tmp_path / "b.npz", pool=2)


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
        ("resnet20", "there are no weights for 'resnet20': give the folder of a run"),
        ("resnet1800", "depths of a CIFAR ResNet"),
        ("vit_base_patch16_225", "unknown backbone 'vit_base_patch16_225'; did you mean"),
        (".", "is not the folder of a finished run"),
    ],
)
def test_a_wrong_source_is_one_line(tmp_path, source, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        embed(source, DIGITS, tmp_path / "a.npz")
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def test_weights_that_can_not_be_fetched_are_one_line(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    with pytest.raises(OSError, match="the weights of test_resnet could not be loaded") as caught:
        embed("test_resnet", DIGITS, tmp_path / "a.npz")
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
    n, _, d = embed(f"local-dir:{folder}", Recipe(train_size=50), tmp_path / "a.npz")
    assert (n, d) == (50, network.feature_dim)
