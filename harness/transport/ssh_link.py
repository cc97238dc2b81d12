"""A chain of SSH transports with every host key checked, and a watch that ends it when the far side falls silent.

Imports paramiko, so it is imported by functions only.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import paramiko
from paramiko.packet import Packetizer

from harness.errors import HarnessError
from harness.transport import ssh_keys, ssh_known_hosts
from harness.transport.ssh_config import SshTarget

__all__ = ["Link"]

EXIT_SIGNAL = "exit-signal"
CHANNEL_REQUEST = 98  # SSH_MSG_CHANNEL_REQUEST, RFC 4254 section 9
RSA = ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")  # one kind of key, three kinds of signature
SETTLE_S = 0.2
WINDOW = 4 << 20  # bytes in flight a channel

# paramiko logs each lost link with a traceback; ours is one sentence, raised where it matters.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def _on_request(channel: Any, message: Any) -> None:
    """paramiko 5.1 passes over exit-signal and then reports -1, so it is read here before paramiko sees it."""
    peek = paramiko.Message(message.get_remainder())
    if peek.get_text() == EXIT_SIGNAL:
        peek.get_boolean()
        channel.exit_signal = peek.get_text()
        channel.status_event.set()
    channel._handle_request(message)


class _Packets(Packetizer):
    """Remembers when a whole packet last arrived."""

    heard = 0.0

    def read_message(self) -> Any:
        packet = super().read_message()
        self.heard = time.monotonic()
        return packet


class _Transport(paramiko.Transport):
    _channel_handler_table: ClassVar[dict[int, Any]] = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        CHANNEL_REQUEST: _on_request,
    }
    farewell: str | None = None  # why the server hung up, in its words; None where the link broke instead

    def _parse_disconnect(self, message: Any) -> None:
        peek = paramiko.Message(message.get_remainder())
        peek.get_int()
        self.farewell = peek.get_text()
        super()._parse_disconnect(message)  # type: ignore[misc]


class Link:
    """Authenticated transports, one a hop; channels are opened on the last. Ended by `close` or by silence."""

    def __init__(self, target: SshTarget, connect_timeout_s: float, silence_s: float) -> None:
        self.target = target
        self.silence_s = silence_s
        self.lost: str | None = None
        self.host_key = ""  # of the last hop, once it was found good: type and fingerprint
        self._stop = threading.Event()
        self._transports: list[Any] = []
        try:
            for hop in (*target.jumps, target):
                self._extend(hop, connect_timeout_s)
        except BaseException:
            self.close()
            raise
        for work in (self._ask, self._watch):
            threading.Thread(target=work, name=f"ssh-{work.__name__}", daemon=True).start()

    @property
    def transport(self) -> Any:
        return self._transports[-1]

    def alive(self) -> bool:
        return not self._stop.is_set() and all(one.is_active() for one in self._transports)

    def close(self) -> None:
        """End every hop, the last first. Safe to call again and from any thread."""
        self._stop.set()
        for transport in reversed(self._transports):
            transport.close()

    @contextlib.contextmanager
    def channel(self) -> Iterator[Any]:
        """A session channel. HarnessError `ssh-lost` when the link ends meanwhile, `ssh-channel` when refused."""
        with self.guarded("opening a channel"):
            found = self.transport.open_session(window_size=WINDOW, timeout=self.silence_s)
        found.exit_signal = None
        try:
            yield found
        finally:
            found.close()

    @contextlib.contextmanager
    def guarded(self, doing: str) -> Iterator[None]:
        """Turns what paramiko raises into our errors."""
        try:
            yield
        except paramiko.ChannelException as error:
            raise HarnessError("ssh-channel", f"{self.target}: {doing} was refused ({error})") from error
        except (paramiko.SSHException, EOFError, OSError) as error:
            self.transport.join(SETTLE_S)  # a dying transport wakes its channels before it says that it is dead
            if not self.alive():
                raise self.lost_error(doing) from error
            if isinstance(error, OSError):
                raise
            raise HarnessError("ssh-channel", f"{self.target}: {doing} failed ({error})") from error

    def lost_error(self, doing: str) -> HarnessError:
        said = next((one.farewell for one in self._transports if one.farewell), None)
        reason = self.lost or (f"the server hung up ({said})" if said else "it broke")
        return HarnessError(
            "ssh-lost", f"the link to {self.target} was lost while {doing}: {reason}; what runs there goes on"
        )

    def _extend(self, hop: SshTarget, timeout_s: float) -> None:
        """One more hop: connect, check its key, log in; in that order."""
        transport = _Transport(self._reach(hop, timeout_s), packetizer_class=_Packets)
        self._transports.append(transport)
        transport.banner_timeout = transport.handshake_timeout = transport.auth_timeout = timeout_s
        options = transport.get_security_options()
        known = ssh_known_hosts.key_types(hop)
        wanted = [name for kind in known for name in (RSA if kind == "ssh-rsa" else (kind,))]
        options.key_types = sorted(options.key_types, key=lambda name: name not in wanted)
        try:
            transport.start_client(timeout=timeout_s)
            key = transport.get_remote_server_key()
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise HarnessError(
                "ssh-unreachable", f"{hop}: no SSH handshake within {timeout_s:g} s ({error or 'closed'}){self._way()}"
            ) from error
        ssh_known_hosts.check(hop, key.get_name(), key.asbytes())
        self.host_key = f"{key.get_name()} {ssh_known_hosts.fingerprint(key.asbytes())}"
        ssh_keys.authenticate(transport, hop)

    def _reach(self, hop: SshTarget, timeout_s: float) -> Any:
        try:
            if not self._transports:
                found = socket.create_connection((hop.host, hop.port), timeout=timeout_s)
                # Without it each new channel waits 40 ms for the other side's delayed ACK.
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return found
            return self.transport.open_channel(
                "direct-tcpip", (hop.host, hop.port), ("127.0.0.1", 0), window_size=WINDOW, timeout=timeout_s
            )
        except (OSError, paramiko.SSHException) as error:
            raise HarnessError(
                "ssh-unreachable", f"{hop} cannot be reached within {timeout_s:g} s: {error}{self._way()}"
            ) from error

    def _way(self) -> str:
        passed = [str(hop) for hop in self.target.jumps]
        return f" (by way of {', '.join(passed)})" if passed else ""

    def _ask(self) -> None:
        """Ask for an answer every third of the bound. sshd answers with a refusal, which is sign of life enough."""
        while not self._stop.wait(self.silence_s / 3):
            with contextlib.suppress(Exception):
                self.transport.global_request("keepalive@openssh.com", wait=True)

    def _watch(self) -> None:
        """Apart from `_ask`, whose sending blocks when the kernel's buffer is full of what nobody acknowledges."""
        packets = self.transport.packetizer
        packets.heard = time.monotonic()
        while not self._stop.wait(max(0.05, packets.heard + self.silence_s - time.monotonic())):
            if time.monotonic() - packets.heard >= self.silence_s:
                self.lost = f"nothing was heard for {self.silence_s:g} s"
                self.close()
