"""The head in your own training loop: scikit-learn's digits, three heads, five random splits.

    python examples/own_loop.py

Only the line that creates the head differs. The features are the 64 pixels, so nothing but the head is trained. The
grouped neurons have as many weights as the capsules and lack only the projection.
"""

import statistics

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from cappronet import CapsuleProjection, GroupedNeurons

SPLITS = 5
HEADS = {
    "nn.Linear(64, 10)": lambda: nn.Linear(64, 10),
    "GroupedNeurons(64, 10, 4)": lambda: GroupedNeurons(64, 10, 4),
    "CapsuleProjection(64, 10, 4)": lambda: CapsuleProjection(64, 10, 4, normalize=True, scale=25.0),
}


def train(head: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int = 60) -> None:
    """Plain AdamW on cross-entropy in batches of 100."""
    steps = epochs * -(-len(x) // 100)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(100):
            optimizer.zero_grad()
            F.cross_entropy(head(x[batch]), y[batch]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def error(head: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    """Percentage of wrong predictions."""
    return 100 * (head(x).argmax(-1) != y).double().mean().item()


def main() -> None:
    """Train the heads on each split and print their errors side by side."""
    digits = load_digits()
    x, y = torch.from_numpy(digits.data / 16).float(), torch.from_numpy(digits.target)
    errors: dict[str, list[float]] = {name: [] for name in HEADS}
    for seed in track(range(SPLITS), description="training", transient=True):
        rows = torch.arange(len(x))
        fit, held_out = train_test_split(rows, test_size=0.2, random_state=seed, stratify=y)
        for name, make in HEADS.items():
            torch.manual_seed(seed)
            head = make()
            train(head, x[fit], y[fit])
            errors[name].append(error(head, x[held_out], y[held_out]))

    table = Table(title=f"digits, {SPLITS} random splits", title_justify="left")
    for heading in ("head on the 64 pixels", "parameters", "test error %", "standard error"):
        table.add_column(heading, justify="left" if heading.startswith("head") else "right")
    for name, make in HEADS.items():
        mean, deviation = statistics.mean(errors[name]), statistics.stdev(errors[name])
        parameters = sum(p.numel() for p in make().parameters())
        table.add_row(name, f"{parameters:,}", f"{mean:.2f}", f"{deviation / SPLITS**0.5:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
