"""Readers of model files: bytes in, NumPy arrays out; nothing here knows a device or a model's architecture."""
