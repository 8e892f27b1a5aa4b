"""Classify embeddings: CapsuleClassifier beside scikit-learn's classifiers, a class added later, unknown inputs.

    python examples/embeddings.py

A small ResNet learns the digits 0 to 4 and is then frozen. What it makes of the digits 5 to 9, which it never saw, are
the embeddings here: 64 numbers an image. On the command line the same is

    cappronet train --classes 0 1 2 3 4 --head linear --epochs 6 --run runs/low
    cappronet embed runs/low --classes 5 6 7 8 9 -o high.npz
    cappronet probe high.npz

where `embed` takes the name of a timm model just as well, and `probe` chooses the settings of every head with equal
tries. Here all settings but one are the defaults.
"""

# %% Options
import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

from cappronet.display import progress_bar
from cappronet.extras import require

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--epochs", type=int, default=6, help="passes over the digits 0 to 4")
parser.add_argument("--folds", type=int, default=5, help="parts that cross-validation holds out in turn")
parser.add_argument("--draws", type=int, default=10, help="draws of the images that a new class is added with")
options = parser.parse_args([] if "ipykernel" in sys.modules else None)  # a notebook has no command line

try:
    require("lightning_fabric", "train")
    require("sklearn", "sklearn")
except ImportError as missing:
    sys.exit(f"error: {missing}")

from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_score, train_test_split  # noqa: E402
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from cappronet import CapsuleClassifier  # noqa: E402
from cappronet.embedding import embed  # noqa: E402
from cappronet.recipe import Recipe  # noqa: E402
from cappronet.runs import Run  # noqa: E402
from cappronet.training import Hardware, train  # noqa: E402

console = Console()

# %% The embeddings. `embed` writes one file with training and test images apart; cross-validation splits them anew.
with tempfile.TemporaryDirectory() as folder, progress_bar(console) as show:
    recipe = Recipe(classes=(0, 1, 2, 3, 4), head="linear", epochs=options.epochs)
    network = Run.new(Path(folder) / "low")
    summary = train(recipe, network, Hardware(accelerator="cpu"), on_progress=show)
    embed(str(network.folder), Recipe(), Path(folder) / "digits.npz")
    with np.load(Path(folder) / "digits.npz") as file:
        x = np.concatenate([file["x_train"], file["x_test"]])
        y = np.concatenate([file["y_train"], file["y_test"]])
low, x, y = x[y < 5], x[y >= 5], y[y >= 5]
console.print(
    f"the network gets {summary['error']:.1f} % of 0 to 4 wrong; {len(x)} embeddings of 5 to 9, d = {x.shape[1]}"
)

# %% Cross-validation, as with any other classifier. `solver="svd"` takes the leading directions of each class, in
# closed form; `solver="gradient"`, the default, trains them against each other from there.
CLASSIFIERS = {
    "LogisticRegression, standardized": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "KNeighborsClassifier": KNeighborsClassifier(),
    "CapsuleClassifier(8, solver='svd')": CapsuleClassifier(8, solver="svd"),
    "CapsuleClassifier(8)": CapsuleClassifier(8),
    "CapsuleClassifier(8), standardized": make_pipeline(StandardScaler(), CapsuleClassifier(8)),
}
folds = StratifiedKFold(options.folds, shuffle=True, random_state=0)
table = Table(title=f"5 to 9, errors over {options.folds} folds", title_justify="left")
for heading in ("classifier", "error %", "lowest and highest fold"):
    table.add_column(heading, justify="left" if heading == "classifier" else "right")
for name, classifier in track(CLASSIFIERS.items(), "folds", console=console, transient=True):
    errors = 100 * (1 - cross_val_score(classifier, x, y, cv=folds))
    table.add_row(name, f"{errors.mean():.2f}", f"{errors.min():.1f} to {errors.max():.1f}")
console.print(table)

# %% The one setting to choose is the dimension of the subspaces. In closed form a search over it takes a second.
search = GridSearchCV(CapsuleClassifier(solver="svd"), {"capsule_dim": [1, 2, 4, 8, 16, 32]}, cv=folds).fit(x, y)
found = zip(search.cv_results_["param_capsule_dim"], search.cv_results_["mean_test_score"], strict=True)
console.print("svd, c and error %: " + ", ".join(f"{c}: {100 * (1 - score):.1f}" for c, score in found))

# %% A class that comes later. The classifier knows 5 to 8; `add_class` gives it the 9 from a few images, and the other
# subspaces stay as they are. The logistic regression is refitted to all samples, which it must still have.
kept, x_test, y_kept, y_test = train_test_split(x, y, test_size=0.5, stratify=y, random_state=0)
nines, known = kept[y_kept == 9], kept[y_kept != 9]
y_known = y_kept[y_kept != 9]
table = Table(title=f"9 added to 5 to 8, error % of all five, mean of {options.draws} draws", title_justify="left")
for heading in ("images of 9", "capsule svd, add_class", "logistic, refitted"):
    table.add_column(heading, justify="right")
draws = np.random.default_rng(0)
for count in track((8, 20, 80), "new class", console=console, transient=True):
    added, refitted = [], []
    for _ in range(options.draws):
        few = draws.permutation(nines)[:count]
        model = CapsuleClassifier(8, solver="svd").fit(known, y_known).add_class(few, 9)
        rival = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
        rival.fit(np.concatenate([known, few]), np.concatenate([y_known, np.full(len(few), 9)]))
        added.append(100 * (1 - model.score(x_test, y_test)))
        refitted.append(100 * (1 - rival.score(x_test, y_test)))
    table.add_row(str(count), f"{np.mean(added):.2f}", f"{np.mean(refitted):.2f}")
console.print(table)

# %% Unknown inputs. `outlier_score` is the sine of the angle to the nearest subspace, from 0 to 1; the rivals are the
# distance to the nearest sample, and how unsure the logistic regression is. An AUROC of 50 % is guessing.
model = CapsuleClassifier(8, solver="svd").fit(known, y_known)
neighbours = NearestNeighbors(n_neighbors=1).fit(known)
rival = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(known, y_known)
SCORES = {
    "outlier_score of CapsuleClassifier, svd": model.outlier_score,
    "distance to the nearest sample": lambda x: neighbours.kneighbors(x)[0][:, 0],
    "1 - largest probability of LogisticRegression": lambda x: 1 - rival.predict_proba(x).max(axis=1),
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
