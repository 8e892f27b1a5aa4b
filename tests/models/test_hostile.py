"""Model folders from strangers, and damaged ones: refused in one line, without a look anywhere else."""

import json
import os
import signal
import socket
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from cappronet import CapProNet
from cappronet.models.backbones import create_backbone
from cappronet.models.card import model_card
from cappronet.models.prediction import predict_file
from experiments.robustness.models import HOSTILE, damaged, damages, hostile_folders, outcome, save_victim


@pytest.fixture(autouse=True)
def _no_network_and_no_end(monkeypatch):
    """Whoever asks another host fails, and whoever reads a pipe for ever is stopped."""

    def refuse(*_):
        raise AssertionError("a local model reached the network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it hangs"))
    signal.alarm(120)
    yield
    signal.alarm(0)


def edited(folder, **values):
    """Change a configuration as someone would who knows what a digest is."""
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **values}
    del config["sha256"]
    path.write_text(json.dumps(config))


def message(folder, error=ValueError):
    with pytest.raises(error) as caught:
        CapProNet.from_pretrained(folder)
    assert str(caught.value).isprintable()
    return str(caught.value)


def test_hostile_configurations_are_refused(tmp_path):
    model = save_victim(tmp_path)
    assert len(HOSTILE) > 100
    accepted = [values for values in hostile_folders(tmp_path) if outcome(tmp_path, model) != "refused"]
    assert not accepted
    assert outcome(tmp_path, model) == "handled"


@pytest.fixture(scope="module")
def victim(tmp_path_factory):
    folder = tmp_path_factory.mktemp("victim")
    return folder, save_victim(folder)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_other_configuration_is_refused_or_harmless(victim, data):
    folder, model = victim
    path = folder / "config.json"
    whole = path.read_text()
    config = json.loads(whole)
    config[data.draw(st.sampled_from(sorted(config)))] = data.draw(values)
    if data.draw(st.booleans()):
        config.pop("sha256", None)
    try:
        path.write_text(json.dumps(config))
        assert outcome(folder, model) != "crashed"
        if outcome(folder, model) == "silent":  # another dropout, another mean
            loaded = CapProNet.from_pretrained(folder)
            loaded.resize = None  # may be large, within the limit
            assert loaded(torch.zeros(1, 1, 8, 8)).shape == (1, 4)
    finally:
        path.write_text(whole)


def test_no_flipped_bit_loads_silently(tmp_path):
    model = save_victim(tmp_path)
    counts = Counter(outcome(tmp_path, model) for _ in damaged(tmp_path, "flipped bits", 100))
    assert counts.total() == 100
    assert counts["silent"] == counts["crashed"] == 0
    assert counts["refused"] > 90


def test_no_damaged_file_loads_silently(tmp_path):
    model = save_victim(tmp_path)
    kinds = [kind for kind in damages if kind != "flipped bits"]
    counts = Counter(outcome(tmp_path, model) for kind in kinds for _ in damaged(tmp_path, kind, 50))
    assert counts.total() == 200
    assert counts["silent"] == counts["crashed"] == 0


def test_a_damaged_file_says_what_to_do(tmp_path):
    save_victim(tmp_path)
    weights = tmp_path / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert "model.safetensors is damaged" in message(tmp_path)
    assert "copy or download the model again" in message(tmp_path)
    weights.write_bytes(content[:-5])
    assert "copy or download the model again" in message(tmp_path)


def test_a_configuration_changed_by_hand_loads_without_its_digest(tmp_path):
    save_victim(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"a"', '"ape"'))
    assert "delete the entry sha256" in message(tmp_path)
    edited(tmp_path)
    assert CapProNet.from_pretrained(tmp_path).config["classes"][0] == "ape"


def test_a_reformatted_configuration_is_the_same(tmp_path):
    model = save_victim(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items())), indent=4).replace("\n", "\r\n"))
    assert outcome(tmp_path, model) == "handled"


def test_models_without_a_digest_load_and_the_arguments_build_a_model(tmp_path):
    model = save_victim(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config["sha256"]["model.safetensors"]) == 64
    assert CapProNet(**config).config == model.config
    edited(tmp_path)
    assert outcome(tmp_path, model) == "handled"


@pytest.mark.parametrize(
    ("dtype", "accepted"),
    [(torch.float64, False), (torch.int8, False), (torch.bool, False), (torch.float16, True), (torch.bfloat16, True)],
)
def test_weights_of_another_type_are_refused_unless_nothing_is_lost(tmp_path, dtype, accepted):
    save_victim(tmp_path)
    edited(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["head.weight"] = weights["head.weight"].to(dtype)
    save_file(weights, tmp_path / "model.safetensors")
    if accepted:
        assert CapProNet.from_pretrained(tmp_path).head.weight.equal(weights["head.weight"].float())
    else:
        assert "head.weight is" in message(tmp_path)
        assert "expected torch.float32" in message(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "folder"])
def test_only_regular_files_are_read(tmp_path, name, kind):
    save_victim(tmp_path)
    replaced(tmp_path / name, kind)
    assert f"{name} is not a regular file" in message(tmp_path, FileNotFoundError)


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "large"])
def test_a_card_without_end_is_not_read(tmp_path, kind):
    model = save_victim(tmp_path)
    replaced(tmp_path / "README.md", kind)
    assert CapProNet.from_pretrained(tmp_path).card == ""
    assert outcome(tmp_path, model) == "handled"


