#!/usr/bin/env python3
"""Checks that headers include the library headers whose names they use.

A precompiled header is in front of nearly all sources (common/CMakeLists.txt), so the compiler does
not see that a header lacks one of those that it holds. Everything else that a header lacks is found
when its own source, which includes it first, is compiled, or by the target check_headers.
Exits with 1 if a header lacks one.
"""

import pathlib
import re
import sys

FOLDERS = ("cli", "common", "kernels", "model", "proto", "quantize", "router", "rpc", "scheduler", "simulator",
           "tests", "worker")

# What is used, as a regular expression, and the headers one of which declares it.
USES = [(re.compile(use), headers) for use, headers in (
    (r"\bstd::(all_of|any_of|none_of|clamp|copy|count|count_if|equal|fill|find|find_if|lower_bound|"
     r"max|max_element|merge|min|min_element|mismatch|nth_element|remove|remove_if|replace|reverse|"
     r"sort|stable_sort|unique|upper_bound)\(", ("algorithm",)),
    (r"\bstd::array<", ("array",)),
    (r"\bstd::chrono::", ("chrono",)),
    (r"\bstd::function<", ("functional",)),
    (r"\bstd::(multi)?map<", ("map",)),
    (r"\bstd::(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this)\b",
     ("memory",)),
    (r"\bstd::(optional<|nullopt\b|make_optional\b)", ("optional",)),
    (r"\bstd::(string|to_string|stoi|getline)\b", ("string",)),
    (r"\bstd::(thread|this_thread)\b", ("thread",)),
    (r"\bstd::(pair<|move\(|forward<|exchange\(|swap\(|in_place)", ("utility",)),
    (r"\bstd::vector<", ("vector",)),
    (r"\babsl::flat_hash_map<", ("absl/container/flat_hash_map.h",)),
    (r"\babsl::(Status\b|OkStatus\b|StatusCode\b|\w+Error\()",
     ("absl/status/status.h", "absl/status/statusor.h")),
    (r"\babsl::StatusOr<", ("absl/status/statusor.h",)),
    (r"\babsl::(StrCat|StrAppend|AlphaNum)\b", ("absl/strings/str_cat.h",)),
    (r"\babsl::(Mutex|MutexLock|CondVar|Condition)\b", ("absl/synchronization/mutex.h",)),
    (r"\babsl::(Span<|MakeSpan\(|MakeConstSpan\()", ("absl/types/span.h",)),
    (r"\babsl::string_view\b", ("absl/strings/string_view.h",)),
)]
INCLUDE = re.compile(r'^#include [<"]([^>"]+)[>"]', re.MULTILINE)
# Comments, and literals of strings.
UNREAD = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)


def check_header(text):
    """The headers that `text` lacks, as (line, what is used, header)."""
    included = set(INCLUDE.findall(text))
    code = UNREAD.sub(lambda match: "\n" * match[0].count("\n"), text)
    lacking = []
    for use, headers in USES:
        match = use.search(code)
        if match and not included.intersection(headers):
            lacking.append((code.count("\n", 0, match.start()) + 1, match[0], headers[0]))
    return lacking


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    failed = False
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.h")):
            for line, use, header in check_header(path.read_text(encoding="utf-8")):
                print(f"{path.relative_to(root)}:{line}: {use} needs #include <{header}>")
                failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
