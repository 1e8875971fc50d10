"""Two definitions of one qualified type name are found, and only these."""

import importlib.util
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("check_types", ROOT / "scripts" / "check_types.py")
check_types = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_types)


class Types(unittest.TestCase):
    def names(self, text):
        return [name for name, _ in check_types.definitions(text)]

    def test_qualified_by_namespaces_and_types(self):
        self.assertEqual(self.names("""
            namespace flotilla::worker {
            struct A final : public B<C> { enum class E { k }; int f() { struct Local {}; } };
            class Forward;
            template <class T> class Queue { };
            }  // namespace
            enum class Color : int { kRed };"""),
            ["flotilla::worker::A", "flotilla::worker::A::E", "flotilla::worker::Queue", "Color"])

    def test_what_has_no_name_outside_does_not_count(self):
        self.assertEqual(self.names("namespace { struct A {}; }  // struct B {};\n"
                                    "const char* text = \"struct C {\";"), [])

    def test_a_nested_type_that_is_defined_outside_is_no_second_one(self):
        self.assertEqual(self.names("class Fleet { class Member; };\n"
                                    "class Fleet::Member { };"), ["Fleet", "Fleet::Member"])

    def test_two_files_with_one_name_are_found(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "a.h").write_text("namespace n { struct A {}; }")
            (folder / "b.h").write_text("\nnamespace n { struct A {}; struct B {}; }")
            self.assertEqual(check_types.check(folder, ["a.h", "b.h"]),
                             ["n::A is defined in a.h:1 and in b.h:2"])


if __name__ == "__main__":
    unittest.main()
