"""Data sets of the experiments: records with real entry errors, pictures, public tables."""

from experiments.data.cardio import cardio, cardio_table
from experiments.data.fashion import fashion_mnist, read_idx
from experiments.data.packages import UnavailableError

__all__ = ["UnavailableError", "cardio", "cardio_table", "fashion_mnist", "read_idx"]
