"""One study from table to model, and how well a model does on rows."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from dorfl import losses, methods
from dorfl.certificate import certify
from dorfl.defaults import Choice, choose
from dorfl.federation.local import Round
from dorfl.losses import Loss
from dorfl.model import Model
from dorfl.studies.rows import Ready, Rows, open_split, ready
from dorfl.studies.study import Study
from dorfl.study import constant
from dorfl.threads import each
from dorfl.training import Fit, train
from dorfl.types import Array

_CERTIFIED = 20_000_000  # numbers; the worst case of more takes more memory than training does
_CURVED = 500_000  # numbers; every radius of the curve takes some twenty looks at all rows
_CURVE = np.geomspace(0.1, 10.0, 9)  # radii of the certificate's curve, in units of its own
_BLOCK = 65_536

Progress = Callable[[Round], object]


def run(study: Study, progress: Progress | None = None) -> tuple[Model, Rows]:
    """Read, prepare, choose, train, certify: the model and the rows it was trained on."""
    loading = threading.Thread(target=_load_kernels)
    loading.start()
    try:
        prepared = ready(study, open_split(study))
    finally:
        loading.join()  # a process that ends under a thread at work in compiled code is aborted
    return fit_rows(study, prepared, progress), prepared.rows


def _load_kernels() -> None:
    """A training of next to nothing: compiled code takes most of a second to load from disk."""
    rows, labels = np.eye(4, 2, dtype=np.float32), np.array([0, 1, 1, 0])
    train([(rows, labels)], methods.erm(), l2=1.0)


def fit_rows(study: Study, prepared: Ready, progress: Progress | None = None) -> Model:
    """The model of a study for rows that are ready."""
    rows = prepared.rows
    clients = rows.clients
    choice = chosen(study, prepared)
    fit = train_quietly(study, prepared, choice, progress)
    model = Model(
        fit, prepared.transform, study.label, study.client, prepared.classes, prepared.target
    )
    facts = {
        "settings": study.to_json(),
        "choice": list(choice.words),
        "center": choice.spread.center.tolist(),
        "data": {
            "file": study.to_json()["data"],
            "rows": len(rows.y),
            "notes": list(rows.notes),
        },
        "clients": measure(model, rows),
        "weights": _histogram(fit),
        "learnt": _learnt(fit, clients),
        "certificate": _certificate(fit, clients, rows.X.size),
    }
    return Model(
        fit, prepared.transform, study.label, study.client, prepared.classes, prepared.target, facts
    )


def chosen(study: Study, prepared: Ready) -> Choice:
    """The method a study's words mean for these rows."""
    by_hand = {n: getattr(study, n) for n in ("rho", "beta", "score_weight", "mixture")}
    return choose(
        prepared.rows.clients,
        method=study.method,
        outliers=study.outliers,
        shift=study.shift,
        frozen=prepared.transform.frozen,
        loss=loss_for(len(prepared.classes)),
        **{name: value for name, value in by_hand.items() if value is not None},
    )


def train_quietly(
    study: Study, prepared: Ready, choice: Choice, progress: Progress | None = None
) -> Fit:
    """The fit; what training would have warned of is in its message."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return train(
            prepared.rows.clients,
            choice.method,
            loss=loss_for(len(prepared.classes)),
            solver=study.solver,
            tol=study.tolerance,
            max_rounds=study.rounds,
            seed=study.seed,
            l2=1.0 / len(prepared.rows.y) if study.l2 is None else study.l2,
            progress=progress,
        )


def loss_for(classes: int) -> Loss:
    """Logistic for two classes, softmax for more, Huber's for a number (in robust units)."""
    if classes:
        return losses.resolve("logistic" if classes == 2 else "softmax")
    return losses.huber(1.345)


def measure(model: Model, rows: Rows, *, auc: bool = False) -> list[dict[str, Any]]:
    """How each client is served: rows, mean loss, and accuracy or mean absolute error."""
    return each(lambda client: _served(model, *client, auc=auc), rows.clients.items())


def _served(model: Model, name: str, client: tuple[Array, Array], *, auc: bool) -> dict[str, Any]:
    (X, y), problem = client, model.fit.problem
    blocks = [X[start : start + _BLOCK] for start in range(0, len(X), _BLOCK)]
    out = np.concatenate([problem.predict(model.fit.theta, block) for block in blocks])
    loss = problem.loss.value(out, losses.encode(problem.loss, y, problem.classes))
    entry = {"name": name, "rows": len(y), "loss": float(loss.mean())}
    if not model.classifies:
        spread = model.target.spread if model.target else 1.0
        return {**entry, "score": float(np.abs(out - y).mean() * spread)}
    right = (out.argmax(axis=1) if out.ndim == 2 else (out > 0)) == y
    entry["score"] = float(right.mean())
    if auc and out.ndim == 1 and 0 < y.sum() < len(y):
        entry["auc"] = _auc(y, out)
    return entry


def _auc(y: Array, out: Array) -> float:
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 - slow to import, training needs none

    return float(roc_auc_score(y, out))


def _learnt(fit: Fit, clients: Any) -> dict[str, float]:
    """The model's own loss beside that of the best constant prediction."""
    parts = [
        constant.measure(fit.problem, fit.theta, X, y, fit.sample_weights[name])
        for name, (X, y) in clients.items()
    ]
    loss, best = constant.against(parts, fit.lam)
    return {"loss": loss, "constant": best}


def _certificate(fit: Fit, clients: Any, numbers: int) -> dict[str, Any] | None:
    """What the model guarantees, where there is transport and memory for it."""
    if np.isinf(fit.rho) or numbers > _CERTIFIED:
        return None
    found = certify(fit, clients)
    radii = found.radius * (_CURVE if found.radius > 0 and numbers < _CURVED else np.empty(0))
    return {
        "radius": found.radius,
        "bound": found.bound,
        "attained": found.attained,
        "firm": found.is_certificate,
        "words": str(found),
        "curve": [[r, found.at(r)] for r in radii.tolist()],
    }


def _histogram(fit: Fit, least: int = 5) -> dict[str, Any]:
    """How many rows have which weight, 1 being that of an ordinary row; none of fewer than five."""
    relative = np.concatenate([w * len(w) for w in fit.sample_weights.values()])
    edges = [0.0, 0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, np.inf]
    counts, _ = np.histogram(relative, edges)
    return {"edges": edges[:-1], "rows": [int(c) if c >= least else 0 for c in counts]}
