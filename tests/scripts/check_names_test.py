"""The check for names that two sources of a target both define sees what a compiler would, and not more."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import check_names  # noqa: E402


def source(body):
    return "#include <x>\nnamespace a::b {\nnamespace {\n" + body + "\n}  // namespace\n}  // namespace a::b\n"


class CheckNames(unittest.TestCase):
    def clashes(self, *texts):
        with tempfile.TemporaryDirectory() as name:
            paths = []
            for i, text in enumerate(texts):
                paths.append(pathlib.Path(name) / f"{i}.cc")
                paths[-1].write_text(text)
            return [message.split(" is defined")[0] for message in check_names.check(paths)]

    def test_each_kind_of_name_is_found(self):
        for body, name in (
                ("constexpr int kA = 1;", "kA"),
                ("constexpr std::size_t kA{20 << 3};", "kA"),
                ("const std::string kZ = \"{;\", kA = kZ + \")\";", "kA"),
                ("constexpr int kA[] = {1, 2};", "kA"),
                ("thread_local std::vector<std::pair<int, int>> kA;", "kA"),
                ("struct kA {\n int x = 0;\n};", "kA"),
                ("class kA final : public B<int> { };", "kA"),
                ("enum class kA : int { kOne };", "kA"),
                ("int kA(int x) { return x; }", "kA(int)"),
                ("[[maybe_unused]] std::map<int, int> kA(const T& a, int b = 3) {\n return {};\n}", "kA(const T&, int)"),
                ("template <class T>\nvoid kA(std::span<const T> x) { }", "kA(std::span<const T>)")):
            with self.subTest(body):
                other = body if "(" in name else "int kA = 2;"
                self.assertEqual(self.clashes(source(body), source(other)), [name])

    def test_what_may_be_there_twice_is_not_told(self):
        for one, other in (
                ("int F(int x) { return x; }", "int F(float x) { return 1; }"),
                ("using Json = nlohmann::json;", "using Json = nlohmann::json;"),
                ("namespace fs = std::filesystem;", "namespace fs = std::filesystem;"),
                ("void F() { int kA = 1; struct B { }; }", "void G() { int kA = 1; struct B { }; }"),
                ("struct S { int kA = 1; };", "struct T { int kA = 1; };"),
                ("int x = 1; // kA = 2;", "int y = 1; /* int x = 2; */"),
                ("using ::testing::ElementsAre;", "using ::testing::ElementsAre;")):
            with self.subTest(one):
                self.assertEqual(self.clashes(source(one), source(other)), [])

    def test_aliases_of_different_things_clash(self):
        self.assertEqual(self.clashes(source("using Kind = A;"), source("using Kind = B;")), ["Kind"])

    def test_only_anonymous_namespaces_count(self):
        named = "namespace a {\nint kA = 1;\nnamespace b { int kA = 1; }\n}\n"
        self.assertEqual(self.clashes(named, source("int kA = 1;")), [])

    def test_targets_are_read_from_a_build_folder(self):
        with tempfile.TemporaryDirectory() as name:
            unity = pathlib.Path(name) / "x" / "CMakeFiles" / "target.dir" / "Unity"
            unity.mkdir(parents=True)
            mine = check_names.ROOT / "cli" / "main.cc"
            for i, path in enumerate((mine, "/elsewhere/grammar.cc")):
                (unity / f"unity_{i}_cxx.cxx").write_text(f'/* x */\n\n#include "{path}"\n')
            self.assertEqual(dict(check_names.targets(pathlib.Path(name))), {"target": [mine]})


if __name__ == "__main__":
    unittest.main()
