#!/usr/bin/env python3
"""Records tests/data/forecast/recorded_answers.csv: how long the answers of a model are to prompts
of six kinds, as six applications would send them.

    scripts/serve --http-port 8080 --max-model-len 1024 &
    tests/scheduler/make/record_answers.py http://127.0.0.1:8080 > tests/data/forecast/recorded_answers.csv

The prompts, seeds and answers are the same each time; when they end, and so the order of the rows,
depends on the machine. Requests that the server ends, after 600 s, are left out.
"""

import concurrent.futures
import json
import random
import sys
import time
import urllib.error
import urllib.request

AT_ONCE = 32
THINGS = """the Amazon river; gravity; the French Revolution; photosynthesis; bread; chess; Jupiter;
volcanoes; jazz; the human heart; steam engines; coffee; the Great Wall; bees; inflation; glaciers;
the violin; vaccines; Antarctica; origami; earthquakes; the Roman Empire; whales; solar power;
printing; the Moon; football; tea; democracy; plastic; owls; railways; salt; poetry; lightning;
deserts; money; the printing press; sleep; bridges""".replace("\n", " ").split("; ")
FACTS = ["In one sentence, what is {}?", "Give me one short fact about {}.",
         "Answer briefly: why is {} important?", "True or false, in a few words: everybody likes {}."]
LISTS = ["List {n} facts about {}.", "Give me {n} questions for a quiz about {}, numbered.",
         "Name {n} words that have to do with {}, one on each line."]
ESSAYS = ["Write a detailed essay about {}. Cover its history, how it works and what it means today.",
          "Tell me a long story in which {} plays the main part.",
          "Explain {} to a student, with an introduction, several sections and a conclusion."]
CODE = ["Write a Python function that {}.", "Write a C function that {}, and explain each line.",
        "Show me how one {} in JavaScript. Only the code, please."]
TASKS = """sorts a list of numbers; reverses a string; counts the words in a file; finds the largest prime
below n; adds two matrices; checks whether a word is a palindrome; merges two sorted lists; removes
duplicates from a list; parses a date; computes a factorial; reads a CSV file; finds the shortest path in
a graph; rounds a number to two digits; validates an e-mail address; shuffles a deck of cards; draws a
triangle of stars""".replace("\n", " ").split("; ")
SENTENCES = """The train to the north leaves at nine o'clock.| I would like a cup of tea with milk.| Where is
the next pharmacy, please?| My brother has lived in this town for ten years.| It will rain tomorrow, so take
a coat with you.| The museum is closed on Mondays.| She reads a book every week, and writes about it in a
journal.| We have lost our keys and cannot get into the house.| The children play in the garden behind the
school.| How much does this blue shirt cost?| He answered that nobody had told him about the meeting.|
Fresh bread smells wonderful in the morning.| The bridge was built by engineers from three countries.|
Please send me the report before Friday.""".replace("\n", " ").split("| ")
LANGUAGES = ["French", "Spanish", "German", "Italian"]
REVIEWS = {"good": ["I liked every minute of it", "The staff were kind and quick", "Best soup in town",
                    "My daughter wants to go again", "It works as promised"],
           "bad": ["It broke after two days", "We waited for an hour", "The room was cold and loud",
                   "I want my money back", "Nobody answered my calls"]}


def few_shot(draw):
    reviews = [(label, text) for label, texts in REVIEWS.items() for text in texts]
    shots = draw.sample(reviews, draw.randint(4, 9))
    told = "\n".join(f"Review: {text}.\nLabel: {label}" for label, text in shots[:-1])
    return ("Say whether each review is good or bad. Answer with one word.\n\n"
            f"{told}\nReview: {shots[-1][1]}.\nLabel:")


def about(templates, nouns):
    return lambda draw: draw.choice(templates).format(draw.choice(nouns), n=draw.randint(3, 12))


# The requests of each kind, their prompts, and the max_tokens that clients send: near to what an
# answer needs, far too many, or none at all (0).
KINDS = {"facts": (110, about(FACTS, THINGS), 64),
         "translations": (100, lambda draw: "Translate into {}: {}".format(
             draw.choice(LANGUAGES), " ".join(draw.sample(SENTENCES, draw.randint(1, 5)))), 128),
         "labels": (110, few_shot, 768),
         "lists": (45, about(LISTS, THINGS), 0),
         "code": (45, about(CODE, TASKS), 0),
         "essays": (15, about(ESSAYS, THINGS), 0)}


def ask(url, began, kind, prompt, max_tokens, seed):
    body = {"model": "SmolLM2-135M-Instruct", "temperature": 1, "top_p": 0.9, "seed": seed,
            "messages": [{"role": "user", "content": prompt}]}
    if max_tokens:
        body["max_tokens"] = max_tokens
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    sent = time.monotonic() - began
    try:
        with urllib.request.urlopen(request) as answer:
            usage = json.load(answer)["usage"]
    except urllib.error.HTTPError:
        return None
    return (kind, max_tokens, usage["prompt_tokens"], usage["completion_tokens"],
            round(1000 * sent), round(1000 * (time.monotonic() - began)))


def main():
    draw = random.Random(19)
    asks = [(kind, prompt(draw), max_tokens)
            for kind, (count, prompt, max_tokens) in KINDS.items() for _ in range(count)]
    draw.shuffle(asks)
    began = time.monotonic()
    print("tenant,max_tokens,prompt_tokens,output_tokens,sent_ms,ended_ms")
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        answers = [pool.submit(ask, sys.argv[1], began, *one, seed) for seed, one in enumerate(asks)]
        for answer in concurrent.futures.as_completed(answers):
            if row := answer.result():
                print(*row, sep=",", flush=True)


main()
