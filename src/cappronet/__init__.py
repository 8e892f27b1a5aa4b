"""Capsule projection heads: a learned subspace for each class, scored by the length of the projection onto it.

After "CapProNet: Deep Feature Learning via Orthogonal Projections onto Capsule Subspaces" (NeurIPS 2018).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cappronet.heads import CapsuleProjection, GroupedNeurons, replace_head
    from cappronet.models.network import CapProNet
    from cappronet.probing.classifier import CapsuleClassifier
    from cappronet.probing.result import probe
    from cappronet.projection import capsule_lengths
    from cappronet.training.compared import compare
    from cappronet.training.trained import train

__version__ = "0.1.0.dev0"

__all__ = [
    "CapProNet",
    "CapsuleClassifier",
    "CapsuleProjection",
    "GroupedNeurons",
    "capsule_lengths",
    "compare",
    "probe",
    "replace_head",
    "train",
]

# Where each public name lives. It is imported when it is first asked for, so that `cappronet --help` answers at once.
_HOMES = {
    "CapProNet": "models.network",
    "CapsuleClassifier": "probing.classifier",
    "CapsuleProjection": "heads",
    "GroupedNeurons": "heads",
    "capsule_lengths": "projection",
    "compare": "training.compared",
    "probe": "probing.result",
    "replace_head": "heads",
    "train": "training.trained",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
