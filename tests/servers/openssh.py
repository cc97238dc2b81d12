"""A real OpenSSH server on loopback: own host keys, own port, own authorized keys, nothing of this account's files."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

import psutil

from harness import ports
from harness.transport.ssh_config import SshTarget

__all__ = ["KEY_TYPES", "SFTP_SERVER", "Sshd", "find_sshd", "generate"]

KEY_TYPES = ("ed25519", "ecdsa", "rsa")
SFTP_SERVER = next(
    (name for name in ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server") if Path(name).exists()),
    "internal-sftp",
)


def find_sshd() -> str | None:
    """Absolute, since sshd starts itself again for each connection."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def generate(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A key pair by ssh-keygen; returns the private half's path."""
    size = ["-b", "2048"] if kind == "rsa" else []
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, *size, "-N", passphrase, "-C", path.name, "-f", str(path)], check=True
    )
    return path


class Sshd:
    """Runs from construction to `stop`. `log` grows line by line as the server writes it."""

    def __init__(
        self,
        folder: Path,
        keys: Sequence[Path],
        options: Sequence[str] = (),
        address: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """`prefix` is a command that starts the server elsewhere, such as in a network namespace."""
        folder.mkdir(parents=True)
        self.address, self._prefix = address, prefix
        self.folder, self.port, self.log = folder, ports.free_port(), list[str]()
        self.host_keys = {kind: generate(folder / f"host_{kind}", kind) for kind in KEY_TYPES}
        (folder / "authorized_keys").write_text("".join(key.with_suffix(".pub").read_text() for key in keys))
        self.known_hosts = folder / "known_hosts"
        self.trust(*KEY_TYPES)
        self._process = self._launch(options)
        ready = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(ready,), daemon=True)
        self._reader.start()
        assert ready.wait(60) and any("Server listening" in line for line in self.log), "\n".join(self.log)

    def _launch(self, options: Sequence[str]) -> subprocess.Popen[str]:
        program = find_sshd()
        assert program is not None
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's chroot for the part that speaks to strangers
        config = self.folder / "sshd_config"
        lines = [
            *options,  # the first value of an option counts
            f"Port {self.port}",
            f"ListenAddress {self.address}",
            *(f"HostKey {path}" for path in self.host_keys.values()),
            f"AuthorizedKeysFile {self.folder}/authorized_keys",
            "PidFile none",
            "StrictModes no",  # the folder lies under a temporary one that others may write to
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin yes",
            "MaxAuthTries 6",
            "LogLevel VERBOSE",
        ]
        if not any(option.startswith("SetEnv ") for option in options):
            lines.append(
                "SetEnv SHLVL=2"
            )  # bash then leaves ~/.bashrc unread, which took 0.3 s a command on one account
        if not any(option.startswith("Subsystem ") for option in options):  # which may stand but once
            lines.append(f"Subsystem sftp {SFTP_SERVER}")
        config.write_text("\n".join([*lines, "PerSourcePenalties no"]) + "\n")
        if subprocess.run([program, "-t", "-f", str(config)], capture_output=True, check=False).returncode:
            config.write_text("\n".join(lines) + "\n")  # OpenSSH before 9.8 has no penalties, and no such option
        return subprocess.Popen(
            [*self._prefix, program, "-D", "-e", "-f", str(config)],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def _read(self, ready: threading.Event) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.log.append(line.rstrip())
            if "Server listening" in line:
                ready.set()
        ready.set()

    def trust(self, *kinds: str) -> None:
        """Write the known_hosts file with the host keys of these types."""
        publics = [self.host_keys[kind].with_suffix(".pub").read_text() for kind in kinds]
        self.known_hosts.write_text("".join(f"[{self.address}]:{self.port} {public}" for public in publics))

    def target(self, *identity_files: Path, port: int | None = None, jumps: tuple[SshTarget, ...] = ()) -> SshTarget:
        """This server, at `port` when something stands in front of it."""
        if port is not None:
            text = self.known_hosts.read_text()
            self.known_hosts.write_text(text + text.replace(f"]:{self.port} ", f"]:{port} "))
        return SshTarget(
            self.address, port or self.port, getpass.getuser(), identity_files, (self.known_hosts,), jumps, agent=False
        )

    def sessions(self) -> list[psutil.Process]:
        """The server's own processes, one or two a connection; not what runs in them."""
        return [one for one in psutil.Process(self._process.pid).children(recursive=True) if "sshd" in one.name()]

    def hang_up(self) -> None:
        """Kill the server's side of every connection, as a crash of sshd or a reboot does."""
        for one in self.sessions():
            one.kill()

    def stop(self) -> None:
        children = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in children:
            if child.is_running():
                child.kill()
        self._process.wait()
        self._reader.join(30)
        assert self._process.stderr is not None
        self._process.stderr.close()
