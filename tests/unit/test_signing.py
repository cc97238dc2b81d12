"""Signatures: who vouches for a bundle, and every way in which nobody does."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from securesystemslib.dsse import Envelope as TheirEnvelope
from securesystemslib.signer import CryptoSigner, SSlibKey

from harness import bundle, canonical, cli, envelope, signing, single_file
from harness.ed25519 import read_private, read_public
from harness.errors import HarnessError, UsageError
from harness.verify import verify
from tests.builders import good_legs, small_plan, write_bundle

PLAN = small_plan()
EXAMPLE = Path(__file__).resolve().parents[2] / "evidence" / "example"


def write_key(folder: Path, name: str, private: PrivateFormat = PrivateFormat.PKCS8) -> tuple[Path, Path]:
    key = ed25519.Ed25519PrivateKey.generate()
    secret, public = folder / f"{name}.key", folder / f"{name}.pub"
    openssh = private is PrivateFormat.OpenSSH
    secret.write_bytes(key.private_bytes(Encoding.PEM, private, NoEncryption()))
    secret.chmod(0o600)
    form = (Encoding.OpenSSH, PublicFormat.OpenSSH) if openssh else (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    public.write_bytes(key.public_key().public_bytes(*form))
    return secret, public


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_key(tmp_path_factory.mktemp("keys"), "mine")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, Path]) -> Path:
    root = write_bundle(tmp_path_factory.mktemp("signed") / "run", PLAN, good_legs(PLAN, scale_a=1.05))
    assert signing.sign(root, read_private(keys[0]))
    return root


@pytest.fixture
def copy(sealed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sealed, tmp_path / "run"))


def check(root: Path, public: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["verify", str(root), "--key", str(public)])
    found = capsys.readouterr()
    return code, found.out + found.err


def lines_of(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / bundle.SIGNATURES).read_bytes().splitlines()]


def write_lines(root: Path, rows: list[dict[str, object]]) -> None:
    (root / bundle.SIGNATURES).write_bytes(b"".join(canonical.dumps(row) for row in rows))


def test_a_signed_bundle_verifies_with_its_key_and_keeps_its_outcome(
    sealed: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = check(sealed, keys[1], capsys)
    assert code == 1
    assert said.startswith("FAIL:")
    assert "signed by the key that was given" in said
    assert cli.main(["verify", str(sealed)]) == 1
    assert "not checked; `--key PUB` checks it" in capsys.readouterr().out


def test_a_bundle_from_before_statements_were_kept_can_be_signed(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    copy = Path(shutil.copytree(EXAMPLE, tmp_path / "example"))
    assert signing.sign(copy, read_private(keys[0]))
    assert verify(copy).faults == ()


def test_an_unsigned_bundle_is_unproven(
    copy: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / bundle.SIGNATURES).unlink()
    code, said = check(copy, keys[1], capsys)
    assert code == 3
    assert "UNPROVEN" in said
    assert "not signed" in said


def test_another_key_is_unproven_and_both_are_named(
    copy: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_key(tmp_path, "other")
    code, said = check(copy, other[1], capsys)
    assert code == 3
    assert (
        f"signed by another key ({read_public(keys[1]).keyid[:16]}), not by {read_public(other[1]).keyid[:16]}" in said
    )


def test_a_forger_who_claims_the_keys_id_is_unproven(
    copy: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forger = read_private(write_key(tmp_path, "forger")[0])
    (copy / bundle.SIGNATURES).unlink()
    signing.sign(copy, forger)
    rows = lines_of(copy)
    for row in rows:
        row["signatures"][0]["keyid"] = read_public(keys[1]).keyid  # type: ignore[index]
    write_lines(copy, rows)
    code, said = check(copy, keys[1], capsys)
    assert code == 3
    assert "was not made by it" in said


def test_an_altered_payload_is_tampered_with_or_without_a_key(
    copy: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lines_of(copy)
    payload = base64.b64decode(str(rows[0]["payload"])).replace(b'"FAIL"', b'"PASS"')
    rows[0]["payload"] = base64.b64encode(payload).decode()
    write_lines(copy, rows)
    code, said = check(copy, keys[1], capsys)
    assert code == 3
    assert f"{bundle.SIGNATURES}: line 1 signs something else than this bundle's statement.json" in said
    assert verify(copy).outcome == "TAMPERED"


def test_another_payload_type_is_named(copy: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    rows = lines_of(copy)
    rows[1]["payloadType"] = "text/plain"
    write_lines(copy, rows)
    code, said = check(copy, keys[1], capsys)
    assert code == 3
    assert "line 2 has the payload type 'text/plain', not 'application/vnd.in-toto+json'" in said


def test_a_forged_and_freshly_sealed_bundle_under_the_old_signature_is_tampered(
    copy: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Everything in a bundle can be made anew but the signature."""
    forged = write_bundle(tmp_path / "forged", PLAN, good_legs(PLAN, scale_a=0.9))
    assert verify(forged).outcome == "PASS"
    shutil.copyfile(copy / bundle.SIGNATURES, forged / bundle.SIGNATURES)
    code, said = check(forged, keys[1], capsys)
    assert code == 3
    assert bundle.SIGNATURES in said


