"""What a page of a model or a comparison shows first, and how it holds many clients and classes."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dorfl.cli import app
from dorfl.protocol.settings import Data, Study
from dorfl.report.content import Details, Figure, Table, blocks
from dorfl.tabular import model, pages
from dorfl.tabular.comparison import Comparison
from dorfl.tabular.model import views
from dorfl.tabular.model.facts import ClientStatistics, Estimate, HeldOutScores


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pages"), np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(300, 3)), columns=["a", "b", "c"])
    frame["ill"] = np.where(frame.a + rng.normal(size=300) > 0, "yes", "no")
    frame["ward"] = rng.choice(["north", "south", "west"], 300)
    frame.to_csv(folder / "rows.csv", index=False)
    words = ["train", str(folder / "rows.csv"), "--label", "ill", "--client", "ward", "--out",
             str(folder / "model"), "--budget", "0"]  # fmt: skip
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return model.load(folder / "model")


def test_a_model_shows_its_scores_first_and_its_training_last_unless_it_fell_short(made):
    own = Estimate(0.8, 0.02, 60)
    clients = {"north": own, "south": Estimate(0.7, 0.05, 30)}
    held = (
        HeldOutScores("dorfl", own, clients),
        HeldOutScores("erm", Estimate(0.75, 0.02, 60), clients),
        HeldOutScores("majority class", Estimate(0.5, 0.03, 60), clients),
    )
    measured = replace(made, facts=made.facts._replace(held_out=held))
    score, worst, outliers, bound, training = views.of_model(measured).cards
    assert score.value == "80.0 %"
    assert "(± 2.0 %)" in score.claim
    assert "plain training 75.0 %; majority class 50.0 %" in score.claim
    assert worst.value == "70.0 %" and "the worst client, south, on 30 held-out rows" in worst.claim
    assert "down-weighted" in outliers.claim and "guaranteed" in bound.claim
    assert training.value == "converged"
    short = replace(made, fit=replace(made.fit, status="max_rounds", message="not converged: …"))
    first = views.of_model(short).cards[0]
    assert first.value == "not converged" and first.holds is False


def test_coefficients_have_standard_errors(made):
    drawn = {one.name: one for one in blocks(views.of_model(made)) if isinstance(one, Figure)}
    (series,) = drawn["coefficients"].series
    assert series.error is not None and min(series.error) > 0.0
    older = replace(made, facts=made.facts._replace(errors=()))
    drawn = {one.name: one for one in blocks(views.of_model(older)) if isinstance(one, Figure)}
    assert drawn["coefficients"].series[0].error is None


def comparison(clients):
    names, owner = tuple(f"clinic {k}" for k in range(clients)), np.repeat(np.arange(clients), 40)
    rng = np.random.default_rng(0)
    scores = (rng.random((5, len(owner))) < rng.uniform(0.3, 0.9, clients)[owner]).astype(float)
    inlier = rng.random(len(owner)) < 0.9
    methods = ("erm", "afl", "wafl", "gdrfl", "dorfl")
    return Comparison(methods, names, owner, scores, inlier, True, 4)


@pytest.mark.parametrize("clients", [3, 63])
def test_a_comparison_shows_dots_with_errors_for_the_worst_clients(clients):
    found = comparison(clients)
    page = pages.of_comparison(found, Study(Data(label="ill")))
    (figure,) = [one for one in blocks(page) if isinstance(one, Figure)]
    assert figure.kind == "dots" and len(figure.series) == 5
    shown = list(figure.series[0].x)
    assert len(shown) == min(clients, 16)
    own = [found.scores[:, (found.owner == k) & found.inlier] for k in range(clients)]
    worst = np.argsort([part.mean() for part in own], kind="stable")
    assert shown == [found.clients[k] for k in worst[: len(shown)]]
    first = own[worst[0]][4]
    error = 100 * first.std(ddof=1) / np.sqrt(len(first))
    assert figure.series[4].error[0] == pytest.approx(error)
    folded = [one for one in page.sections[1].blocks if isinstance(one, Details)]
    assert len(folded) == (clients > 16)
    for table in (one for one in blocks(page) if isinstance(one, Table)):
        assert len(table.columns) <= 6


def test_of_many_clients_those_with_the_largest_loss_are_shown_and_all_folded(made):
    names = tuple(f"clinic {k}" for k in range(63))
    served = tuple(ClientStatistics(name, 40, 1.0 - k / 100, 0.5) for k, name in enumerate(names))
    facts = made.facts._replace(clients=served)
    many = replace(made, facts=facts, fit=replace(made.fit, clients=names, lam=np.ones(63) / 63))
    (shown, folded) = next(s for s in views.of_model(many).sections if s.title == "Clients").blocks
    assert [row[0] for row in shown.rows] == list(names[:16])
    assert isinstance(folded, Details) and len(folded.blocks[0].rows) == 63
