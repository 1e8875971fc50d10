"""docs/architecture.md answers where things are by one folder and one file, which exist."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| ([^|]+\?) \| `([^`|]+)/` \| `([^`|]+)` \|$", re.M)
QUESTIONS = ("stop string", "sampler", "KV block freed", "metric added", "flag added",
             "request parameter", "preempted request", "HTTP route", "RPC", "weight format added",
             "packed kind added", "architecture added", "container", "op added", "part of a layer",
             "backend added", "collective added", "KV type added", "kind of grammar")


class WhereIs(unittest.TestCase):
    rows = ROW.findall(PAGE)

    def test_every_question_has_an_answer(self):
        for question in QUESTIONS:
            self.assertEqual(sum(question in row[0] for row in self.rows), 1, question)

    def test_the_answers_exist(self):
        for question, folder, file in self.rows:
            self.assertTrue((ROOT / file).is_file(), f"{question} {file}")
            self.assertEqual(str(pathlib.Path(file).parent), folder, question)

    def test_folders_of_the_table_exist(self):
        table = PAGE.split("## Folders")[1].split("## ")[0]
        for line in table.splitlines():
            if not line.startswith("| `"):
                continue
            for folder in re.findall(r"`([a-z_/0-9]+)/`", line.split("|")[1]):
                self.assertTrue((ROOT / folder).is_dir(), folder)


if __name__ == "__main__":
    unittest.main()
