"""Backbones, CapProNet, and what is done with a trained model: saving, export, prediction."""
