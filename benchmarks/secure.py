"""Measure what secure sums cost against open reports: `python benchmarks/secure.py 3 10 30`.

The same study, in process: bytes of all requests (down) and replies (up), and processor time of the
sites and of the coordinator, per round. Figures of sites are per site. Methods are a fixed mixture
(erm), the worst one (afl), and DOR-FL by its defaults. The latter's steps before training (medians,
locations of rows, a comparison of candidates) are included.
"""

import sys
import time

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from dorfl.protocol import coordinator, settings, site_keys, toml
from dorfl.protocol.transcript import Exchange, Transcript
from dorfl.site.ledger import mark_of
from dorfl.site.policy import Policy
from dorfl.site.site import Site

STUDY = (
    'name = "cost"\nsites = [{sites}]\n[data]\nlabel = "y"\n[columns]\nscaling = "{scaling}"\n'
    '[method]\nname = "{method}"\n[privacy]\nreports = "{mode}"\n'
)


def table(k, rows=200, dims=20):
    """Return the rows of a site."""
    rng = np.random.default_rng(k)
    X = rng.normal(0.1 * (k % 7), 1.0, (rows, dims))
    y = (X @ np.linspace(-1, 1, dims) + rng.normal(0, 1.0 + 0.3 * (k % 5), rows) > 0).astype(int)
    return {**{f"x{j}": X[:, j] for j in range(dims)}, "y": y}


def measured(study, sites):
    """Run a study; return its end, bytes down and up, and seconds of sites and coordinator."""
    state, down, up, there, here = coordinator.begin(study, "run"), 0, 0, 0.0, 0.0
    log = Transcript()
    while state.step != "done":
        step = Exchange(state, log)
        for name in coordinator.recipients(state):
            done = False
            while not done:
                began = time.process_time()
                request = step.payload(name)
                between = time.process_time()
                reply = sites[name].respond(request)
                ended = time.process_time()
                done = step.read(name, reply)
                read = time.process_time()
                here, there = here + read - ended + between - began, there + ended - between
                down, up = down + len(request), up + len(reply)
        began = time.process_time()
        state = step.close()
        here += time.process_time() - began
    return state, down, up, there, here


def run(count, method, mode):
    """Print a row of the table."""
    names = [f"site-{k:02d}" for k in range(count)]
    listed = ", ".join(f'"{name}"' for name in names)
    scaling = "robust" if method == "dorfl" else "standard"
    text = STUDY.format(sites=listed, method=method, scaling=scaling, mode=mode)
    study = settings.among(toml.parse(text), ())
    keys = {name: ec.generate_private_key(ec.SECP384R1()) for name in names}
    if mode == "summed":
        peers = tuple(site_keys.peer(name, key.public_key()) for name, key in keys.items())
        study = study.changed(privacy_peers=peers)
    sites = {}
    for k, name in enumerate(names):
        rows = table(k)
        policy = Policy(tuple(rows), ("cost",), allow_open_reports=True)
        sites[name] = Site(name, rows, policy, key=keys[name])
        sites[name].ledger.approve(mark_of(study))
    state, down, up, there, here = measured(study, sites)
    rounds = state.outcome.rounds
    print(
        f"| {count} | {method} | {mode} | {rounds} | "
        f"{up / rounds / count / 1e3:.1f} | {down / rounds / count / 1e3:.1f} | "
        f"{1e3 * there / rounds / count:.0f} | {1e3 * here / rounds:.0f} | "
        f"{state.outcome.objective:.6f} |",
        flush=True,
    )


if __name__ == "__main__":
    run(3, "erm", "open")  # compiles
    print(
        "| sites | method | reports | rounds | KB up | KB down | site ms | coordinator ms | risk |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for count in map(int, sys.argv[1:] or ("3", "5", "10")):
        for method in ("erm", "afl", "dorfl"):
            for mode in ("open", "summed"):
                run(count, method, mode)
