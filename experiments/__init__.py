"""Benchmarks, the paper's tables and figures, and studies: `python -m experiments NAME`."""

from cappronet.cli.stopping import leave_on_signals

leave_on_signals()  # the imports of the commands take a moment
