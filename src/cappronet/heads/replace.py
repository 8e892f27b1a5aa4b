"""`replace_head`: the last linear layer of a model becomes a capsule projection."""

import gc
import warnings
from typing import Any

from torch import nn
from torch.optim import Optimizer

from cappronet.heads.capsule import CapsuleProjection

__all__ = ["CONFIGURATION_KEY", "replace_head"]

# Where the configuration of a `transformers` model lists its capsule heads: a model can have more than one classifier.
CONFIGURATION_KEY = "capsule_heads"


def replace_head(
    model: nn.Module,
    capsule_dim: int = 8,
    *,
    num_classes: int | None = None,
    name: str | None = None,
    **options: Any,
) -> nn.Module:
    """Swap the classifier of a timm, torchvision, transformers or own model for a new `CapsuleProjection`, in place.

    The head takes over device, dtype, train or eval mode and, unless given, the number of classes. Its weights are new:
    to start from the linear layer's, use `CapsuleProjection.from_linear`.

    Create the optimizer afterwards: one that holds the old classifier does not train the new head, and causes a
    warning. The configuration of a `transformers` model records the head, so that `cappronet.heads.load_pretrained`
    can load what `save_pretrained` has written.

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
        ValueError: there is no linear classifier, or more than one, or it is a convolution; or a `transformers` model
            is configured for regression or for several labels at once, which lengths cannot express.

    Example:
        >>> model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
        >>> replace_head(model, capsule_dim=4)[2]
        CapsuleProjection(64, 10, capsule_dim=4)
    """
    linear = _named(model, name) if name is not None else _classifier(model)
    if linear is model:
        raise ValueError("the model is itself a linear layer: make a head from it with CapsuleProjection.from_linear")
    _check_task(model, linear)
    weight = linear.weight
    head = CapsuleProjection(
        linear.in_features,
        num_classes or linear.out_features,
        capsule_dim,
        device=weight.device,
        dtype=weight.dtype,
        **options,
    ).train(linear.training)
    paths = [path for path, module in model.named_modules(remove_duplicate=False) if module is linear]
    for path in paths:
        parent, _, attribute = path.rpartition(".")
        setattr(model.get_submodule(parent), attribute, head)
    arguments = {"name": paths[0], "num_classes": head.num_classes, "capsule_dim": capsule_dim, **options}
    _record_head(model, linear, arguments)
    _warn_of_optimizers(linear)
    return model


def _warn_of_optimizers(linear: nn.Linear) -> None:
    """An optimizer that holds the classifier that was replaced would train what nothing uses."""
    for optimizer in _optimizers_of(linear):
        warnings.warn(
            f"an optimizer ({type(optimizer).__name__}) holds the classifier that was replaced, and will not train the "
            "new head: create the optimizer after replace_head",
            stacklevel=3,
        )


def _classifier(model: nn.Module) -> nn.Linear:
    kind = type(model).__name__
    get_classifier = getattr(model, "get_classifier", None)
    if get_classifier is not None:
        return _checked(get_classifier(), kind)
    leaves = [m for m in model.modules() if next(m.children(), None) is None and next(m.parameters(), None) is not None]
    linear = _checked(leaves[-1] if leaves else None, kind)
    _check_width(model, linear)
    candidates = _candidates(model, linear)
    if candidates:
        raise ValueError(
            f"{kind} has several linear layers that may be its classifier: {', '.join(candidates)}; choose with name="
        )
    return linear


def _named(model: nn.Module, name: str) -> nn.Linear:
    modules = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        linear = [path for path, module in modules.items() if isinstance(module, nn.Linear)]
        raise ValueError(f"{type(model).__name__} has no layer {name!r}; its linear layers are {', '.join(linear)}")
    return _checked(modules[name], type(model).__name__)


