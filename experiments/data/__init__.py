"""Data sets of the experiments: records with real entry errors, pictures, public tables."""

from experiments.data.cardio import cardio, cardio_table
from experiments.data.fashion import fashion_mnist
from experiments.data.idx import read_idx
from experiments.data.mnist import mnist
from experiments.data.packages import UnavailableError

__all__ = ["UnavailableError", "cardio", "cardio_table", "fashion_mnist", "mnist", "read_idx"]
