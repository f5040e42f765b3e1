"""A trained model as a folder: plain JSON, a card to read, and a scorer that needs no dorfl."""

from dorfl.federated.serialization import ModelError
from dorfl.tabular.model.facts import Facts
from dorfl.tabular.model.folder import load, save, save_evaluation
from dorfl.tabular.model.model import Model

__all__ = ["Facts", "Model", "ModelError", "load", "save", "save_evaluation"]
