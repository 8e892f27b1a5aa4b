"""From a recipe to its ingredients: each option does what its help says."""

import pytest
import torch

from cappronet.ingredients import build_model, build_optimizer, learning_rate, prepare
from cappronet.recipe import Recipe


def test_classes_are_kept_and_numbered_anew():
    whole, part = prepare(Recipe()), prepare(Recipe(classes=(7, 2)))
    assert part.classes == ("7", "2")
    for all_images, kept in ((whole.train, part.train), (whole.test, part.test)):
        for new, old in enumerate((7, 2)):
            assert torch.equal(kept.pixels[kept.labels == new], all_images.pixels[all_images.labels == old])
        assert len(kept) == sum((all_images.labels == old).sum() for old in (7, 2))


@pytest.mark.parametrize("classes", [(1, 1), (3, 10), (-1, 2)])
def test_wrong_classes_are_refused(classes):
    with pytest.raises(ValueError, match="classes must be different numbers from 0 to 9, got"):
        prepare(Recipe(classes=classes))


def test_bases_start_as_asked():
    data = prepare(Recipe())
    uniform = build_model(Recipe(backbone="pixels"), data).head.weight
    orthonormal = build_model(Recipe(backbone="pixels", head_start="orthonormal"), data).head.weight
    torch.testing.assert_close(orthonormal @ orthonormal.mT, torch.eye(4).expand(10, 4, 4), atol=1e-5, rtol=0)
    both = torch.cat([uniform, orthonormal], dim=1)
    assert torch.linalg.matrix_rank(both, rtol=1e-4).tolist() == [4] * 10  # of the same subspaces


def test_bases_from_features_classify_before_any_training():
    data = prepare(Recipe())
    errors = {}
    for start in ("uniform", "features"):
        model = build_model(Recipe(backbone="pixels", head_start=start), data)
        x = (data.test.pixels.float() / 255 - torch.tensor(model.config["mean"]).view(-1, 1, 1)) / torch.tensor(
            model.config["std"]
        ).view(-1, 1, 1)
        errors[start] = (model(x).argmax(-1) != data.test.labels).float().mean().item()
    assert errors["features"] < 0.2 < 0.6 < errors["uniform"]


def test_a_learned_scale_starts_where_asked():
    data = prepare(Recipe())
    assert build_model(Recipe(scale="learned", scale_start=5.0), data).head.scale.item() == 5
    assert build_model(Recipe(scale="learned"), data).head.scale.item() == 1
    assert build_model(Recipe(scale="learned", normalize=True), data).head.scale.item() == 16


def test_the_head_has_its_own_multiple_of_the_learning_rate():
    model = build_model(Recipe(head_lr=3.0), prepare(Recipe()))
    groups = build_optimizer(Recipe(head_lr=3.0), model).param_groups
    multiples = {id(p): group["multiple"] for group in groups for p in group["params"]}
    assert {multiples[id(p)] for p in model.head.parameters()} == {3.0}
    assert {multiples[id(p)] for p in model.backbone.parameters()} == {1.0}


def test_a_warm_up_rises_or_stays():
    rising = Recipe(epochs=10, warmup=2.0, schedule="multistep", milestones=(5,), lr=1.0)
    staying = rising.changed(warmup_lr=0.1)
    assert [learning_rate(rising, step, 10) for step in (0, 1, 2, 5)] == pytest.approx([0.5, 1.0, 1.0, 0.1])
    assert [learning_rate(staying, step, 10) for step in (0, 1, 2, 5)] == pytest.approx([0.1, 0.1, 1.0, 0.1])


def test_dropout_inside_the_backbone():
    data = prepare(Recipe())
    model = build_model(Recipe(backbone="densenet_bc_100_12", backbone_dropout=0.2), data)
    assert {m.p for m in model.backbone.modules() if isinstance(m, torch.nn.Dropout)} == {0.2}
    with pytest.raises(ValueError, match="resnet8 does not take dropout"):
        build_model(Recipe(backbone_dropout=0.2), data)


def test_images_that_a_backbone_can_not_take_are_refused_in_one_line():
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="vit_tiny_patch16_224 can't take images of 1 x 8 x 8") as error:
        build_model(Recipe(backbone="vit_tiny_patch16_224"), prepare(Recipe()))
    assert "\n" not in str(error.value)
    assert build_model(Recipe(), prepare(Recipe())).training
