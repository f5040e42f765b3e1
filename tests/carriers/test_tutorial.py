"""The page that a team of sites follows, docs/tutorial-sites.md, is followed literally."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import pages
from dorfl.carriers.https import free_port

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("carriers")]

PAGE = Path(__file__).parents[2] / "docs" / "tutorial-sites.md"
CLINICS = ("harbour", "hill", "station")


def test_the_tutorial_of_sites_as_the_page_has_it(tmp_path):
    text, port = PAGE.read_text(encoding="utf-8"), str(free_port())
    blocks = [one.code.replace("8443", port) for one in pages.blocks(PAGE)]
    records, opening, joining, released, adding, study, checking, approving = blocks

    def run(script, code=0):
        named = f'dorfl() {{ "{sys.executable}" -m dorfl "$@"; }}\n{script}'
        done = subprocess.run(
            ["bash", "-c", named],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == code, (script, done.stdout, done.stderr)
        return done.stdout + done.stderr

    assert re.search(r"`dorfl run fed/ study.toml`", text)
    run(records)
    assert "ca.crt" in run(opening)
    run(joining)
    for clinic in CLINICS:
        settings = tmp_path / clinic / "site.toml"
        words = settings.read_text(encoding="utf-8")
        assert "released = []" in words
        settings.write_text(words.replace("released = []", released.strip()), encoding="utf-8")
    (tmp_path / "study.toml").write_text(study, encoding="utf-8")
    assert "`dorfl stop fed` stops it" in run(adding)
    check, start = checking.splitlines()
    sites = []
    try:
        for clinic in CLINICS:
            assert "released: age" in run(check.replace("harbour", clinic))
            words = start.replace("harbour", clinic).split()[1:]
            with (tmp_path / f"{clinic}.log").open("wb") as log:
                sites.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "dorfl", *words],
                        cwd=tmp_path,
                        stdout=log,
                        stderr=log,
                    )
                )
        show, approve = approving.splitlines()
        assert "waits for approval" in run("dorfl run fed/ study.toml", 2)
        for clinic in CLINICS:
            mine = show.replace("harbour", clinic)
            until = time.monotonic() + 600  # the others may not have had the request yet
            while not (mark := re.search(r"^([0-9a-f]{12}) illness", run(mine), re.MULTILINE)):
                assert time.monotonic() < until
            run(approve.replace("harbour", clinic).replace("MARK", mark[1]))
        assert "converged" in run("dorfl run fed/ study.toml")
        (model,) = (tmp_path / "fed" / "runs").glob("*/model")
        assert "outcome" in run(f"dorfl info {model}")
        for clinic in CLINICS:
            (audit,) = (tmp_path / clinic / "results").glob("*/audit.csv")
            assert len(audit.read_text().splitlines()) > 100
        assert "left" in run("dorfl site ledger harbour/")
    finally:
        for site in sites:
            site.send_signal(signal.SIGTERM)
            site.wait(600)
        run("dorfl stop fed/")
