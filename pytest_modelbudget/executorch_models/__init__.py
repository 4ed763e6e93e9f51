"""ExecuTorch programs as models: read from their flatbuffer, never run."""
