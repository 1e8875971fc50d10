"""scripts/fetch_xgrammar with a package index of its own: what it unpacks, what it refuses, and that it
fetches once."""

import hashlib
import http.server
import io
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "fetch_xgrammar"
FILES = {"LICENSE": "l", "cpp/grammar.cc": "g", "cpp/support/logging.h": "h", "cpp/tvm_ffi/tvm_ffi.cc": "t",
         "include/xgrammar/grammar.h": "i", "3rdparty/picojson/picojson.h": "p", "docs/page.md": "d",
         "cpp/../../../escape.cc": "e"}


def package():
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as files:
        for name, text in FILES.items():
            member = tarfile.TarInfo("xgrammar-0.2.8/" + name)
            member.size = len(text)
            files.addfile(member, io.BytesIO(text.encode()))
    return data.getvalue()


class FetchXgrammar(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cache = pathlib.Path(folder.name) / "cache"
        self.pages = {"/simple/xgrammar/": b'<a href="../../files/xgrammar-0.2.8.tar.gz#sha256=0">x</a>',
                      "/files/xgrammar-0.2.8.tar.gz": package()}
        pages, self.asked = self.pages, []
        asked = self.asked

        class Index(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append((self.path, self.headers.get("Authorization")))
                self.send_response(200 if self.path in pages else 404)
                self.end_headers()
                self.wfile.write(pages.get(self.path, b""))

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.index = f"http://127.0.0.1:{server.server_port}/simple/"
        # The script, with the hash of this test's package.
        self.script = pathlib.Path(folder.name) / "fetch_xgrammar"
        self.use_hash_of(package())

    def use_hash_of(self, data):
        text = SCRIPT.read_text(encoding="utf-8")
        old = next(line for line in text.splitlines() if line.startswith("SHA256 = "))
        new = f'SHA256 = "{hashlib.sha256(data).hexdigest()}"'
        self.script.write_text(text.replace(old, new), encoding="utf-8")

    def fetch(self, index=None):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "no_proxy": "*",
                       "PIP_INDEX_URL": index or self.index}
        return subprocess.run([sys.executable, str(self.script)], env=environment, capture_output=True,
                              text=True, check=False)

    def test_it_unpacks_what_the_build_needs_and_fetches_once(self):
        done = self.fetch()
        self.assertEqual(done.returncode, 0, done.stderr)
        folder = pathlib.Path(done.stdout.strip())
        found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        self.assertEqual(found, {"LICENSE", "cpp/grammar.cc", "cpp/support/logging.h",
                                 "include/xgrammar/grammar.h", "3rdparty/picojson/picojson.h"})
        self.assertEqual((folder / "cpp/grammar.cc").read_text(), "g")
        self.pages.clear()
        again = self.fetch()
        self.assertEqual((again.returncode, again.stdout, again.stderr), (0, done.stdout, ""))

    def test_another_package_is_refused_and_leaves_nothing(self):
        self.use_hash_of(b"another")
        done = self.fetch()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("wrong SHA-256", done.stderr)
        self.assertFalse(self.cache.exists() and any((self.cache / "flotilla").iterdir()))

    def test_an_index_without_the_package_is_named_in_the_error(self):
        self.pages["/simple/xgrammar/"] = b'<a href="xgrammar-0.2.9.tar.gz">x</a>'
        done = self.fetch()
        self.assertEqual(done.returncode, 1)
        self.assertIn("the package index has no xgrammar-0.2.8.tar.gz", done.stderr)

    def test_the_name_and_password_of_an_index_are_not_printed(self):
        done = self.fetch(self.index.replace("//", "//user:pass%21@"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.asked[0][1], "Basic dXNlcjpwYXNzIQ==")
        self.pages.clear()
        self.use_hash_of(b"another")
        done = self.fetch(self.index.replace("//", "//user:pass%21@"))
        self.assertEqual(done.returncode, 1)
        self.assertNotIn("pass", done.stderr.replace("unpack", ""))


class Version(unittest.TestCase):
    def test_the_program_names_the_version_that_is_fetched(self):
        version = re.search(r'^VERSION = "(.+)"$', SCRIPT.read_text(encoding="utf-8"), re.M)[1]
        source = (SCRIPT.parents[1] / "worker/constraint/grammar.cc").read_text(encoding="utf-8")
        self.assertIn(f'kEngine[] = "xgrammar {version}, ', source)
        self.assertIn(f"XGrammar](https://github.com/mlc-ai/xgrammar) {version} ",
                      (SCRIPT.parents[1] / "README.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    unittest.main()
