"""Saved models: here and on the hub, loaded without executing anything."""

import hashlib
import json
import pickle
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cappronet import CapProNet
from cappronet.models.card import model_card


def saved(folder, **options):
    options = {"normalize": True, "scale": "learned", "classes": ["a", "b", "c", "d"], **options}
    model = CapProNet("resnet8", 4, 3, **options).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
def test_a_new_process_computes_the_same_bits(tmp_path):
    model, x = saved(tmp_path / "model"), torch.randn(3, 3, 32, 32)
    save_file({"x": x}, tmp_path / "x.safetensors")
    code = """
import sys
from safetensors.torch import load_file, save_file
from cappronet import CapProNet
model = CapProNet.from_pretrained(sys.argv[1])
save_file({"y": model(load_file(sys.argv[2])["x"]).detach()}, sys.argv[3])
"""
    files = [str(tmp_path / name) for name in ("model", "x.safetensors", "y.safetensors")]
    subprocess.run([sys.executable, "-c", code, *files], check=True, timeout=120)
    assert torch.equal(load_file(files[2])["y"], model(x).detach())


def refused(folder, error, match):
    """Loading ends in one line, and in no file that was not there before."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(error, match=match) as caught:
        CapProNet.from_pretrained(folder)
    assert "\n" not in str(caught.value)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, name):
    saved(tmp_path)
    (tmp_path / name).unlink()
    refused(tmp_path, FileNotFoundError, f"{name}.*missing")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    saved(tmp_path)
    for name in ("model.safetensors", "config.json"):
        path = tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole[: int(share * len(whole))])
        refused(tmp_path, ValueError, f"{name} (is damaged|does not describe)")
        path.write_bytes(whole)
    CapProNet.from_pretrained(tmp_path)


class Trap:
    """A pickle that leaves a trace where it is loaded."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return (Path.touch, (self.folder / "trap-was-sprung",))


def test_a_pickle_is_refused_and_not_executed(tmp_path):
    trap = pickle.dumps(Trap(tmp_path))
    pickle.loads(trap)
    (tmp_path / "trap-was-sprung").unlink()  # it would have worked
    saved(tmp_path)
    for name in ("model.safetensors", "config.json"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(trap)
        refused(tmp_path, ValueError, f"{name} (is damaged|does not describe)")
        (tmp_path / name).write_bytes(whole)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(trap)
    refused(tmp_path, FileNotFoundError, r"pytorch_model\.bin could execute code.*save_pretrained")


def test_a_pickle_beside_a_model_is_never_opened(tmp_path):
    model, x = saved(tmp_path), torch.randn(1, 3, 32, 32)
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap(tmp_path)))
    (tmp_path / "README.md").write_bytes(pickle.dumps(Trap(tmp_path)))
    again = CapProNet.from_pretrained(tmp_path)
    assert torch.equal(again(x), model(x))
    assert again.card == ""
    assert not (tmp_path / "trap-was-sprung").exists()


def changed(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (
            {"capsule_dim": 2},
            r"does not match config\.json: head\.weight is \(4, 3, 64\), expected \(4, 2, 64",
        ),
        ({"backbone": "resnet14"}, r"config\.json: it has no backbone"),
        ({"scale": None}, r"config\.json: .*head\.scale"),
        ({"surprise": 1}, "does not describe a model: .*surprise"),
        ({"head": "none"}, "does not describe a model: unknown head 'none'"),
        ({"num_classes": 5}, "classes must be a list with num_classes entries"),
        ({"num_classes": 10**15}, "classes must be a list with num_classes entries"),
        ({"in_channels": 10**15}, "mean must be a list with in_channels entries"),
        ({"capsule_dim": 10**9}, "does not describe a model"),
        ({"backbone": "resnet8000000"}, "does not describe a model: unknown backbone"),
        ({"image_size": 10**15, "backbone": "pixels"}, r"pixels|does not describe|does not match"),
    ],
)
def test_another_shape_is_refused_before_memory_is_taken(tmp_path, values, match):
    saved(tmp_path)
    changed(tmp_path, **values)
    refused(tmp_path, ValueError, match)


