"""What every model format has in common: sources, inputs, the table of formats."""
