#!/usr/bin/env python3
"""Prints "PASSED FAILED" for a folder of JUnit files left by a test run.

With --passed FOLDER BUILD it prints the names of the binaries that ctest, in the build folder, has seen
pass, and that have left a file without failures. The folder remembers them.

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


if __name__ == "__main__":
    if sys.argv[1] == "--passed":
        print(*passed_binaries(pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])))
    else:
        print(*count(pathlib.Path(sys.argv[1])))
