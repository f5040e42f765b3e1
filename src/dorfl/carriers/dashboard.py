"""The live page of `dorfl watch`: a run as it goes, or the requests and replies of a site.

The page reads a folder and changes nothing. It has figures by site and no row. Its address contains
a secret, so that other users of the machine cannot open it.
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

from dorfl.carriers import runs
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.site.ledger import Ledger
from dorfl.support.text import one_line_each

ContentOf = Callable[[str, int], dict[str, Any]]  # content of the page for a run, from a line on
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MAX_LINES = 5000  # lines of a log in one response; the page requests the rest


def of_folder(path: Path) -> ContentOf:
    """Return what makes the content of the page for a federation's or a site's folder."""
    if (path / "site.toml").exists():
        return partial(of_site, SiteFolder.open(path))
    return partial(of_federation, Federation.open(path))


def of_federation(federation: Federation, run: str = "", after: int = 0) -> dict[str, Any]:
    """Return the content of the page for a federation.

    Parameters
    ----------
    federation
        The coordinator's folder.
    run
        The name of a run; by default the last.
    after
        The first line of the log to include.

    Returns
    -------
    dict
        What the page's script shows, as JSON.
    """
    found = {folder.name: folder for folder in federation.runs()}
    up, there = federation.noted("server") is not None, federation.present()
    page = {
        "kind": "federation",
        "title": f"{federation.host}:{federation.port}",
        "server": up,
        "sites": {site: there.get(site, {}).get("since") for site in federation.sites()},
        "runs": list(found)[::-1],
        "run": None,
        "lines": [],
        "after": 0,
    }
    if not found:
        return page
    name = run if run in found else list(found)[-1]
    after = after if name == run else 0
    record, lines = runs.read_record(found[name]), runs.read_log(found[name])
    shown = ("status", "message", "certificate", "rows", "began", "ended", "keys", "extrapolated")
    page["run"] = {
        "name": name,
        "study": record["study"]["name"],
        "state": runs.progress(federation, found[name]),
        "network": record["study"].get("training", {}).get("model", "linear") != "linear",
        **{key.replace(" ", "_"): record.get(key) for key in shown},
    }
    return page | _part(lines, after)


def of_site(site: SiteFolder, run: str = "", after: int = 0) -> dict[str, Any]:
    """Return the content of the page for a site: its policy, its ledger, and its log."""
    ledger, rules = Ledger(site.path / "ledger.json"), site.policy
    policy = {
        "columns released": ", ".join(rules.released) or "none",
        "fewest rows behind a figure": rules.least,
        "open reports": "allowed" if rules.allow_open_reports else "not allowed",
        "ε at most": "any" if rules.epsilon is None else rules.epsilon,
        "finest curvature": rules.curvature,
        "runs": f"{ledger.runs} of {rules.max_runs}",
        **{
            f"study {seen['name']} {mark[:12]}": f"{_approval(ledger, mark, seen, site)}; "
            f"{len(seen['runs'])} run(s)"
            for mark, seen in ledger.studies.items()
        },
    }
    if ledger.private:
        spent = f"{ledger.spent(rules.delta):.3g} at δ = {rules.delta:g}"
        policy["ε spent"] = f"{spent}, in {len(ledger.private)} run(s)"
    page = {
        "kind": "site",
        "title": site.name,
        "server": site.attended(),
        "policy": policy,
        "run": {"name": "log"},
        "runs": [],
    }
    return page | _part(runs.read_lines(site.path / "site.log"), after if run == "log" else 0)


def _approval(ledger: Ledger, mark: str, seen: dict[str, Any], site: SiteFolder) -> str:
    return "approved" if ledger.permits(mark, seen, site.policy.approve) else "NOT approved"


def _part(lines: list[dict[str, Any]], after: int) -> dict[str, Any]:
    first = min(max(after, 0), len(lines))
    part = lines[first : first + MAX_LINES]
    return {"lines": one_line_each(part), "after": first + len(part)}


class Page(http.server.ThreadingHTTPServer):
    """Serve the page on the loopback, at `url`."""

    daemon_threads = True

    def __init__(self, content_of: ContentOf, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.content_of, self._secret = content_of, secrets.token_urlsafe(16)
        self.root = f"/{self._secret}/"
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self.server_port}{self.root}"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answer GET for the page, its style, its script and its data."""

    server: Page
    timeout = 30
    server_version, sys_version = "dorfl", ""

    def do_GET(self) -> None:
        """Answer a GET request."""
        address = urlsplit(self.path)
        root, _, name = address.path.rpartition("/")
        # Another page in the browser could send requests here under a host name of its own.
        if self.headers.get("host") not in self.server.hosts or f"{root}/" != self.server.root:
            self.send_error(404)
            return
        if name == "data":
            self._data(parse_qs(address.query))
            return
        if name not in ("", "watch.css", "watch.js"):
            self.send_error(404)
            return
        file = name or "watch.html"
        content = (resources.files("dorfl.carriers") / "assets" / file).read_bytes()
        self._give(content, _KINDS[file.rpartition(".")[2]])

    def _data(self, query: dict[str, list[str]]) -> None:
        after = query.get("after", ["0"])[0]
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0
        try:
            content = self.server.content_of(query.get("run", [""])[0], number)
        except (OSError, ValueError) as error:  # a file is being replaced, or is gone
            content = {"error": one_line_each(str(error))}
        self._give(json.dumps(content, ensure_ascii=False).encode(), "application/json")

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
        """Log no requests."""