def _checked(layer: Any, kind: str) -> nn.Linear:
    """The layer, if it is a linear classifier that can be replaced; otherwise an error that says what it is."""
    if isinstance(layer, nn.Linear):
        return layer
    if isinstance(layer, tuple | list):
        raise ValueError(f"{kind} has {len(layer)} classifiers; say which to replace with name=")
    if isinstance(layer, nn.modules.conv._ConvNd):
        raise ValueError(
            f"the classifier of {kind} is a convolution, {layer}: a capsule projection needs one feature vector for "
            f"each image; pool first, and use nn.Linear instead"
        )
    if isinstance(layer, CapsuleProjection):
        raise ValueError(f"the classifier of {kind} already is a capsule projection, {layer}")
    what = "no layer with parameters" if layer is None else f"{type(layer).__name__} instead"
    raise ValueError(f"{kind} has no linear classifier to replace, but {what}")


def _candidates(model: nn.Module, linear: nn.Linear) -> list[str]:
    """Names of all layers that look like classifiers, if there are others than `linear`.

    A candidate is next to it, or as wide, and its output fits no later linear layer: an auxiliary classifier, a second
    task. Hidden layers of a perceptron and the projections of an attention block are not candidates.
    """
    inside = _inside_base_model(model, linear)
    layers = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.Linear) and m not in inside]
    parent = next(path for path, module in layers if module is linear).rpartition(".")[0]
    candidates = [
        path
        for i, (path, module) in enumerate(layers)
        if module is not linear
        and (path.rpartition(".")[0] == parent or module.out_features == linear.out_features)
        and all(module.out_features != later.in_features for _, later in layers[i + 1 :])
    ]
    return [*candidates, next(path for path, module in layers if module is linear)] if candidates else []


def _optimizers_of(layer: nn.Module) -> list[Optimizer]:
    """Those among all optimizers of the process that hold a parameter of the layer."""
    parameters = set(layer.parameters())
    # `type`, because `isinstance` would ask objects that compute their `__class__`, as lazy modules and proxies do.
    optimizers: list[Any] = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
    return [
        optimizer
        for optimizer in optimizers
        if any(parameters.intersection(group["params"]) for group in getattr(optimizer, "param_groups", ()))
    ]


def _configuration(model: nn.Module) -> Any:
    """The configuration of a `transformers` model, None for any other; the library itself need not be installed."""
    config = getattr(model, "config", None)
    return config if hasattr(model, "save_pretrained") and hasattr(config, "num_labels") else None


def _inside_base_model(model: nn.Module, linear: nn.Linear) -> set[nn.Module]:
    """What is below the classifier of a `transformers` model, as far as the model says."""
    base = getattr(model, "base_model", None) if _configuration(model) is not None else None
    inside = set(base.modules()) if isinstance(base, nn.Module) else set()
    return inside if linear not in inside else set()


def _check_width(model: nn.Module, linear: nn.Linear) -> None:
    """Refuse a `transformers` model whose last layer is no classifier, such as a pooler or a language model's head."""
    config = _configuration(model)
    if config is not None and linear.out_features != config.num_labels:
        raise ValueError(
            f"{type(model).__name__} has no classifier for its {config.num_labels} labels; its last layer is {linear}: "
            "use the model's ...ForSequenceClassification or ...ForImageClassification, or choose a layer with name="
        )


def _check_task(model: nn.Module, linear: nn.Linear) -> None:
    """Refuse a `transformers` model that would compute a loss for which lengths, never negative, are no scores."""
    config = _configuration(model)
    if config is None or linear.out_features != config.num_labels:
        return
    task = getattr(config, "problem_type", None)
    if config.num_labels == 1 or task in ("regression", "multi_label_classification"):
        raise ValueError(
            f"{type(model).__name__} is configured for {task or 'regression'}, num_labels={config.num_labels}, but the "
            "scores of a capsule projection are never negative: it needs two or more classes, of which one is right"
        )


def _record_head(model: nn.Module, linear: nn.Linear, head: dict[str, Any]) -> None:
    """Write the arguments that replaced `linear` into the configuration of a `transformers` model."""
    config = _configuration(model)
    if config is None:
        return
    others = [other for other in getattr(config, CONFIGURATION_KEY, []) if other["name"] != head["name"]]
    setattr(config, CONFIGURATION_KEY, [*others, head])
    if linear.out_features == config.num_labels != head["num_classes"]:
        config.num_labels = head["num_classes"]
        model.num_labels = head["num_classes"]  # the number by which the model computes its loss
