#!/usr/bin/env python3
"""usage: write_report.py RESULTS PART FOLDER — the page of a part of scripts/test --long.

Writes one Markdown page, FOLDER/long-PART.md, from the part's stages in
RESULTS/stages.tsv, the other files beside it, and the properties that tests recorded
(gtest's RecordProperty, pytest's record_property).
"""

import datetime
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

from decode_speeds import machine

# The stages of each part, in the order of the page.
PARTS = {
    "sanitizers": ("soak", "tsan", "asan+ubsan", "asan+ubsan-integration"),
    "tests": ("layering", "types", "includes", "names", "scripts", "monitoring", "format", "headers", "locks",
              "kernels", "ctest"),
    "clients": ("integration", "tokenizers", "deploy", "templates", "clients"),
    "mutations": ("fuzz", "mutants", "odr"),
    "attacks": ("attacks",),
    "measurements": ("peer-comparison", "memory", "tokenizer-speed", "prefix-cache-cost",
                     "constraint-cost", "clean-build"),
}


def machine_and_memory():
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{machine()}, {memory_gib:.0f} GiB"


# Tests that measure the same for each parameter, `name[parameter]`. Each has its own table.
TABLES = {"nobody_notices": "Attacks beside streams"}


def properties(results, part):
    """(test, what, value) for everything that the part's tests measured."""
    for stage in PARTS[part]:
        for path in sorted((results / stage).glob("*.xml")):
            for case in ElementTree.parse(path).iter("testcase"):
                test = f"{case.get('classname')}.{case.get('name')}".split(".test_")[-1]
                for entry in case.iter("property"):
                    if entry.get("name") != "cmake_labels":
                        yield test, entry.get("name"), entry.get("value")


def table(measured, name, title):
    """Lines of a table with a row for each parameter and a column for each measurement."""
    rows = {}
    for test, what, value in measured:
        if test.startswith(f"{name}["):
            rows.setdefault(test[len(name) + 1:-1], {})[what] = value
    if not rows:
        return []
    columns = max(rows.values(), key=len)
    lines = ["", f"## {title}", "", "| | " + " | ".join(columns) + " |",
             "|---" * (len(columns) + 1) + "|"]
    return lines + ["| " + " | ".join([name] + [row.get(what, "") for what in columns]) + " |"
                    for name, row in rows.items()]


def stages(results, part):
    """Rows of the part's table."""
    rows = {row.split("\t")[0]: row.split("\t")
            for row in (results / "stages.tsv").read_text().splitlines()}
    return [rows[name] for name in PARTS[part] if name in rows]


def main():
    results, part, folder = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True,
                            capture_output=True, text=True).stdout.strip()
    lines = [f"# Results of `scripts/test --long --part {part}`", "",
             f"Commit {commit}, {datetime.date.today()}, on {machine_and_memory()}.", "",
             "| what | passed | failed | seconds |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in stages(results, part)]
    if part == "mutations":
        mutants = results / "mutants.txt"
        if mutants.exists():
            lines += ["", "Deliberate errors in the cores, given to the simulation: "
                      + mutants.read_text().strip() + "."]
    if part in ("tests", "clients", "attacks"):
        measured = list(properties(results, part))
        for name, title in TABLES.items():
            lines += table(measured, name, title)
        others = [row for row in measured if row[0].split("[")[0] not in TABLES]
        if others:
            lines += ["", "## Measured by the tests", "",
                      "| test | what | value |", "|---|---|---|"]
            lines += ["| " + " | ".join(row) + " |" for row in others]
    if part == "measurements":
        build = results / "clean-build.log"
        if build.exists():
            lines += ["", build.read_text().strip().splitlines()[-1].capitalize() + "."]
        forms = results / "constraint-cost.log"
        if forms.exists():
            # A line for each percentile, of the last try.
            lines += ["", "Time between two tokens with forms (`tests/integration/constraint_cost.py`): "
                      + "; ".join(forms.read_text().strip().splitlines()[-3:]) + "."]
        for name, title in (("peer.md", "Speed against llama.cpp"), ("memory.md", "KV memory"),
                            ("prefix_cache.md", "What the prefix cache costs at no hits")):
            page = results / name
            if page.exists():
                lines += ["", f"## {title}", "", page.read_text().strip()]
        speed = results / "tokenizer-speed.log"
        if speed.exists():
            tables = [line for line in speed.read_text().splitlines() if line.startswith("|") or not line]
            lines += ["", "## Speed of tokenizers against `tokenizers`", "", *tables]
    folder.mkdir(parents=True, exist_ok=True)
    report = folder / f"long-{part}.md"
    report.write_text("\n".join(lines) + "\n")
    print(report)


if __name__ == "__main__":
    main()
