"""Certificates, for both protocols: whom the client trusts, and who it says it is."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc
import httpx


@functools.cache
def _well_known() -> ssl.SSLContext:
    """Made once: reading the authorities takes long, and integrations make a client for each request, on the event loop."""
    return httpx.create_ssl_context()


@dataclass(frozen=True)
class Certificates:
    """PEM files. authorities: those whom the server's certificate may be from; None: well-known ones.
    certificate and key: the client's own, for a server that was started with --tls-client-ca."""

    authorities: Path | str | None = None
    certificate: Path | str | None = None
    key: Path | str | None = None

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            given, missing = ("client_key", "client_certificate") if self.certificate is None else (
                "client_certificate", "client_key")
            raise ValueError(f"{given} is {self.key or self.certificate} and {missing} is None; allowed: both or none")

    def given(self) -> bool:
        return self.authorities is not None or self.certificate is not None

    def for_grpc(self) -> grpc.ChannelCredentials:
        # A file that cannot be read is an OSError that names it.
        roots, chain, key = (Path(path).read_bytes() if path else None for path in (self.authorities, self.certificate, self.key))
        return grpc.ssl_channel_credentials(roots, key, chain)

    def for_http(self, base_url: str) -> ssl.SSLContext:
        """What httpx calls `verify`."""
        if not self.given():
            return _well_known()
        if not base_url.lower().startswith("https://"):
            raise ValueError(f"base_url is '{base_url}'; allowed with certificates: one that begins with https://")
        context = (ssl.create_default_context(cafile=self.authorities) if self.authorities is not None
                   else httpx.create_ssl_context())
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context
