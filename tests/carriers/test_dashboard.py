"""The live page, in a real browser; the folders are as a run leaves them, and grow as it would."""

import contextlib
import http.client
import json
from urllib.parse import urlsplit

import pytest
from deployments import in_thread

from browser import CHROMIUM, browser
from dorfl.carriers.dashboard import Page, of_folder, of_site
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.protocol import toml
from dorfl.site.ledger import Ledger, mark_of

SITES = ("north", "south", "west")
RUN = "20261117-110000-000000-stroke"
FORGED = "<img src=x onerror=alert(1)>\u001b[2J\nround 9"


def a_round(number, **changed):
    figures = {s: {"lambda": (k + 1) / 6, "risk": 1 / number + k} for k, s in enumerate(SITES)}
    return {
        "time": f"2026-11-17T11:00:{number:02d}.000+00:00",
        "event": "round",
        "step": "round",
        "round": number,
        "objective": 1.0,
        "gap": 10.0**-number,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "sites": figures,
        "answered": list(SITES),
        "extrapolated": [],
        "refused": {},
        "clipped": [],
        "seconds": 0.5,
        "took": dict.fromkeys(SITES, 0.25),
        **changed,
    }


class Run:
    """A run's folder that grows."""

    def __init__(self, root):
        fed = Federation.create(root / "fed", "127.0.0.1", 4443)
        for name in SITES:
            SiteFolder.create(root / name, name)
            fed.add_site((root / name / f"{name}.crt").read_bytes())
        self.federation, self.folder = fed.path, fed.path / "runs" / RUN
        self.folder.mkdir()
        self.record = {"run": RUN, "study": {"name": "stroke"}, "began": "2026-11-17T11:00:00"}
        self.end()

    def end(self, **told):
        self.record |= told
        (self.folder / "record.json").write_text(json.dumps(self.record))

    def log(self, *lines):
        with (self.folder / "log.jsonl").open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path)


@contextlib.contextmanager
def served(path):
    page = Page(of_folder(path))
    with in_thread(page.serve):
        yield page


def get(page, path, method="GET", **headers):
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    content = answer.read()
    line.close()
    return answer.status, content


def test_only_who_has_the_address_can_look_and_nobody_can_change(run):
    run.log(a_round(1))
    with served(run.federation) as page:
        root = urlsplit(page.url).path
        assert page.url.startswith("http://127.0.0.1:")
        assert get(page, root)[0] == 200
        assert get(page, "/")[0] == get(page, "/data")[0] == get(page, "/x/data")[0] == 404
        assert get(page, root, host="evil.example")[0] == 404  # a name that points here
        for name in ("../federation.toml", "keys/ca.key", "watch.py", "..%2f..%2fdesk.py"):
            assert get(page, root + name)[0] == 404
        for method in ("POST", "PUT", "DELETE"):
            assert get(page, root, method)[0] == 405
        status, content = get(page, f"{root}data?run=../../keys&after=-1")
        assert status == 200 and json.loads(content)["run"]["name"] == RUN
        assert b"ca.key" not in content and str(run.federation).encode() not in content


def test_lines_are_told_once_and_a_cut_one_is_left_out(run):
    run.log(a_round(1), a_round(2))
    with (run.folder / "log.jsonl").open("a") as file:
        file.write('{"event": "rou')
    told = of_folder(run.federation)
    first = told("", 0)
    assert [line["round"] for line in first["lines"]] == [1, 2]
    assert told(RUN, first["after"])["lines"] == []
    assert first["run"]["state"] == "interrupted"  # nobody holds its lock
    assert len(told("another run", 99)["lines"]) == 2


