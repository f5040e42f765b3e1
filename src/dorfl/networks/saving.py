"""A trained network as a folder: `model.safetensors`, `model.json`, `score.py`. Never pickle.

Numbers are in the safetensors format. `score.py` scores rows by a network of Linear and ReLU with
NumPy alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dorfl.networks import tensors
from dorfl.networks.model import make
from dorfl.networks.training import NetworkFit
from dorfl.support.files import read_limited, write_whole
from dorfl.support.wire import short

FORMAT, VERSION = "dorfl.network", 1
_MAX_JSON = 100_000_000  # bytes of model.json


def save(fit: NetworkFit, folder: str | Path) -> Path:
    """Write a fit's network and a record of its training into `folder`; return the folder."""
    place = Path(folder)
    arrays = {name: value.cpu().numpy() for name, value in fit.model.state_dict().items()}
    about = {
        "format": FORMAT,
        "version": VERSION,
        "layers": _layers(fit.model),
        "classes": fit.classes.tolist(),
        "loss": fit.loss if isinstance(fit.loss, str) else "custom",
        "method": fit.method.name,
        "clients": list(fit.clients),
        "lam": fit.lam.tolist(),
        "risks": fit.risks.tolist(),
        "gap_estimate": fit.gap_estimate,
        "rounds": fit.rounds,
        "bytes_up": fit.bytes_up,
        "bytes_down": fit.bytes_down,
    }
    scorer = resources.files("dorfl.networks").joinpath("scorer.py").read_bytes()
    write_whole(place / "score.py", scorer)
    write_whole(place / "model.safetensors", tensors.pack(arrays, {"format": FORMAT}))
    write_whole(place / "model.json", f"{json.dumps(about, indent=1)}\n".encode())
    return place


def load(folder: str | Path, model: nn.Module | Callable[[], nn.Module] | None = None) -> nn.Module:
    """Return the network of a folder.

    Parameters
    ----------
    folder
        What :func:`save` wrote. `model.json` has at most 100 MB and `model.safetensors` 4 GiB.
    model
        A module, or a function that makes one; needed unless all layers are Linear and ReLU.

    Returns
    -------
    nn.Module
        The trained network, in evaluation mode.

    Raises
    ------
    ValueError
        If a file is damaged or too large, or has the numbers of another network.
    """
    place = Path(folder)
    try:
        about: Any = json.loads(read_limited(place / "model.json", _MAX_JSON))
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"{place}: model.json cannot be read: {problem}") from None
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError(f"{place}: holds no network of dorfl")
    if about.get("version") != VERSION:
        raise ValueError(f"{place}: written by another version of dorfl ({about.get('version')})")
    arrays, _ = tensors.unpack(read_limited(place / "model.safetensors", tensors.MAX_BYTES))
    if model is not None:
        made = make(model, 0)
    elif about.get("layers"):
        made = _made(about["layers"], arrays)
    else:
        raise ValueError(f"{place}: give the `model` that these numbers are of")
    own = made.state_dict()
    for name, value in own.items():
        if name not in arrays or arrays[name].shape != tuple(value.shape):
            raise ValueError(f"{place}: has no numbers for the model's {name}")
        if arrays[name].dtype.kind == "f" and not np.isfinite(arrays[name]).all():
            raise ValueError(f"{place}: {name} is not made of finite numbers")
    made.load_state_dict({name: torch.from_numpy(arrays[name].copy()) for name in own})
    return made.eval()


def _layers(model: nn.Module) -> list[str]:
    """Return names of Linear layers and "relu" in order; empty if there are other layers."""
    if isinstance(model, nn.Linear):
        return []
    found = []
    for name, part in model.named_children():
        if isinstance(part, nn.Linear) and part.bias is not None:
            found.append(name)
        elif isinstance(part, nn.ReLU):
            found.append("relu")
        elif not isinstance(part, nn.Dropout):
            return []
    return found if isinstance(model, nn.Sequential) else []


def _made(layers: Any, arrays: dict[str, Any]) -> nn.Module:
    """Return a network of the sizes that its numbers have; allocate no more than they take."""
    if not isinstance(layers, list):
        raise ValueError("model.json: `layers` is not a list of names")
    parts: list[nn.Module] = []
    for k, layer in enumerate(layers):
        if layer == "relu":
            parts.append(nn.ReLU())
            continue
        weight = arrays.get(f"{layer}.weight", np.empty(0))
        if layer != str(k) or weight.ndim != 2 or not weight.size:
            raise ValueError(f"model.json: there is no layer {short(layer)} in model.safetensors")
        parts.append(nn.Linear(weight.shape[1], len(weight)))
    return nn.Sequential(*parts)
