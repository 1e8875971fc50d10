#!/usr/bin/env python3
"""usage: check_types.py [FOLDER] -- finds type names that the program defines twice.

Two types with one qualified name in one program break C++'s one-definition rule. No compiler
has to notice that: the linker takes one of each of their functions. This script reads the
sources of FOLDER (default: this repository), tests too, and prints each qualified name that is
defined twice outside anonymous namespaces, with both places. It exits 1 if there is one.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|R"\(.*?\)"|\'(?:[^\'\\\n]|\\.)\'', re.S)
# What opens a scope that matters: a namespace or a type. Any other brace is code.
OPENS = re.compile(
    r"\bnamespace\s+(?P<space>[\w:]*)\s*\{"
    r"|(?<!enum )\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(?:\[\[\w+\]\]\s*)?"
    r"(?:alignas\([^)]*\)\s*)?(?P<type>\w+(?:::\w+)*)(?P<special><[^;{]*>)?(?:\s+final)?\s*(?::(?!:)[^;{()]*)?\{"
    r"|(?P<brace>[{}])")


def definitions(text):
    """(qualified name, line) of every type that `text` defines at namespace scope or within
    another type, except types in anonymous namespaces and functions."""
    text = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    scopes, found = [], []  # names; None: names inside are not visible outside
    for match in OPENS.finditer(text):
        if match["brace"] == "}":
            if scopes:
                scopes.pop()
            continue
        hidden = None in scopes
        if match["brace"] == "{":
            scopes.append(None)
        elif match["type"]:
            if not hidden and not match["special"]:
                found.append(("::".join(scopes + [match["type"]]),
                              text.count("\n", 0, match.start()) + 1))
            scopes.append(None if hidden else match["type"])
        else:
            scopes.append(match["space"] or None)
    return found


def check(folder, files):
    """Messages about names that `files` of `folder` define more than once."""
    places = collections.defaultdict(list)
    for file in files:
        text = (folder / file).read_text(encoding="utf-8")
        for name, line in definitions(text):
            places[name].append(f"{file}:{line}")
    return [f"{name} is defined in {' and in '.join(where)}"
            for name, where in sorted(places.items()) if len(where) > 1]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.h", "*.cc"],
                            cwd=folder, check=True, capture_output=True, text=True).stdout
    found = check(folder, [file for file in listed.splitlines()
                           if (folder / file).is_file()])
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
