"""A trained model as a folder: plain JSON, a card to read, and a scorer that needs no dorfl."""

from dorfl.model.facts import Facts
from dorfl.model.folder import ModelError, load, save
from dorfl.model.model import Model

__all__ = ["Facts", "Model", "ModelError", "load", "save"]
