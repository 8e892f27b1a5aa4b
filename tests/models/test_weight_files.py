"""Weights in several files with an index: written and read as one file is, and as carefully."""

import json
import os
import re
from fnmatch import fnmatch

import pytest
import torch
from safetensors.torch import load_file, save_file

from cappronet import CapProNet
from cappronet.models.weight_files import INDEX, WEIGHTS, by_file

CARD_AND_CONFIG = {"config.json", "README.md"}


def saved(folder, size="20KB"):
    """A model whose largest tensor, of 36,864 bytes, is larger than a file."""
    torch.manual_seed(0)
    model = CapProNet("resnet8", 4, 3, scale="learned").eval()
    model.save_pretrained(folder, max_shard_size=size)
    return model


def weight_map(folder):
    return json.loads((folder / INDEX).read_text())["weight_map"]


def indexed(folder, **values):
    """Change what the index maps, and forget the digests."""
    content = json.loads((folder / INDEX).read_text())
    content["weight_map"] |= values
    (folder / INDEX).write_text(json.dumps(content))
    forget(folder)


def forget(folder):
    config = json.loads((folder / "config.json").read_text())
    config.pop("sha256", None)
    (folder / "config.json").write_text(json.dumps(config))


def refused(folder, match, error=ValueError):
    with pytest.raises(error, match=match) as caught:
        CapProNet.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def same(folder, model):
    state = CapProNet.from_pretrained(folder).state_dict()
    return all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())


def test_a_large_model_is_several_files_and_an_index(tmp_path):
    model = saved(tmp_path)
    parts = {path.name for path in tmp_path.glob("model-*")}
    assert {path.name for path in tmp_path.iterdir()} == parts | {INDEX} | CARD_AND_CONFIG
    count = len(parts)
    assert count > 2
    assert parts == {f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)}
    contents = {part: load_file(tmp_path / part) for part in parts}
    assert weight_map(tmp_path) == {name: part for part, tensors in contents.items() for name in tensors}
    for tensors in contents.values():
        assert len(tensors) == 1 or sum(t.numel() * t.element_size() for t in tensors.values()) <= 20_000
    total = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    assert json.loads((tmp_path / INDEX).read_text())["metadata"] == {"total_size": total}
    digests = json.loads((tmp_path / "config.json").read_text())["sha256"]
    assert digests.keys() == parts | {INDEX, "config.json"}
    assert same(tmp_path, model)


def test_the_library_of_the_hub_reads_it_too(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    model = saved(tmp_path)
    other = CapProNet("resnet8", 4, 3, scale="learned")
    hub.load_torch_model(other, tmp_path, strict=True)
    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)


def test_all_files_are_downloaded_and_nothing_else(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    model = saved(tmp_path / "model")
    patterns = []

    def download(_name, allow_patterns):
        patterns.extend(allow_patterns)
        return str(tmp_path / "model")

    monkeypatch.setattr(hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert same("someone/a-model", model)
    names = [path.name for path in (tmp_path / "model").iterdir()]
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in names)
    assert not any(fnmatch("pytorch_model.bin", pattern) for pattern in patterns)


def test_a_model_replaces_one_in_other_files(tmp_path):
    saved(tmp_path)
    model = saved(tmp_path, "5GB")
    assert {path.name for path in tmp_path.iterdir()} == {WEIGHTS} | CARD_AND_CONFIG
    assert same(tmp_path, model)
    saved(tmp_path)
    most = len(set(weight_map(tmp_path).values()))
    assert not (tmp_path / WEIGHTS).exists()
    model = saved(tmp_path, 100_000)
    fewer = set(weight_map(tmp_path).values())
    assert 1 < len(fewer) < most
    assert {path.name for path in tmp_path.glob("model-*")} == fewer
    assert same(tmp_path, model)


def test_sizes_are_as_the_hub_writes_them():
    tensors = {name: torch.empty(250) for name in "abc"}  # of 1,000 bytes
    assert list(by_file(tensors, "3KB")) == [WEIGHTS]
    assert list(by_file(tensors, "0.002 mb").values()) == [["a", "b"], ["c"]]
    assert list(by_file(tensors, 1).values()) == [["a"], ["b"], ["c"]]
    for size in ("5 apples", "0GB", -1, "nanGB", "infGB", ""):
        with pytest.raises(ValueError, match=r"max_shard_size.*5GB"):
            by_file(tensors, size)


@pytest.mark.parametrize(
    "file",
    [
        "../other/model-00001-of-00001.safetensors",
        "/etc/passwd",
        "sub/model-00001-of-00003.safetensors",
        "model-1-of-3.safetensors",
        "model-00001-of-00001.safetensors\n",
        "model-99999-of-00003.safetensors",
        "model-00001-of-99999.safetensors",
        None,
        ["model-00001-of-00003.safetensors"],
    ],
)
def test_an_index_names_only_numbered_files_of_its_folder(tmp_path, file):
    saved(tmp_path)
    indexed(tmp_path, **{"head.weight": file})
    refused(tmp_path, r"model\.safetensors\.index\.json is no index.*(it names|numbered)")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100_000, "\xff"])
