"""ONNX files as models."""

from pytest_modelbudget.errors import must_be_recent

must_be_recent("onnx", "1.16")  # before any name is imported that it lacks
