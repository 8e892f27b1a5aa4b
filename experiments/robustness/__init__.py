"""Robustness: what damaged files, signals and hostile inputs do."""
