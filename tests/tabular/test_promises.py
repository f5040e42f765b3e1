"""What a study's model guarantees: the same from a table and from sites, and what is refused."""

import numpy as np
import pandas as pd
import pytest

import dorfl
from cases import few
from dorfl.certificates import bound
from dorfl.protocol import coordinator, resolution
from dorfl.protocol.messages import Refused
from dorfl.protocol.settings import Data, Study
from dorfl.protocol.steps import certify
from dorfl.site import local
from dorfl.tabular import promises, results, table
from dorfl.tabular.model.facts import from_json
from study_cases import METHODS, make_sites, make_study, mixed_tables, refuse, synthetic_tables

TABLES = synthetic_tables()


def run(study, sites, **options):
    return local.run(coordinator.begin(study, "run-1"), make_sites(sites, **options))


def figures(promise):
    lines = (*promise.overall, *promise.clients, *promise.over_drift, *promise.over_outliers)
    return [np.nan if v is None else v for line in lines for v in line[1:]]


@pytest.mark.parametrize("label", few(["ill", "cost", "grade"], 2))
@pytest.mark.parametrize("method", ['name = "dorfl"', METHODS["erm"]])
def test_sites_promise_what_the_pooled_table_does(tmp_path, label, method):
    sites = mixed_tables()
    others = [name for name in ("ill", "grade", "cost") if name != label]
    sites = {s: {n: v for n, v in t.items() if n not in others} for s, t in sites.items()}
    study = make_study(sites, label=label, method=method)
    apart = run(study, sites)
    frames = [pd.DataFrame(t).assign(site=s) for s, t in sites.items()]
    pd.concat(frames).to_csv(tmp_path / "all.csv", index=False)
    pooled = study._replace(
        sites=(), data=study.data._replace(file=str(tmp_path / "all.csv"), client="site")
    )
    kept = []
    made, rows = table.run(pooled, None, kept.append)
    assert kept[0].facts.promise is None  # it was there before it was certified
    mine, theirs = made.facts.promise, results.model_of(apart).facts.promise
    assert mine.words == theirs.words
    assert figures(mine) == pytest.approx(figures(theirs), nan_ok=True, rel=1e-9)
    assert from_json(made.facts.to_json()) == made.facts
    own = promises.of_model(made, rows, 0.1, 0.1, confidence=None)
    assert own.at().error == pytest.approx(mine.overall[0].error, rel=0.25)


def test_frozen_columns_and_flags_do_not_move():
    sites = mixed_tables()
    study = make_study(sites, label="ill", extra='[columns]\nignore = ["grade", "cost"]')
    end = run(study, sites)
    units, asked = resolution.certificate_grid(end.agreed, 1)
    moves = dict(zip(end.agreed.transform.names, np.isfinite(units.moves), strict=True))
    assert moves.pop("x") and not any(moves.values())
    assert set(end.bounds) == set(sites) and asked.shares == (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)


def test_without_every_site_nothing_is_promised():
    end = run(make_study(TABLES), TABLES)
    assert results.model_of(end).facts.promise is not None
    some = end._replace(bounds=dict(list(end.bounds.items())[:2]))
    assert results.model_of(some).facts.promise is None


@pytest.mark.parametrize("step", ["certify", "finish"])
def test_a_site_that_withholds_its_part_is_named_with_its_reason(step):
    sites = make_sites(TABLES)
    refuse(sites["site-2"], "our board has to agree first", lambda name, _: name == step)
    end = local.run(coordinator.begin(make_study(TABLES), "run-1"), sites)
    assert end.step == "done" and promises.of_study(end) is None
    made = results.model_of(end)
    named = "site 'site-2' withheld its part: our board has to agree first"
    assert [named in note for note in made.facts.notes].count(True) == 1
    away = end._replace(step="certify", bounds={}, withheld={})
    part = sites["site-1"].answer(coordinator.request(away, "site-1"))
    late = coordinator.receive(away, {"site-1": part})
    assert set(late.withheld) == {"site-2", "site-3"} and "in time" in late.withheld["site-3"]


def test_nothing_is_told_under_differential_privacy():
    private = "epsilon = 50"
    study = make_study(TABLES, method="outliers = 0", privacy=private, training="max_rounds = 3")
    end = run(study, TABLES)
    assert end.bounds == {} and promises.of_study(end) is None
    assert not resolution.certifies(study)


def test_a_site_certifies_on_a_grid_of_the_protocol_only():
    study = make_study(TABLES)
    sites = make_sites(TABLES)
    end = local.run(coordinator.begin(study, "run-1"), sites)
    asked = coordinator.request(end._replace(step="certify"), "site-1")
    assert isinstance(sites["site-1"].answer(asked), bound.CertificateReport)
    with pytest.raises(Refused):
        sites["site-1"].answer(asked._replace(stride=0))


@pytest.mark.parametrize(
    "lie",
    [
        {"loss": np.zeros((1, 1))},
        {"error": np.full((15, 6), 1e31)},
        {"loss": np.full((15, 6), -1.0)},
        {"error": np.full((15, 6), np.nan)},
    ],
)
def test_what_no_site_can_tell_is_refused(lie):
    end = run(make_study(TABLES), TABLES)._replace(step="certify")
    told = end.bounds["site-1"]
    asked = resolution.certificate_grids(end.agreed, resolution.grid_stride(end))
    assert certify.check(told, *asked) is None
    assert "certificate" in certify.check(told._replace(**lie), *asked)


def test_labels_that_were_cut_short_have_no_bound(tmp_path):
    """Trained as 30 units from their middle: what is certified of that would not hold of them."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=400), "site": np.repeat(["a", "b"], 200)})
    frame["cost"] = frame.x + rng.normal(size=400)
    frame.loc[:3, "cost"] = 1e4
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = Data("cost", client="site", file=str(tmp_path / "t.csv"), task="regression")
    made, _ = table.run(Study(data))
    promise = made.facts.promise
    assert "no bound is known" in promise.words
    bounded = {line.name: line.error is not None for line in promise.clients}
    assert bounded == {"a": False, "b": True}
    model = dorfl.RobustRegressor().fit(frame[["x"]], frame.cost, clients=frame.site)
    with pytest.raises(ValueError, match="give X and y"):
        model.certify()
    found = model.certify(
        frame[["x"]], frame.cost, clients=frame.site, outliers=0.0, drift=0.0, confidence=None
    )
    exact = np.abs(model.predict(frame[["x"]]) - frame.cost).mean()
    assert found.error >= exact * (1.0 - 1e-9)
