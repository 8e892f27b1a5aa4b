"""Fine-tuning through the training loop: pretrained weights, frozen parts, layer-wise rates, augmentation, balance."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

from cappronet.data.batches import Augmentation, Batches
from cappronet.data.samples import Dataset, FileCrop, Images
from cappronet.models.network import CapProNet
from cappronet.training import loop
from cappronet.training.builders import build_model, build_optimizer, evaluation_batches, load_data, training_batches
from cappronet.training.loop import Hardware, Interrupted, train
from cappronet.training.objective import Objective, class_weights
from cappronet.training.recipe import Recipe
from cappronet.training.run_folder import Run

timm = pytest.importorskip("timm")
pytest.importorskip("torchvision")
CPU = Hardware(accelerator="cpu")
NAME = "test_efficientnet"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "effnet.pth"
    torch.manual_seed(3)
    torch.save(timm.create_model(NAME, num_classes=11).state_dict(), path)
    return path


@pytest.fixture
def recipe(weights):
    changes = {"backbone": NAME, "pretrained": str(weights), "image_size": 32, "train_size": 60, "batch_size": 20}
    return Recipe(**changes, epochs=2, optimizer="adamw", lr=0.001, evaluate_every=2)


def test_the_images_are_prepared_as_for_the_pretrained_network(recipe):
    data = load_data(recipe)
    config = build_model(recipe.changed(image_size=0), data).config
    known = timm.get_pretrained_cfg(NAME)
    assert config["resize"] == known.input_size[-1]
    assert config["interpolation"] == known.interpolation
    assert config["mean"] == [pytest.approx(sum(known.mean) / 3)]
    given = recipe.changed(image_size=24, interpolation="bilinear", mean=(0.1,), std=(0.2,))
    config = build_model(given, data).config
    assert (config["resize"], config["mean"], config["std"]) == (24, [0.1], [0.2])
    assert "interpolation" not in config
    x, _ = next(evaluation_batches(given, data).epoch(0))
    pixels = data.test.pixels[:1].float() / 255
    torch.testing.assert_close(x[:1], (pixels - 0.1) / 0.2)


def test_only_the_head_of_a_frozen_network_trains_and_the_run_resumes(recipe, weights, tmp_path, monkeypatch):
    recipe = recipe.changed(freeze=True, dropout=0.2)
    summary = train(recipe, Run(tmp_path / "whole"), CPU)
    step = loop.Trainer.train_step

    def interrupted(self, x, y):
        step(self, x, y)
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "train_step", interrupted)
        with pytest.raises(Interrupted):
            train(recipe, Run(tmp_path / "parts"), CPU)
    assert train(recipe, Run(tmp_path / "parts"), CPU)["error"] == summary["error"]
    whole, parts = (CapProNet.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(whole[key].equal(parts[key]) for key in whole)
    state = torch.load(weights, weights_only=True)
    own = {key.removeprefix("backbone."): tensor for key, tensor in whole.items() if key.startswith("backbone.")}
    assert all(own[key].equal(state[key]) for key in own if key != "conv_stem.weight")
    origin = json.loads((tmp_path / "whole" / "environment.json").read_text())["pretrained"]
    assert origin["from"] == "effnet.pth"
    assert "effnet.pth" in (tmp_path / "whole" / "README.md").read_text()
    assert str(weights.parent) not in (tmp_path / "whole" / "README.md").read_text()


AUGMENTED = {
    "crop and colours": {"resized_crop": 0.4, "color_jitter": 0.3, "flip": True},
    "randaugment": {"randaugment": 9, "padding": 1},
    "mixup and cutmix": {"mixup": 0.4, "cutmix": 1.0, "label_smoothing": 0.1},
    "sampler": {"balance": "sampler", "resized_crop": 0.5},
    "weights": {"balance": "weights"},
}


@pytest.mark.parametrize("name", AUGMENTED)
def test_augmented_runs_resume_to_the_same_weights(name, tmp_path, monkeypatch):
    recipe = Recipe(train_size=90, batch_size=30, epochs=2, evaluate_every=2).changed(**AUGMENTED[name])
    train(recipe, Run(tmp_path / "whole"), CPU)
    step = loop.Trainer.train_step

    def interrupted(self, x, y):
        step(self, x, y)
        if self.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "train_step", interrupted)
        with pytest.raises(Interrupted):
            train(recipe, Run(tmp_path / "parts"), CPU)
    train(recipe, Run(tmp_path / "parts"), CPU)
    whole, parts = (CapProNet.from_pretrained(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert all(whole[key].equal(parts[key]) for key in whole)


def test_layers_near_the_input_have_smaller_rates(recipe):
    model = build_model(recipe, load_data(recipe))
    optimizer = build_optimizer(recipe.changed(layer_decay=0.5, head_lr=10.0), model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    multiple = {names[id(p)]: group["multiple"] for group in optimizer.param_groups for p in group["params"]}
    assert multiple["head.weight"] == 10
    assert multiple["backbone.conv_stem.weight"] == min(multiple.values())
    assert multiple["backbone.conv_head.weight"] == 0.5
    assert multiple.keys() == dict(model.named_parameters()).keys()


def unbalanced():
    torch.manual_seed(0)
    labels = torch.tensor([0] * 30 + [1] * 8 + [2] * 2)
    images = Images(labels, torch.randint(0, 256, (40, 3, 10, 12), dtype=torch.uint8))
    return Dataset("made", ("a", "b", "c"), images, images)


def test_a_balanced_sampler_draws_every_class_as_often():
    data = unbalanced()
    batches = Batches(data.train, 5, balanced=True, augmentation=Augmentation(resized_crop=0.5))
    for epoch in range(2):
        parts = list(batches.epoch(epoch))
        counts = torch.bincount(torch.cat([y for _, y in parts]))
        assert counts.sum() == 40
        assert counts.max() - counts.min() <= 1
    x = torch.cat([x for x, y in parts])[torch.cat([y for _, y in parts]) == 2]
    assert len(x.flatten(1).unique(dim=0)) > 6  # of two images, drawn with other crops


def test_class_weights_are_one_on_average():
    data = unbalanced()
    weights = class_weights(data.train.labels, 3)
    assert weights[data.train.labels].mean().item() == pytest.approx(1)
    assert weights[2] / weights[0] == pytest.approx(15)
    assert class_weights(torch.tensor([0, 0]), 2).tolist() == [0.5, 0.0]
    plain, weighted = (Objective(Recipe(balance=balance), data) for balance in ("none", "weights"))
    scores = torch.randn(40, 3)
    pairs = zip(scores.split(1), data.train.labels.split(1), strict=True)
    by_hand = torch.stack([plain(torch.clone, row, label) for row, label in pairs])
    loss = weighted(lambda _: scores, None, data.train.labels)
    torch.testing.assert_close(loss, (by_hand * weights[data.train.labels]).mean())


def test_random_crops_of_images_in_memory_have_the_size_of_the_network():
    data = unbalanced()
    recipe = Recipe(backbone="resnet8", image_size=24, resized_crop=0.3, batch_size=8)
    x, _ = next(training_batches(recipe, data).epoch(0))
    assert x.shape[1:] == (3, 24, 24)
    alone = torch.cat([x for x, _ in training_batches(recipe, data, rank=1, world_size=2).epoch(1)])
    both = [x[4:] for x, _ in training_batches(recipe, data).epoch(1)]
    assert alone.equal(torch.cat(both))


def test_mixing_feature_vectors_is_refused():
    from cappronet.data.samples import Vectors

    vectors = Vectors(torch.tensor([0, 1]), torch.randn(2, 4))
    with pytest.raises(ValueError, match="feature vectors"):
        Objective(Recipe(mixup=0.2), Dataset("made", ("a", "b"), vectors, vectors))


def test_files_are_cropped_to_the_size_of_the_network(recipe, tmp_path):
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(6):
            image = Image.fromarray(rng.integers(0, 255, (40 + i, 50, 3), dtype=np.uint8))
            image.save(tmp_path / "data" / name / f"{i}.png")
    recipe = recipe.changed(data=str(tmp_path / "data"), train_size=0, batch_size=5, epochs=1, resized_crop=0.5)
    data = load_data(recipe)
    assert data.input_shape == (3, 32, 32)
    assert data.train.crop == FileCrop(32, 0.95, "bicubic")
    summary = train(recipe, Run(tmp_path / "run"), CPU)
    model = CapProNet.from_pretrained(tmp_path / "run")
    assert model.input_shape == (3, 32, 32)
    fresh = recipe.selection.load().test  # as `cappronet evaluate` reads it
    x = torch.cat([x for x, _ in Batches(model.as_read(fresh), 5, shuffle=False).epoch(0)])
    wrong = model(model.normalize(x)).argmax(-1) != fresh.labels
    assert 100 * wrong.float().mean().item() == pytest.approx(summary["error"])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"freeze": True}, "pretrained"),
        ({"layer_decay": 0.0}, "layer_decay"),
        ({"resized_crop": 1.5}, "resized_crop"),
        ({"mean": (0.5,)}, "mean and std"),
        ({"mean": ("a",), "std": (1.0,)}, "list of numbers"),
        ({"balance": "sampel"}, "did you mean 'sampler'"),
        ({"mixup": -1.0}, "mixup"),
    ],
)
def test_wrong_keys_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**values)


def test_new_keys_leave_the_names_of_runs_as_they_were():
    from cappronet.cli.shared import folder_name

    assert folder_name(Recipe()) == "digits-resnet8-capsule4-seed0"
    named = folder_name(Recipe(backbone=NAME, pretrained="/a/folder/lite0.pth", freeze=True))
    assert named == f"digits-{NAME}-capsule4-seed0-pretrained-lite0-freeze"
