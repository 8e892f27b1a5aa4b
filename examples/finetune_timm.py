"""Fine-tune a timm model with a capsule head: digits 0 to 4 first, then 5 to 9 from a few images each.

    python examples/finetune_timm.py
    python examples/finetune_timm.py --model resnet18 --pretrained --size 64    # timm's weights, which are downloaded

By default nothing is downloaded: a small network is trained on the digits 0 to 4 first. Its classifier is then replaced
in three ways, and each model is fine-tuned on the digits 5 to 9 with the same images and steps. The script shows how to
do it and how to compare heads fairly; a task this small says little about which head is better on yours.
"""

# %% Options, all with defaults.
import argparse
import copy
import statistics
import sys
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

from cappronet import replace_head
from cappronet.data.datasets import load_dataset
from cappronet.extras import require

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--model", default="test_efficientnet_ln", help="a timm model; the default is a tiny one")
parser.add_argument("--pretrained", action="store_true", help="start from timm's weights, not from digits 0 to 4")
parser.add_argument("--size", type=int, default=32, help="side that the images are scaled to")
parser.add_argument("--images", type=int, default=40, help="images of each new class to fine-tune on")
parser.add_argument("--epochs", type=int, default=8, help="passes over them, and over digits 0 to 4 before")
parser.add_argument("--seeds", type=int, default=5, help="repetitions, each with other images")
options = parser.parse_args([] if "get_ipython" in globals() else None)  # a notebook has no command line

try:
    timm = require("timm", "vision")
except ImportError as missing:
    sys.exit(f"error: {missing}")

# %% Images, scaled up: timm's networks halve them four or five times, and digits have 8 x 8 pixels.
digits = load_dataset("digits")
images = torch.cat([digits.train.pixels, digits.test.pixels]).float() / 255
labels = torch.cat([digits.train.labels, digits.test.labels])
images = F.interpolate((images - images.mean()) / images.std(), size=(options.size, options.size), mode="bilinear")
old, new = labels < 5, labels >= 5


# %% An ordinary loop, the same for every head.
def fit(model: nn.Module, x: Tensor, y: Tensor, groups: Iterable[dict], epochs: Iterable[int]) -> None:
    """AdamW on cross-entropy in batches of about 32, with cosine-annealed learning rates."""
    batches = -(-len(x) // 32)
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * batches)
    model.train()
    for _ in epochs:
        for rows in torch.randperm(len(x)).tensor_split(batches):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def error(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Percentage of wrong predictions."""
    model.eval()
    wrong = torch.cat([model(part).argmax(-1) for part in x.split(200)]) != y
    return 100 * wrong.double().mean().item()


# %% A pretrained network: timm's weights, or trained on the digits 0 to 4.
torch.manual_seed(0)
try:
    network = timm.create_model(options.model, pretrained=options.pretrained, in_chans=1, num_classes=5)
except Exception as failure:  # of timm, the hub and its transports, which share no class
    sys.exit(f"error: {options.model} could not be loaded: {str(failure).strip().splitlines()[0]}")
if not options.pretrained:
    epochs = track(range(options.epochs), "digits 0 to 4", transient=True)
    fit(network, images[old], labels[old], [{"params": network.parameters(), "lr": 0.002}], epochs)


# %% Three classifiers for five new classes. `replace_head` finds the classifier, puts a capsule projection in its place
# and returns the model, the same object as before; the new weights are random, as those of a new linear layer are.
def linear(model: nn.Module) -> nn.Module:
    """A new linear classifier, as timm makes it."""
    model.reset_classifier(5)
    return model


# A length is at most |x|. Where features are short or of a fixed length, as after a LayerNorm, the softmax of plain
# lengths stays nearly uniform; with these two options the range of the scores does not depend on the network.
UNIT = {"normalize": True, "scale": 25.0}
HEADS = {
    "nn.Linear": linear,
    "capsule c=4": lambda model: replace_head(model, 4, num_classes=5),
    "unit capsule c=4, scale 25": lambda model: replace_head(model, 4, num_classes=5, **UNIT),
}
console = Console()
for name, make in HEADS.items():
    console.print(f"{name}: {make(copy.deepcopy(network)).get_classifier()}", highlight=False, soft_wrap=True)

# %% Fine-tune: a small learning rate for the pretrained network, a larger one for the new head. The optimizer is made
# after the head is replaced; otherwise it would hold the weights of the old classifier.
errors: dict[str, list[float]] = {name: [] for name in HEADS}
weights: dict[str, int] = {}
jobs = [(seed, name) for seed in range(options.seeds) for name in HEADS]
for seed, name in track(jobs, "digits 5 to 9", console=console, transient=True):
    torch.manual_seed(seed)
    order = torch.nonzero(new).flatten()[torch.randperm(int(new.sum()))]
    chosen = torch.cat([order[labels[order] == digit][: options.images] for digit in range(5, 10)])
    rest = order[~torch.isin(order, chosen)]

    model = HEADS[name](copy.deepcopy(network))
    head = model.get_classifier()
    in_head = set(head.parameters())
    groups = [
        {"params": [p for p in model.parameters() if p not in in_head], "lr": 0.0005},
        {"params": list(in_head), "lr": 0.005},
    ]
    torch.manual_seed(seed)  # the same batches for all heads, however many random numbers their weights took
    fit(model, images[chosen], labels[chosen] - 5, groups, range(options.epochs))
    errors[name].append(error(model, images[rest], labels[rest] - 5))
    weights[name] = sum(p.numel() for p in in_head)

# %% Errors on all images of 5 to 9 that were not used for fine-tuning. Seeds vary a lot, and all heads share them: what
# counts is the difference from the linear layer with the same seed.
start = "timm's weights" if options.pretrained else "digits 0 to 4"
title = f"{options.model} from {start} to 5 to 9, {options.images} images of each, {options.seeds} seeds"
table = Table(title=title, title_justify="left")
for heading in ("head", "weights", "error %", "minus linear", "std. error"):
    table.add_column(heading, justify="left" if heading == "head" else "right")
for name, head_errors in errors.items():
    differences = [a - b for a, b in zip(head_errors, errors["nn.Linear"], strict=True)]
    spread = statistics.stdev(differences) / len(head_errors) ** 0.5 if len(head_errors) > 1 else float("nan")
    compared = ("", "") if name == "nn.Linear" else (f"{statistics.mean(differences):+.2f}", f"{spread:.2f}")
    table.add_row(name, f"{weights[name]:,}", f"{statistics.mean(head_errors):.2f}", *compared)
console.print(table)
console.print("With so few seeds, do not read anything into a difference below three standard errors.")
