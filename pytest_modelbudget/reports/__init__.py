"""Reports, as a reader sees them: terminal, tables, files."""
