"""The paper's study, reproduced and extended."""

from enum import StrEnum


class Part(StrEnum):
    """A part of the study."""

    synthetic = "synthetic"
    sensitivity = "sensitivity"
    adult = "adult"
    cardio = "cardio"
    fashion = "fashion"
    networks = "networks"
    theory = "theory"
    all = "all"
