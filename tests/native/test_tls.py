"""Encryption with the native API: certificates as files and as text, and what is refused."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

import backhaul
from backhaul import (
    ConfigError,
    Context,
    EncryptionFailed,
    Endpoint,
    HandshakeFailed,
    Tls,
    TlsError,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make an authority, a certificate of it, and another authority's."""
    folder = tmp_path_factory.mktemp("tls")
    for authority, name in (("ca", "peer"), ("other-ca", "other")):
        new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3"
        _run(f"{new} -subj /CN={authority} -keyout {authority}.key -out {authority}.pem", folder)
        request = "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
        _run(f"{request} -subj /CN={name} -keyout {name}.key -out {name}.csr", folder)
        sign = "openssl x509 -req -days 3 -CAcreateserial"
        _run(
            f"{sign} -in {name}.csr -CA {authority}.pem -CAkey {authority}.key -out {name}.pem",
            folder,
        )
    return folder


def _run(command: str, folder: Path) -> None:
    subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=300)


def _tls(files: Path, name: str = "peer", ca: str = "ca") -> Tls:
    return Tls(files / f"{ca}.pem", files / f"{name}.pem", files / f"{name}.key")


def _meet(far: Tls, near: Tls, lanes: list[str] | None = None) -> tuple[Endpoint, Endpoint]:
    listener = backhaul.listen(tls=far)
    accept = listener.accept()
    near_end = backhaul.connect(listener.address, lanes=lanes, tls=near).wait(60)
    return near_end, accept.wait(60)


def test_messages_are_encrypted_between_sides_of_one_authority(files: Path) -> None:
    near, far = _meet(_tls(files), _tls(files), lanes=["tcp"])
    assert (near.lane, far.lane) == ("tls", "tls")
    info = near.info()
    assert info["trust"] == "certificate"
    assert info["tls"]["version"] == "TLSv1.3"
    assert info["tls"]["cipher"] == "TLS_AES_256_GCM_SHA384"
    expected = ssl.PEM_cert_to_DER_cert((files / "peer.pem").read_text())
    assert info["tls"]["peer_certificate"] == expected
    for size in (0, 5, 100_000, 3_000_000):
        payload = bytes(range(256)) * (size // 256 + 1)
        posted = far.recv_frames()
        near.send_frames([payload[:size]]).wait(60)
        assert b"".join(posted.wait(60)) == payload[:size]


def test_certificates_may_be_text(files: Path) -> None:
    ca, cert, key = ((files / name).read_text() for name in ("ca.pem", "peer.pem", "peer.key"))
    near, far = _meet(Tls(ca, cert + key), Tls(ca, cert, key))
    # Within a process nothing leaves it, once TLS has proved the peer.
    assert (near.lane, far.lane) == ("inproc", "inproc")
    assert near.info()["tls"]["peer_certificate"] is not None


def test_a_context_may_ask_for_encryption_everywhere(files: Path) -> None:
    with Context(tls=_tls(files), lanes=["tls"]) as context:
        listener = context.listen("127.0.0.1:0")
        assert listener.info()["trust"] == "certificate"
        accept = listener.accept()
        assert context.connect(listener.address).wait(60).lane == "tls"
        accept.wait(60)


def test_another_authority_proves_nobody(files: Path) -> None:
    with pytest.raises(EncryptionFailed, match="no certificate authority that this side trusts"):
        _meet(_tls(files), _tls(files, "other", "other-ca"))
    with pytest.raises(EncryptionFailed, match="has signed our certificate"):
        _meet(_tls(files), _tls(files, "other", "ca"))


def test_a_side_without_encryption_is_told_what_is_missing(files: Path) -> None:
    listener = backhaul.listen(tls=_tls(files))
    with pytest.raises(HandshakeFailed, match="speaks TLS"):
        backhaul.connect(listener.address).wait(60)
    listener = backhaul.listen()
    with pytest.raises(EncryptionFailed, match="may not speak TLS"):
        backhaul.connect(listener.address, tls=_tls(files)).wait(60)


def test_what_cannot_be_used_is_refused_with_its_file(files: Path) -> None:
    good = [files / name for name in ("ca.pem", "peer.pem", "peer.key")]
    with pytest.raises(TlsError, match=r"/nowhere/ca.pem"):
        Tls("/nowhere/ca.pem", *good[1:])
    with pytest.raises(TlsError, match=r"other.key is not that of the certificate in .*peer.pem"):
        Tls(good[0], good[1], files / "other.key")
    with pytest.raises(TlsError, match=r"1\.1"):
        Tls(*good, min_version="1.1")
    with pytest.raises(TlsError, match=r"at least TLSv1\.3 and at most TLSv1\.2"):
        Tls(*good, min_version="1.3", max_version="1.2")
    with pytest.raises(TlsError, match="HIGH"):
        Tls(*good, ciphers="HIGH:!aNULL")
    with pytest.raises(TlsError, match="a listener needs a certificate"):
        backhaul.listen(tls=Tls(good[0]))
    with pytest.raises(ConfigError, match="clear text"):
        backhaul.connect("127.0.0.1:1", lanes=["ucx"], tls=Tls(*good)).wait(60)
    assert "KEY" not in repr(Tls(*(path.read_text() for path in good)))


def test_a_key_that_has_lost_its_lines_is_not_shown(files: Path) -> None:
    ca, cert, key = ((files / name).read_text() for name in ("ca.pem", "peer.pem", "peer.key"))
    for between in (" ", "", r"\n"):
        with pytest.raises(TlsError, match="a line for itself") as caught:
            Tls(ca, cert, key.replace("\n", between))
        assert key.splitlines()[1][:12] not in str(caught.value)
