"""Commands of coordinator and sites for which nothing has to be running."""

import contextlib
import http.server
import json
import os
import re
import ssl
import threading

import pytest
from cryptography import x509
from typer.testing import CliRunner

from dorfl import carriers
from dorfl.carriers import runs
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import free_port
from dorfl.cli import app


def dorfl(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert not done.exception or isinstance(done.exception, SystemExit), done.exception
    return done


@pytest.fixture
def fed(tmp_path):
    assert dorfl("server", "init", tmp_path / "fed", "--host", "fl.example.org").exit_code == 0
    return tmp_path / "fed"


def mode(path):
    return oct(path.stat().st_mode & 0o777)


def test_init_makes_keys_that_only_the_owner_reads(fed, tmp_path):
    assert {p.name for p in (fed / "keys").iterdir()} == {
        f"{name}.{kind}" for name in ("ca", "server", "coordinator") for kind in ("key", "crt")
    }
    assert {mode(file) for file in (fed / "keys").glob("*.key")} == {"0o600"}
    assert mode(fed) == "0o700"
    assert dorfl("site", "init", tmp_path / "s", "--name", "site-1").exit_code == 0
    assert mode(tmp_path / "s" / "site-1.key") == "0o600"


def test_a_site_is_added_under_one_name_with_one_key(fed, tmp_path):
    shown = dorfl("site", "init", tmp_path / "s", "--name", "site-1").stdout
    made = tmp_path / "s" / "site-1.crt"
    added = dorfl("server", "add-site", fed, made, "--name", "site-1")
    mark = Federation.open(fed).fingerprints()["site-1"]
    assert mark in added.stdout and mark in shown
    assert dorfl("server", "add-site", fed, made).exit_code == 0
    other = dorfl("server", "add-site", fed, made, "--name", "other")
    assert other.exit_code == 2 and "is for site 'site-1', not for 'other'" in other.stderr
    dorfl("site", "init", tmp_path / "t", "--name", "site-1")
    taken = dorfl("server", "add-site", fed, tmp_path / "t" / "site-1.crt")
    assert taken.exit_code == 2 and "registered with another key" in taken.stderr


def test_a_site_renews_its_certificate_and_is_registered_again_under_its_key(fed, tmp_path):
    dorfl("site", "init", tmp_path / "s", "--name", "site-1")
    made = tmp_path / "s" / "site-1.crt"
    dorfl("server", "add-site", fed, made)
    before, mark = made.read_bytes(), Federation.open(fed).fingerprints()["site-1"]
    renewed = dorfl("site", "renew", tmp_path / "s")
    assert renewed.exit_code == 0 and mark in renewed.stdout and made.read_bytes() != before
    assert mark in dorfl("server", "add-site", fed, made).stdout
    assert (fed / "sites" / "site-1.crt").read_bytes() == made.read_bytes()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["server", "init", "{fed}", "--host", "x"], "federation already"),
        (["server", "init", "{new}", "--host", "a b"], "neither a name nor an address"),
        (["server", "add-site", "{fed}", "{fed}/federation.toml"], "is not a certificate"),
        (["server", "add-site", "{fed}", "{fed}/none.crt", "--name", "s"], "No such file"),
        (["server", "add-site", "{new}", "{fed}/none.crt", "--name", "s"], "is no federation"),
        (["site", "init", "{new}", "--name", "../s"], "a name has letters"),
        (["site", "start", "{fed}", "--data", "x", "--server", "h:1", "--ca", "c"], "no site's"),
        (["site", "start", "{fed}", "--data", "x", "--ca", "c"], "either --server host:port"),
        (["flower", "init", "{new}"], "is no federation"),
        (["run", "{fed}", "{fed}/none.toml"], "No such file"),
        (["run", "{fed}", "{fed}/federation.toml"], "'host' is unknown"),
        (["resume", "{fed}"], "no run to resume"),
        (["resume", "{fed}", "--tensorboard", "board"], "log RUN/log.jsonl"),
        (["status", "{new}"], "is no federation"),
    ],
)
def test_mistakes_are_told_in_words(fed, tmp_path, words, reason):
    done = dorfl(*(word.format(fed=fed, new=tmp_path / "new") for word in words))
    assert done.exit_code in (2, 5)
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_a_run_needs_registered_sites_and_a_server(fed, tmp_path):
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "s"\nsites = ["site-1"]\n[data]\nlabel = "y"\n[privacy]\nreports = "open"\n'
    )
    assert "'site-1' is not registered" in dorfl("run", fed, study).stderr
    SiteFolder.create(tmp_path / "s", "site-1")
    Federation.open(fed).add_site((tmp_path / "s" / "site-1.crt").read_bytes())
    assert "server is not running" in dorfl("run", fed, study).stderr


