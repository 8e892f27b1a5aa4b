"""Classify embeddings: CapsuleClassifier and scikit-learn's, a class added later, out-of-distribution inputs.

    python examples/embeddings.py

A small ResNet is trained on the digits 0 to 4 and then frozen. Its features of the digits 5 to 9, which it has never
seen, are the embeddings here: 64 numbers per image. On the command line the same is

    cappronet train --classes 0 1 2 3 4 --head linear --epochs 6 --run runs/low
    cappronet embed runs/low --classes 5 6 7 8 9 -o high
    cappronet probe high

where `embed` also accepts the name of a timm model, and `probe` tunes every head with the same budget. Here all
settings but one are the defaults.
"""

# %% Options
import argparse
import sys

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cappronet import CapProNet

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=6, help="passes over the digits 0 to 4")
parser.add_argument("--folds", type=int, default=5, help="parts that cross-validation holds out in turn")
parser.add_argument("--draws", type=int, default=10, help="draws of the images that a new class is added with")
options = parser.parse_args([] if "get_ipython" in globals() else None)  # a notebook has no command line

try:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, train_test_split
    from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
except ImportError:
    sys.exit("error: this example needs scikit-learn: pip install scikit-learn")

from cappronet import CapsuleClassifier  # noqa: E402 - which needs scikit-learn

console = Console()

# %% The embeddings: a network trained on the digits 0 to 4, and what it computes for all digits.
digits = load_digits()
images, labels = torch.from_numpy(digits.images / 16).float().unsqueeze(1), torch.from_numpy(digits.target)
images = (images - images.mean()) / images.std()
torch.manual_seed(0)
network = CapProNet("resnet8", num_classes=5, head="linear", in_channels=1, image_size=8)
optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
known_to_network = torch.nonzero(labels < 5).flatten()
for _ in track(range(options.epochs), "digits 0 to 4", console=console, transient=True):
    for rows in known_to_network[torch.randperm(len(known_to_network))].split(64):
        optimizer.zero_grad()
        F.cross_entropy(network(images[rows]), labels[rows]).backward()
        optimizer.step()

network.eval()
with torch.no_grad():
    x, y = network.features(images).numpy(), labels.numpy()
low, x, y = x[y < 5], x[y >= 5], y[y >= 5]
console.print(f"{len(x)} embeddings of 5 to 9, d = {x.shape[1]}")

# %% Cross-validation, as with any other classifier. The default trains the subspaces of all classes against each other;
# `solver="svd"` takes the leading directions of each class, in closed form.
CLASSIFIERS = {
    "LogisticRegression, standardized": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "KNeighborsClassifier": KNeighborsClassifier(),
    "CapsuleClassifier(8, solver='svd')": CapsuleClassifier(8, solver="svd"),
    "CapsuleClassifier()": CapsuleClassifier(),
    "CapsuleClassifier(), standardized": make_pipeline(StandardScaler(), CapsuleClassifier()),
}
folds = StratifiedKFold(options.folds, shuffle=True, random_state=0)
table = Table(title=f"5 to 9, errors over {options.folds} folds", title_justify="left")
for heading in ("classifier", "error %", "lowest and highest fold"):
    table.add_column(heading, justify="left" if heading == "classifier" else "right")
for name, classifier in track(CLASSIFIERS.items(), "folds", console=console, transient=True):
    errors = 100 * (1 - cross_val_score(classifier, x, y, cv=folds))
    table.add_row(name, f"{errors.mean():.2f}", f"{errors.min():.1f} to {errors.max():.1f}")
console.print(table)

# %% In closed form the one setting to choose is the dimension of the subspaces. A search over it takes a second.
search = GridSearchCV(CapsuleClassifier(solver="svd"), {"capsule_dim": [1, 2, 4, 8, 16, 32]}, cv=folds).fit(x, y)
scores = zip(search.cv_results_["param_capsule_dim"], search.cv_results_["mean_test_score"], strict=True)
console.print("svd, c and error %: " + ", ".join(f"{c}: {100 * (1 - score):.1f}" for c, score in scores))

# %% A class that is added later. The classifier knows 5 to 8; `add_class` adds the 9 from a few images, and the other
# subspaces do not change. The logistic regression is refitted to all samples, which must still be available for that.
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.5, stratify=y, random_state=0)
nines, known = x_train[y_train == 9], x_train[y_train != 9]
y_known = y_train[y_train != 9]
table = Table(title=f"9 added to 5 to 8, error % of all five, mean of {options.draws} draws", title_justify="left")
for heading in ("images of 9", "capsule svd, add_class", "logistic, refitted"):
    table.add_column(heading, justify="right")
draws = np.random.default_rng(0)
for count in track((8, 20, 80), "new class", console=console, transient=True):
    added, refitted = [], []
    for _ in range(options.draws):
        few = draws.permutation(nines)[:count]
        model = CapsuleClassifier(8, solver="svd").fit(known, y_known).add_class(few, 9)
        logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        logistic.fit(np.concatenate([known, few]), np.concatenate([y_known, np.full(len(few), 9)]))
        added.append(100 * (1 - model.score(x_test, y_test)))
        refitted.append(100 * (1 - logistic.score(x_test, y_test)))
    table.add_row(str(count), f"{np.mean(added):.2f}", f"{np.mean(refitted):.2f}")
console.print(table)

# %% Out-of-distribution inputs. `outlier_score`, fDBD, is higher the nearer a sample is to boundaries between classes.
# Compared with it: the sine of the angle to the nearest subspace, the distance to the nearest sample, and the
# uncertainty of the logistic regression. 50 % AUROC is chance.
model = CapsuleClassifier(8, solver="svd").fit(known, y_known)
neighbours = NearestNeighbors(n_neighbors=1).fit(known)
logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(known, y_known)
SCORES = {
    "outlier_score of CapsuleClassifier, svd": model.outlier_score,
    "residual_score of CapsuleClassifier, svd": model.residual_score,
    "distance to the nearest sample": lambda x: neighbours.kneighbors(x)[0][:, 0],
    "1 - largest probability of LogisticRegression": lambda x: 1 - logistic.predict_proba(x).max(axis=1),
}
table = Table(title="5 to 8 are known: AUROC % of others against unseen 5 to 8", title_justify="left")
for heading in ("score", "the 9s", "0 to 4"):
    table.add_column(heading, justify="left" if heading == "score" else "right")
for name, score in SCORES.items():
    familiar = score(x_test[y_test != 9])
    separated = []
    for unknown in (x_test[y_test == 9], low):
        is_unknown = np.repeat([0, 1], [len(familiar), len(unknown)])
        separated.append(100 * roc_auc_score(is_unknown, np.concatenate([familiar, score(unknown)])))
    table.add_row(name, *(f"{value:.1f}" for value in separated))
console.print(table)
