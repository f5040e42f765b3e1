"""Data to try methods on: clients to train with, clean test sets, and what is known of outliers."""

from dorfl.data.datasets.adult import adult, adult_table
from dorfl.data.datasets.base import Dataset
from dorfl.data.datasets.clinics import clinics
from dorfl.data.datasets.synthetic import synthetic

__all__ = [
    "Dataset",
    "adult",
    "adult_table",
    "clinics",
    "synthetic",
]