def test_what_is_no_index_is_refused(tmp_path, text):
    saved(tmp_path)
    (tmp_path / INDEX).write_text(text, encoding="latin-1")
    refused(tmp_path, r"index\.json is no index of weights.*save_pretrained")


def test_an_index_that_disagrees_with_its_files_is_refused(tmp_path):
    saved(tmp_path)
    first, second, *_ = sorted(set(weight_map(tmp_path).values()))
    name = next(name for name, file in weight_map(tmp_path).items() if file == first)
    indexed(tmp_path, **{name: second})
    refused(tmp_path, rf"{first} does not match .*unexpected.*{re.escape(name)}")
    indexed(tmp_path, **{name: first, "more.weight": second})
    refused(tmp_path, rf"{second} does not match .*it has no.*more\.weight")


def test_damaged_or_missing_parts_are_refused(tmp_path):
    model = saved(tmp_path)
    parts = sorted(set(weight_map(tmp_path).values()))
    for name in (*parts, INDEX):
        path = tmp_path / name
        whole = path.read_bytes()
        place = whole.index(b"total_size") if name == INDEX else len(whole) - 1
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(tmp_path, rf"{re.escape(name)} is damaged.*SHA-256")
        path.write_bytes(whole[:-1] if name != INDEX else whole[:-3])
        refused(tmp_path, rf"{re.escape(name)} (is damaged|is no index)")
        path.unlink()
        refused(tmp_path, r"is missing", FileNotFoundError)
        path.write_bytes(whole)
    assert same(tmp_path, model)
    one, two = (tmp_path / part for part in parts[:2])
    weights = [load_file(path) for path in (one, two)]
    save_file(weights[0], two)
    refused(tmp_path, "does not match")


def test_shapes_are_compared_with_the_configuration(tmp_path):
    saved(tmp_path)
    part = tmp_path / weight_map(tmp_path)["head.weight"]
    save_file(load_file(part) | {"head.weight": torch.zeros(4, 3, 65)}, part)
    refused(tmp_path, r"index\.json does not match config\.json: head\.weight is \(4, 3, 65\)")


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(tmp_path, kind):
    saved(tmp_path)
    for name in (INDEX, weight_map(tmp_path)["head.weight"]):
        path = tmp_path / name
        whole = path.read_bytes()
        path.unlink()
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "device":
            path.symlink_to("/dev/zero")
        else:
            path.mkdir()
        refused(tmp_path, r"is not a regular file", (ValueError, FileNotFoundError))
        path.rmdir() if kind == "folder" else path.unlink()
        path.write_bytes(whole)


def test_an_index_larger_than_its_files_is_not_read(tmp_path):
    saved(tmp_path)
    os.truncate(tmp_path / INDEX, 10 * 2**30)
    refused(tmp_path, "too large")
