"""A CSV as a data set of one's own.

dorfl demo table --out records.csv
python -m experiments compare records --load examples/own_dataset.py
"""

import numpy as np
import pandas as pd

import dorfl


def records(seed, path="records.csv"):
    """One client for each clinic; two rows in ten are held out to test on."""
    table = pd.read_csv(path).dropna().sample(frac=1.0, random_state=seed)
    numbers = table.drop(columns=["outcome", "clinic"]).select_dtypes("number")
    X = (numbers - numbers.median()) / (numbers.quantile(0.75) - numbers.quantile(0.25))
    y = np.where(table["outcome"] == table["outcome"].iloc[0], 1, -1)
    clients, test = {}, {}
    for name in sorted(table["clinic"].unique()):
        rows, labels = X[table["clinic"] == name].to_numpy(), y[table["clinic"] == name]
        held = len(labels) // 5
        test[name], clients[name] = (rows[:held], labels[:held]), (rows[held:], labels[held:])
    return clients, test


dorfl.register_dataset("records", records)
