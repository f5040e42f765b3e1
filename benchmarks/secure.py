"""What secure sums cost against reports in the open: `python benchmarks/secure.py 3 5 10`.

The same study, in process: all its bytes on the wire (requests down, replies up) and processor time
of the sites and of the coordinator, divided by the rounds, and where a site's own by the sites. For
a fixed mixture (erm), for the worst one (afl), and for DOR-FL as it is by default: medians, where
rows lie and a trial before training count too.
"""

import sys
import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.study import coordinator, settings, summing, toml
from dorfl.study.ledger import mark_of
from dorfl.study.limits import Limits
from dorfl.study.site import Site
from dorfl.support import wire

ROOMY = Limits(told=99.0, versions=99, middles=99, judged=99, alone=1.0, behind=0)
STUDY = (
    'name = "cost"\nsites = [{sites}]\n[data]\nlabel = "y"\n[columns]\nscaling = "{scaling}"\n'
    '[method]\nname = "{method}"\n'
)


def table(k, rows=200, dims=20):
    """A site's rows."""
    rng = np.random.default_rng(k)
    X = rng.normal(0.1 * (k % 7), 1.0, (rows, dims))
    y = (X @ np.linspace(-1, 1, dims) + rng.normal(0, 1.0 + 0.3 * (k % 5), rows) > 0).astype(int)
    return {**{f"x{j}": X[:, j] for j in range(dims)}, "y": y}


def measured(study, sites):
    """The end of a study, and what it took: bytes down and up, seconds of sites and coordinator."""
    state, down, up, there, here = coordinator.begin(study, "run"), 0, 0, 0.0, 0.0
    while state.step != "done":
        replies = {}
        for name in coordinator.asked(state):
            began = time.process_time()
            request = wire.encode(coordinator.request(state, name))
            between = time.process_time()
            replies[name] = sites[name].respond(request)
            ended = time.process_time()
            here, there = here + between - began, there + ended - between
            down, up = down + len(request), up + len(replies[name])
        began = time.process_time()
        answers = {name: coordinator.read(state, name, data) for name, data in replies.items()}
        state = coordinator.receive(state, answers)
        here += time.process_time() - began
    return state, down, up, there, here


def run(count, method, secure):
    """One row of the table."""
    names = [f"site-{k:02d}" for k in range(count)]
    listed = ", ".join(f'"{name}"' for name in names)
    scaling = "robust" if method == "dorfl" else "standard"
    text = STUDY.format(sites=listed, method=method, scaling=scaling)
    study = settings.among(toml.parse(text), ())
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    if secure:
        peers = tuple(summing.peer(name, key.public_key()) for name, key in keys.items())
        study = study.changed(privacy_secure_sum=True, privacy_peers=peers)
    sites = {}
    for k, name in enumerate(names):
        rows = table(k)
        sites[name] = Site(name, rows, tuple(rows), approve=("cost",), limits=ROOMY, key=keys[name])
        sites[name].ledger.approve(mark_of(study))
    state, down, up, there, here = measured(study, sites)
    rounds = state.outcome.rounds
    print(
        f"| {count} | {method} | {'summed' if secure else 'open'} | {rounds} | "
        f"{up / rounds / count / 1e3:.1f} | {down / rounds / count / 1e3:.1f} | "
        f"{1e3 * there / rounds / count:.0f} | {1e3 * here / rounds:.0f} | "
        f"{state.outcome.objective:.6f} |",
        flush=True,
    )


if __name__ == "__main__":
    run(3, "erm", secure=False)  # compiles
    print(
        "| sites | method | reports | rounds | KB up | KB down | site ms | coordinator ms | risk |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for count in map(int, sys.argv[1:] or ("3", "5", "10")):
        for method in ("erm", "afl", "dorfl"):
            for secure in (False, True):
                run(count, method, secure)
