"""Torch modules, TorchScript files and exported programs as models."""

from pytest_modelbudget.errors import must_be_recent

must_be_recent("torch", "2.4")  # before any name is imported that it lacks
