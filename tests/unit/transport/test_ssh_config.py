from __future__ import annotations

import getpass
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.transport.ssh_config import SshTarget, resolve


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    return tmp_path


def written(home: Path, text: str) -> Path:
    path = home / "config"
    path.write_text(text)
    return path


def where(target: SshTarget) -> tuple[str, int, str]:
    return target.host, target.port, target.user


def refused(path: Path, alias: str = "gpu") -> UsageError:
    with pytest.raises(UsageError) as caught:
        resolve(alias, config_file=path)
    assert caught.value.code == "ssh-config"
    return caught.value


def test_proxy_jump_none_is_a_direct_way_and_a_chain_keeps_users_and_ports(home: Path) -> None:
    path = written(home, "Host gpu\n Port 2222\n ProxyJump none\nHost far\n ProxyJump u1@j1,u2@j2:2200\n")
    gpu, far = resolve("gpu", config_file=path), resolve("far", config_file=path)
    assert where(gpu) == ("gpu", 2222, getpass.getuser()) and gpu.jumps == ()
    assert [where(hop) for hop in far.jumps] == [("j1", 22, "u1"), ("j2", 2200, "u2")]
    assert where(far) == ("far", 22, getpass.getuser())


def test_each_hop_has_its_own_settings_and_the_first_its_own_way(home: Path) -> None:
    path = written(
        home,
        "Host far\n HostName 10.0.0.9\n ProxyJump mid,ssh://last:2022\n"
        "Host mid\n HostName mid.example\n User m\n IdentityFile ~/.ssh/mid\n ProxyJump door\n"
        "Host last\n ProxyJump never\n User l\nHost door\n Port 2200\n IdentitiesOnly yes\n",
    )
    far = resolve("far", user="me", config_file=path)
    assert [where(hop) for hop in far.jumps] == [
        ("door", 2200, getpass.getuser()),
        ("mid.example", 22, "m"),
        ("last", 2022, "l"),
    ]
    assert [hop.agent for hop in far.jumps] == [False, True, True] and not any(hop.jumps for hop in far.jumps)
    assert far.jumps[1].identity_files == (home / ".ssh" / "mid",)
    assert where(far) == ("10.0.0.9", 22, "me")


def test_arguments_win_over_the_file(home: Path) -> None:
    path = written(home, "Host gpu\n User a\n Port 1\n IdentityFile /k1\n IdentityFile /k2\n UserKnownHostsFile /kh\n")
    plain = resolve("gpu", config_file=path)
    assert where(plain) == ("gpu", 1, "a") and plain.identity_files == (Path("/k1"), Path("/k2"))
    assert plain.known_hosts[0] == Path("/kh")
    given = resolve("gpu", user="b", port=2, identity_file=Path("~/k"), config_file=path, known_hosts=Path("/mine"))
    assert where(given) == ("gpu", 2, "b")
    assert (given.identity_files, given.known_hosts) == ((home / "k",), (Path("/mine"),))


def test_the_named_known_hosts_file_is_the_only_one_on_each_hop(home: Path) -> None:
    path = written(home, "Host far\n ProxyJump j\n UserKnownHostsFile /kh\n")
    far = resolve("far", config_file=path, known_hosts=Path("/mine"))
    assert far.known_hosts == far.jumps[0].known_hosts == (Path("/mine"),)


def test_without_a_file_the_user_s_own_is_read_and_default_keys_are_those_that_exist(home: Path) -> None:
    (home / ".ssh" / "config").write_text("Host gpu\n HostName 10.1.1.1\n")
    (home / ".ssh" / "id_rsa").write_text("")
    found = resolve("gpu")
    assert found.host == "10.1.1.1" and found.identity_files == (home / ".ssh" / "id_rsa",)
    assert found.known_hosts[0] == home / ".ssh" / "known_hosts"


def test_an_include_stands_where_it_is_written_and_does_not_end_the_block(home: Path) -> None:
    (home / ".ssh" / "d").mkdir()
    (home / ".ssh" / "d" / "1").write_text("Host gpu\n Port 2201\n")
    (home / ".ssh" / "d" / "2").write_text("Host other\n User x\n")
    path = written(home, "Include d/*\nHost late\n Include nothing\n Include d/2\n User late\nHost *\n User all\n")
    assert where(resolve("gpu", config_file=path)) == ("gpu", 2201, "all")
    assert resolve("late", config_file=path).user == "late" and resolve("other", config_file=path).user == "x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Host gpu\n ProxyJump a\nHost a\n ProxyJump gpu\n", "the chain names itself"),
        ("Host gpu\n ProxyJump @a\n", "is not [user@]host[:port]"),
        ("Host gpu\n ProxyJump a:0\n", "'0' is not a port"),
        ("Host gpu\n Port ssh\n", "'ssh' is not a port"),
        ("Host gpu\n ProxyCommand nc %h %p\n", "write it as ProxyJump"),
        ("Host gpu\n =\n", "Unparsable line"),
        ("Match exec true\n User x\n", "cannot be applied to gpu"),
    ],
)
def test_what_cannot_be_followed_is_a_sentence(home: Path, text: str, said: str) -> None:
    assert said in refused(written(home, text)).message


def test_a_file_that_is_missing_or_includes_itself_is_named(home: Path) -> None:
    assert str(home / "nowhere") in refused(home / "nowhere").message
    (home / ".ssh" / "loop").write_text("Include loop\n")
    assert "includes itself" in refused(home / ".ssh" / "loop").message


@pytest.mark.parametrize(
    ("item", "host", "port"), [("[::1]:2200", "::1", 2200), ("::1", "::1", 22), ("[::1]", "::1", 22)]
)
def test_a_hop_may_be_an_ipv6_address(home: Path, item: str, host: str, port: int) -> None:
    (hop,) = resolve("gpu", config_file=written(home, f"Host gpu\n ProxyJump u@{item}\n")).jumps
    assert where(hop) == (host, port, "u")


def test_without_paramiko_there_is_a_sentence_and_without_a_link_it_is_not_imported() -> None:
    program = (
        "import sys\n"
        "import harness.cli, harness.transport.framing, harness.transport.ssh_known_hosts\n"
        "from harness.transport import ssh_config, ssh_connection\n"
        "assert 'paramiko' not in sys.modules\n"
        "sys.modules['paramiko'] = None\n"
        "from harness.errors import UsageError\n"
        "target = ssh_config.SshTarget('h', 22, 'u', (), ())\n"
        "for call in (lambda: ssh_config.resolve('gpu'), lambda: ssh_connection.Connection.open(target)):\n"
        "    try: call()\n"
        "    except UsageError as error: print(error.code, error.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.count("paramiko-missing") == 2 and "install" in done.stdout, done.stderr