def test_status_of_what_is_down(fed):
    told = json.loads(dorfl("status", fed, "--json").stdout)
    assert told == {"server": False, "address": "fl.example.org:443", "sites": {}, "run": None}
    assert "server: down" in dorfl("status", fed).stdout
    assert dorfl("stop", fed).exit_code == 0


def test_a_lock_tells_the_living_from_the_dead(fed):
    federation = Federation.open(fed)
    (fed / "state" / "run.json").write_text('{"pid": 1}')  # as a killed process leaves it
    assert federation.noted("run") is None
    with federation.holding("run"):
        federation.note("run", folder="here")
        assert federation.noted("run")["folder"] == "here"
        with pytest.raises(ValueError, match="already"), federation.holding("run"):
            pass
    assert federation.noted("run") is None


def test_a_process_that_ends_slowly_is_noted_and_waited_for(fed):
    federation = Federation.open(fed)
    slow = federation.holding("run")
    slow.__enter__()
    federation.note("run", folder="old")
    with pytest.raises(ValueError, match="already"), federation.holding("run", 0.0):
        pass
    assert federation.noted("run")["folder"] == "old"
    threading.Timer(0.2, slow.__exit__, (None, None, None)).start()
    with federation.holding("run", 60.0):
        federation.note("run", folder="new")
        assert federation.noted("run")["folder"] == "new"


def test_a_process_that_goes_on_is_not_waited_for(fed):
    """A ServerApp whose SuperLink is back goes on with its run, which no other may resume."""
    federation = Federation.open(fed)
    with federation.holding("run"):
        federation.note("run")
        os.utime(fed / "state" / "run.lock", (0, 0))
        threading.Timer(0.2, federation.touch, ("run",)).start()
        message = rf"a run is going on already \(process {os.getpid()}\)"
        with pytest.raises(ValueError, match=message), federation.holding("run", 300.0):
            pass


def test_a_run_is_known_by_its_name_whatever_directory_it_was_started_from(fed):
    federation, folder = Federation.open(fed), fed / "runs" / "one"
    folder.mkdir()
    (folder / "record.json").write_text("{}")
    assert runs.progress(federation, folder) == "interrupted"
    with federation.holding("run"):
        federation.note("run", folder="elsewhere/runs/one")
        assert runs.progress(federation, folder) == "running"
    (folder / "record.json").write_text('{"ended": "today"}')
    assert runs.progress(federation, folder) == "finished"


@pytest.mark.parametrize(
    ("server", "reason"),
    [("http://h:1", "plaintext is refused"), ("h", "host:port"), ("h:port", "host:port")],
)
def test_where_the_server_is_has_to_be_said_properly(fed, tmp_path, server, reason):
    SiteFolder.create(tmp_path / "s", "site-1")
    (tmp_path / "t.csv").write_text("x,y\n1,0\n")
    words = ["--data", tmp_path / "t.csv", "--server", server, "--ca", fed / "keys" / "ca.crt"]
    done = dorfl("site", "check", tmp_path / "s", *words)
    assert done.exit_code == 2 and reason in done.stderr


@pytest.fixture
def checking(fed, tmp_path):
    """Return a call of `dorfl site check` for a site with a small table."""
    SiteFolder.create(tmp_path / "s", "site-1", released=("x", "y"))
    (tmp_path / "t.csv").write_text("x,y\n1,0\n")
    words = ["--data", tmp_path / "t.csv", "--ca", fed / "keys" / "ca.crt"]
    return lambda *more: dorfl("site", "check", tmp_path / "s", *words, *more)


