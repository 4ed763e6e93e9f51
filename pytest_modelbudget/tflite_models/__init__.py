"""TFLite files as models: read through the schema's own package, never run."""
