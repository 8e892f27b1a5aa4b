"""From a recipe to what training needs: each option does what its help says."""

import pytest
import torch
import torch.nn.functional as F

from cappronet.data.samples import Dataset
from cappronet.data.splits import take
from cappronet.training.builders import build_model, build_optimizer, learning_rate, load_data, training_batches
from cappronet.training.recipe import Recipe


def test_classes_are_kept_and_numbered_anew():
    whole, part = load_data(Recipe()), load_data(Recipe(classes=(7, 2)))
    assert part.classes == ("7", "2")
    for all_images, kept in ((whole.train, part.train), (whole.test, part.test)):
        for new, old in enumerate((7, 2)):
            assert torch.equal(kept.pixels[kept.labels == new], all_images.pixels[all_images.labels == old])
        assert len(kept) == sum((all_images.labels == old).sum() for old in (7, 2))


@pytest.mark.parametrize("classes", [(1, 1), (3, 10), (-1, 2)])
def test_wrong_classes_are_refused(classes):
    with pytest.raises(ValueError, match="classes must be different numbers from 0 to 9, got"):
        load_data(Recipe(classes=classes))


def test_bases_start_as_asked():
    data = load_data(Recipe())
    uniform = build_model(Recipe(backbone="pixels"), data).head.weight
    orthonormal = build_model(Recipe(backbone="pixels", head_start="orthonormal"), data).head.weight
    torch.testing.assert_close(orthonormal @ orthonormal.mT, torch.eye(4).expand(10, 4, 4), atol=1e-5, rtol=0)
    both = torch.cat([uniform, orthonormal], dim=1)
    assert torch.linalg.matrix_rank(both, rtol=1e-4).tolist() == [4] * 10  # of the same subspaces


def test_bases_from_features_classify_before_any_training():
    data = load_data(Recipe())
    errors = {}
    for start in ("uniform", "features"):
        model = build_model(Recipe(backbone="pixels", head_start=start), data)
        x = (data.test.pixels.float() / 255 - torch.tensor(model.config["mean"]).view(-1, 1, 1)) / torch.tensor(
            model.config["std"]
        ).view(-1, 1, 1)
        errors[start] = (model(x).argmax(-1) != data.test.labels).float().mean().item()
    assert errors["features"] < 0.2 < 0.6 < errors["uniform"]


def test_a_learned_scale_starts_where_asked():
    data = load_data(Recipe())
    assert build_model(Recipe(scale="learned", scale_start=5.0), data).head.scale.item() == 5
    assert build_model(Recipe(scale="learned"), data).head.scale.item() == 1
    assert build_model(Recipe(scale="learned", normalize=True), data).head.scale.item() == 16


def test_the_head_has_its_own_multiple_of_the_learning_rate():
    model = build_model(Recipe(head_lr=3.0), load_data(Recipe()))
    groups = build_optimizer(Recipe(head_lr=3.0), model).param_groups
    multiples = {id(p): group["multiple"] for group in groups for p in group["params"]}
    assert {multiples[id(p)] for p in model.head.parameters()} == {3.0}
    assert {multiples[id(p)] for p in model.backbone.parameters()} == {1.0}


def test_biases_of_the_backbone_have_their_own_multiple_of_the_learning_rate():
    recipe = Recipe(head="linear", head_lr=3.0, bias_lr=64.0, decay_norms=False, weight_decay=0.1)
    model = build_model(recipe, load_data(recipe))
    groups = build_optimizer(recipe, model).param_groups
    given = {id(p): (group["multiple"], group["weight_decay"]) for group in groups for p in group["params"]}
    settings = {name: given[id(p)] for name, p in model.named_parameters()}
    biases = {name for name in settings if name.startswith("backbone.") and name.endswith(".bias")}
    assert len(biases) == 7
    assert {settings[name] for name in biases} == {(64.0, 0.0)}
    assert settings["backbone.stem.1.weight"] == (1.0, 0.0)
    assert settings["backbone.stem.0.weight"] == (1.0, 0.1)
    assert (settings["head.weight"], settings["head.bias"]) == ((3.0, 0.1), (3.0, 0.0))


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_grassmann_step_is_for_the_bases_alone(optimizer):
    recipe = Recipe(optimizer=optimizer, head_optimizer="grassmann", head_lr=3.0, scale="learned", momentum=0.8)
    model = build_model(recipe, load_data(recipe))
    combined = build_optimizer(recipe, model)
    rest, subspaces = combined.optimizers
    assert [group["params"] for group in subspaces.param_groups] == [[model.head.weight]]
    settings = {"lr": 0.1, "momentum": 0.8, "nesterov": True, "multiple": 3.0}
    assert subspaces.param_groups[0].items() >= settings.items()
    others = {id(p) for group in rest.param_groups for p in group["params"]}
    assert others == {id(p) for p in model.parameters()} - {id(model.head.weight)}
    assert model.head.solver == "orthonormal"


