from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import paramiko
import pytest
from paramiko.hostkeys import HostKeys

from harness.errors import UsageError
from harness.transport import ssh_known_hosts
from harness.transport.ssh_config import SshTarget

ONE, TWO, THREE = (hashlib.sha256(name).digest() for name in (b"1", b"2", b"3"))


def text(blob: bytes) -> str:
    return base64.b64encode(blob).decode()


def target(tmp_path: Path, lines: str, host: str = "gpu", port: int = 22) -> SshTarget:
    path = tmp_path / "known hosts"
    path.write_text(lines)
    return SshTarget(host, port, "u", (), (tmp_path / "absent", path))


def code(found: SshTarget, blob: bytes, kind: str = "ssh-ed25519") -> str:
    try:
        ssh_known_hosts.check(found, kind, blob)
    except UsageError as error:
        return error.code
    return "trusted"


@pytest.mark.parametrize(
    ("names", "host", "port", "expected"),
    [
        ("gpu", "GPU", 22, "trusted"),
        ("a,gpu,b", "gpu", 22, "trusted"),
        ("[gpu]:2222", "gpu", 2222, "trusted"),
        ("[gpu]:2222", "gpu", 2223, "ssh-host-key-unknown"),
        ("[gpu]:2222", "gpu", 22, "ssh-host-key-unknown"),
        ("[gpu]:*", "gpu", 2222, "trusted"),
        ("*.example,!gpu.example", "gpu.example", 22, "ssh-host-key-unknown"),
        ("*.example,!gpu.example", "cpu.example", 22, "trusted"),
        ("g[p]u", "gpu", 22, "ssh-host-key-unknown"),
        ("[::1]:2222", "::1", 2222, "trusted"),
        ("gpu", "gpu", 2222, "trusted"),
        (HostKeys.hash_host("gpu"), "gpu", 22, "trusted"),
        (HostKeys.hash_host("[gpu]:2222"), "gpu", 2222, "trusted"),
        (HostKeys.hash_host("gpu"), "cpu", 22, "ssh-host-key-unknown"),
        ("|1|x|y", "gpu", 22, "ssh-host-key-unknown"),
    ],
)
def test_a_line_speaks_of_its_hosts_and_ports_alone(
    tmp_path: Path, names: str, host: str, port: int, expected: str
) -> None:
    assert code(target(tmp_path, f"{names} ssh-ed25519 {text(ONE)} comment\n", host, port), ONE) == expected


def test_a_changed_key_shows_both_fingerprints_and_the_line(tmp_path: Path) -> None:
    found = target(tmp_path, f"# first\ngpu ssh-rsa {text(TWO)}\ngpu ssh-ed25519 {text(ONE)}\n")
    with pytest.raises(UsageError) as caught:
        ssh_known_hosts.check(found, "ssh-ed25519", THREE)
    assert caught.value.code == "ssh-host-key-changed"
    for part in (ssh_known_hosts.fingerprint(ONE), ssh_known_hosts.fingerprint(THREE), "known hosts, line 3"):
        assert part in caught.value.message
    assert f"ssh-keygen -R gpu -f '{tmp_path}/known hosts'" in caught.value.message


def test_any_of_several_known_keys_is_enough_and_their_types_are_asked_for(tmp_path: Path) -> None:
    found = target(tmp_path, f"gpu ssh-rsa {text(TWO)}\ngpu ecdsa-sha2-nistp256 {text(ONE)}\n")
    assert code(found, ONE) == code(found, TWO) == "trusted"
    assert ssh_known_hosts.key_types(found) == ("ssh-rsa", "ecdsa-sha2-nistp256")


def test_a_key_of_a_type_not_yet_known_is_a_changed_key(tmp_path: Path) -> None:
    assert code(target(tmp_path, f"gpu ssh-rsa {text(TWO)}\n"), ONE) == "ssh-host-key-changed"


def test_an_unknown_host_gives_the_command_that_adds_what_it_showed(tmp_path: Path) -> None:
    found = target(tmp_path, "", "gpu", 2222)
    with pytest.raises(UsageError) as caught:
        ssh_known_hosts.check(found, "ssh-ed25519", ONE)
    assert ssh_known_hosts.fingerprint(ONE) in caught.value.message
    assert f"echo '[gpu]:2222 ssh-ed25519 {text(ONE)}' >> " in caught.value.message
    assert (tmp_path / "known hosts").read_text() == ""


def test_a_revoked_key_is_refused_even_where_another_line_trusts_it(tmp_path: Path) -> None:
    lines = f"gpu ssh-ed25519 {text(ONE)}\n@revoked * ssh-ed25519 {text(ONE)}\n@revoked * ssh-ed25519 {text(TWO)}\n"
    found = target(tmp_path, lines)
    assert code(found, ONE) == "ssh-host-key-revoked" and code(found, THREE) == "ssh-host-key-changed"


def test_an_authority_does_not_make_its_key_a_host_key(tmp_path: Path) -> None:
    assert code(target(tmp_path, f"@cert-authority gpu ssh-ed25519 {text(ONE)}\n"), ONE) == "ssh-host-key-unknown"


def test_lines_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    lines = f"\n#gpu ssh-ed25519 {text(TWO)}\ngpu\ngpu ssh-ed25519 !!!\ngpu ssh-ed25519 {text(ONE)}\n"
    assert code(target(tmp_path, lines), ONE) == "trusted"


def test_a_file_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=str(tmp_path)) as caught:
        ssh_known_hosts.check(SshTarget("gpu", 22, "u", (), (tmp_path,)), "ssh-ed25519", ONE)
    assert caught.value.code == "ssh-known-hosts"


def test_a_fingerprint_is_the_one_that_others_print() -> None:
    key = paramiko.ECDSAKey.generate()
    assert ssh_known_hosts.fingerprint(key.asbytes()) == key.fingerprint
