"""Torch modules, TorchScript files and exported programs as models."""
