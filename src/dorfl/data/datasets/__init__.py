"""Data sets: training rows by client, clean test sets, and known outliers."""

from dorfl.data.datasets.adult import adult, adult_table
from dorfl.data.datasets.base import Dataset
from dorfl.data.datasets.cardio import cardio, cardio_table
from dorfl.data.datasets.clinics import clinics
from dorfl.data.datasets.fashion import fashion_mnist
from dorfl.data.datasets.idx import read_idx
from dorfl.data.datasets.mnist import mnist
from dorfl.data.datasets.synthetic import synthetic

__all__ = [
    "Dataset",
    "adult",
    "adult_table",
    "cardio",
    "cardio_table",
    "clinics",
    "fashion_mnist",
    "mnist",
    "read_idx",
    "synthetic",
]
