"""A controller that sleeps, and one that reaches its host by way of another: the run goes on and is sealed."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.remote.conftest import LIMIT_S, TINY, Host
from tests.integration.remote.test_ssh_run import QUICK, SLOW, assert_nothing_left, assert_whole, under_load, until

pytestmark = pytest.mark.slow
SILENCE_S = 2.0


@pytest.mark.parametrize("cut", [False, True], ids=["link kept", "link cut meanwhile"])
def test_a_laptop_that_sleeps_longer_than_the_bound_on_silence_goes_on_where_it_was(
    host: Host, tmp_path: Path, cut: bool
) -> None:
    running = host.spawn("run", *TINY, *SLOW, f"host.silence_s={SILENCE_S}", cwd=tmp_path)
    until(lambda: under_load(host, running), "load")
    running.send_signal(signal.SIGSTOP)
    for process in host.connections() if cut else ():
        process.kill()
    time.sleep(2.5 * SILENCE_S)  # what is tested is this very time
    assert host.mine("harness.keeper")
    running.send_signal(signal.SIGCONT)
    said, _ = running.communicate(timeout=LIMIT_S)
    assert_whole(running.returncode, said, tmp_path)
    if cut:
        assert len(re.findall("lost the link to bench", said)) == 1 and "the link to bench is back" in said, said
    assert_nothing_left(host)


def through(door: Host, host: Host) -> Host:
    """The host as somebody sees it who must go by way of `door`, which has keys of its own."""
    known = host.root / "known_hosts"
    known.write_text("".join((one.root / "known_hosts").read_text() for one in (host, door)))
    (host.root / "jump").write_text(
        f"Host door\n HostName 127.0.0.1\n Port {door.port}\n ProxyJump none\n IdentityFile {door.root}/user_key\n"
        f" UserKnownHostsFile {known}\nHost 127.0.0.1\n ProxyJump door\n"
    )
    return replace(host, ssh_config="jump")


def test_a_whole_run_goes_through_a_jump_host_and_survives_its_loss(host: Host, bare: Host, tmp_path: Path) -> None:
    far = through(bare, host)
    log = bare.root / "sshd.log"
    listed = far.run("status", cwd=tmp_path)
    assert "is free" in listed.stdout, listed.stdout + listed.stderr
    assert log.read_text().count("Accepted publickey") == 1
    running = far.spawn("run", *TINY, *SLOW, "host.connect_timeout_s=5", cwd=tmp_path)
    until(lambda: under_load(host, running), "load")
    for process in bare.connections():
        process.kill()
    said, _ = running.communicate(timeout=LIMIT_S)
    assert_whole(running.returncode, said, tmp_path)
    assert len(re.findall("lost the link to bench", said)) == 1 and "the link to bench is back" in said, said
    assert log.read_text().count("Accepted publickey") >= 3  # status, the run, and the run again
    assert_nothing_left(host)


def test_attach_goes_through_a_jump_host(host: Host, bare: Host, tmp_path: Path) -> None:
    far = through(bare, host)
    first = far.spawn("run", *TINY, *QUICK, "workload.points={2: 40}", cwd=tmp_path)
    until(lambda: under_load(host, first), "load")
    first.kill()
    first.communicate()
    done = far.run("attach", next(host.state.glob("g4-*")).name, cwd=tmp_path)
    assert_whole(done.returncode, done.stdout + done.stderr, tmp_path)
    assert_nothing_left(host)
