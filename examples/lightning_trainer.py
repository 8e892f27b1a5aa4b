"""A capsule head in a LightningModule, trained with the Lightning Trainer: a small convolutional network on digits.

    pip install 'pytorch-lightning>=2.6.4'
    python examples/lightning_trainer.py

The package `lightning` has the same classes in `lightning.pytorch`.
"""

# %% Options, all with defaults.
import argparse
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from cappronet import replace_head
from cappronet.data.datasets import load_dataset
from cappronet.data.samples import Samples

try:
    from pytorch_lightning import LightningModule, Trainer, seed_everything
except ImportError as missing:
    sys.exit(f"error: {missing}: run pip install 'pytorch-lightning>=2.6.4'")

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=10)
parser.add_argument("--capsule-dim", type=int, default=4)
options = parser.parse_args([] if "get_ipython" in globals() else None)  # a notebook has no command line


# %% The head is replaced in the constructor: Lightning calls `configure_optimizers` later, so the optimizer holds the
# new head, and `load_from_checkpoint` builds the same layers before it loads their weights.
class Classifier(LightningModule):
    """A convolutional network with a capsule head; any model with a linear classifier would do."""

    def __init__(self, capsule_dim: int = 4, lr: float = 3e-3) -> None:
        super().__init__()
        self.lr = lr
        self.save_hyperparameters()
        network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, stride=2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 10),
        )
        self.network = replace_head(network, capsule_dim, normalize=True, scale=25.0)

    def forward(self, x: Tensor) -> Tensor:
        """The logits, which are capsule lengths."""
        return self.network(x)

    def training_step(self, batch: list[Tensor]) -> Tensor:
        """The usual cross-entropy."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def test_step(self, batch: list[Tensor]) -> None:
        """Percentage of wrong predictions."""
        x, y = batch
        self.log("error", 100 * (self(x).argmax(-1) != y).float().mean(), batch_size=len(x))

    def configure_optimizers(self) -> dict[str, object]:
        """AdamW with a cosine schedule over the whole training."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


# %% Train on digits.
def loader(part: Samples, **how: bool) -> DataLoader[tuple[Tensor, ...]]:
    """Batches of images, with pixels from 0 to 1, and labels."""
    return DataLoader(TensorDataset(part.pixels.float() / 255, part.labels), batch_size=64, **how)


seed_everything(0, verbose=False)
digits = load_dataset("digits")
model = Classifier(options.capsule_dim)
print(model.network[-1])
trainer = Trainer(
    max_epochs=options.epochs,
    accelerator="auto",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader(digits.train, shuffle=True, drop_last=True))
(trained,) = trainer.test(model, loader(digits.test), verbose=False)
print(f"test error after training: {trained['error']:.2f} %")

# %% Save and load: a checkpoint has the hyperparameters, so nothing else is needed.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder, "model.ckpt")
    trainer.save_checkpoint(path)
    loaded = Classifier.load_from_checkpoint(path, weights_only=True)
(again,) = trainer.test(loaded, loader(digits.test), verbose=False)
print(f"test error of the model loaded again: {again['error']:.2f} %")
