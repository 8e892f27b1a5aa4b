"""`replace_head`: the last linear layer of a model becomes a capsule projection."""

from typing import Any

from torch import nn

from cappronet.heads import CapsuleProjection

__all__ = ["replace_head"]


def replace_head(
    model: nn.Module,
    capsule_dim: int = 8,
    *,
    num_classes: int | None = None,
    name: str | None = None,
    **options: Any,
) -> nn.Module:
    """Swap the classifier of a timm, torchvision or own model for a new `CapsuleProjection`, in place.

    The head takes over device, dtype, train or eval mode and, unless given, the number of classes. Its weights are new:
    to start from the linear layer's, use `CapsuleProjection.from_linear`.

    Args:
        model: any module with one linear classifier.
        capsule_dim: c, the dimension of each class's subspace.
        num_classes: L; by default as many as the model has.
        name: which layer to replace, as in `model.named_modules()`. By default the one `model.get_classifier()` names
            (timm), else the last layer with parameters, if it is linear and no other linear layer looks like a second
            classifier.
        options: for `CapsuleProjection`: `normalize`, `scale`, `solver`, `eps`.

    Returns:
        The same model.

    Raises:
        ValueError: there is no linear classifier, or more than one, or it is a convolution.

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> replace_head(model, capsule_dim=4)[2]
        CapsuleProjection(64, 10, capsule_dim=4)
    """
    linear = _named(model, name) if name is not None else _classifier(model)
    if linear is model:
        raise ValueError("the model is itself a linear layer: make a head from it with CapsuleProjection.from_linear")
    weight = linear.weight
    head = CapsuleProjection(
        linear.in_features,
        num_classes or linear.out_features,
        capsule_dim,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    ).train(linear.training)
    for path, module in list(model.named_modules(remove_duplicate=False)):
        if module is linear:
            parent, _, attribute = path.rpartition(".")
            setattr(model.get_submodule(parent), attribute, head)
    return model


def _classifier(model: nn.Module) -> nn.Linear:
    kind = type(model).__name__
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is not None:
        return _checked(get_classifier(), kind)
    leaves = [m for m in model.modules() if next(m.children(), None) is None and next(m.parameters(), None) is not None]
    linear = _checked(leaves[-1] if leaves else None, kind)
    rivals = _rivals(model, linear)
    if rivals:
        raise ValueError(
            f"{kind} has several linear layers that may be its classifier: {', '.join(rivals)}; say which with name="
        )
    return linear


def _named(model: nn.Module, name: str) -> nn.Linear:
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
        raise ValueError(f"{type(model).__name__} has no layer {name!r}; its linear layers are {', '.join(linear)}")
    return _checked(modules[name], type(model).__name__)


def _checked(layer: Any, kind: str) -> nn.Linear:
    """The layer, if it is a linear classifier that can be replaced; else an error that says what stands there."""
    if isinstance(layer, nn.Linear):
        return layer
    if isinstance(layer, tuple | list):
        raise ValueError(f"{kind} has {len(layer)} classifiers; say which to replace with name=")
    if isinstance(layer, nn.modules.conv._ConvNd):
        raise ValueError(
            f"the classifier of {kind} is a convolution, {layer}: a capsule projection needs one feature vector for "
            f"each image; pool first, then put nn.Linear in its place"
        )
    if isinstance(layer, CapsuleProjection):
        raise ValueError(f"the classifier of {kind} already is a capsule projection, {layer}")
    what = "no layer with parameters" if layer is None else f"{type(layer).__name__} in its place"
    raise ValueError(f"{kind} has no linear classifier to replace, but {what}")


def _rivals(model: nn.Module, linear: nn.Linear) -> list[str]:
    """Names of all that look like classifiers, if there is more than `linear`.

    A rival stands beside it, or is as wide, and its output fits no later linear layer: an auxiliary classifier, a
    second task. Hidden layers of a perceptron and the projections of an attention block are none.
    """
    layers = [(path, module) for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    place = next(path for path, module in layers if module is linear).rpartition(".")[0]
    rivals = [
        path
        for i, (path, module) in enumerate(layers)
        if module is not linear
        and (path.rpartition(".")[0] == place or module.out_features == linear.out_features)
        and all(module.out_features != later.in_features for _, later in layers[i + 1 :])
    ]
    return [*rivals, next(path for path, module in layers if module is linear)] if rivals else []
