#!/usr/bin/env python3
"""Prints "PASSED FAILED" for a folder of JUnit files left by a test run.

With --passed FOLDER BUILD it prints the names of the binaries that ctest, in the build folder, has seen
pass, and that have left a file without failures. The folder remembers them.

With --failed FOLDER it prints what failed: a line for each case with its name, and under it the
beginning of what the case says.

`ctest.xml` lists binaries; the other files list the cases inside them (gtest
and pytest). A failed binary whose own file is missing or shows no failure (a
crash, a time-out) counts as one failure.
"""

import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree


def cases(path):
    """(passed, failed) of one JUnit file; skipped cases count as neither."""
    passed = failed = 0
    for case in ElementTree.parse(path).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif case.find("skipped") is None and case.get("status") not in ("notrun", "disabled"):
            passed += 1
    return passed, failed


def count(folder):
    passed = failed = 0
    by_binary = {}
    for path in sorted(folder.glob("*.xml")):
        if path.name != "ctest.xml":
            try:
                by_binary[path.stem] = cases(path)
            except ElementTree.ParseError:
                by_binary[path.stem] = (0, 1)  # cut off by a crash
            passed += by_binary[path.stem][0]
            failed += by_binary[path.stem][1]
    binaries = folder / "ctest.xml"
    if binaries.exists():
        for case in ElementTree.parse(binaries).iter("testcase"):
            own = by_binary.get(case.get("name"))
            if case.find("failure") is not None or case.get("status") == "fail":
                failed += 1 if own is None or own[1] == 0 else 0
            elif own is None:
                passed += 1
    elif not by_binary:
        failed = 1  # no test ran at all
    return passed, failed


def passed_binaries(folder, build):
    memory = folder / "passed"
    seen = set(memory.read_text().split()) if memory.exists() else set()
    # A run that was cut off has left the first one.
    for name in ("LastTest.log.tmp", "LastTest.log"):
        log = build / "Testing" / "Temporary" / name
        test = None
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            if found := re.match(r"\d+/\d+ Test: (\S+)$", line):
                test = found[1]
            elif line == "Test Passed." and test is not None:
                seen.add(test)
                test = None
        if log.exists():
            break
    names = []
    for path in sorted(folder.glob("*.xml")):
        try:
            passed, failed = cases(path)
        except ElementTree.ParseError:
            continue
        if path.stem in seen and passed > 0 and failed == 0:
            names.append(path.stem)
    memory.write_text("\n".join(names))
    return names


def failures(folder, lines=12):
    """What failed, as text; at most `lines` lines of each message, and 20 cases."""
    found = []
    named = set()
    for path in sorted(folder.glob("*.xml"), key=lambda path: path.name == "ctest.xml"):
        try:
            failing = [case for case in ElementTree.parse(path).iter("testcase")
                       if case.find("failure") is not None or case.find("error") is not None]
        except ElementTree.ParseError:
            named.add(path.stem)
            found.append((path.stem, "The program ended before it had written its results."))
            continue
        for case in failing:
            if path.name == "ctest.xml" and case.get("name") in named:
                continue
            named.add(path.stem)
            message = case.find("failure") if case.find("failure") is not None else case.find("error")
            said = message.get("message") or message.text or ""
            if path.name == "ctest.xml":
                said = "\n".join((case.findtext("system-out") or said).splitlines()[-lines:])
            found.append((f"{case.get('classname', '')}.{case.get('name')}", said))
    text = []
    for name, said in found[:20]:
        text.append(f"FAILED: {name}")
        text += [f"    {line[:200]}" for line in said.splitlines()[:lines]]
    if len(found) > 20:
        text.append(f"... and {len(found) - 20} more")
    return text


if __name__ == "__main__":
    if sys.argv[1] == "--passed":
        print(*passed_binaries(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])))
    elif sys.argv[1] == "--failed":
        print(*failures(pathlib.Path(sys.argv[2])), sep="\n")
    else:
        print(*count(pathlib.Path(sys.argv[1])))
