"""The definitions of ops/, run as they are."""

from tritune.backends.numpy.backend import NumpyBackend

__all__ = ["NumpyBackend"]
