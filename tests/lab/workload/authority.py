"""A small certificate authority, and a TLS front for a plain server."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Issues certificates for 127.0.0.1 into a folder."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.crt"
        self.file.write_bytes(self._certificate(self._name, self._key, is_authority=True))

    def issue(self, name: str) -> tuple[Path, Path]:
        """A certificate and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate, secret = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        certificate.write_bytes(self._certificate(subject, key, is_authority=False))
        form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        secret.write_bytes(key.private_bytes(*form))
        return certificate, secret

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        authority = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority), critical=False)
            .add_extension(address, critical=False)
            .sign(self._key, hashes.SHA256())
            .public_bytes(serialization.Encoding.PEM)
        )


@asynccontextmanager
async def behind_tls(port: int, authority: Authority, *, wants_certificate: bool = False) -> AsyncIterator[int]:
    """Offer a plain server of 127.0.0.1 over TLS; yields the port. `wants_certificate`: of every client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    if wants_certificate:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, inner_writer), pass_on(inner_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
