"""A regression with missing values
================================

A data frame with a text column, missing cells, outliers in a label, and no column for the client: all rows are then one
client.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import dorfl

# %%
# Rents by area and district. One area in twenty is missing, and one rent in ten has a digit too many.

rng = np.random.default_rng(0)
n = 600
area, district = rng.uniform(20.0, 120.0, n), rng.choice(["north", "south"], n)
rent = 200.0 + 10.0 * area + 150.0 * (district == "south") + rng.normal(0.0, 60.0, n)
flats = pd.DataFrame({"area": area, "district": district})
wrong = rng.random(n) < 0.1
flats.loc[rng.random(n) < 0.05, "area"] = np.nan
train = np.arange(n) < 400

# %%
# Missing cells are imputed by a robust location. The scale of the residuals is estimated with the model.

given = np.where(wrong, 10.0 * rent, rent)
models = {
    "least squares": dorfl.RobustRegressor("erm", loss="squared"),
    "dorfl": dorfl.RobustRegressor(),
}
for name, model in models.items():
    model.fit(flats[train], given[train])
    error = np.abs(model.predict(flats[~train]) - rent[~train]).mean()
    print(f"{name}: mean absolute error {error:.0f} on rents without errors")

# %%
# The default is Huber's loss, on which a large residual has a bounded effect.

line = pd.DataFrame({"area": np.linspace(20.0, 120.0, 50), "district": "north"})
fig, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.scatter(area[train], given[train], s=8, alpha=0.4, color="0.4", label="training rows")
for (name, model), style in zip(models.items(), ("--", "-"), strict=True):
    ax.plot(line["area"], model.predict(line), style, label=name)
ax.set(xlabel="area in square metres", ylabel="rent", ylim=(0, 4000))
ax.legend()
plt.show()
