"""Measure how a round's time grows with the sites: `python benchmarks/sites.py 3 10 30`.

Starts a whole federation by HTTPS on this machine: server and coordinator as processes, the sites
as tasks of one more process, each with its own key, TLS connection and rows. Prints the median of
the seconds a round, and the processor seconds a round of server, coordinator and all sites.

`python benchmarks/sites.py --one-process 100000` trains so many clients of ten rows and five
columns by `dorfl.train` instead, and prints rounds and processor seconds.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dorfl.carriers import keys, runs
from dorfl.carriers.envelope import SiteEndpoint
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import attend_server, free_port
from dorfl.protocol import settings, toml
from dorfl.site.policy import Policy
from dorfl.site.site import Site

DORFL = (sys.executable, "-m", "dorfl")
STUDY = (
    'name = "many"\n[data]\nlabel = "y"\n[method]\nname = "dorfl"\nmixture = "agnostic"\n'
    '[training]\nsolver = "optimistic"\ntol = 1e-12\nmax_rounds = 12\n'
    '[privacy]\nreports = "open"\n[absent]\nanswer_within = 600\n'
)


def table(k, rows=60, dims=8):
    """Return a site's rows as a table."""
    rng = np.random.default_rng(k)
    X = rng.normal(0.1 * (k % 7), 1.0, (rows, dims))
    y = (X @ np.linspace(-1, 1, dims) + rng.normal(0, 0.3, rows) > 0).astype(int)
    return {**{f"x{j}": X[:, j] for j in range(dims)}, "y": y}


def spent(pid):
    """Return the processor seconds of a process and of its living children."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = [
        Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split() for p in (pid, *children)
    ]
    return sum(int(t[11]) + int(t[12]) for t in ticks) / os.sysconf("SC_CLK_TCK")


async def host_sites(root, server, ca, count):
    """Host all sites in this process, until it is ended."""

    async def host(k):
        name, rows = f"site-{k + 1:03d}", table(k)
        site = Site(
            name,
            rows,
            Policy(tuple(rows), ("many",), allow_open_reports=True),
            note=lambda text: "certify" in text or print(text, file=sys.stderr),
        )
        home = SiteFolder.open(root / name)
        endpoint = SiteEndpoint(site, keys.read_private(home.key), ca)
        await attend_server(server, ca, home, endpoint.respond, lambda _: None)

    await asyncio.gather(*(host(k) for k in range(count)))


def measure(count):
    """Run a study among `count` sites; return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        federation = Federation.create(root / "fed", "127.0.0.1", free_port())
        for k in range(count):
            name = f"site-{k + 1:03d}"
            SiteFolder.create(root / name, name)
            federation.add_site((root / name / f"{name}.crt").read_bytes())
        fed, server = str(root / "fed"), f"127.0.0.1:{federation.port}"
        start = [*DORFL, "server", "start", fed, "--address", "127.0.0.1", "--detach"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
        words = [sys.executable, __file__, "--host", folder, server, str(count)]
        sites = subprocess.Popen(words)
        try:
            while len(federation.present()) < count:
                time.sleep(0.1)
            (root / "study.toml").write_text(STUDY)
            study = settings.among(toml.read(root / "study.toml"), tuple(federation.sites()))
            pid, marks = federation.noted("server")["pid"], []

            def watch(_, event, line):
                if event == "round":
                    used = (spent(pid), time.process_time(), spent(sites.pid))
                    marks.append((line["seconds"], *used))

            runs.begin(federation, study, watch)
        finally:
            sites.kill()
            sites.wait()
            subprocess.run([*DORFL, "stop", fed], check=False, stdout=subprocess.DEVNULL)
    rounds = len(marks) - 2
    used = {
        name: round((marks[-1][k] - marks[1][k]) / rounds, 3)
        for k, name in enumerate(("server", "coordinator", "all sites"), start=1)
    }
    seconds = round(statistics.median(m[0] for m in marks[2:]), 2)
    return {"sites": count, "seconds a round": seconds, **used}


def measure_one_process(count):
    """Train `count` clients in this process; return the figures."""
    import dorfl  # noqa: PLC0415 - numba is not needed above

    rows = (table(k, rows=10, dims=5) for k in range(count))
    clients = {
        f"client-{k}": (np.column_stack([*t.values()][:-1]), t["y"]) for k, t in enumerate(rows)
    }
    dorfl.train({name: clients[name] for name in [*clients][:100]}, dorfl.methods.erm())  # compiles
    began = time.process_time()
    made = dorfl.train(clients, dorfl.methods.erm())
    used = round(time.process_time() - began, 1)
    return {"clients": count, "rounds": made.rounds, "seconds": used, "status": made.status}


if __name__ == "__main__":
    if sys.argv[1] == "--one-process":
        print(json.dumps(measure_one_process(int(sys.argv[2]))))
    elif sys.argv[1] == "--host":
        root = Path(sys.argv[2])
        ca = root / "fed" / "keys" / "ca.crt"
        asyncio.run(host_sites(root, sys.argv[3], ca, int(sys.argv[4])))
    else:
        for wanted in sys.argv[1:]:
            print(json.dumps(measure(int(wanted))), flush=True)
