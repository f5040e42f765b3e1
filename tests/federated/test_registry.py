"""Methods and data sets of one's own are trained, compared and cited by name."""

import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp

import dorfl
from dorfl.federated import registry
from dorfl.protocol import settings
from dorfl.tabular.comparison import compare

ROOT = Path(__file__).parents[2]
EXAMPLES = [ROOT / "examples" / name for name in ("own_method.py", "own_dataset.py")]


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "_methods", {})
    monkeypatch.setattr(registry, "_datasets", {})
    registry._load.cache_clear()
    yield
    registry._load.cache_clear()


@pytest.fixture
def table(tmp_path):
    command = [sys.executable, "-m", "dorfl", "demo", "table", "--out", "records.csv"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "records.csv"


def test_term_minimises_its_own_objective():
    runpy.run_path(str(EXAMPLES[0]))
    clients = dorfl.datasets.synthetic(seed=0).clients
    l2, t = 0.01, 2.0
    fit = dorfl.train(clients, "term", l2=l2, intercept=False, tol=1e-9)
    sizes = np.array([len(y) for _, y in clients.values()])

    def tilted(theta):
        risks = [np.logaddexp(0.0, -y * (X @ theta)).mean() for X, y in clients.values()]
        ridge = 0.5 * l2 * theta @ theta
        return logsumexp(t * (np.array(risks) + ridge), b=sizes / sizes.sum()) / t

    best = minimize(tilted, np.zeros(5), tol=1e-12)
    assert tilted(fit.theta) == pytest.approx(best.fun, rel=1e-5)
    assert not np.allclose(fit.lam, sizes / sizes.sum(), atol=0.01)  # it is not ERM


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def test_a_table_and_term_are_compared_without_editing_the_package(table):
    words = ["compare", "records", "--seeds", "2", "--out", str(table.parent / "out")]
    words += [word for path in EXAMPLES for word in ("--load", str(path))]
    done = subprocess.run(
        [sys.executable, "-c", "from experiments.__main__ import app; app()", *words],
        cwd=table.parent, capture_output=True, text=True, check=False,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "COLUMNS": "160", "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "term" in done.stdout and "constant" in done.stdout
    page = (table.parent / "out" / "compare-records.html").read_text(encoding="utf-8")
    assert "term" in page and "Tilted Empirical Risk Minimization" in page


def test_dorfl_compare_has_a_registered_method(table):
    runpy.run_path(str(EXAMPLES[0]))
    study = settings.Study(settings.Data("outcome", client="clinic", file=str(table)))
    found = compare(study, folds=2)
    assert found.methods == (*settings.METHODS, "term")
    accuracy = found.scores.mean(axis=1)
    assert accuracy[found.methods.index("term")] == pytest.approx(accuracy[0], abs=0.05)  # as ERM


def test_methods_of_dorfl_have_names_too():
    clients = dorfl.datasets.synthetic(seed=0).clients
    one, other = dorfl.train(clients, "afl"), dorfl.train(clients, dorfl.methods.afl())
    np.testing.assert_array_equal(one.theta, other.theta)
    with pytest.raises(ValueError, match="needs a price of transport"):
        dorfl.train(clients, "gdrfl")


def test_parts_are_trained_by_name():
    parts = dorfl.methods.method(mixture="agnostic", name="mine")
    dorfl.register_method("mine", parts)
    clients = dorfl.datasets.synthetic(seed=0).clients
    one, other = dorfl.train(clients, "mine"), dorfl.train(clients, dorfl.methods.afl())
    np.testing.assert_array_equal(one.theta, other.theta)


def test_a_rule_that_never_settles_is_not_called_converged():
    def worst(reports):
        return [float(own.risk == max(other.risk for other in reports)) for own in reports]

    dorfl.register_method("worst", worst)
    with pytest.warns(dorfl.FitWarning, match="still change"):
        fit = dorfl.train(dorfl.datasets.synthetic(seed=0).clients, "worst", l2=0.01)
    assert fit.status == "spent" and "make the rule flatter" in fit.message


def test_entry_points_register(monkeypatch):
    def found(*, group):
        name = {"dorfl.methods": "zero", "dorfl.datasets": "rows"}[group]
        return [metadata.EntryPoint(name, "math:fabs", group)]

    monkeypatch.setattr(registry.metadata, "entry_points", found)
    assert registry.method_names() == ("zero",)
    assert registry.dataset_names() == ("rows",)


def test_what_cannot_be_is_said():
    with pytest.raises(ValueError, match="built-in method"):
        dorfl.register_method("erm", lambda reports: [1.0 for _ in reports])
    with pytest.raises(ValueError, match="function from client"):
        dorfl.register_method("mine", dorfl.methods.dorfl())
    with pytest.raises(ValueError, match="letters, digits"):
        dorfl.register_dataset("my rows", lambda seed: ({}, {}))
    with pytest.raises(ValueError, match="choose one of erm"):
        dorfl.train(dorfl.datasets.synthetic(seed=0).clients, "nobody")
    dorfl.register_method("none", lambda reports: [0.0 for _ in reports])
    with pytest.raises(ValueError, match="weight 0"):
        dorfl.train(dorfl.datasets.synthetic(seed=0).clients, "none")
