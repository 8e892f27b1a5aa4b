"""What builds the documentation: formulas as MathML, tables from result files, the command reference. Not installed."""
