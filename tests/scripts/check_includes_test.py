"""Headers that lack an include of what they use are found, and only these."""

import importlib.util
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("check_includes", ROOT / "scripts" / "check_includes.py")
check_includes = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_includes)


class Includes(unittest.TestCase):
    def lacking(self, text):
        return [(line, header) for line, _, header in check_includes.check_header(text)]

    def test_what_is_used_must_be_included(self):
        self.assertEqual(self.lacking("#pragma once\nstd::vector<std::string> names();\n"),
                         [(2, "string"), (2, "vector")])
        self.assertEqual(self.lacking("#include <vector>\nstd::vector<int> f();\n"), [])
        self.assertEqual(self.lacking("absl::StatusOr<int> f();"), [(1, "absl/status/statusor.h")])

    def test_any_header_that_declares_it_will_do(self):
        for header in ("status", "statusor"):
            self.assertEqual(
                self.lacking(f'#include "absl/status/{header}.h"\nabsl::Status f();'), [])

    def test_comments_and_strings_use_nothing(self):
        self.assertEqual(self.lacking('// a std::vector<int>\n/* std::map<int, int>\n */\n'
                                      'constexpr char kText[] = "std::array<int, 2>";\n'), [])

    def test_longer_names_are_others(self):
        self.assertEqual(self.lacking("std::string_view a; my::std_vector<int> b; std::byte c;"), [])

    def test_all_that_is_precompiled_is_known(self):
        """What a precompiled header holds but the table lacks would go unnoticed."""
        text = (ROOT / "common" / "CMakeLists.txt").read_text(encoding="utf-8")
        listed = re.search(r"target_precompile_headers\(flotilla_headers PRIVATE(.*?)\)", text, re.DOTALL)
        known = {header for _, headers in check_includes.USES for header in headers}
        self.assertEqual(set(re.findall(r"<([^>]+)>", listed[1])) - known, set())


if __name__ == "__main__":
    unittest.main()
