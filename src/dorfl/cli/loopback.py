"""Stock Flower on this machine: SuperLink, SuperExec, and for every site process and SuperNode."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from dorfl.carriers.flower import write_coordinator, write_site
from dorfl.carriers.folders import Federation, SiteFolder
from dorfl.carriers.https import free_port

START_SECONDS = 120.0  # until a SuperLink answers
STOP_SECONDS = 10.0  # from the signal to end a process until it is killed


class FlowerLoopback(contextlib.AbstractContextManager["FlowerLoopback"]):
    """A federation on stock Flower, with TLS and node keys, on the loopback.

    `folder` is for logs, sockets and what Flower keeps. `sites` has the table of each
    site's folder.
    """

    superlink_options: tuple[str, ...] = ("--enable-supernode-auth",)

    def __init__(self, folder: Path, federation: Federation, sites: Mapping[Path, Path]) -> None:
        self.folder, self.federation, self.sites = folder, federation, dict(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.gateway = self.port  # the port that SuperNodes connect to
        self._env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def __enter__(self) -> FlowerLoopback:
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        self._ca = self.federation.keys.resolve() / "ca.crt"
        (self.folder / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self.port}"\nroot-certificates = "{self._ca}"\n'
        )
        (self.folder / "sockets").mkdir(exist_ok=True)
        written = write_coordinator(self.federation, self.port)
        self.app, self._secret = written / "app", (written / "superexec.secret").resolve()
        try:
            self.start_superlink()
            self.start_superexec()
            for home in self.sites:
                write_site(SiteFolder.open(home), self._ca)
                self.start_site(home)
                self.add_supernode(home)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self.processes):
            self.stop(name)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        keys = self._ca.parent
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db"), *self.superlink_options]
        command += ["--disable-runtime-dependency-installation", "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(self._secret)]
        command += ["--ssl-ca-certfile", str(self._ca)]
        command += ["--ssl-certfile", str(keys / "server.crt")]
        self.start("superlink", [*command, "--ssl-keyfile", str(keys / "server.key")])
        context = ssl.create_default_context(cafile=str(self._ca))
        end = time.monotonic() + START_SECONDS
        while self.processes["superlink"].poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                url = f"https://127.0.0.1:{self.port}/health"
                urllib.request.urlopen(url, timeout=5, context=context).close()
                return
            time.sleep(0.2)
        raise ValueError(f"the SuperLink did not start; see {self.folder / 'superlink.log'}")

    def start_superexec(self) -> None:
        """Start the SuperExec, which starts ServerApps: as in the units, apart from the SuperLink.

        A SuperExec that the SuperLink starts itself survives the kill of the SuperLink for a while.
        """
        command = ["flower-superexec", "--runtime-api-address", f"127.0.0.1:{self.port}"]
        command += ["--root-certificates", str(self._ca)]
        self.start("superexec", [*command, "--superexec-auth-secret-file", str(self._secret)])

    def start_site(self, home: Path) -> None:
        """Start the process that has a site's rows."""
        command = [sys.executable, "-m", "dorfl", "site", "start", str(home)]
        command += ["--data", str(self.sites[home]), "--ca", str(home / "flower" / "ca.crt")]
        self.start(f"{home.name}-site", [*command, "--socket", str(self.socket(home))])

    def add_supernode(self, home: Path) -> None:
        """Register a site's SuperNode under the name of the site, and start it."""
        public = str(home / "flower" / f"{home.name}.pub")
        done = self.flwr("supernode", "register", public, "here", "--name", home.name)
        if done.returncode:
            raise ValueError(f"flwr supernode register: {done.stdout}{done.stderr}")
        self.start_supernode(home)

    def start_supernode(self, home: Path) -> None:
        """Start a site's SuperNode, which has neither the site's folder nor its table."""
        node = self.folder / f"{home.name}-node"
        node.mkdir(exist_ok=True)
        for name in ("supernode.key", "ca.crt"):
            if not (node / name).exists():
                shutil.copy(home / "flower" / name, node / name)
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.gateway}"]
        command += ["--root-certificates", str(node / "ca.crt")]
        command += ["--auth-supernode-private-key", str(node / "supernode.key")]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f'socket="{self.socket(home)}"']
        self.start(f"{home.name}-supernode", command, FLWR_HOME=str(node), HOME=str(node))

    def socket(self, home: Path) -> Path:
        """Return where a site answers."""
        return self.folder / "sockets" / f"{home.name}.sock"

    def flwr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `flwr` to its end."""
        command = shutil.which("flwr", path=self._env["PATH"])
        if command is None:
            raise ValueError("flwr: there is no such command; install the extra 'flower'")
        return subprocess.run(
            [command, *arguments],
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )

    def run(self, *arguments: str, **config: str) -> subprocess.CompletedProcess[str]:
        """Run the app with a configuration, to the end of the run."""
        file = self.folder / f"config-{time.monotonic_ns()}.toml"
        file.write_text("".join(f"{name} = '''{text}'''\n" for name, text in config.items()))
        return self.flwr(
            "run", str(self.app), "here", "--stream", "--run-config", str(file), *arguments
        )

    def stop(self, name: str, how: int = signal.SIGTERM) -> None:
        """End a process and all that it started."""
        process = self.processes[name]
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def start(self, name: str, command: Sequence[str], **env: str) -> None:
        """Start a process with a log of its own."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self._env | env,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