def test_other_heads_have_no_grassmann_step():
    recipe = Recipe(head="linear", head_optimizer="grassmann")
    optimizer = build_optimizer(recipe, build_model(recipe, load_data(recipe)))
    assert type(optimizer) is torch.optim.SGD
    assert recipe.head_label == "linear"


@pytest.mark.parametrize("start", ["uniform", "orthonormal", "features"])
def test_bases_for_grassmann_steps_start_orthonormal(start):
    recipe = Recipe(backbone="pixels", head_start=start, head_optimizer="grassmann")
    basis = build_model(recipe, load_data(recipe)).head.weight
    assert (basis @ basis.mT - torch.eye(4)).abs().max() < 1e-5


def test_a_warm_up_rises_or_stays():
    rising = Recipe(epochs=10, warmup=2.0, schedule="multistep", milestones=(5,), lr=1.0)
    staying = rising.changed(warmup_lr=0.1)
    assert [learning_rate(rising, step, 10) for step in (0, 1, 2, 5)] == pytest.approx([0.5, 1.0, 1.0, 0.1])
    assert [learning_rate(staying, step, 10) for step in (0, 1, 2, 5)] == pytest.approx([0.1, 0.1, 1.0, 0.1])


def test_dropout_inside_the_backbone():
    data = load_data(Recipe())
    model = build_model(Recipe(backbone="densenet_bc_100_12", backbone_dropout=0.2), data)
    assert {m.p for m in model.backbone.modules() if isinstance(m, torch.nn.Dropout)} == {0.2}
    with pytest.raises(ValueError, match="resnet8 does not take dropout"):
        build_model(Recipe(backbone_dropout=0.2), data)


def test_images_that_a_backbone_can_not_take_are_refused_in_one_line():
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 can't take images of 1 x 8 x 8") as error:
        build_model(Recipe(backbone="vit_tiny_patch16_224"), load_data(Recipe()))
    assert "\n" not in str(error.value)
    assert build_model(Recipe(), load_data(Recipe())).training


@pytest.mark.parametrize("normalize", [False, True])
def test_a_start_from_features_keeps_the_most_of_what_the_head_projects(normalize):
    """In eval mode, and of unit features where the head takes unit features; batch statistics stay untouched."""
    recipe = Recipe(head_start="features", capsule_dim=2, normalize=normalize, scale="learned")
    data = load_data(recipe)
    model = build_model(recipe, data)
    assert model.training
    for name, buffer in model.backbone.named_buffers():
        if name.endswith("running_mean"):
            assert not buffer.any(), name
        if name.endswith("num_batches_tracked"):
            assert buffer == 0, name
    images = take(data.train, 500, recipe.seed)
    batches = training_batches(recipe, Dataset(data.name, data.classes, images, data.test))
    model.eval()
    with torch.no_grad():
        x, y = map(torch.cat, zip(*((model.features(x), y) for x, y in batches.epoch(0)), strict=True))
    x = F.normalize(x) if normalize else x
    for label in range(10):
        own = x[y == label].double()
        contained = own @ model.head.weight[label].double().mT
        most = torch.linalg.svdvals(own)[:2].square().sum()
        torch.testing.assert_close(contained.square().sum(), most, rtol=1e-4, atol=0)