@contextlib.contextmanager
def answering(fed, status):
    """Answer every POST with a status, with the federation's certificate; the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(fed / "keys" / "server.crt", fed / "keys" / "server.key")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_check_without_a_server_is_of_the_table_alone(checking):
    done = checking()
    assert done.exit_code == 0 and "1 rows; released: x, y" in done.stdout


def test_a_check_says_that_the_server_is_down(checking):
    done = checking("--server", f"127.0.0.1:{free_port()}")
    assert done.exit_code == 2 and "does not answer (no connection)" in done.stderr


def test_a_check_says_that_the_superlink_is_down(checking):
    done = checking("--superlink", f"127.0.0.1:{free_port()}")
    assert done.exit_code == 2 and "Connection refused" in done.stderr


@pytest.mark.parametrize("status", [200, 401, 415, 500])
def test_a_check_warns_of_a_control_api_that_answers(checking, fed, status):
    with answering(fed, status) as address:
        done = checking("--superlink", address)
    assert done.exit_code == 0
    assert "/v1/control/ answers" in done.stderr and "can run code" in done.stderr


@pytest.mark.parametrize("status", [403, 404])
def test_a_check_is_content_with_a_control_api_that_is_shut(checking, fed, status):
    with answering(fed, status) as address:
        done = checking("--superlink", address)
    assert done.exit_code == 0 and "/v1/control/ does not answer" in done.stdout


def test_a_check_names_a_superlink_of_another_authority(checking, fed, tmp_path):
    dorfl("server", "init", tmp_path / "other", "--host", "127.0.0.1")
    with answering(tmp_path / "other", 200) as address:
        done = checking("--superlink", address)
    assert done.exit_code == 2 and "CERTIFICATE_VERIFY_FAILED" in done.stderr


def test_without_the_extra_it_says_what_to_install(fed, monkeypatch):
    monkeypatch.setattr(carriers.importlib.util, "find_spec", lambda _: None)
    done = dorfl("status", fed)
    assert done.exit_code == 2
    assert re.search("pip install '(aiohttp|dorfl)", done.stderr)


def test_a_site_s_folder_says_how_fine_a_curvature_it_tells(tmp_path):
    folder = tmp_path / "s"
    assert SiteFolder.create(folder, "site-1") == SiteFolder.open(folder)
    assert SiteFolder.open(folder).policy.curvature == "full"
    file = folder / "site.toml"
    text = file.read_text()
    file.write_text(text.replace('curvature = "full"', 'curvature = "diagonal"'))
    assert SiteFolder.open(folder).policy.curvature == "diagonal"
    file.write_text(text.replace('curvature = "full"', 'curvature = "rows"'))
    with pytest.raises(ValueError, match="one of none, diagonal"):
        SiteFolder.open(folder)


def test_a_certificate_can_be_renewed_and_outlives_no_authority(fed):
    def ends(name):
        return x509.load_pem_x509_certificate((fed / "keys" / name).read_bytes())

    before = ends("server.crt")
    done = dorfl("server", "renew", fed)
    after = ends("server.crt")
    assert f"{after.not_valid_after_utc:%Y-%m-%d}" in done.stdout
    assert after.serial_number != before.serial_number
    assert after.public_key() == before.public_key()
    after.verify_directly_issued_by(ends("ca.crt"))
    assert after.not_valid_after_utc <= ends("ca.crt").not_valid_after_utc


def test_a_site_leaves_under_its_name(fed, tmp_path):
    SiteFolder.create(tmp_path / "s", "site-1")
    Federation.open(fed).add_site((tmp_path / "s" / "site-1.crt").read_bytes())
    wrong = dorfl("server", "remove-site", fed, "site-2")
    assert wrong.exit_code == 2 and "registered: site-1" in wrong.stderr
    assert dorfl("server", "remove-site", fed, "site-1").exit_code == 0
    assert Federation.open(fed).sites() == {}


def test_a_run_is_resumed_by_name_and_only_if_it_is_not_finished(fed):
    over = {"ended": "then"}
    for name, ended in (("1-a", {}), ("2-b", over), ("3-c", {}), ("4-d", over)):
        (fed / "runs" / name).mkdir()
        (fed / "runs" / name / "record.json").write_text(json.dumps({"run": name, **ended}))
    federation = Federation.open(fed)
    assert runs.unfinished(federation).name == "3-c"
    assert runs.unfinished(federation, "1-a").name == "1-a"
    with pytest.raises(ValueError, match="is finished"):
        runs.unfinished(federation, "2-b")
    with pytest.raises(ValueError, match="no run 'x'"):
        runs.unfinished(federation, "x")
