"""What a reader sees: terminal, tables, files."""
