"""Sites with tables of their own, and studies over them, for the tests of the protocol."""

from functools import cache

import numpy as np
import pytest

import dorfl
from dorfl.data.preprocessing.columns import table_of
from dorfl.protocol import coordinator, settings, site_keys, toml
from dorfl.protocol.messages import Refusal, Refused
from dorfl.protocol.transcript import Exchange, Transcript
from dorfl.site import local
from dorfl.site.ledger import mark_of
from dorfl.site.policy import Policy
from dorfl.site.site import Site

# Small tables are studied again and again, in the open; test_attacks.py has sites as they are.
ROOMY = Policy(
    approve=("*",),
    least=1,
    minimum_rows=1,
    parameters_per_row=9.0,
    max_runs=9999,
    max_readings=9999,
    allow_open_reports=True,
)
METHODS = {
    "erm": 'name = "erm"',
    "afl": 'name = "afl"',
    "wafl": 'name = "wafl"\nrho = 20',
    "gdrfl": 'name = "gdrfl"\nrho = 20',
    "dorfl": 'name = "dorfl"\nmixture = "agnostic"\nby = "risk"\noutliers = 0.1',
}


def synthetic_tables(seed=0, **given):
    """The paper's three clients as tables with columns x0 … x4 and y."""
    clients = dorfl.datasets.synthetic(seed=seed, **given).clients
    return {
        f"site-{k + 1}": {
            **{f"x{j}": X[:, j] for j in range(X.shape[1])},
            "y": np.where(y > 0, "yes", "no").tolist(),
        }
        for k, (X, y) in enumerate(clients.values())
    }


def mixed_tables(seed=0, sizes=(90, 140)):
    """Numbers with gaps, categories, and three columns that could be labels."""
    rng = np.random.default_rng(seed)
    tables = {}
    for k, n in enumerate(sizes):
        x = rng.normal(k, 1.0, n)
        ward = rng.choice(["north", "south", "west"], n)
        signal = x + (ward == "west") + rng.normal(scale=0.5, size=n)
        tables[f"site-{k + 1}"] = {
            "x": [None if i % 11 == 0 else float(v) for i, v in enumerate(x)],
            "ward": ward.tolist(),
            "ill": np.where(signal > 0.5, "yes", "no").tolist(),
            "grade": np.digitize(signal, [0.0, 1.0]).astype(str).tolist(),
            "cost": [None if i % 17 == 0 else float(50 + 9 * v) for i, v in enumerate(signal)],
        }
    return tables


def make_study(
    tables, label="y", extra="", method=METHODS["dorfl"], training="", absent="", privacy=""
):
    names = ", ".join(f'"{name}"' for name in tables)
    if "reports" not in privacy and "epsilon" not in privacy:
        privacy += '\nreports = "open"'
    return settings.among(
        toml.parse(
            f'name = "trial"\nsites = [{names}]\n[data]\nlabel = "{label}"\n{extra}\n'
            f"[method]\n{method}\n[training]\n{training}\n[absent]\n{absent}\n"
            f"[privacy]\n{privacy}\n"
        ),
        (),
    )


def secure_sites(tables, study, key_of, **options):
    """Sites with their keys, where a person has approved of a study of secure sums."""
    sites = make_sites(tables, **options)
    for name, site in sites.items():
        site.key = key_of(name)
        site.ledger.approve(mark_of(study))
    return sites


def a_site(name, table, kind=Site, **options):
    """A site that releases its columns, approves of every study, and has so few rows to lose."""
    released = tuple(table_of(table).column_names)
    rules = {name: options.pop(name) for name in Policy._fields if name in options}
    policy = options.pop("policy", ROOMY)._replace(**{"released": released, **rules})
    return kind(name, table, policy, **options)


def refuse(site, reason, when):
    """Let a site refuse requests for which `when(step, request)` holds."""
    own = site.local

    def local(step, request):
        if when(step.name, request):
            raise Refused(reason)
        return own(step, request)

    site.local = local


def make_sites(tables, **options):
    return {name: a_site(name, table, **options) for name, table in tables.items()}


@cache
def key_of(name):
    """A private key for each name."""
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP384R1())


def among(study, key=key_of):
    """The study with secure sums; `key(name)` is a site's private key."""
    listed = tuple(site_keys.peer(n, key(n).public_key()) for n in sorted(study.sites))
    return study.changed(privacy_reports="summed", privacy_peers=listed)


def run_summed(tables, study, **options):
    """A study of secure sums, to its end."""
    study = among(study)
    return local.run(
        coordinator.begin(study, "run-1"), secure_sites(tables, study, key_of, **options)
    )


def split(sites, seed=0):
    """The paper's rows, dealt out to so many sites of equal size."""
    tables = synthetic_tables().values()
    joined = {c: np.concatenate([np.array(t[c]) for t in tables]) for c in next(iter(tables))}
    order = np.random.default_rng(seed).permutation(800)
    parts = np.array_split(order, sites)
    return {
        f"site-{k}": {c: joined[c][part].tolist() for c in joined} for k, part in enumerate(parts)
    }


def conduct(
    state, sites, gone=lambda state, site: False, tamper=lambda state, site, data: data,
    patient=False, keep=lambda state: None,
):  # fmt: skip
    """To the end, with sites that do not answer and a network that changes answers.

    Whom the coordinator waits for comes back if it is `patient`.
    """
    transcript = Transcript()
    while state.step != "done":
        step = Exchange(state, transcript)

        def ask(name, state=state, step=step):
            for _ in range(3):
                reply = sites[name].respond(step.payload(name))
                try:
                    if step.read(name, tamper(state, name, reply)):
                        return
                except ValueError:
                    return

        def waiting(state=state, step=step):
            usable = {s for s, told in step.answers.items() if not isinstance(told, Refusal)}
            return coordinator.waiting(state, usable)

        for name in coordinator.recipients(state):
            if not gone(state, name):
                ask(name)
        for name in waiting() if patient else ():
            ask(name)
        assert not waiting()
        state = step.close()
        keep(state)
    return state


def same_service(one, two):
    """Two models serve clients alike; sites count rows in blocks of five, and not one by one."""
    for mine, other in zip(one.facts.clients, two.facts.clients, strict=True):
        assert mine[:3] == other[:3]
        off = 6 / mine.rows if len(one.classes) else 1e-2 * mine.score
        assert mine.score == pytest.approx(other.score, abs=off)
