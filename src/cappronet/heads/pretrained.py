"""`load_pretrained`: models of `transformers` with capsule heads, as `save_pretrained` has written them."""

from importlib import import_module
from os import PathLike
from typing import Any

from torch import nn

from cappronet.heads.replace import CONFIGURATION_KEY, replace_head

__all__ = ["load_pretrained"]


def load_pretrained(name_or_path: str | PathLike[str], **options: Any) -> Any:
    """Load a `transformers` model with a capsule head, from what `model.save_pretrained` has written.

    The library's own `from_pretrained` builds the model with a linear classifier, whose size does not match. This
    function replaces the classifier as the configuration says, between building the model and loading its weights.

    Args:
        name_or_path: a folder, or the name of a model on the hub.
        options: for `from_pretrained`, such as `dtype`, `device_map` or `revision`.

    Returns:
        The model, of the class that was saved, in eval mode.

    Raises:
        ValueError: the configuration does not name a capsule head or a class of `transformers`, or the weights of the
            head are missing.
    """
    transformers = import_module("transformers")
    config, _ = transformers.PreTrainedConfig.get_config_dict(name_or_path, **options)
    heads = config.get(CONFIGURATION_KEY)
    if not (isinstance(heads, list) and heads and all(isinstance(head, dict) and "name" in head for head in heads)):
        raise ValueError(
            f"the configuration of {name_or_path} lists no {CONFIGURATION_KEY}, as it does after replace_head and "
            "save_pretrained: load a model with its own classifier by its from_pretrained, then call replace_head"
        )
    architecture = (config.get("architectures") or ["none"])[0]
    model_class = getattr(transformers, architecture, None)
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        raise ValueError(
            f"the configuration of {name_or_path} names the architecture {architecture!r}, which is no model of "
            "transformers: build it yourself, call replace_head and load_state_dict"
        )
    with_heads = _with_heads(model_class, heads)
    model, report = with_heads.from_pretrained(name_or_path, output_loading_info=True, **options)
    missing = [key for key in report["missing_keys"] if any(key.startswith(f"{head['name']}.") for head in heads)]
    if missing:
        raise ValueError(f"{name_or_path} lacks the weights {', '.join(sorted(missing))} of its capsule head")
    model.__class__ = model_class
    return model


def _with_heads(model_class: Any, heads: list[dict[str, Any]]) -> Any:
    """A subclass whose models have capsule heads as soon as they are built, before `from_pretrained` loads weights."""

    def build(self: nn.Module, *arguments: Any, **options: Any) -> None:
        model_class.__init__(self, *arguments, **options)
        for head in heads:
            replace_head(self, **head)

    # With its name, because configurations and error messages have it.
    return type(model_class.__name__, (model_class,), {"__init__": build, "__module__": model_class.__module__})
