#!/usr/bin/env python3
"""usage: check_names.py BUILD -- finds names that two sources of one target both define for themselves.

The sources of a target are compiled together, some at a time (FLOTILLA_UNITY in cmake/flotilla.cmake).
Which ones are together changes whenever a source is added, so what a source defines in an anonymous
namespace must be unique in the whole target: else a build fails one day that has nothing to do with
it. This script reads the targets of a configured BUILD folder, prints each name that two sources
define, with both places, and exits 1 if there is one. Functions with different parameters may
share a name, and so may aliases of the same.
"""

import collections
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOISE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"|(?<!\w)\'(?:[^\'\\\n]|\\.)\'', re.S)
INCLUDE = re.compile(r'^#include "(.*)"$', re.M)
TOKEN = re.compile(r"\bnamespace(?P<name>\s+[\w:]+)?\s*\{|(?P<brace>[{}])|(?P<end>;)")
TYPE = re.compile(r"\b(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s+(\w+)[^;{}()=]*$")
ALIAS = re.compile(r"\b(?:using|namespace)\s+(\w+)\s*=(.*)", re.S)
VALUE = re.compile(r"(\w+)\s*(?:\[[^\]]*\]\s*)*$")


def split(text):
    """The parts of `text` between its outermost commas, without what is behind a `=`."""
    depth, current, found = 0, "", []
    for c in text + ",":
        depth += (c in "<([{") - (c in ">)]}")
        if c == "," and depth == 0:
            found.append(re.sub(r"(?<![<>=!])=.*$", "", current, flags=re.S).strip())
            current = ""
        else:
            current += c
    return found


def parameters(text):
    """The types of parameters, roughly: without names and defaults."""
    return tuple(re.sub(r"\s+", " ", re.sub(r"(?<=[\w>&*\]])\s+\w+$|(?<=[&*])\w+$", "", part))
                 for part in split(text))


def definitions(text):
    """(name, what, line) of each entity that the anonymous namespaces of `text` define at their top
    level. The name of a function has its parameters; `what` is what an alias stands for."""
    text = NOISE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    text = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.M)
    scopes, found, begin = [], [], 0  # scopes: "anonymous", "named" or "code"

    def take(statement, at, is_body):
        if not scopes or scopes[-1] != "anonymous":
            return
        # Template arguments and attributes only confuse.
        plain = re.sub(r"\[\[.*?\]\]", "", statement, flags=re.S).strip()
        is_template = plain.startswith("template")
        name, what, more = None, at, []
        if not re.match(r"\w", plain):
            return  # the rest of a value
        if match := ALIAS.search(plain):
            name, what = match[1], "".join(match[2].split())
        elif (match := TYPE.search(plain)) and is_body:
            name = match[1]
        elif "(" in plain and not re.search(r"=[^=()]*\(", plain):
            head = re.sub(r"\)\s*:[^:].*$", ")", plain, flags=re.S)
            first = re.search(r"([\w~]+|operator\W+?)\s*\(", head)
            depth = 0
            for i in range(first.end() - 1, len(head)) if first else ():
                depth += (head[i] == "(") - (head[i] == ")")
                if depth == 0:
                    qualified = "::" in head[max(0, first.start() - 2):first.start()]
                    if not qualified and is_body and head[first.end()] != "*":
                        name = (first[1], parameters(head[first.end():i]), is_template)
                    break
        elif plain and not plain.startswith(("using", "friend", "static_assert", "typedef", "extern")):
            names = [match[1] for part in split(re.sub(r"\s(<<|>>)\s", " ", plain)) if (match := VALUE.search(part))]
            name, more = (names or [None])[0], names[1:]
        for one in [name, *more]:
            if one:
                found.append((one, what, text.count("\n", 0, at) + 1))

    for match in TOKEN.finditer(text):
        statement, place = text[begin:match.start()], match.start()
        if match["brace"] == "}":
            if scopes:
                scopes.pop()
        elif match["end"]:
            if "{" not in statement:
                take(statement, place, is_body=False)
        elif match["brace"] == "{":
            take(statement, place, is_body=True)
            scopes.append("code")
        else:
            named = match["name"] is not None
            scopes.append("code" if "code" in scopes else "named" if named else "anonymous")
        begin = match.end()
    return found


def targets(build):
    """{target: its sources}, of those that are compiled together."""
    found = collections.defaultdict(list)
    for unity in sorted(build.rglob("Unity/unity_*.cxx")):
        for source in INCLUDE.findall(unity.read_text(encoding="utf-8")):
            if pathlib.Path(source).is_relative_to(ROOT) and pathlib.Path(source).exists():
                found[unity.parent.parent.name.removesuffix(".dir")].append(pathlib.Path(source))
    return found


def check(sources):
    """Messages about names that more than one of the sources of a target define."""
    places = collections.defaultdict(list)
    for source in sources:
        for name, what, line in definitions(source.read_text(encoding="utf-8")):
            places[name].append((source, what, line))
    found = []
    for name, where in sorted(places.items(), key=str):
        aliases = all(isinstance(what, str) for _, what, _ in where)
        if len({source for source, _, _ in where}) > 1 and not (
                aliases and len({what for _, what, _ in where}) == 1):
            shown = name if isinstance(name, str) else f"{name[0]}({', '.join(name[1])})"
            found.append(f"{shown} is defined in {' and in '.join(f'{s}:{line}' for s, _, line in where)}")
    return found


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    all_targets = targets(pathlib.Path(sys.argv[1]).resolve())
    found = [f"{target}: {message}".replace(f"{ROOT}/", "")
             for target, sources in sorted(all_targets.items()) for message in check(sources)]
    print("\n".join(found) if found else
          f"{sum(map(len, all_targets.values()))} sources of {len(all_targets)} targets share no name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
