"""A page on the loopback that shows a run as it goes, or what a site has been asked and has sent.

It reads what is in the folder and changes nothing; it has figures by site and no row. The address
has a secret in it, so that others who are logged in on the machine cannot look.
"""

from __future__ import annotations

import http.server
import json
import secrets
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from dorfl.flower import running
from dorfl.flower.folders import Federation, SiteFolder
from dorfl.study.ledger import Ledger
from dorfl.support.text import one_line_each, percent

Told = Callable[[str, int], dict[str, Any]]  # what is new in a run since so many lines
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_MOST = 5000  # lines at once; the page asks for the rest


def of_folder(path: Path) -> Told:
    """What a page about this folder says, be it a federation's or a site's."""
    if (path / "site.toml").exists():
        return partial(of_site, SiteFolder.open(path))
    return partial(of_federation, Federation.open(path))


def of_federation(federation: Federation, run: str = "", after: int = 0) -> dict[str, Any]:
    """A run's record, and its log from line `after` on; of the last run unless one is named."""
    runs = {folder.name: folder for folder in federation.runs()}
    up, there = federation.noted("server") is not None, federation.present()
    told = {
        "kind": "federation",
        "title": f"{federation.host}:{federation.port}",
        "server": up,
        "sites": {site: there.get(site, {}).get("since") for site in federation.sites()},
        "runs": list(runs)[::-1],
        "run": None,
        "lines": [],
        "after": 0,
    }
    if not runs:
        return told
    name = run if run in runs else list(runs)[-1]
    after = after if name == run else 0
    record, lines = running.read_record(runs[name]), running.read_log(runs[name])
    going = federation.noted("run") or {}
    here = going.get("folder") == str(runs[name])
    state = "finished" if "ended" in record else "running" if here else "interrupted"
    shown = ("status", "message", "certificate", "rows", "began", "ended", "keys", "stood in")
    told["run"] = {
        "name": name,
        "study": record["study"]["name"],
        "state": state,
        "network": record["study"].get("training", {}).get("model", "linear") != "linear",
        **{key.replace(" ", "_"): record.get(key) for key in shown},
    }
    return told | _part(lines, after)


def of_site(site: SiteFolder, run: str = "", after: int = 0) -> dict[str, Any]:
    """What the site allows, what its ledger says is told and left, and its log from `after` on."""
    ledger = Ledger(site.path / "ledger.json")
    policy = {
        "columns released": "all" if site.released is None else ", ".join(site.released),
        "fewest rows behind a figure": site.least,
        "ε at most": "any" if site.epsilon is None else site.epsilon,
        "finest curvature": site.curvature,
        "told so far": f"{percent(ledger.told)} of the numbers in the rows; "
        f"{percent(site.limits.told, 0)} at most, "
        f"{percent(max(site.limits.told - ledger.told, 0.0))} left",
        "questions answered": len(ledger.questions),
        "columns told of": ", ".join(ledger.columns) or "none",
        **{
            f"study {seen['name']} {mark[:12]}": f"{_approval(ledger, mark, seen, site)}; "
            f"{len(seen['runs'])} run(s)"
            for mark, seen in ledger.studies.items()
        },
    }
    if ledger.private:
        spent = f"{ledger.spent(site.limits.delta):.3g} at δ = {site.limits.delta:g}"
        policy["ε spent"] = f"{spent}, in {len(ledger.private)} run(s)"
    told = {
        "kind": "site",
        "title": site.name,
        "server": site.attended(),
        "policy": policy,
        "run": {"name": "log"},
        "runs": [],
    }
    return told | _part(running.read_lines(site.path / "site.log"), after if run == "log" else 0)


def _approval(ledger: Ledger, mark: str, seen: dict[str, Any], site: SiteFolder) -> str:
    return "approved" if ledger.permits(mark, seen, site.approve) else "NOT approved"


def _part(lines: list[dict[str, Any]], after: int) -> dict[str, Any]:
    first = min(max(after, 0), len(lines))
    part = lines[first : first + _MOST]
    return {"lines": one_line_each(part), "after": first + len(part)}


class Page(http.server.ThreadingHTTPServer):
    """The server of the page; `url` is where it is."""

    daemon_threads = True

    def __init__(self, told: Told, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.told, self._secret = told, secrets.token_urlsafe(16)
        self.root = f"/{self._secret}/"
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self.server_port}{self.root}"


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET, of four things."""

    server: Page
    timeout = 30
    server_version, sys_version = "dorfl", ""

    def do_GET(self) -> None:
        """As http.server calls it."""
        asked = urlsplit(self.path)
        root, _, name = asked.path.rpartition("/")
        # Another page that the browser shows may send requests here, under a name of its own.
        if self.headers.get("host") not in self.server.hosts or f"{root}/" != self.server.root:
            self.send_error(404)
            return
        if name == "data":
            self._data(parse_qs(asked.query))
            return
        if name not in ("", "watch.css", "watch.js"):
            self.send_error(404)
            return
        file = name or "watch.html"
        content = (resources.files("dorfl.flower") / "assets" / file).read_bytes()
        self._give(content, _KINDS[file.rpartition(".")[2]])

    def _data(self, query: dict[str, list[str]]) -> None:
        after = query.get("after", ["0"])[0]
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0
        try:
            told = self.server.told(query.get("run", [""])[0], number)
        except (OSError, ValueError) as error:  # a file is being replaced, or is gone
            told = {"error": one_line_each(str(error))}
        self._give(json.dumps(told, ensure_ascii=False).encode(), "application/json")

    def _give(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", f"{kind}; charset=utf-8")
        self.send_header("content-length", str(len(content)))
        self.send_header("cache-control", "no-store")
        self.send_header("x-content-type-options", "nosniff")
        self.send_header("referrer-policy", "no-referrer")
        self.send_header(
            "content-security-policy",
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
            "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Requests are not worth a line."""
