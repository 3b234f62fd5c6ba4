"""The CPU backend: native threaded kernels, with the instruction set chosen when it is opened."""

from tritune.backends.cpu.loading import native_problem, open_cpu

__all__ = ["native_problem", "open_cpu"]