def replaced(path, kind):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "large":
        path.touch()
        os.truncate(path, 5 * 2**30)
    else:
        path.symlink_to(kind)


def test_a_large_configuration_next_to_small_weights_is_not_read(tmp_path):
    save_victim(tmp_path)
    os.truncate(tmp_path / "config.json", 10 * 2**30)
    assert "too large" in message(tmp_path)


def test_an_image_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "image.png")
    with pytest.raises(ValueError, match="regular file"):
        predict_file(CapProNet("pixels", 3, 2, image_size=8).eval(), tmp_path / "image.png")


@pytest.mark.parametrize(
    "options",
    [{"std": [0.0]}, {"std": [1e-50]}, {"mean": [float("nan")]}, {"scale": float("inf")}, {"dropout": float("nan")}],
)
def test_numbers_that_no_model_can_compute_with_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))) as caught:
        CapProNet("pixels", 3, 2, in_channels=1, image_size=4, **options)
    assert "\n" not in str(caught.value)


def test_files_have_the_permissions_of_new_files(tmp_path):
    before = os.umask(0o027)
    try:
        save_victim(tmp_path)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o640}
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors", "README.md"}


def test_a_backbone_of_another_folder_is_loaded_without_it(tmp_path):
    """A person may name a folder of timm's form; the saved model then names timm's own architecture."""
    timm = pytest.importorskip("timm")
    folder = tmp_path / "timm"
    folder.mkdir()
    known = timm.create_model("test_resnet", num_classes=7).pretrained_cfg
    config = {"architecture": "test_resnet", "pretrained_cfg": {"input_size": known["input_size"], "num_classes": 7}}
    (folder / "config.json").write_text(json.dumps(config))
    model = CapProNet(f"local-dir:{folder}", 3, 2).eval()
    model.save_pretrained(tmp_path / "model")
    edited(tmp_path / "model", backbone=f"local-dir:{folder}")
    assert "no path and no address" in message(tmp_path / "model")
    (folder / "config.json").unlink()
    model.save_pretrained(tmp_path / "model")
    again, x = CapProNet.from_pretrained(tmp_path / "model"), torch.rand(1, 3, 32, 32)
    assert again.config["backbone"] == "test_resnet"
    assert torch.equal(again(x), model(x))


def test_a_folder_that_changes_the_architecture_keeps_its_name(tmp_path):
    pytest.importorskip("timm")
    config = {"architecture": "test_resnet", "pretrained_cfg": {}, "model_args": {"act_layer": "gelu"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    name = f"local-dir:{tmp_path}"
    assert CapProNet(name, 3, 2).config["backbone"] == name
    assert create_backbone(name).feature_dim == create_backbone("test_resnet").feature_dim


def test_tensors_that_no_file_holds_are_computed_again(tmp_path):
    """Positions in a transformer's attention are not in its state."""
    pytest.importorskip("timm")
    model = CapProNet("eva02_tiny_patch14_224", 3, 2, image_size=224).eval()
    model.save_pretrained(tmp_path)
    state = torch.random.get_rng_state()
    again = CapProNet.from_pretrained(tmp_path)
    assert torch.random.get_rng_state().equal(state)
    buffers = dict(again.named_buffers())
    assert set(buffers) - set(model.state_dict())
    assert all(buffer.equal(buffers[name]) for name, buffer in model.named_buffers())


NAMES = [
    '<script>alert("x")</script>',
    "<img src=x onerror=y>",
    "[a](https://example.com)",
    "![a](https://example.com/a.png)",
    "https://example.com",
    "www.example.com",
    "a@example.com",
    "**a**",
    "_a_",
    "`a` <b>",
    "a \\| <i>",
    "$x$",
    "\x1b[31m\u202ered",
    "\udcff",
    "&lt;b&gt;",
    "x" * 10**5,
]


def test_names_in_a_card_are_only_names(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    markdown = pytest.importorskip("markdown_it")
    plain = ["tabby_cat", "St. Bernard", "Siamese cat, adult (male)", "50%"]
    model = CapProNet("pixels", 20, 2, image_size=4, classes=NAMES + plain)
    for data in NAMES:
        summary, recipe = {"data": data, "head": "capsule", "error": 1.0}, {"data": data, "classes": NAMES[:5]}
        model.card = model_card(model.config, summary, None, recipe)
        assert not set("<>\x1b") & set(model.card)
        card = hub.ModelCard(model.card.encode(errors="replace").decode())
        assert card.data.license is None
        assert len(card.data.eval_results) == 1
        tokens = markdown.MarkdownIt("commonmark").enable("table").parse(card.text)
        kinds = {child.type for token in tokens for child in token.children or [token]}
        assert not kinds & {"html_block", "html_inline", "link_open", "image", "strong_open"}
    for name in plain:
        assert f", {name}" in card.text
    model.save_pretrained(tmp_path)
    assert CapProNet.from_pretrained(tmp_path).config["classes"] == NAMES + plain
