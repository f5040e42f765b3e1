"""TERM (Li et al., 2021) as a method of one's own: λ_i ∝ n_i exp(t F_i).

python -m experiments compare records --load examples/own_method.py --load examples/own_dataset.py
"""

import numpy as np

import dorfl

T = 2.0  # t > 0 raises the weight of clients with a large risk


def term(reports):
    risks = np.array([report.risk for report in reports])
    rows = np.array([report.rows for report in reports])
    return rows * np.exp(T * (risks - risks.max()))


dorfl.register_method(
    "term",
    term,
    bibtex="""@inproceedings{li2021term,
  title = {Tilted Empirical Risk Minimization},
  author = {Li, Tian and Beirami, Ahmad and Sanjabi, Maziar and Smith, Virginia},
  booktitle = {ICLR}, year = {2021}}""",
)
