"""A capsule head in a model of transformers, trained with its Trainer, saved and loaded again: a small ViT on digits.

    pip install 'transformers>=5' accelerate
    python examples/transformers_trainer.py

Nothing is downloaded: the network starts from random weights. With a pretrained one, only the line that creates the
model differs; text classifiers work the same way.
"""

# %% Options, all with defaults.
import argparse
import sys
import tempfile

import torch

from cappronet import replace_head
from cappronet.data.datasets import load_dataset
from cappronet.data.samples import Samples
from cappronet.heads import load_pretrained

try:
    import accelerate  # noqa: F401  # the Trainer needs it, and says so late
    from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
except ImportError as missing:
    sys.exit(f"error: {missing}: run pip install 'transformers>=5' accelerate")

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--capsule-dim", type=int, default=4)
options = parser.parse_args([] if "get_ipython" in globals() else None)  # a notebook has no command line


# %% Digits as the Trainer wants them: a list of dictionaries with the arguments of the model.
def examples(part: Samples) -> list[dict[str, torch.Tensor]]:
    """The images and labels of one part of a dataset, with pixels from -1 to 1."""
    pixels = part.pixels.float() / 127.5 - 1
    return [{"pixel_values": x, "labels": y} for x, y in zip(pixels, part.labels, strict=True)]


digits = load_dataset("digits")
train, test = examples(digits.train), examples(digits.test)


# %% The model, and its new head. A pretrained model would come from
# AutoModelForImageClassification.from_pretrained("...", num_labels=10, ignore_mismatched_sizes=True).
torch.manual_seed(0)
config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=96,
    num_labels=10,
)
model = ViTForImageClassification(config)
# The features come out of a LayerNorm: all have about the same length, and unit features with a scale suit them.
replace_head(model, options.capsule_dim, normalize=True, scale=25.0)
print(model.classifier)


# %% Train. The Trainer creates the optimizer, after the head was replaced, and the model computes the loss itself.
def error(prediction: EvalPrediction) -> dict[str, float]:
    """Percentage of wrong predictions."""
    return {"error": 100 * float((prediction.predictions.argmax(-1) != prediction.label_ids).mean())}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=32,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )
    trainer = Trainer(model, arguments, train_dataset=train, eval_dataset=test, compute_metrics=error)
    trainer.train()
    print(f"test error after training: {trainer.evaluate()['eval_error']:.2f} %")

    # %% Save and load. The configuration has recorded the head; `from_pretrained` of the library would build a linear
    # classifier, and refuse weights of another shape.
    trainer.save_model(folder)
    loaded = load_pretrained(folder)

again = Trainer(loaded, arguments, eval_dataset=test, compute_metrics=error)
print(f"test error of the model loaded again: {again.evaluate()['eval_error']:.2f} %")
