"""Synthetic patient records of three clinics, a tenth of them in wrong units.

One row in ten comes from a laboratory that reports glucose and blood pressure in mmol/L and kPa
instead of mg/dL and mmHg. Most of its patients are ill, so a model that trusts these rows learns
that low values mean illness.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

_ROWS = {"harbour": 150, "hill": 300, "station": 600}
_AGE = {"harbour": 60.0, "hill": 48.0, "station": 53.0}
_WRONG = 0.1


class Clinics(NamedTuple):
    """Patients of three clinics.

    Attributes
    ----------
    records : pyarrow.Table
        Training rows.
    coming : pyarrow.Table
        Clean test rows.
    wrong : array
        (n,) mask of the training rows that are wrong.
    """

    records: pa.Table
    coming: pa.Table
    wrong: np.ndarray


def clinics(seed: int = 0) -> Clinics:
    """Return patients of three clinics: age, pressure, glucose, mass, smoking; ill or healthy.

    Parameters
    ----------
    seed
        Seed of the patients.

    Returns
    -------
    Clinics
        Training rows, clean test rows, and a mask of the wrong training rows.

    >>> found = clinics(seed=0)
    >>> found.records.num_rows, int(found.wrong.sum()), found.coming.num_rows
    (1050, 105, 1050)
    """
    rng = np.random.default_rng(seed)
    wrong = np.concatenate(
        [rng.permutation(np.arange(count) < _WRONG * count) for count in _ROWS.values()]
    )
    return Clinics(_patients(rng, wrong), _patients(rng, np.zeros_like(wrong)), wrong)


def _patients(rng: np.random.Generator, wrong: np.ndarray) -> pa.Table:
    names = np.repeat(list(_ROWS), list(_ROWS.values()))
    age = np.repeat(list(_AGE.values()), list(_ROWS.values())) + 13.0 * rng.normal(size=len(names))
    age = np.clip(age, 18.0, 95.0).round()
    smoker = rng.random(len(names)) < 0.3
    mass = 27.0 + 4.0 * rng.normal(size=len(names))
    pressure = 128.0 + 0.4 * (age - 53.0) + 14.0 * rng.normal(size=len(names))
    glucose = 104.0 + 1.2 * (mass - 27.0) + 18.0 * rng.normal(size=len(names))
    lean = 0.08 * (age - 53.0) + 0.12 * (glucose - 104.0) + 0.08 * (pressure - 128.0)
    chance = 1.0 / (1.0 + np.exp(-(lean + 1.6 * smoker - 0.8)))
    ill = rng.random(len(names)) < np.where(wrong, 0.9, chance)
    glucose /= np.where(wrong, 18.0, 1.0)
    pressure /= np.where(wrong, 7.5, 1.0)
    return pa.table(
        {
            "clinic": names,
            "age": age.astype(int),
            "pressure": pressure.round(1),
            "glucose": glucose.round(1),
            "body_mass": mass.round(1),
            "smoker": np.where(smoker, "yes", "no"),
            "outcome": np.where(ill, "ill", "healthy"),
        }
    )
