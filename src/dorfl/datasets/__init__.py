"""Data to try methods on: clients to train with, clean test sets, and what is known of outliers."""

from dorfl.datasets.synthetic import Dataset, synthetic

__all__ = ["Dataset", "synthetic"]
