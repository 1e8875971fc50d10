"""No file uses a term that went (scripts/old_terms.txt), so that readers meet one word for one
thing."""

import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TERMS = "scripts/old_terms.txt"
# Reports are of their commit, docs/renames.md is about old names; data and schemas are others'
# words.
NOT_OURS = re.compile(r"^(docs/reports/|docs/renames\.md$|tests/data/|tests/deploy/schemas/|LICENSE$)|\.svg$")


def read_terms(text):
    """[(pattern, the term in its place, paths that may have it or None)]"""
    terms = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        pattern, new, allowed = line.split("\t")
        terms.append((re.compile(pattern), new, None if allowed == "-" else re.compile(allowed)))
    return terms


def find(terms, path, text):
    """Lines of `text` that have an old term, as messages."""
    return [f"{path}:{number}: {match[0]!r}: say {new}"
            for pattern, new, allowed in terms
            if not (allowed and allowed.search(path)) and pattern.search(text)
            for number, line in enumerate(text.splitlines(), 1)
            if (match := pattern.search(line))]


class OldTerms(unittest.TestCase):
    terms = read_terms((ROOT / TERMS).read_text(encoding="utf-8"))

    def test_no_file_uses_one(self):
        found = []
        listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT,
                                check=True, capture_output=True, text=True).stdout.splitlines()
        for path in listed:
            file = ROOT / path
            if NOT_OURS.search(path) or path in (TERMS, f"tests/scripts/{pathlib.Path(__file__).name}"):
                continue
            if not file.is_file():
                continue
            found += find(self.terms, path, file.read_text(encoding="utf-8", errors="replace"))
        self.assertEqual(found, [], "\n".join(found))

    def test_one_is_seen(self):
        self.assertEqual(find(self.terms, "scheduler/core/x.cc", "a\nKvLedger ledger;"),
                         ["scheduler/core/x.cc:2: 'KvLedger': say KvCacheManager"])

    def test_allowed_paths_may_keep_it(self):
        self.assertEqual(find(self.terms, "model/jinja/ast.h", "struct Branch {"), [])
        self.assertEqual(len(find(self.terms, "model/config.h", "struct Branch {")), 1)


if __name__ == "__main__":
    unittest.main()
