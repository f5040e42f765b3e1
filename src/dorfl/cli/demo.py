"""`dorfl demo`: a table to try commands on, and a whole federation on this machine."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from dorfl.carriers import require
from dorfl.cli.screen import Commands, Screen
from dorfl.cli.server import opened

if TYPE_CHECKING:
    from dorfl.protocol.messages import Outcome

app = typer.Typer(cls=Commands, no_args_is_help=True, help="See it work on this machine.")

_SITES = ("site-1", "site-2", "site-3")


@app.command()
def federation(
    keep: Annotated[Path | None, typer.Option(help="Keep all files in this folder.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated rows.")] = 0,
    flower: Annotated[bool, typer.Option("--flower", help="Over stock Flower.")] = False,
) -> None:
    """Start a server and three sites with TLS and keys, train, and compare with one process.

    Example: dorfl demo federation
    """
    require("flower" if flower else "sites")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: nothing is left running
    with contextlib.ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _prepare(folder, seed)
        expected = _in_process(folder)  # compiles for all sites, once
        (_over_flower if flower else _over_https)(folder)
        _compare(folder, expected)


def _over_https(folder: Path) -> None:
    """Run the study over HTTPS."""
    federation = opened(folder / "fed")
    fed, server = str(federation.path), f"127.0.0.1:{federation.port}"
    with contextlib.ExitStack() as running:
        _call("server", "start", fed, "--address", "127.0.0.1", "--detach")
        running.callback(_call, "stop", fed)
        for site in _SITES:
            words = ["site", "start", str(folder / site), "--data", str(folder / f"{site}.csv")]
            words += ["--server", server, "--ca", str(federation.keys / "ca.crt")]
            child = subprocess.Popen([*_DORFL, *words])
            running.callback(child.wait)
            running.callback(child.terminate)
        _call("run", fed, str(folder / "study.toml"))


def _over_flower(folder: Path) -> None:
    """Run the study over a stock SuperLink and SuperNodes."""
    from dorfl.cli.loopback import FlowerLoopback

    screen, sites = Screen(), {folder / name: folder / f"{name}.csv" for name in _SITES}
    screen.say("starting a SuperLink, and for each site its process and its SuperNode …")
    with FlowerLoopback(folder / "flower", opened(folder / "fed"), sites) as flower:
        screen.say("flwr run … (each exchange takes some seconds on stock Flower)")
        done = flower.run(study=(folder / "study.toml").read_text())
        for line in done.stdout.splitlines():
            screen.say(line)
        if done.returncode:
            raise ValueError(f"flwr run: {done.stderr}")


@app.command()
def table(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it.")] = Path(
        "records.csv"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Seed of the generated rows.")] = 0,
) -> None:
    """Write a table to try things on: patients of three clinics, one row in ten in wrong units.

    Beside it, as …-new.csv, a table of rows to come, all of them right.

    Example: dorfl demo table --out records.csv
    """
    from pyarrow import csv

    from dorfl.data.datasets import clinics

    coming = out.with_name(f"{out.stem}-new{out.suffix}")
    for path in (out, coming):
        if path.exists():
            raise typer.BadParameter(f"{path} exists; name another with --out")
    made = clinics(seed)
    csv.write_csv(made.records, out)
    csv.write_csv(made.coming, coming)
    screen = Screen()
    screen.say(f"{out}: next, dorfl train {out} --label outcome --client clinic")
    screen.say(f"{coming}: then, dorfl evaluate model {coming}")
    screen.give({"table": str(out), "coming": str(coming)})


_DORFL = (sys.executable, "-m", "dorfl")


def _call(*arguments: str) -> None:
    done = subprocess.run([*_DORFL, *arguments], check=False)
    if done.returncode:
        raise typer.Exit(done.returncode)


def _tables(seed: int) -> dict[str, Any]:
    """Return the paper's three clients, with 70 outliers in 800 rows, as tables by name."""
    import pyarrow as pa

    from dorfl.data import datasets

    clients = datasets.synthetic(seed=seed).clients
    return {
        site: pa.table(
            {**{f"x{k}": column for k, column in enumerate(X.T)}, "label": y.astype(int)}
        )
        for site, (X, y) in zip(_SITES, clients.values(), strict=True)
    }


def _prepare(folder: Path, seed: int) -> None:
    """Write three tables, a study, and the folders of coordinator and sites."""
    from pyarrow import csv

    from dorfl.carriers.folders import Federation, SiteFolder
    from dorfl.carriers.https import free_port

    fed = Federation.create(folder / "fed", "127.0.0.1", free_port())
    for name, rows in _tables(seed).items():
        SiteFolder.create(
            folder / name, name, rows.column_names, ("demo",), allow_open_reports=True
        )
        fed.add_site((folder / name / f"{name}.crt").read_bytes())
        csv.write_csv(rows, folder / f"{name}.csv")
    (folder / "study.toml").write_text(
        'name = "demo"\n[data]\nlabel = "label"\n[method]\nmixture = "agnostic"\n'
        '[privacy]\nreports = "open"\n'
    )


def _in_process(folder: Path) -> Outcome:
    """Return the outcome of the study in this process."""
    from dorfl.carriers.folders import SiteFolder
    from dorfl.data import tables
    from dorfl.protocol import coordinator, settings, toml
    from dorfl.site import local
    from dorfl.site.site import Site

    study = settings.among(toml.read(folder / "study.toml"), _SITES)
    sites = {
        name: Site(name, tables.read(folder / f"{name}.csv"), SiteFolder.open(folder / name).policy)
        for name in _SITES
    }
    return local.run(coordinator.begin(study, "here"), sites).outcome


def _compare(folder: Path, here: Outcome) -> None:
    """Compare the federation's model with the one made in this process."""
    from dorfl.tabular import model

    (run,) = opened(folder / "fed").runs()
    there = model.load(run / "model").fit
    if not (np.array_equal(here.theta, there.theta) and np.array_equal(here.lam, there.lam)):
        raise ValueError("the federation and one process give different models")
    Screen().say(
        f"The same model as in one process, to the last bit: θ = {np.round(there.theta, 3)}"
    )
