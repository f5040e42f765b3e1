"""Sites with few rows and the policy that sites have by default: honest studies end."""

import csv

import numpy as np
import pytest
from sklearn.datasets import load_iris, load_wine

from cases import few
from dorfl.protocol import coordinator
from dorfl.site import local
from dorfl.site.policy import Policy
from dorfl.tabular import results, table
from study_cases import among, key_of, make_sites, make_study, secure_sites

DEFAULT = Policy(approve=("*",))
DATA = {"wine": load_wine, "iris": load_iris}


def dealt(name, count, seed=0):
    """The rows of a public table, dealt out to so many sites in turn."""
    data = DATA[name]()
    order = np.random.default_rng(seed).permutation(len(data.target))
    X, y = data.data[order], np.array(list(data.target_names), dtype=object)[data.target[order]]
    return {
        f"s{k}": {
            **{f"x{j}": X[k::count, j].tolist() for j in range(X.shape[1])},
            "kind": [str(one) for one in y[k::count]],
        }
        for k in range(count)
    }


def ended(tables, method, mode, extra=""):
    """How a study of sites ends whose policy is the default, but for permission if it is open."""
    study = make_study(
        tables, "kind", extra, method=f'name = "{method}"', privacy=f'reports = "{mode}"'
    )
    policy = DEFAULT._replace(allow_open_reports=mode == "open")
    if mode == "open":
        sites = make_sites(tables, policy=policy)
    else:
        study = among(study)
        sites = secure_sites(tables, study, key_of, policy=policy)
    return local.run(coordinator.begin(study, "run-1"), sites), study


def pooled(tables, method, folder):
    """The model of the same study of one table."""
    columns = next(iter(tables.values()))
    rows = {c: [v for t in tables.values() for v in t[c]] for c in columns}
    rows["site"] = [name for name, t in tables.items() for _ in t["kind"]]
    with (folder / "all.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(rows)
        writer.writerows(zip(*rows.values(), strict=True))
    study = make_study(tables, "kind", method=f'name = "{method}"')
    data = study.data._replace(file=str(folder / "all.csv"), client="site")
    return table.run(study._replace(sites=(), data=data))[0]


def accuracy(model, tables):
    right = [model.predict(t) == np.array(t["kind"]) for t in tables.values()]
    return 100.0 * float(np.concatenate(right).mean())


def test_wine_among_three_sites_ends_in_the_bits_of_the_pooled_table(tmp_path):
    tables = dealt("wine", 3)
    assert [len(t["kind"]) for t in tables.values()] == [60, 59, 59]
    model = pooled(tables, "dorfl", tmp_path)
    plain, _ = ended(tables, "dorfl", "open")
    made = results.model_of(plain)
    assert made.transform == model.transform
    np.testing.assert_array_equal(made.fit.theta, model.fit.theta)
    np.testing.assert_array_equal(made.fit.lam, model.fit.lam)


@pytest.mark.parametrize(
    "which", few([(n, k, m) for n in DATA for k in (3, 4, 6) for m in ("dorfl", "erm")], 2)
)
def test_a_summed_study_ends_within_two_rows_of_the_pooled_model(which, tmp_path):
    name, count, method = which
    tables = dealt(name, count)
    end, _ = ended(tables, method, "summed")
    assert end.outcome.status in ("converged", "stalled") and len(end.released) == count
    one = accuracy(results.model_of(end), tables)
    other = accuracy(pooled(tables, method, tmp_path), tables)
    assert one >= other - 100.0 * 2.1 / sum(end.rows)


def test_rows_of_rare_classes_are_all_that_a_summed_study_lacks(tmp_path):
    """A class with fewer than five rows at a site stays there; otherwise the accuracy is equal."""
    tables = dealt("iris", 6, seed=3)
    assert min(t["kind"].count(kind) for t in tables.values() for kind in set(t["kind"])) >= 5
    end, _ = ended(tables, "dorfl", "summed")
    assert sum(end.rows) == 150
    assert accuracy(results.model_of(end), tables) == accuracy(
        pooled(tables, "dorfl", tmp_path), tables
    )


def test_wine_summed_is_the_open_model_within_a_thousandth_if_no_median_is_needed():
    """Medians are those of histograms in a summed study, so that robustly scaled columns differ."""
    tables, standard = dealt("wine", 3), '[columns]\nscaling = "standard"'
    one, other = (ended(tables, "erm", mode, standard)[0] for mode in ("summed", "open"))
    np.testing.assert_allclose(one.outcome.theta, other.outcome.theta, rtol=0, atol=1e-3)


def test_a_summed_study_repeats_to_the_bit():
    tables = dealt("iris", 3)
    ends = [ended(tables, "erm", "summed")[0] for _ in range(2)]
    assert np.array_equal(ends[0].outcome.theta, ends[1].outcome.theta)


def test_sites_release_their_own_figures_rounded_unless_they_say_not():
    tables = dealt("wine", 3)
    end, study = ended(tables, "erm", "summed")
    model = results.model_of(end)
    by_name = {served.name: served for served in model.facts.clients}
    assert set(tables) <= set(by_name)
    for name, rows in tables.items():
        predicted = model.predict(rows) == np.array(rows["kind"])
        unit = 5 / len(rows["kind"])
        told = end.released[name].score
        assert abs(told - predicted.mean()) <= unit
        assert told == 1.0 or told / unit == pytest.approx(round(told / unit))
        assert by_name[name].score == told
    sites = secure_sites(tables, study, key_of, policy=DEFAULT._replace(release_figures=False))
    end = local.run(coordinator.begin(study, "run-1"), sites)
    assert all(told == (None, None) for told in end.released.values())


def test_a_model_with_too_many_columns_is_refused_before_training():
    tables = {name: {c: v[:30] for c, v in t.items()} for name, t in dealt("wine", 3).items()}
    with pytest.raises(ValueError, match=r"saturation rule: the model has 14 columns"):
        ended(tables, "erm", "open")
    assert ended(tables, "erm", "summed")[0].outcome.status == "converged"
