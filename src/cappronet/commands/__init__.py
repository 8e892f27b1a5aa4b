"""The commands, a file for each group; heavy imports stand inside them, so that `--help` answers at once."""
