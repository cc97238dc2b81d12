"""Getting in: host keys, own keys, agents and hops, against real servers and a real agent."""

from __future__ import annotations

import base64
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from harness.errors import HarnessError
from harness.transport.ssh_config import SshTarget, resolve
from harness.transport.ssh_connection import Connection
from tests.servers.openssh import KEY_TYPES, Sshd, generate
from tests.servers.tcp_proxy import TcpProxy


def refused(target: SshTarget, **options: float) -> HarnessError:
    with pytest.raises(HarnessError) as caught:
        Connection.open(target, **options).close()
    return caught.value


def says(target: SshTarget, text: str = "here") -> bool:
    with Connection.open(target) as connection:
        return connection.run(["echo", text], timeout_s=60).stdout == f"{text}\n".encode()


def fingerprint(key: Path) -> str:
    done = subprocess.run(["ssh-keygen", "-lf", str(key)], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """A real ssh-agent; the function gives it a key."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()  # it speaks once its socket is there
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield lambda key: subprocess.run(["ssh-add", "-q", str(key)], check=True) and None
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture(scope="session")
def wrong(ssh_folder: Path) -> list[Path]:
    return [generate(ssh_folder / f"wrong{number}") for number in range(8)]


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_the_server_is_asked_for_a_host_key_that_is_known(server: Sshd, key: Path, kind: str) -> None:
    server.trust(kind)
    assert says(server.target(key))


def test_hashed_host_names_are_found(server: Sshd, key: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(server.known_hosts)], capture_output=True, check=True)
    assert "127.0.0.1" not in server.known_hosts.read_text()
    assert says(server.target(key))


def test_a_changed_host_key_is_refused_before_anything_is_said(server: Sshd, key: Path, wrong: list[Path]) -> None:
    public = wrong[0].with_suffix(".pub").read_text()
    server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {public}")
    logged = len(server.log)
    error = refused(server.target(key))
    assert error.code == "ssh-host-key-changed" and error.exit_code == 64
    for part in (fingerprint(wrong[0]), fingerprint(server.host_keys["ed25519"]), f"{server.known_hosts}, line 1"):
        assert part in error.message
    assert not [line for line in server.log[logged:] if "Accepted" in line or "Failed" in line]


def test_an_unknown_host_is_refused_and_the_command_in_the_sentence_adds_it(server: Sshd, key: Path) -> None:
    server.known_hosts.write_text("")
    error = refused(server.target(key))
    assert error.code == "ssh-host-key-unknown" and server.known_hosts.read_text() == ""
    assert fingerprint(server.host_keys["ed25519"]) in error.message
    subprocess.run(["/bin/sh", "-c", "echo" + error.message.split(": echo")[1]], check=True)
    assert says(server.target(key))


def test_a_config_file_leads_through_two_hops_with_keys_of_their_own(
    server: Sshd, start: Callable[..., Sshd], key: Path, tmp_path: Path, wrong: list[Path]
) -> None:
    middle, far = start(), start()
    (middle.folder / "authorized_keys").write_text(wrong[0].with_suffix(".pub").read_text())
    known = tmp_path / "known_hosts"
    known.write_text("".join(one.known_hosts.read_text() for one in (server, middle, far)))
    config = tmp_path / "config"
    config.write_text(
        f"Host far\n HostName 127.0.0.1\n Port {far.port}\n ProxyJump door,middle:{middle.port}\n IdentityFile {key}\n"
        f"Host door\n HostName 127.0.0.1\n Port {server.port}\n ProxyJump none\n IdentityFile {key}\n"
        f"Host middle\n HostName 127.0.0.1\n IdentityFile {wrong[0]}\nHost *\n UserKnownHostsFile {known}\n"
    )
    target = resolve("far", config_file=config)
    assert [hop.port for hop in target.jumps] == [server.port, middle.port]
    assert says(target)
    for one in (server, middle, far):
        assert any("Accepted publickey" in line for line in one.log)
    known.write_text(server.known_hosts.read_text() + far.known_hosts.read_text())
    error = refused(target)
    assert error.code == "ssh-host-key-unknown" and f":{middle.port}" in error.message
    (middle.folder / "authorized_keys").write_text("")
    known.write_text(known.read_text() + middle.known_hosts.read_text())
    error = refused(target)
    assert error.code == "ssh-auth" and f":{middle.port} accepted no key" in error.message


def test_losing_the_first_hop_loses_what_lies_behind_it(
    server: Sshd, start: Callable[..., Sshd], key: Path, proxy: TcpProxy
) -> None:
    target = replace(start().target(key), jumps=(server.target(key, port=proxy.port),))
    with Connection.open(target, silence_s=2) as connection:
        assert connection.run(["true"], timeout_s=60).code == 0
        proxy.black_hole()
        assert connection.run(["true"], timeout_s=60).kind == "lost" and not connection.alive()


def test_a_hop_that_forwards_nothing_is_named(server: Sshd, start: Callable[..., Sshd], key: Path) -> None:
    door = start("AllowTcpForwarding no")
    error = refused(replace(server.target(key), jumps=(door.target(key),)))
    assert error.code == "ssh-unreachable" and f":{door.port}" in error.message and "prohibited" in error.message


def test_the_named_key_is_tried_before_eight_wrong_ones_of_the_agent(
    server: Sshd, key: Path, wrong: list[Path], agent: Callable[[Path], None]
) -> None:
    for one in wrong:
        agent(one)
    assert says(replace(server.target(key), agent=True))
    logged = len(server.log)
    error = refused(replace(server.target(wrong[0]), agent=True))
    assert (
        error.code == "ssh-auth"
        and "hung up after that (Too many authentication failures)" in error.message
        and str(server.target()) in error.message
    )
    assert fingerprint(wrong[0]) in error.message and error.message.count("agent key") <= 6
    assert not [line for line in server.log[logged:] if "Accepted" in line]


def test_identities_only_keeps_the_agent_s_other_keys_back(
    server: Sshd, key: Path, wrong: list[Path], agent: Callable[[Path], None]
) -> None:
    agent(key)
    error = refused(server.target(wrong[0]))
    assert error.code == "ssh-auth" and "agent key" not in error.message and fingerprint(key) not in error.message
    assert says(replace(server.target(wrong[0]), agent=True))


def test_an_encrypted_key_is_a_sentence_and_works_through_the_agent(
    server: Sshd, key: Path, tmp_path: Path, agent: Callable[[Path], None]
) -> None:
    locked = tmp_path / "locked"
    locked.write_bytes(key.read_bytes())
    locked.chmod(0o600)
    locked.with_suffix(".pub").write_bytes(key.with_suffix(".pub").read_bytes())
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret words", "-f", str(locked)], capture_output=True, check=True)
    error = refused(server.target(locked))
    assert error.code == "ssh-auth" and f"run ssh-add {locked}" in error.message
    agent(key)
    assert says(server.target(locked))


@pytest.mark.parametrize("kind", KEY_TYPES)
def test_each_type_of_own_key_logs_in(start: Callable[..., Sshd], tmp_path: Path, kind: str) -> None:
    own = generate(tmp_path / f"own_{kind}", kind)
    server = start()
    (server.folder / "authorized_keys").write_text(own.with_suffix(".pub").read_text())
    assert says(server.target(own))


def test_a_failure_lists_every_try_and_shows_no_key(server: Sshd, tmp_path: Path, wrong: list[Path]) -> None:
    (tmp_path / "text").write_text("BEGIN nonsense c2VjcmV0")
    error = refused(server.target(wrong[1], tmp_path / "absent", tmp_path / "text", wrong[2].with_suffix(".pub")))
    assert error.code == "ssh-auth" and "accepted no key of ours (it takes publickey). Tried" in error.message
    for part in (f"{wrong[1]} (ssh-ed25519", "absent: No such file", "text: not a private key", "a public key, and"):
        assert part in error.message
    body = "".join(wrong[1].read_text().splitlines()[1:-1])
    assert "c2VjcmV0" not in error.message and "PRIVATE" not in error.message
    assert base64.b64encode(base64.b64decode(body)[-100:])[:40].decode() not in error.message


def test_a_server_that_takes_no_keys_is_named_with_what_it_takes(start: Callable[..., Sshd], key: Path) -> None:
    error = refused(start("PubkeyAuthentication no", "PasswordAuthentication yes").target(key))
    assert error.code == "ssh-auth" and "takes password; a run" in error.message


def test_nobody_who_listens_and_nobody_who_answers_are_told_in_time(server: Sshd, key: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        error = refused(server.target(key, port=port), connect_timeout_s=1)
        assert error.code == "ssh-unreachable" and f":{port}" in error.message
    error = refused(server.target(key, port=port), connect_timeout_s=1)
    assert error.code == "ssh-unreachable" and "refused" in error.message


def test_a_link_that_goes_silent_while_logging_in_is_given_up(server: Sshd, key: Path, proxy: TcpProxy) -> None:
    with Connection.open(server.target(key, port=proxy.port)):
        whole = proxy.passed
    for after in (1, whole // 2, whole - 500):  # in the greeting, in the key exchange, while logging in
        proxy.heal()
        proxy.black_hole(after_bytes=after)
        error = refused(server.target(key, port=proxy.port), connect_timeout_s=1)
        assert error.code == "ssh-unreachable", after


def test_a_closed_connection_leaves_no_thread_and_no_descriptor(server: Sshd, key: Path) -> None:
    me = psutil.Process()
    assert says(server.target(key))
    before = set(threading.enumerate())
    open_then = me.num_fds()
    for _ in range(3):
        assert says(server.target(key))
    assert refused(server.target()).code == "ssh-auth"
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread
    assert me.num_fds() <= open_then
