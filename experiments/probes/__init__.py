"""Probes: classifiers on real frozen features, all tuned with the same budget, from 1 to all samples of each class."""
