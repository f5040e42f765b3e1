"""The live page of `dorfl watch`: a run as it goes, or the requests and replies of a site.

The page reads a folder and changes nothing. It has figures by site and no row. Its address contains
a secret, so that other users of the machine cannot open it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from dorfl.carriers import runs
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import start_app
from dorfl.site.ledger import Ledger
from dorfl.support.text import one_line_each

ContentOf = Callable[[str, int], dict[str, Any]]  # content of the page for a run, from a line on
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
ASSETS = Path(__file__).parent / "assets"
_HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
}
MAX_LINES = 5000  # lines of a log in one response; the page requests the rest


def of_folder(path: Path) -> ContentOf:
    """Return what makes the content of the page for a federation's or a site's folder."""
    if (path / "site.toml").exists():
        return partial(of_site, SiteFolder.open(path))
    return partial(of_federation, Federation.open(path))


def of_federation(federation: Federation, run: str = "", after: int = 0) -> dict[str, Any]:
    """Return the content of the page for a run, by default the last, from line `after` on."""
    found = {folder.name: folder for folder in federation.runs()}
    up, there = federation.noted("server") is not None, federation.present()
    page = {
        "kind": "federation",
        "title": f"{federation.host}:{federation.port}",
        "server": up,
        "sites": {site: there.get(site) for site in federation.sites()},
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


class Page:
    """The page on the loopback, at `url`."""

    def __init__(self, content_of: ContentOf, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        root = f"/{secrets.token_urlsafe(16)}/"
        self.url = f"http://127.0.0.1:{self.port}{root}"
        self._content_of = content_of
        self._app = web.Application(middlewares=[self._guard])
        self._app.router.add_get(root, self._html)
        self._app.router.add_get(f"{root}data", self._data)
        self._app.router.add_static(root, ASSETS)

    async def serve(self) -> None:
        """Serve until this task is cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            await web.SockSite(await start_app(stack, self._app), self._socket).start()
            await asyncio.Event().wait()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        # Another page in the browser could send requests here under a host name of its own.
        if request.host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            raise web.HTTPNotFound
        response = await handler(request)
        response.headers.update(_HEADERS)
        return response

    async def _html(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(ASSETS / "watch.html")

    async def _data(self, request: web.Request) -> web.StreamResponse:
        after = request.query.get("after", "0")
        number = int(after) if after.isascii() and after.isdigit() and len(after) < 10 else 0
        try:
            content = self._content_of(request.query.get("run", ""), number)
        except (OSError, ValueError) as error:  # a file is being replaced, or is gone
            content = {"error": one_line_each(str(error))}
        return web.json_response(content)
