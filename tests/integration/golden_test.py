"""Answers right to the token, over HTTP."""

import concurrent.futures

from flotilla_server import MODEL, json_lines

# A recipe other than fp32 may differ from the reference where the two best
# tokens are closer than this.
SAFE_MARGIN = 0.1


def answer(server, chat):
    body = server.post("/v1/chat/completions", model=MODEL, messages=chat["messages"],
                       temperature=0, max_tokens=len(chat["greedy_ids"]), return_token_ids=True)
    return body["choices"][0]["token_ids"]


def check(server, chats):
    """Sends all at once, because answers do not depend on the rest of the batch."""
    with concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:
        for chat, ids in zip(chats, pool.map(lambda chat: answer(server, chat), chats)):
            assert ids == chat["greedy_ids"], chat["messages"]


def test_default_recipe(server):
    chats = [chat for chat in json_lines("greedy.jsonl") if chat["min_margin"] > SAFE_MARGIN]
    assert len(chats) >= 4
    check(server, chats)


def test_fp32_recipe(fp32_server):
    chats = json_lines("greedy.jsonl")
    assert len(chats) == 16
    check(fp32_server, chats)
