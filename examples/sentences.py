"""Classify sentences: a sentence encoder and CapsuleClassifier in one pipeline, or a SetFit model with a capsule head.

    pip install sentence-transformers
    python examples/sentences.py --model sentence-transformers/all-MiniLM-L6-v2

    pip install setfit
    python examples/sentences.py --setfit

The encoder stays frozen in the pipeline; SetFit fine-tunes it before it fits the head. The name of a model is
downloaded from the Hugging Face Hub, a folder is not.
"""

# %% Options, all with defaults.
import argparse
import sys
import tempfile

import numpy as np

parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
parser.add_argument("--model", default="sentence-transformers/all-MiniLM-L6-v2", help="an encoder: a name or a folder")
parser.add_argument("--setfit", action="store_true", help="also fine-tune the encoder, with SetFit")
options = parser.parse_args([] if "get_ipython" in globals() else None)  # a notebook has no command line

try:
    from sentence_transformers import SentenceTransformer

    if options.setfit:
        from datasets import Dataset
        from setfit import SetFitModel, Trainer, TrainingArguments
except ImportError as missing:
    needed = "setfit" if options.setfit else "sentence-transformers"
    sys.exit(f"error: {missing}: run pip install {needed}")
try:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
except ImportError as missing:
    sys.exit(f"error: {missing}: run pip install scikit-learn")

from cappronet import CapsuleClassifier  # noqa: E402 - which needs scikit-learn

# %% A few questions to a shop, by what they are about.
QUESTIONS = {
    "parcel": [
        "Where is my parcel?",
        "My parcel has not arrived yet.",
        "When will the parcel be delivered?",
        "The tracking of my parcel does not change.",
        "Can the courier deliver the parcel tomorrow?",
        "The parcel was delivered to the wrong house.",
    ],
    "password": [
        "I forgot my password.",
        "How do I change my password?",
        "The password is not accepted.",
        "I cannot log in with my password.",
        "Please reset the password of my account.",
        "The link for a new password has expired.",
    ],
    "refund": [
        "I want a refund.",
        "How long does a refund take?",
        "The refund is lower than what I paid.",
        "Can I get a refund without the receipt?",
        "When do you refund my money?",
        "My refund went to an old bank account.",
    ],
}
questions = [text for texts in QUESTIONS.values() for text in texts]
labels = [label for label, texts in QUESTIONS.items() for _ in texts]
NEW = ["Has my parcel been lost?", "My new password does not work.", "Is a refund possible after a month?"]
UNRELATED = ["Do you hire software engineers?", "What a lovely song!", "Water boils at a hundred degrees."]

# %% A pipeline: texts go in, classes come out. `encode` is all that it needs of the encoder.
encoder = SentenceTransformer(options.model)
pipeline = make_pipeline(FunctionTransformer(encoder.encode), CapsuleClassifier()).fit(questions, labels)
for text, label, probability in zip(NEW, pipeline.predict(NEW), pipeline.predict_proba(NEW).max(axis=1), strict=True):
    print(f"{label:10} {probability:5.0%}  {text}")

# %% How unusual a sentence is: the score is at most 0, and higher for what the classifier was not made for.
embed, classifier = pipeline[:-1], pipeline[-1]
for name, texts in {"new questions": NEW, "unrelated sentences": UNRELATED}.items():
    print(f"outlier score of {name}: {np.mean(classifier.outlier_score(embed.transform(texts))):.2f}")

# %% SetFit: contrastive fine-tuning of the encoder, then the head is fitted to its embeddings.
if options.setfit:
    model = SetFitModel(model_body=encoder, model_head=CapsuleClassifier())
    train = Dataset.from_dict({"text": questions, "label": labels})
    with tempfile.TemporaryDirectory() as folder:
        options_of_setfit = {"batch_size": 16, "num_epochs": 1, "report_to": "none", "save_strategy": "no"}
        arguments = TrainingArguments(output_dir=folder, **options_of_setfit)
        Trainer(model=model, args=arguments, train_dataset=train).train()
    for text, label in zip(NEW, model.predict(NEW), strict=True):
        print(f"SetFit: {label:10} {text}")
