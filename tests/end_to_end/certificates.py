"""Certificates for one test run, made by trustme."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

from broker import Tls


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files. Each of *server*, *client*, *stranger* holds a key and its chain.

    *client* is signed by the authority that the broker trusts, *stranger* by another one.
    """

    ca: str
    server: str
    client: str
    stranger: str

    @classmethod
    def make(cls, folder: Path) -> Certificates:
        ours, other = trustme.CA(), trustme.CA()
        ca = folder / "ca.pem"
        ours.cert_pem.write_to_path(ca)
        leaves = {
            "server": ours.issue_cert("localhost", "127.0.0.1"),
            "client": ours.issue_cert("client@example.org", common_name="a client"),
            "stranger": other.issue_cert("stranger@example.org"),
        }
        for name, leaf in leaves.items():
            leaf.private_key_and_cert_chain_pem.write_to_path(folder / f"{name}.pem")
        return cls(str(ca), *(str(folder / f"{name}.pem") for name in leaves))

    def tls(self, client_certificates: str = "none", **more: str) -> Tls:
        """The broker's settings."""
        client_ca = "" if client_certificates == "none" else self.ca
        mode = client_certificates
        return Tls(certificate=self.server, client_ca=client_ca, client_certificates=mode, **more)

    def context(self, identity: str | None = None) -> ssl.SSLContext:
        """A client's side: trusts our authority, and shows *identity* (a path) if asked."""
        context = ssl.create_default_context(cafile=self.ca)
        if identity:
            context.load_cert_chain(identity)
        return context
