"""A real sshd on loopback that is a GPU host of its own: home, shell start file, state, cache and lease apart."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import pytest

from harness import _onhost, bootstrap, canonical, ports
from harness.config import HostConfig

LIMIT_S = 240.0
BANNER = "Welcome!\nYou have mail. <<nvfp4-gates\n"
TINY = (
    "gate=g4",
    "workload=rehearsal",
    "workload.input_tokens=32",
    "workload.output_tokens=4",
    "gate.concurrencies=[2]",
    "workload.points={2: 2}",
    "gate.repetitions=1",
    "gate.sequential_requests=1",
    "engine.options.max_num_batched_tokens=32",
    "host.memory_return_timeout_s=5",  # others use this machine, and whether a run is valid is not asked here
)
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {root}/host_key
AuthorizedKeysFile {root}/user_key.pub
PidFile {root}/sshd.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
PrintMotd no
SetEnv HOME={home}
Subsystem sftp {sftp}
"""


@dataclass
class Host:
    """An sshd, the home directory that its users see, and what a command here needs to reach it."""

    root: Path
    port: int
    name: str = "bench"
    sftp: str = "internal-sftp"
    ssh_config: str = "empty"
    remote_python: str = sys.executable
    sshd: subprocess.Popen[bytes] | None = None
    engine_port: int = field(default_factory=ports.free_port)

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def lease(self) -> Path:
        return self.root / "gpu.lock"

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "nvfp4-gates"

    def start(self) -> None:
        config = self.root / "sshd_config"
        config.write_text(CONFIG.format(port=self.port, root=self.root, home=self.home, sftp=self.sftp))
        with (self.root / "sshd.log").open("ab") as log:
            command = [shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") or "", "-D", "-e", "-f", str(config)]
            self.sshd = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + LIMIT_S
        while not ports.listening(self.port):
            assert self.sshd.poll() is None and time.monotonic() < deadline, (self.root / "sshd.log").read_text()
            time.sleep(0.02)

    def stop(self) -> None:
        """The listener and every connection it served, as a cut of the network would end them."""
        assert self.sshd is not None
        if self.sshd.poll() is not None:
            return
        for process in [*psutil.Process(self.sshd.pid).children(recursive=True), psutil.Process(self.sshd.pid)]:
            if "sshd" in process.name():
                process.kill()
        self.sshd.wait()

    def connections(self) -> list[psutil.Process]:
        assert self.sshd is not None
        return [one for one in psutil.Process(self.sshd.pid).children(recursive=True) if one.name().startswith("sshd")]

    def overrides(self) -> list[str]:
        return [
            f"host.name={self.name}",
            "host.transport=ssh",
            "host.address=127.0.0.1",
            f"host.ssh_port={self.port}",
            f"host.user={pwd.getpwuid(os.getuid()).pw_name}",
            f"host.identity_file={self.root}/user_key",
            f"host.known_hosts={self.root}/known_hosts",
            f"host.ssh_config={self.root}/{self.ssh_config}",
            f"host.remote_python={self.remote_python}",
            f"host.lease_path={self.lease}",
            "host.lease_timeout_s=1",
            f"host.port={self.engine_port}",
            "host.poll_s=0.5",
        ]

    def config(self) -> HostConfig:
        return HostConfig(
            name=self.name,
            transport="ssh",
            address="127.0.0.1",
            ssh_port=self.port,
            user=pwd.getpwuid(os.getuid()).pw_name,
            identity_file=str(self.root / "user_key"),
            known_hosts=str(self.root / "known_hosts"),
            ssh_config=str(self.root / "empty"),
            remote_python=sys.executable,
        )

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "harness", *words, *self.overrides()]

    @property
    def environment(self) -> dict[str, str]:
        """Commands here run from a copy of the sources, so that an edit meanwhile makes no other sources of them."""
        return {**os.environ, "PYTHONPATH": str(self.root / "sources")}

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.python(*self.command(*words)[1:], cwd=cwd)

    def python(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def spawn(self, *words: str, cwd: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words),
            cwd=cwd,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def mine(self, word: str) -> list[psutil.Process]:
        """Live processes of this host whose command line holds `word`."""
        return [one for one in psutil.process_iter() if _is(one, (str(self.home), f"--port {self.engine_port}"), word)]


def _is(process: psutil.Process, marks: Sequence[str], word: str) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return word in line and any(mark in line for mark in marks)


def make(root: Path, sftp: str = "internal-sftp") -> Host:
    if shutil.which("sshd", path="/usr/sbin:/usr/local/sbin") is None or shutil.which("ssh-keygen") is None:
        pytest.skip("needs a real sshd (Debian: apt-get install openssh-server)")
    if os.getuid() != 0:
        pytest.skip("needs root: sshd gives its users another home directory")
    Path("/run/sshd").mkdir(exist_ok=True)  # where sshd drops its privileges to
    host = Host(root, ports.free_port(), sftp=sftp)
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(root / name)], check=True
        )
    host.home.mkdir()
    (root / "empty").touch()
    (root / "sources.tar").write_bytes(bootstrap.sources().archive)
    _onhost.unpack(root / "sources.tar", root / "sources")
    believe(host)
    host.start()
    return host


def believe(host: Host) -> None:
    kind, key = (host.root / "host_key.pub").read_text().split()[:2]
    (host.root / "known_hosts").write_text(f"[127.0.0.1]:{host.port} {kind} {key}\n")


def prepare(host: Host) -> None:
    """`host prepare` without an index: the environment is there already and has this interpreter's packages."""
    name = canonical.sha256_bytes(canonical.dumps([sys.version.split()[0], []]))[:16]
    environment = host.home / ".local/share/nvfp4-gates/environments" / name
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = environment / f"lib/python{bootstrap.HostPython(sys.version.split()[0], '', '').short}/site-packages"
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    done = prepare_again(host)
    assert done.returncode == 0, done.stdout + done.stderr


def prepare_again(host: Host) -> subprocess.CompletedProcess[str]:
    program = (
        "from harness.config import HostConfig; from harness.host_prepare import prepare_host; "
        f"print(prepare_host(HostConfig(**{asdict(host.config())!r}), print, wheels=[]))"
    )
    return host.python("-c", program, cwd=host.root)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A prepared host whose shell prints at every login."""
    made = make(tmp_path_factory.mktemp("host"))
    (made.home / ".bashrc").write_text(f"printf '{BANNER}'; printf 'and on stderr' >&2\n")
    try:
        prepare(made)
        yield made
    finally:
        for word in ("harness.keeper", "harness.supervisor", "kernels.serve", "harness.agent"):
            for process in made.mine(word):
                process.kill()
        made.stop()


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Host]:
    """A host whose SFTP server is started by the login shell, which prints first: SFTP itself is of no use there."""
    server = Path("/usr/lib/openssh/sftp-server")
    if not server.is_file():
        pytest.skip(f"needs {server} (Debian: package openssh-sftp-server)")
    (tmp_path / "noisy").mkdir()
    made = make(tmp_path / "noisy", str(server))
    (made.home / ".bashrc").write_text(f"printf '{BANNER}'\n")
    yield made
    made.stop()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Host]:
    """A host on which nothing of this project is."""
    (tmp_path / "bare").mkdir()
    made = make(tmp_path / "bare")
    yield made
    made.stop()
