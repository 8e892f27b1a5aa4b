"""`replace_head` on timm, torchvision and own models."""

import itertools

import pytest
import torch
from torch import nn

from cappronet import CapsuleProjection, replace_head


class Perceptron(nn.Module):
    def __init__(self, *widths, **heads):
        super().__init__()
        for i, (a, b) in enumerate(itertools.pairwise(widths)):
            self.add_module(f"layer{i}", nn.Linear(a, b))
        for name, (a, b) in heads.items():
            self.add_module(name, nn.Linear(a, b))

    def forward(self, x):
        for layer in self.children():
            x = layer(x.relu())
        return x


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("resnet18", "fc"),
        ("vit_tiny_patch16_224", "head"),
        ("convnext_atto", "head.fc"),
        ("mobilenetv3_small_050", "classifier"),
        ("swin_tiny_patch4_window7_224", "head.fc"),
    ],
)
def test_timm(name, place):
    timm = pytest.importorskip("timm")
    model = timm.create_model(name, num_classes=7).eval()
    width = model.get_classifier().in_features
    assert replace_head(model, capsule_dim=4) is model
    head = model.get_submodule(place)
    assert isinstance(head, CapsuleProjection)
    assert head.weight.shape == (7, 4, width)
    assert not head.training
    assert model(torch.randn(1, 3, 224, 224)).shape == (1, 7)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("resnet18", "fc"),
        ("vgg11", "classifier.6"),
        ("swin_t", "head"),
        ("vit_b_16", "heads.head"),
        ("densenet121", "classifier"),
    ],
)
def test_torchvision(name, place):
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        model = models.get_model(name)
    head = replace_head(model, num_classes=3).get_submodule(place)
    assert isinstance(head, CapsuleProjection)
    assert head.weight.is_meta
    assert (head.num_classes, head.capsule_dim) == (3, 8)


def test_a_replaced_model_trains():
    model = replace_head(Perceptron(6, 16, 16, 3), capsule_dim=2, normalize=True, scale="learned")
    x, y = torch.randn(30, 6), torch.arange(30) % 3
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append(nn.functional.cross_entropy(model(x), y))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < losses[0] / 2


def test_an_optimizer_that_holds_the_old_classifier_causes_a_warning(recwarn):
    model, other = Perceptron(6, 16, 3), Perceptron(6, 16, 3)
    optimizers = [torch.optim.AdamW(model.layer1.parameters()), torch.optim.SGD(model.layer0.parameters(), lr=0.1)]
    with pytest.warns(UserWarning, match=r"\(AdamW\) .* will not train the new head: create the optimizer after"):
        replace_head(model, capsule_dim=2)
    recwarn.clear()
    replace_head(other, capsule_dim=2)
    assert not recwarn.list
    assert len(optimizers) == 2


def test_device_dtype_and_mode_are_kept():
    model = Perceptron(6, 16, 3).to("meta", torch.float64)
    model.layer1.eval()
    head = replace_head(model, capsule_dim=2).layer1
    assert head.weight.is_meta
    assert head.weight.dtype == torch.float64
    assert not head.training
    assert model.training


def test_a_shared_classifier_is_replaced_everywhere():
    model = Perceptron(6, 16, 3)
    model.again = nn.Sequential(model.layer1)
    replace_head(model, capsule_dim=2)
    assert model.layer1 is model.again[0]
    assert isinstance(model.layer1, CapsuleProjection)


def test_a_named_layer_is_replaced():
    model = Perceptron(8, a=(8, 3), b=(8, 4))
    replace_head(model, capsule_dim=2, name="a")
    assert isinstance(model.a, CapsuleProjection)
    assert isinstance(model.b, nn.Linear)
    with pytest.raises(ValueError, match="no layer 'z'; its linear layers are b"):
        replace_head(model, name="z")


def aux():
    models = pytest.importorskip("torchvision.models")
    with torch.device("meta"):
        return models.googlenet(init_weights=False)


def distilled():
    return pytest.importorskip("timm").create_model("deit_tiny_distilled_patch16_224")


def convolutional():
    return nn.Sequential(nn.Linear(4, 4), nn.Conv2d(4, 10, 1), nn.ReLU())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.Sequential(nn.ReLU()),
            "Sequential has no linear classifier to replace, but no layer with parameters",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), "no linear classifier to replace, but LayerNorm"),
        (
            lambda: Perceptron(8, a=(8, 3), b=(8, 4)),
            "several linear layers.* a, b.*name=",
        ),
        (aux, r"several .*aux1\.fc2, aux2\.fc2, fc"),
        (distilled, "2 classifiers; say which"),
        (convolutional, r"is a convolution, Conv2d\(4, 10"),
        (lambda: nn.Linear(4, 2), "is itself a linear layer.*from_linear"),
        (lambda: replace_head(Perceptron(6, 8, 3), 2), r"already is a capsule projection, CapsuleProjection\(8, 3"),
        (lambda: Perceptron(6, 4, 3), "4 features has dimension 1 to 4, got capsule dimension 8"),
    ],
)
def test_what_cannot_be_replaced_is_refused_and_left_alone(make, message):
    model = make()
    before = list(model.modules())
    with pytest.raises(ValueError, match=message):
        replace_head(model)
    assert list(model.modules()) == before