def test_a_shape_that_no_memory_could_hold_is_refused(tmp_path):
    saved(tmp_path)
    header = {"head.weight": {"dtype": "F32", "shape": [2**40, 2**20], "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    refused(tmp_path, ValueError, "is damaged|does not match")


def test_a_card_that_someone_wrote_stays(tmp_path):
    saved(tmp_path)
    first = (tmp_path / "README.md").read_text()
    (tmp_path / "README.md").write_text(first + "\nWritten by hand.\n")
    again = CapProNet.from_pretrained(tmp_path)
    again.save_pretrained(tmp_path)
    again.save_pretrained(tmp_path / "copy")
    for folder in (tmp_path, tmp_path / "copy"):
        assert (folder / "README.md").read_text() == first + "\nWritten by hand.\n"


def cached(cache, name, folder):
    """A download as the hub's library keeps it."""
    download = cache / f"models--{name.replace('/', '--')}"
    commit = hashlib.sha1(name.encode()).hexdigest()
    (download / "refs").mkdir(parents=True)
    (download / "refs" / "main").write_text(commit)
    (download / "snapshots").mkdir()
    folder.rename(download / "snapshots" / commit)


def test_a_name_on_the_hub_is_loaded_from_its_cache(tmp_path, monkeypatch):
    pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    model, x = saved(tmp_path / "model"), torch.randn(1, 3, 32, 32)
    cached(tmp_path / "cache", "someone/a-model", tmp_path / "model")
    options = {"cache_dir": tmp_path / "cache", "local_files_only": True}
    assert torch.equal(CapProNet.from_pretrained("someone/a-model", **options)(x), model(x))
    with pytest.raises(OSError, match=r"no folder someone/other.*hub") as error:
        CapProNet.from_pretrained("someone/other", **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["runs/typo", "./someone/a-model", "nothing", Path("someone/a-model")])
def test_what_looks_like_a_folder_does_not_go_to_the_hub(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FileNotFoundError, match=r"there is no folder"):
        CapProNet.from_pretrained(name)


def test_push_to_hub_sends_the_whole_model(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    sent = {}

    class Api:
        def __init__(self, token):
            sent["token"] = token

        def create_repo(self, name, private, exist_ok):
            sent.update(private=private, exist_ok=exist_ok)
            return hub.RepoUrl(f"https://huggingface.co/{name}")

        def upload_folder(self, repo_id, folder_path, commit_message):
            folder_path.rename(tmp_path / "sent")
            folder_path.mkdir()
            return f"{repo_id}: {commit_message}"

    monkeypatch.setattr(hub, "HfApi", Api)
    model = CapProNet("resnet8", 3, 2).eval()
    assert model.push_to_hub("someone/a-model", private=True, token="t", message="first") == "someone/a-model: first"
    assert sent == {"token": "t", "private": True, "exist_ok": True}
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(CapProNet.from_pretrained(tmp_path / "sent")(x), model(x))
    assert (tmp_path / "sent" / "README.md").is_file()


def test_a_refused_upload_is_one_line(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def create_repo(*_, **__):
        raise OSError("no network\nand much more")

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    with pytest.raises(OSError, match=r"someone/a-model.*no network; .*hf auth login$"):
        CapProNet("pixels", 3, 2, image_size=4).push_to_hub("someone/a-model")


def test_the_card_is_filled_from_the_run(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    from cappronet.training.loop import Hardware, train
    from cappronet.training.recipe import Recipe
    from cappronet.training.run_folder import Run

    summary = train(Recipe(backbone="pixels", epochs=1), Run.new(tmp_path / "run"), Hardware(accelerator="cpu"))
    text = (tmp_path / "run" / "README.md").read_text()
    (result,) = hub.ModelCard(text).data.eval_results
    assert result.dataset_name == "digits"
    assert result.metric_value == pytest.approx(100 - summary["error"], abs=1e-4)
    assert f"| error % | {summary['error']:.2f} |" in text
    assert 'backbone = "pixels"' in text
    assert str(tmp_path) not in text
    model = CapProNet.from_pretrained(tmp_path / "run")
    model.save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "README.md").read_text() == text


def test_names_of_classes_and_data_can_not_break_the_card(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    names = ["a | b", 'quote"', "two\nlines", "---"]
    model = saved(tmp_path, classes=names)
    summary = {"data": "x\n---\nlicense: evil", "head": "h: [", "error": 1.0}
    card = hub.ModelCard(model_card(model.config, summary))
    assert card.data.license is None
    assert card.data.eval_results[0].dataset_name == summary["data"]
    assert '| classes | 4: `a \N{BROKEN BAR} b`, quote", two lines, --- |' in card.text


def test_the_card_takes_settings_of_any_kind(tmp_path):
    """A probe fits its head with settings that are no training recipe."""
    model = saved(tmp_path)
    settings = {"head": "capsule", "ridge": 0.01, "labels": None, "cross_validation": {"folds": 5}}
    card = model_card(
        model.config, None, {"versions": {"torch": "2"}, "commit": None}, settings, heading="How it was fitted"
    )
    toml = card.split("## How it was fitted\n\n```toml")[1].split("```")[0]
    assert tomllib.loads(toml) == {"head": "capsule", "ridge": 0.01, "cross_validation": {"folds": 5}}
    assert "With torch 2." in card
