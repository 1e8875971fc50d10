"""Fleets of scripts/fleet: every layout gives the bits of one rank, and in fp32 the
answers of the reference."""

import concurrent.futures

import httpx
import pytest

from fleet_script import RunningFleet
from flotilla_server import LONG, MODEL, SANITIZED, json_lines, parse_metrics

LAYOUTS = {"one rank": (1, 1, 1), "TP=3": (1, 3, 1), "TP=2": (1, 2, 1), "PP=2": (1, 1, 2),
           "TP=2 x PP=2": (1, 2, 2), "two replicas": (2, 1, 1), "two replicas of TP=2": (2, 2, 1)}
COLOCATED = "two replicas of TP=2, run by their schedulers"
MESSAGES = "TP=2 x PP=2, by MPI messages"
RECIPES = {"fp32": "--compute fp32 --kv-type fp32", "accurate": ""}
SCHEMA = {"type": "object", "properties": {"answer": {"type": "string", "maxLength": 12},
                                           "sure": {"type": "boolean"}},
          "required": ["answer", "sure"], "additionalProperties": False}
CHATS = json_lines("greedy.jsonl")[:2 if SANITIZED else 16 if LONG else 6]


def serve(directory, layout, recipe, colocate=False, worker_args=""):
    """The tokens and log-probabilities of all chats, greedy, and of some sampled and some
    constrained chats."""
    replicas, tp, pp = layout
    flags = ["--replicas", str(replicas), "--tp", str(tp), "--pp", str(pp),
             *(["--colocate"] if colocate else [])]
    with RunningFleet(directory, "--routers", "1", "--no-prometheus", *flags,
                      worker_args=f"--kv-blocks 1024 {RECIPES[recipe]} {worker_args}") as fleet, \
            httpx.Client(base_url=fleet.url(), timeout=120) as http:
        assert len(fleet.of("rank")) == replicas * tp * pp
        assert len(fleet.of("worker")) == (0 if colocate else replicas)

        def ask(chat, **more):
            answer = http.post("/v1/chat/completions", json=dict(
                model=MODEL, messages=chat["messages"], logprobs=True, top_logprobs=5,
                return_token_ids=True, **more))
            assert answer.status_code == 200, answer.text
            return [(choice["token_ids"], choice["logprobs"]) for choice in answer.json()["choices"]]

        with concurrent.futures.ThreadPoolExecutor(len(CHATS) + 6) as pool:
            greedy = [pool.submit(ask, chat, temperature=0, max_tokens=len(chat["greedy_ids"]))
                      for chat in CHATS]
            sampled = [pool.submit(ask, chat, temperature=0.9, top_p=0.95, seed=i, n=2, max_tokens=24,
                                   frequency_penalty=i / 2, repetition_penalty=1 + i / 10,
                                   dry_multiplier=i / 2, dry_allowed_length=1)
                       for i, chat in enumerate(CHATS[:3])]
            constrained = [pool.submit(ask, chat, temperature=i / 2, seed=i, n=2, max_tokens=24,
                                       structured_outputs={"json": SCHEMA})
                           for i, chat in enumerate(CHATS[:3])]
            answers = [[one.result() for one in asked] for asked in (greedy, sampled, constrained)]
        for scheduler in fleet.of("scheduler"):
            page = httpx.get(f"http://127.0.0.1:{scheduler['ports']['metrics']}/metrics").text
            assert any(name.startswith("flotilla_scheduler_requests_finished_total{") and value
                       for name, value in parse_metrics(page).items()), "every replica works"
        return answers


# Those that each part of the others is in, for the slower recipe. parallel_test has them all.
FEWER = {"one rank", "TP=3", "TP=2 x PP=2"}


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_layout_gives_the_bits_of_one_rank(tmp_path, recipe):
    answers = {name: serve(tmp_path / name.replace(" ", "_"), layout, recipe)
               for name, layout in LAYOUTS.items()
               if LONG or recipe != "fp32" or name in FEWER}
    answers[COLOCATED] = serve(tmp_path / "colocated", (2, 2, 1), recipe, colocate=True)
    answers[MESSAGES] = serve(tmp_path / "messages", (1, 2, 2), recipe,
                              worker_args="--transport mpi")
    for name, answer in answers.items():
        assert answer == answers["one rank"], name
    if recipe == "fp32":
        for chat, [(tokens, _)] in zip(CHATS, answers["one rank"][0]):
            assert tokens == chat["greedy_ids"], chat["messages"]
