"""Data to try methods on: clients to train with, clean test sets, and what is known of outliers."""

from dorfl.datasets.adult import adult, adult_table
from dorfl.datasets.base import Dataset
from dorfl.datasets.cardio import cardio, cardio_table
from dorfl.datasets.fashion import fashion_mnist
from dorfl.datasets.idx import read_idx
from dorfl.datasets.synthetic import synthetic

__all__ = [
    "Dataset",
    "adult",
    "adult_table",
    "cardio",
    "cardio_table",
    "fashion_mnist",
    "read_idx",
    "synthetic",
]
