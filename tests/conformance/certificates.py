"""A certificate authority for brokers and clients over TLS."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import trustme

from broker.config import Config, Tls


class Authority:
    """It vouches for a server at localhost whose files are in *folder*, and for clients by name."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.ca_file, self._server_file = str(folder / "ca.pem"), str(folder / "server.pem")
        self.ca.cert_pem.write_to_path(self.ca_file)
        self.ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(self._server_file)

    def config(self, *schemes: str, **tls: Any) -> Config:
        """A broker's settings: a listener of each scheme on a free port, and more fields of `Tls`."""
        listen = tuple(f"{scheme}://127.0.0.1:0" for scheme in schemes)
        return Config(listen=listen, tls=Tls(certificate=self._server_file, **tls))

    def client_side(self, name: str | None = None, signer: trustme.CA | None = None) -> ssl.SSLContext:
        """A client's context; with *name* it shows a certificate with that Common Name."""
        context = ssl.create_default_context()
        self.ca.configure_trust(context)
        if name is not None:
            (signer or self.ca).issue_cert(f"{name}.example", common_name=name).configure_cert(context)
        return context
