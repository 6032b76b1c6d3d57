"""Certificates for tests, made by the openssl command."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import fastbuf as fb

OPENSSL = shutil.which("openssl")


def openssl(*arguments: str) -> None:
    subprocess.run([str(OPENSSL), *arguments], check=True, capture_output=True, timeout=30)


def authority(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"),
        *("-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)),
    )
    return key, certificate


def host(folder: Path, name: str, signer: tuple[Path, Path], names: str) -> fb.TlsConfig:
    """A certificate for a host of those names."""
    key, request, certificate, extra = (folder / f"{name}.{end}" for end in ("key", "csr", "pem", "ext"))
    openssl(
        *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}"),
        *("-keyout", str(key), "-out", str(request)),
    )
    extra.write_text(f"subjectAltName={names}\n")
    openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(signer[1]), "-CAkey", str(signer[0]), "-CAcreateserial"),
        *("-days", "2", "-extfile", str(extra), "-out", str(certificate)),
    )
    return fb.TlsConfig(str(certificate), str(key), str(signer[1]))
