#!/usr/bin/env python3
"""Records tests/data/written_outputs.jsonl: what SmolLM2 writes under the grammar of each format of
calls, with and without thoughts, some of it cut off.

    FLOTILLA_TOOLS=tests/data/written_tools.json build/release/tests/router/router_test \\
        --gtest_also_run_disabled_tests --gtest_filter=ToolConstraint.DISABLED_Prints | grep '^{' > tags
    scripts/serve --http-port 8080 &
    tests/golden/make/record_outputs.py http://127.0.0.1:8080 tags > tests/data/written_outputs.jsonl
"""

import concurrent.futures
import json
import sys
import urllib.request

EACH = 20  # outputs of a format with, and of one without thoughts
QUESTIONS = ["What is the weather in Zürich for the next 3 days?", "Add 1, 2.5 and -3e2.",
             "Search for \"quotes\" & <tags> in C++.", "Write </tool_call> and then look for it.",
             "Add 1 and 2, then tell me the weather in Paris and in 東京."]


def ask(url, question, tag, seed, thinks):
    start = "<think>Hm." if thinks and seed % 2 else ""
    body = {"model": "SmolLM2-135M-Instruct", "temperature": 1, "top_p": 0.95, "seed": seed,
            # Thoughts of this model do not end by themselves.
            "max_tokens": 24 if seed % 5 == 0 else 96, "structured_outputs": {"structural_tag": json.dumps(tag)},
            "messages": [{"role": "user", "content": question + start}]}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        choice = json.load(answer)["choices"][0]
    return choice["message"]["content"], choice["finish_reason"] == "stop"


def main():
    url, tags = sys.argv[1], [json.loads(line) for line in open(sys.argv[2])]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [(row, pool.submit(ask, url, QUESTIONS[i % len(QUESTIONS)], row["tag"], 1000 * n + i,
                                   bool(row["reasoning"])))
                 for n, row in enumerate(tags) for i in range(EACH)]
        for row, answer in asked:
            text, whole = answer.result()
            print(json.dumps({"format": row["format"], "reasoning": row["reasoning"], "whole": whole,
                              "text": text}, ensure_ascii=False))


main()
