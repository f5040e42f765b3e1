"""How a round's time grows with the sites: `python benchmarks/sites.py 10 30 100`.

A whole federation on this machine: server, SuperLink and coordinator as processes, the sites as
threads of one more process, each with its own key, TLS connection and rows. Prints seconds a round
(median), and processor seconds a round of the server with its SuperLink and of the coordinator.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from dorfl.flower import keys, running
from dorfl.flower.attending import attend
from dorfl.flower.fleet import Connection
from dorfl.flower.folders import Federation, SiteFolder
from dorfl.flower.serving import free_port
from dorfl.study import settings, toml
from dorfl.study.site import Site

DORFL = (sys.executable, "-m", "dorfl")
STUDY = (
    'name = "many"\n[data]\nlabel = "y"\n[method]\nname = "dorfl"\nmixture = "agnostic"\n'
    '[training]\nsolver = "optimistic"\ntol = 1e-12\nmax_rounds = 12\n'
    "[privacy]\nminimum_rows = 5\n[absent]\nanswer_within = 600\n"
)


def table(k, rows=60, dims=8):
    """A site's rows."""
    rng = np.random.default_rng(k)
    X = rng.normal(0.1 * (k % 7), 1.0, (rows, dims))
    y = (X @ np.linspace(-1, 1, dims) + rng.normal(0, 0.3, rows) > 0).astype(int)
    return {**{f"x{j}": X[:, j] for j in range(dims)}, "y": y}


def spent(pid):
    """Processor seconds of a process and its children that live."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    ticks = [
        Path(f"/proc/{p}/stat").read_text().rsplit(")", 1)[1].split() for p in (pid, *children)
    ]
    return sum(int(t[11]) + int(t[12]) for t in ticks) / os.sysconf("SC_CLK_TCK")


class OneAtATime(Site):
    """Compiled kernels that use threads of their own cannot be called from several at once."""

    turn = threading.Lock()

    def respond(self, data):
        """The reply, when it is this site's turn."""
        with self.turn:
            return super().respond(data)


def host_sites(root, server, ca, count):
    """All sites, in this process, until it is ended."""
    for k in range(count):
        name = f"site-{k + 1:03d}"
        rows = table(k)
        site = OneAtATime(
            name, rows, tuple(rows), approve=("many",),
            note=lambda text: "certify" in text or print(text, file=sys.stderr),
        )  # fmt: skip
        line = Connection(server, ca, keys.read_private(root / name / f"{name}.key"), name)
        args = (site, line, threading.Event(), lambda _: None)
        threading.Thread(target=attend, args=args).start()
    print("up", flush=True)
    threading.Event().wait()


def measure(count):
    """Run a study with so many sites; the figures."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        federation = Federation.create(root / "fed", "127.0.0.1", free_port())
        for k in range(count):
            name = f"site-{k + 1:03d}"
            SiteFolder.create(root / name, name)
            federation.add_site(name, (root / name / f"{name}.pub").read_bytes())
        text = (root / "fed" / "federation.toml").read_text()
        (root / "fed" / "federation.toml").write_text(
            text.replace("connections = 64", f"connections = {2 * count + 64}")
        )
        fed, server = str(root / "fed"), f"127.0.0.1:{federation.port}"
        start = [*DORFL, "server", "start", fed, "--address", "127.0.0.1", "--detach"]
        subprocess.run(start, check=True, stdout=subprocess.DEVNULL)
        words = [sys.executable, __file__, "--host", folder, server, str(count)]
        sites = subprocess.Popen(words, stdout=subprocess.PIPE)
        try:
            sites.stdout.readline()
            while len(federation.present()) < count:
                time.sleep(0.1)
            (root / "study.toml").write_text(STUDY)
            study = settings.among(toml.read(root / "study.toml"), tuple(federation.sites()))
            pid, marks = federation.noted("server")["pid"], []

            def watch(_, event, line):
                if event == "round":
                    marks.append((line["seconds"], spent(pid), time.process_time()))

            running.begin(federation, study, watch)
        finally:
            sites.kill()
            sites.communicate()
            subprocess.run([*DORFL, "stop", fed], check=False, stdout=subprocess.DEVNULL)
    rounds = len(marks) - 2
    return {
        "sites": count,
        "seconds a round": round(statistics.median(m[0] for m in marks[2:]), 2),
        "server": round((marks[-1][1] - marks[1][1]) / rounds, 3),
        "coordinator": round((marks[-1][2] - marks[1][2]) / rounds, 3),
    }


if __name__ == "__main__":
    if sys.argv[1] == "--host":
        root = Path(sys.argv[2])
        host_sites(root, sys.argv[3], root / "fed" / "keys" / "ca.crt", int(sys.argv[4]))
    else:
        for wanted in sys.argv[1:]:
            print(json.dumps(measure(int(wanted))), flush=True)
