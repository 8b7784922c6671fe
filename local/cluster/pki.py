"""Certificates, keys and kubeconfigs of one embedded cluster, made with openssl (3.0 or newer)."""

import base64
import hashlib
import os
import secrets
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from local.cluster.errors import ClusterError
from local.cluster.init import NODE_ADDRESS, NODE_NAME

API_SERVICE_ADDRESS = "10.96.0.1"  # the first address of the service range, as the API server takes it
LIFETIME_DAYS = 3650


@dataclass(frozen=True)
class Certificate:
    """``authority`` signs it; ``subject`` is user (CN) and group (O) where it is a client's."""

    name: str
    authority: str
    subject: str
    usage: str
    alternative_names: str = ""


CERTIFICATES = (
    Certificate(
        "kube-apiserver",
        "ca",
        "/CN=kube-apiserver",
        "serverAuth",
        "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,"
        f"DNS:localhost,IP:127.0.0.1,IP:{API_SERVICE_ADDRESS},IP:{NODE_ADDRESS}",
    ),
    Certificate("kubelet-serving", "ca", f"/CN={NODE_NAME}", "serverAuth", f"DNS:{NODE_NAME},IP:{NODE_ADDRESS}"),
    Certificate("admin", "ca", "/O=system:masters/CN=embedding-serving-admin", "clientAuth"),
    Certificate(
        "kube-apiserver-kubelet-client", "ca", "/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth"
    ),
    Certificate("kube-controller-manager", "ca", "/CN=system:kube-controller-manager", "clientAuth"),
    Certificate("kube-scheduler", "ca", "/CN=system:kube-scheduler", "clientAuth"),
    Certificate("kube-proxy", "ca", "/CN=system:kube-proxy", "clientAuth"),
    Certificate("kubelet", "ca", f"/O=system:nodes/CN=system:node:{NODE_NAME}", "clientAuth"),
    Certificate("front-proxy-client", "front-proxy-ca", "/CN=front-proxy-client", "clientAuth"),
)


class Pki:
    """Files below ``directory``. The last one written says for which list of certificates all are there."""

    def __init__(self, directory: Path, openssl: str) -> None:
        self.directory = directory
        self.openssl = openssl

    def ensure(self) -> bool:
        """Make what is missing; authorities stay when the list changes. False when everything was there.

        Raises:
            ClusterError: openssl is missing or failed.
        """
        complete = self.directory / "complete"
        listed = hashlib.sha256(repr(CERTIFICATES).encode()).hexdigest()
        if complete.exists() and complete.read_text() == listed:
            return False
        self.directory.mkdir(parents=True, exist_ok=True)
        for authority in () if complete.exists() else ("ca", "front-proxy-ca"):
            self._run(
                *("req", "-x509", "-subj", f"/CN=embedding-serving-{authority}", "-out", f"{authority}.crt"),
                *self._new_key(authority),
                *("-addext", "keyUsage=critical,keyCertSign,cRLSign,digitalSignature"),
            )
        for certificate in CERTIFICATES:
            self._sign(certificate)
        if not complete.exists():
            self._run(
                "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "service-account.key"
            )
            self._run("pkey", "-in", "service-account.key", "-pubout", "-out", "service-account.pub")
        complete.write_text(listed)
        return True

    def admin_context(self) -> ssl.SSLContext:
        """For requests to the API server as cluster administrator."""
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        context.load_cert_chain(self.directory / "admin.crt", self.directory / "admin.key")
        return context

    def kubeconfig(self, user: str, server: str, name: str) -> str:
        """A kubeconfig of one context ``name`` for the holder of the certificate ``user``."""
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {"name": name, "cluster": {"server": server, "certificate-authority-data": self._base64("ca.crt")}}
                ],
                "users": [
                    {
                        "name": name,
                        "user": {
                            "client-certificate-data": self._base64(f"{user}.crt"),
                            "client-key-data": self._base64(f"{user}.key"),
                        },
                    }
                ],
                "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
                "current-context": name,
            },
            sort_keys=False,
        )

    def _base64(self, file: str) -> str:
        return base64.b64encode((self.directory / file).read_bytes()).decode()

    @staticmethod
    def _new_key(name: str) -> tuple[str, ...]:
        return (
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-noenc", "-keyout", f"{name}.key"),
            *("-days", str(LIFETIME_DAYS)),
        )

    def _sign(self, certificate: Certificate) -> None:
        extensions = ["basicConstraints=critical,CA:FALSE", f"extendedKeyUsage={certificate.usage}"]
        if certificate.alternative_names:
            extensions.append(f"subjectAltName={certificate.alternative_names}")
        self._run(
            *("req", "-x509", "-CA", f"{certificate.authority}.crt", "-CAkey", f"{certificate.authority}.key"),
            *("-subj", certificate.subject, "-out", f"{certificate.name}.crt"),
            *("-set_serial", str(secrets.randbits(63))),
            *self._new_key(certificate.name),
            *(part for extension in extensions for part in ("-addext", extension)),
        )

    def _run(self, *arguments: str) -> None:
        try:
            done = subprocess.run(
                [self.openssl, *arguments], check=False, capture_output=True, text=True, cwd=self.directory, umask=0o077
            )
        except FileNotFoundError as error:
            raise ClusterError("openssl is needed to make certificates and was not found: install it") from error
        if done.returncode:
            raise ClusterError(f"openssl {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}")


def write_private(file: Path, content: str) -> None:
    """Replace ``file`` in one step, readable by its owner only."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as output:
        output.write(content)
    temporary.replace(file)
