"""How deep in a backbone each parameter is, for learning rates that fall towards the input."""

from typing import Any

from torch import nn

from cappronet.extras import require

__all__ = ["layer_numbers"]


def layer_numbers(backbone: nn.Module) -> dict[str, int]:
    """The number of the layer of each parameter, by name, from 0 at the input.

    For timm's networks these are timm's own groups: stem, blocks, what comes after. For ours they are the parts that
    the network lists, such as `stem` and `stage1`.
    """
    matcher: Any = getattr(backbone, "group_matcher", None)
    if matcher is not None:
        group = require("timm.models", "vision").group_parameters
        numbers = group(backbone, matcher(coarse=False), reverse=True)
        return {str(name): int(number) for name, number in numbers.items()}
    parts = {name: number for number, (name, _) in enumerate(backbone.named_children())}
    return {name: parts.get(name.partition(".")[0], 0) for name, _ in backbone.named_parameters()}
