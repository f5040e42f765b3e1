"""Sites whose processors round differently take part in one summed study."""

import numpy as np
import pytest
from deployments import TABLES, OverHttps, until

import portable
from dorfl.carriers import keys
from dorfl.protocol import coordinator
from dorfl.site import local
from dorfl.site.ledger import Ledger, mark_of
from study_cases import METHODS, among, make_study, secure_sites

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

OTHERS = [kind for kind in portable.COMBINATIONS if portable.runs(*kind[:2])][:2]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Start two of three sites as if their processors were older ones."""
    made = OverHttps(tmp_path_factory.mktemp("d"))
    kinds = OTHERS or [("host", "generic", "baseline")]
    made.environments = {
        name: portable.environment(*kind) for name, kind in zip(made.homes, kinds, strict=False)
    }
    with made:
        until(lambda: len(made.federation.present()) == len(made.homes))
        yield made


@pytest.mark.parametrize("method", ["erm", "gdrfl"])
def test_a_summed_study_ends_as_on_one_kind_of_processor(deployed, method):
    def key_of(name):
        return keys.read_private(deployed.homes[name] / f"{name}.key")

    standard = '[columns]\nscaling = "standard"'
    plain = make_study(TABLES, method=METHODS[method], extra=standard, absent="answer_within = 600")
    study = among(plain, key_of)
    for home in deployed.homes.values():
        Ledger(home / "ledger.json").approve(mark_of(study))
    read = {name: {**t, "y": list(t["y"])} for name, t in TABLES.items()}
    here = local.run(coordinator.begin(study, "alone"), secure_sites(read, study, key_of)).outcome
    folder = deployed.run(plain.changed(privacy_reports="summed"))
    there = deployed.outcome(folder)
    assert there.status == here.status == "converged"
    assert deployed.record(folder)["extrapolated"] == {}
    assert there.objective == pytest.approx(here.objective, rel=1e-6)
    np.testing.assert_allclose(there.theta, here.theta, rtol=0, atol=1e-4)
