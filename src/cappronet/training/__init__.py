"""From a recipe to a finished run, and from runs to a comparison."""
