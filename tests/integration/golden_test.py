"""Answers right to the token, over HTTP."""

import concurrent.futures

import pytest

from flotilla_server import MODEL, Server, json_lines

# A recipe that is not fp32 may part from the reference where its two best
# tokens are closer than this.
SAFE_MARGIN = 0.1


def answer(server, chat):
    body = server.post("/v1/chat/completions", model=MODEL, messages=chat["messages"],
                       temperature=0, max_tokens=len(chat["greedy_ids"]), return_token_ids=True)
    return body["choices"][0]["token_ids"]


def check(server, chats):
    """All at once: answers do not depend on company."""
    with concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:
        for chat, ids in zip(chats, pool.map(lambda chat: answer(server, chat), chats)):
            assert ids == chat["greedy_ids"], chat["messages"]


def test_default_recipe(server):
    chats = [chat for chat in json_lines("greedy.jsonl") if chat["min_margin"] > SAFE_MARGIN]
    assert len(chats) >= 4
    check(server, chats)


@pytest.fixture(scope="module")
def fp32_server(tmp_path_factory):
    with Server(tmp_path_factory.mktemp("fp32"), "--compute", "fp32", "--kv-type", "fp32") as one:
        yield one


def test_fp32_recipe(fp32_server):
    chats = json_lines("greedy.jsonl")
    assert len(chats) == 16
    check(fp32_server, chats)