@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_network_has_neither_gap_nor_certificate(run):
    run.log(*(a_round(number, gap=None) for number in (1, 2)))
    run.record["study"]["training"] = {"model": "mlp"}
    run.end(ended="2026-11-17T11:01:00", status="trained", message="trained", certificate=None)
    with served(run.federation) as page, browser() as tab:
        tab.send("Page.navigate", url=page.url)
        tab.wait_for("document.querySelectorAll('#charts svg').length === 4")
        shown = tab.evaluate("document.body.innerText")
    assert "Gap" not in shown and "the exact certificate is for linear models" in shown


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_browser_sees_rounds_as_they_come(run):
    refused = {"event": "reply refused", "step": "round", "site": "west", "reason": FORGED}
    run.log({"event": "began", "step": "enrol", "round": 1}, a_round(1), refused, a_round(2))
    text = "document.body?.innerText"
    with served(run.federation) as page, browser() as tab:
        for width, height in ((1200, 900), (390, 800)):
            tab.resize(width, height)
            tab.send("Page.navigate", url=page.url)
            tab.wait_for("document.querySelectorAll('#charts svg').length === 4")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.evaluate("document.querySelectorAll('#events img').length") == 0
        assert "onerror" in tab.evaluate(text)  # as text
        late = a_round(3, **{"extrapolated": ["south"], "refused": {"south": "no risk"}})
        run.log(late)
        tab.wait_for("document.getElementById('chosen').textContent === '3'")  # without a reload
        assert "refused: no risk" in tab.evaluate(text)
        tab.evaluate("document.getElementById('round').focus()")
        tab.send(
            "Input.dispatchKeyEvent",
            type="keyDown",
            key="ArrowLeft",
            code="ArrowLeft",
            windowsVirtualKeyCode=37,
        )
        tab.wait_for("document.getElementById('chosen').textContent === '2'")
        assert "refused: no risk" not in tab.evaluate(text)
        run.log(a_round(4))
        tab.wait_for("document.getElementById('round').max === '4'")
        assert tab.evaluate("document.getElementById('chosen').textContent") == "2"  # it stays
        tab.press("Tab")
        tab.press("Enter")  # "Latest"
        tab.wait_for("document.getElementById('chosen').textContent === '4'")
        run.end(
            ended="2026-11-17T11:01:00",
            status="converged",
            message="converged",
            certificate={"radius": 0.25, "bound": 0.5},
            rows=dict.fromkeys(SITES, 77),
        )
        tab.wait_for(f"{text}.includes('finished: converged') && {text}.includes('radius 0.25')")
        assert "77" in tab.evaluate("document.querySelector('#sites tbody').innerText")
        unnamed = "[...document.querySelectorAll('svg')].filter(s => !s.getAttribute('aria-label'))"
        assert tab.evaluate(f"{unnamed}.length") == 0
        assert not tab.heard("Runtime.exceptionThrown")
        wrong = [e for e in tab.heard("Log.entryAdded") if e["entry"]["level"] == "error"]
        assert not wrong


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
def test_a_site_sees_what_it_has_sent(run, tmp_path):
    home = tmp_path / "north"
    lines = [
        {"time": "2026-11-17T11:00:00", "note": "connected to h:1 as north"},
        {
            "time": "2026-11-17T11:00:01",
            "note": "stroke, round 1: sent a risk",
            "run": RUN,
            "event": "answered",
            "study": "stroke",
            "step": "round",
            "round": 1,
            "bytes": 512,
            "what": "a risk and its slope",
        },
        {"time": "2026-11-17T11:00:02", "note": f"refused round: {FORGED}"},
    ]
    (home / "site.log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with served(home) as page, browser() as tab:
        tab.resize(390, 800)
        tab.send("Page.navigate", url=page.url)
        tab.wait_for("document.body?.innerText?.includes('a risk and its slope')")
        text = tab.evaluate("document.body?.innerText")
        assert "site north" in text and "not running" in text and "512 B" in text
        assert tab.evaluate("document.querySelectorAll('#events img').length") == 0
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390
        assert not tab.heard("Runtime.exceptionThrown")


def test_a_site_sees_what_its_ledger_says(tmp_path):
    home = tmp_path / "north"
    site = SiteFolder.create(home, "north")
    ledger = Ledger(home / "ledger.json")
    study = toml.parse('name = "heart"\n[data]\nlabel = "ill"\n')
    ledger.meet(study, "what a person reads")
    assert ledger.begin(study, "run-1", site.policy) is None
    shown = of_site(site)["policy"]
    assert shown["runs"] == "1 of 20" and shown["open reports"] == "not allowed"
    (name,) = [name for name in shown if name.startswith("study heart ")]
    assert shown[name] == "NOT approved; 1 run(s)"
    ledger.approve(mark_of(study))
    assert of_site(site)["policy"][name].startswith("approved")
