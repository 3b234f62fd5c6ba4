"""WHAT is computed: one file an op, its contract and its NumPy definition, forward and backward.

The definitions work in the precision of their inputs: float32 on the NumPy backend, float64 in tests. Shapes are
named as in backends/base.py. A backend may fuse ops but must agree with these functions.
"""
