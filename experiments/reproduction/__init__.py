"""The paper, with the control it lacks: its tables from runs, its figures from real steps and runs."""
