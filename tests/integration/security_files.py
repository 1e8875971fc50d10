"""Certificates, secrets and keys in a folder, as an operator makes them."""

import os
import pathlib
import secrets
import subprocess


class Authority:
    """A certificate authority and the certificates that it issues, in `folder`."""

    def __init__(self, folder, name):
        self.folder, self.name = pathlib.Path(folder), name
        self.certificate, self.key = self.folder / f"{name}-ca.pem", self.folder / f"{name}-ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-noenc", "-days", "2", "-subj", f"/CN={name}", "-keyout", self.key,
                "-out", self.certificate)

    def issue(self, name, days=1):
        """Issues NAME.pem and NAME.key."""
        pem, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                "-noenc", "-days", days, "-subj", f"/CN={name}",
                "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                "-addext", "basicConstraints=critical,CA:FALSE",
                "-CA", self.certificate, "-CAkey", self.key, "-keyout", key, "-out", pem)
        return pem, key


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def new_secret():
    return secrets.token_hex(32)


def write(path, text):
    """Renames a new file over the old one."""
    draft = pathlib.Path(f"{path}.new")
    draft.write_text(text)
    draft.chmod(0o600)
    os.replace(draft, path)
    return path
