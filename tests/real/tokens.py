"""ServiceAccount tokens that live as shortly as a test likes: a TokenRequest gives none under ten minutes, so these are
signed with the lab's own key.

Claims and their meaning: https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ISSUER = "https://kubernetes.default.svc.cluster.local"

LEEWAY = 60.0
"""Seconds beyond `exp` for which an API server still takes a token (go-jose's DefaultLeeway, for skewed clocks)."""


def sign(state: Path, namespace: str, name: str, uid: str, *, lives: float, issuer: str = ISSUER) -> str:
    """A token of a ServiceAccount (its name and UID) that the API server takes for `lives` seconds from now on (whole
    ones count); by its own claims it ends `LEEWAY` seconds earlier, which may be in the past.

    `state`: the lab's folder. An authenticator remembers good tokens for ten seconds more.
    """
    now = int(time.time())
    expires = now + round(lives - LEEWAY)
    claims = {
        "iss": issuer,
        "sub": f"system:serviceaccount:{namespace}:{name}",
        "aud": [issuer],
        "iat": now,
        "nbf": min(now, expires) - 1,
        "exp": expires,
        "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
    }
    key = serialization.load_pem_private_key((state / "pki" / "sa.key").read_bytes(), None)
    algorithm = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
    message = f"{_part({'alg': algorithm, 'typ': 'JWT'})}.{_part(claims)}".encode()
    return f"{message.decode()}.{_encoded(_signature(key, message))}"


def _signature(key: Any, message: bytes) -> bytes:
    """RFC 7518, sections 3.3 (RS256) and 3.4 (ES256: both numbers, 32 bytes each)."""
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, padding.PKCS1v15(), hashes.SHA256())
    numbers = decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
    return b"".join(number.to_bytes(32, "big") for number in numbers)


def _part(content: dict[str, Any]) -> str:
    return _encoded(json.dumps(content, separators=(",", ":")).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@contextmanager
def renewed(path: Path, state: Path, namespace: str, name: str, uid: str, *, lives: float) -> Iterator[None]:
    """Keeps a token file fresh for the length of the block, as a kubelet does: replaced as a whole when four fifths of
    a token's life are over."""
    ended = threading.Event()

    def write() -> None:
        new = path.with_suffix(".new")
        new.write_text(sign(state, namespace, name, uid, lives=lives))
        new.replace(path)

    def keep() -> None:
        while not ended.wait(0.8 * lives):
            write()

    write()
    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
