"""Classifiers on frozen features: CapsuleClassifier, and the comparison of heads."""
