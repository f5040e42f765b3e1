"""Data sets: training rows by client, clean test sets, and known outliers."""

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