@pytest.mark.parametrize(
    "alter",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data.splitlines(keepends=True)[0],
        lambda data: b"".join(reversed(data.splitlines(keepends=True))),
        lambda data: data.replace(b'"payload"', b'"payl0ad"'),
        lambda data: data.replace(b',"payloadType"', b', "payloadType"'),
        lambda data: b"",
        lambda data: b"\xff\xfe\n",
    ],
)
def test_a_damaged_signature_file_is_named(copy: Path, alter: object) -> None:
    path = copy / bundle.SIGNATURES
    path.write_bytes(alter(path.read_bytes()))  # type: ignore[operator]
    found = verify(copy)
    assert found.outcome == "TAMPERED"
    assert found.faults[0].startswith(bundle.SIGNATURES)


def test_a_flipped_byte_anywhere_in_the_signatures_is_found_with_the_key(
    copy: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / bundle.SIGNATURES
    whole = path.read_bytes()
    for position in range(0, len(whole), 97):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert check(copy, keys[1], capsys)[0] == 3, position


def test_a_tampered_bundle_is_not_signed(
    copy: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "keeper.json").write_bytes(b"{}\n")
    assert cli.main(["sign", str(copy), "--key", str(keys[0])]) == 2
    assert "not signed: keeper.json" in capsys.readouterr().err


def test_signing_twice_changes_nothing_and_a_second_person_adds_lines(
    copy: Path, keys: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (copy / bundle.SIGNATURES).read_bytes()
    assert not signing.sign(copy, read_private(keys[0]))
    assert (copy / bundle.SIGNATURES).read_bytes() == before
    second = write_key(tmp_path, "second", PrivateFormat.OpenSSH)
    assert signing.sign(copy, read_private(second[0]))
    assert (copy / bundle.SIGNATURES).read_bytes().startswith(before)
    assert check(copy, keys[1], capsys)[0] == check(copy, second[1], capsys)[0] == 1


def test_bad_keys_are_a_sentence(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    secret, public = keys
    open_key = Path(shutil.copy(secret, tmp_path / "open.key"))
    open_key.chmod(0o644)
    locked = tmp_path / "locked.key"
    key = ed25519.Ed25519PrivateKey.generate()
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")))
    curve = tmp_path / "curve.pub"
    made = ec.generate_private_key(ec.SECP256R1()).public_key()
    curve.write_bytes(made.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    noise = tmp_path / "noise"
    noise.write_bytes(b"\0\1\2")
    for path in (locked, noise):
        path.chmod(0o600)
    for read, path, said in (
        (read_private, open_key, "chmod 600"),
        (read_private, locked, "passphrase"),
        (read_private, noise, "no private key"),
        (read_private, tmp_path / "absent", "No such file"),
        (read_public, curve, "not Ed25519"),
        (read_public, secret, "takes the public half"),
        (read_public, noise, "no public key"),
    ):
        with pytest.raises(UsageError) as caught:
            read(path)
        assert caught.value.code == "bad-key"
        assert said in caught.value.message, path
    assert read_public(public).keyid == read_private(secret).public.keyid


def test_without_the_library_the_single_file_says_that_it_checked_nothing(
    sealed: Path, keys: tuple[Path, Path], tmp_path: Path
) -> None:
    script = tmp_path / "verify.py"
    single_file.write(script)
    command = [sys.executable, "-I", "-S", str(script), str(sealed)]
    plain = subprocess.run(command, capture_output=True, text=True, check=False, env={})
    assert plain.returncode == 1
    assert "not checked" in plain.stdout
    asked = subprocess.run([*command, "--key", str(keys[1])], capture_output=True, text=True, check=False, env={})
    assert asked.returncode == 64
    assert asked.stderr.startswith("no-cryptography: ")
    with_library = [sys.executable, str(script), str(sealed), "--key", str(keys[1])]
    assert subprocess.run(with_library, capture_output=True, check=False, cwd="/").returncode == 1


def test_the_formats_own_library_reads_and_verifies_our_envelopes(sealed: Path, keys: tuple[Path, Path]) -> None:
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    their_key = SSlibKey.from_crypto(load_pem_public_key(keys[1].read_bytes()), keyid=read_public(keys[1]).keyid)
    for row in lines_of(sealed):
        theirs = TheirEnvelope.from_dict(row)
        accepted = theirs.verify([their_key], 1)
        assert set(accepted) == {read_public(keys[1]).keyid}


def test_we_verify_what_the_formats_own_library_signed() -> None:
    signer = CryptoSigner.generate_ed25519()
    theirs = TheirEnvelope(b'{"a":1}', envelope.PAYLOAD_TYPE, {})
    theirs.sign(signer)
    ours = envelope.Envelope.from_json(theirs.to_dict())
    public = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(signer.public_key.keyval["public"]))
    from harness.ed25519 import PublicKey

    data = envelope.encode(ours.payload_type, ours.payload)
    assert data == theirs.pae()
    assert PublicKey(public).signed(ours.signature, data)
    assert not PublicKey(public).signed(ours.signature, data + b" ")


@pytest.mark.parametrize(
    ("scale", "outcome", "result"), [(1.05, "FAIL", "FAILED"), (0.9, "PASS", "WARNED"), (1.0, "VOID", "FAILED")]
)
def test_both_statements_name_the_bundle_and_its_outcome(
    tmp_path: Path, scale: float, outcome: str, result: str
) -> None:
    legs = good_legs(PLAN, scale_a=scale)
    root = write_bundle(tmp_path / "run", PLAN, legs, drained=int(outcome == "VOID"))
    own, standard = (json.loads((root / name).read_text()) for name in ("statement.json", "test-result.json"))
    for one in (own, standard):
        assert one["_type"] == "https://in-toto.io/Statement/v1"
        assert one["subject"] == [{"name": "manifest.json", "digest": {"sha256": verify(root).digest}}]
    assert own["predicate"]["outcome"] == outcome
    assert own["predicate"]["verdict_sha256"] == canonical.sha256_file(root / "verdict.json")
    assert standard["predicateType"] == "https://in-toto.io/attestation/test-result/v0.1"
    assert standard["predicate"]["result"] == result
    failed = standard["predicate"]["failedTests"]
    assert ("validity lease-released" in failed) == (outcome == "VOID")
    assert bool(failed) == (outcome != "PASS")


def test_a_bad_key_stops_a_run_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["run", "gate=g4", "signing.key=absent.pem", "host.port=1"]) == 64
    assert capsys.readouterr().err.startswith("bad-key: ")
    assert list(tmp_path.iterdir()) == []


def test_a_bad_envelope_line_is_an_error_with_its_number() -> None:
    with pytest.raises(HarnessError, match="line 1 is not a DSSE envelope"):
        envelope.from_lines(b'{"payload":"!!"}\n', bundle.SIGNATURES)
