"""Capsule projection heads: a learned subspace for each class, scored by the length of the projection onto it.

After "CapProNet: Deep Feature Learning via Orthogonal Projections onto Capsule Subspaces" (NeurIPS 2018).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cappronet.estimator import CapsuleClassifier
    from cappronet.heads import CapsuleProjection, GroupedNeurons
    from cappronet.model import CapProNet
    from cappronet.projection import capsule_lengths
    from cappronet.replacement import replace_head

__version__ = "0.1.0.dev0"

__all__ = [
    "CapProNet",
    "CapsuleClassifier",
    "CapsuleProjection",
    "GroupedNeurons",
    "capsule_lengths",
    "replace_head",
]

# Where each public name lives. It is imported when it is first asked for, so that `cappronet --help` answers at once.
_HOMES = {
    "CapProNet": "model",
    "CapsuleClassifier": "estimator",
    "CapsuleProjection": "heads",
    "GroupedNeurons": "heads",
    "capsule_lengths": "projection",
    "replace_head": "replacement",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
