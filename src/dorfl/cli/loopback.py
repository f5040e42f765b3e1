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

Wrappers = Mapping[str, Sequence[str]]  # prefix of the command of a "supernode" or a "site"


class FlowerLoopback(contextlib.AbstractContextManager["FlowerLoopback"]):
    """A federation on stock Flower, with TLS and node keys, on the loopback.

    Parameters
    ----------
    folder
        For logs, sockets and what Flower keeps.
    federation
        The coordinator's folder.
    sites
        The table of each site, by the site's folder.
    wrappers
        Prefixes of the commands of "supernode" or "site", such as `("setpriv", "--reuid=1")`.
    gateway
        The port that SuperNodes connect to, if it is not the SuperLink's own.
    simulation
        Start the SuperLink for simulation, without SuperNodes.
    """

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        sites: Mapping[Path, Path],
        wrappers: Wrappers | None = None,
        *,
        gateway: int | None = None,
        simulation: bool = False,
    ) -> None:
        self.folder, self.federation, self.sites = folder, federation, dict(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self.simulation, self._wrappers = free_port(), simulation, dict(wrappers or {})
        self._gateway = gateway or self.port
        self._env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
        }

    def __enter__(self) -> FlowerLoopback:
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        keys = self.federation.keys.resolve()
        address = f'address = "127.0.0.1:{self.port}"\n'
        (self.folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n{address}'
            f'root-certificates = "{keys / "ca.crt"}"\n'
        )
        (self.folder / "sockets").mkdir(exist_ok=True)
        written = write_coordinator(self.federation, self.port)
        self.app, self._secret = written / "app", (written / "superexec.secret").resolve()
        try:
            self.start_superlink()
            self.start_superexec()
            for home in self.sites:
                if not self.simulation:
                    public = write_site(SiteFolder.open(home), keys / "ca.crt") / f"{home.name}.pub"
                    register = ("supernode", "register", str(public), "here")
                    self.flwr(*register, "--name", home.name, check=True)
                self.start_site(home)
                if not self.simulation:
                    self.start_supernode(home)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self.processes):
            self.stop(name)

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it answers."""
        keys = self.federation.keys.resolve()
        command = ["flower-superlink", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--database", str(self.folder / "superlink.db")]
        command += ["--disable-runtime-dependency-installation", "--isolation", "process"]
        command += ["--superexec-auth-secret-file", str(self._secret)]
        command += ["--simulation"] if self.simulation else ["--enable-supernode-auth"]
        for option, name in (("ca-certfile", "ca.crt"), ("certfile", "server.crt")):
            command += [f"--ssl-{option}", str(keys / name)]
        self._start("superlink", [*command, "--ssl-keyfile", str(keys / "server.key")])
        context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
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
        command += ["--root-certificates", str(self.federation.keys.resolve() / "ca.crt")]
        self._start("superexec", [*command, "--superexec-auth-secret-file", str(self._secret)])

    def start_site(self, home: Path) -> None:
        """Start the process that has a site's rows."""
        own = home / "flower" / "ca.crt"
        ca = own if own.exists() else self.federation.keys / "ca.crt"
        command = [sys.executable, "-m", "dorfl", "site", "start", str(home)]
        command += ["--data", str(self.sites[home]), "--ca", str(ca)]
        command += ["--socket", str(self.socket(home))]
        self._start(f"{home.name}-site", [*self._wrappers.get("site", ()), *command])

    def start_supernode(self, home: Path) -> None:
        """Start a site's SuperNode, which has neither the site's folder nor its table."""
        node = self.folder / f"{home.name}-node"
        node.mkdir(exist_ok=True)
        for name in ("supernode.key", "ca.crt"):
            if not (node / name).exists():
                shutil.copy(home / "flower" / name, node / name)
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self._gateway}"]
        command += ["--root-certificates", str(node / "ca.crt")]
        command += ["--auth-supernode-private-key", str(node / "supernode.key")]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--node-config", f'socket="{self.socket(home)}"']
        prefix = self._wrappers.get("supernode", ())
        env = {"FLWR_HOME": str(node), "HOME": str(node)}
        self._start(f"{home.name}-supernode", [*prefix, *command], env)

    def socket(self, home: Path) -> Path:
        """Return where a site answers."""
        return self.folder / "sockets" / f"{home.name}.sock"

    def flwr(self, *arguments: str, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command of `flwr` to its end."""
        done = subprocess.run(
            [*self._command("flwr"), *arguments],
            env=self._env,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise ValueError(f"flwr {arguments[0]}: {done.stdout}{done.stderr}")
        return done

    def run(self, *arguments: str, **config: str) -> subprocess.CompletedProcess[str]:
        """Run the app with a configuration, to the end of the run."""
        file = self.folder / f"config-{time.monotonic_ns()}.toml"
        if self.simulation:
            config = {"sockets": str(self.folder / "sockets"), **config}
            arguments = (*arguments, "--federation-config", f"num-supernodes={len(self.sites)}")
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

    def _command(self, name: str) -> list[str]:
        found = shutil.which(name, path=self._env["PATH"])
        if found is None:
            raise ValueError(f"{name}: there is no such command; install the extra 'flower'")
        return [found]

    def _start(self, name: str, command: list[str], env: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                env=self._env | dict(env or {}),
                cwd=self.folder,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
