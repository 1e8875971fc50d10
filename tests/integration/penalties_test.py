"""Parameters that change logits, or leave tokens out, before a token is drawn."""

import collections

import pytest

from flotilla_server import MODEL
from parallel_sampling_test import choice_seed

PROMPT = "A list of fruits: apple, banana, apple, banana, apple,"
FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


def complete(server, **fields):
    """Token ids of the one choice, and the alternatives at each place: {token: logprob}."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 20,
            "return_token_ids": True, "return_tokens_as_token_ids": True, **fields}
    [choice] = server.post("/v1/completions", **body)["choices"]
    tops = [{int(name.removeprefix("token_id:")): logprob for name, logprob in top.items()}
            for top in choice["logprobs"]["top_logprobs"]]
    return choice["token_ids"], tops


@pytest.mark.parametrize("frequency, presence", [(0.6, 0), (0, 1.1), (0.3, 0.5), (2, 2)])
def test_greedy_tokens_follow_the_formula(server, frequency, presence):
    tokens, tops = complete(server, frequency_penalty=frequency, presence_penalty=presence)
    count = collections.Counter()
    changed = 0
    for place, (token, top) in enumerate(zip(tokens, tops)):
        # Logits equal log-probabilities up to a constant.
        after = {t: logprob - frequency * count[t] - presence * (count[t] > 0)
                 for t, logprob in top.items()}
        assert token in after and after[token] >= max(after.values()) - 1e-4, place
        # No token outside the list can be better.
        assert after[token] >= min(top.values()) - 1e-4, place
        changed += token != max(top, key=top.get)
        count[token] += 1
    assert changed > 0


def test_a_negative_penalty_repeats(server):
    story = dict(prompt="Once upon a time", max_tokens=60)
    plain, _ = complete(server, **story)
    tokens, _ = complete(server, frequency_penalty=-2, **story)
    assert len(set(tokens[-20:])) <= 3 < len(set(plain[-20:]))


def test_repetition_penalty_counts_the_prompt_too(server):
    plain, _ = complete(server)
    penalised, _ = complete(server, repetition_penalty=1.5)
    assert len(set(penalised)) > len(set(plain))
    apple = server.post("/tokenize", model=MODEL, prompt=" apple")["tokens"]
    assert apple[0] in plain and apple[0] not in penalised[:10]
    # Before there is any output, only the repetition penalty has an effect.
    assert complete(server, frequency_penalty=2, max_tokens=1)[0] == plain[:1]
    assert complete(server, repetition_penalty=100, max_tokens=1)[0] != plain[:1]


def test_logit_bias(server):
    tokens, tops = complete(server)
    second = sorted(tops[0], key=tops[0].get)[-2]
    assert complete(server, logit_bias={tokens[0]: -100})[0][0] == second
    forced, forced_tops = complete(server, logit_bias={1000: 100}, max_tokens=4)
    assert forced == [1000] * 4
    assert forced_tops[0].items() >= tops[0].items(), "log-probabilities are the model's"


def test_min_tokens_keeps_the_end_away(client):
    def ask(**more):
        choice = client.chat.completions.create(
            model=MODEL, messages=FRANCE, temperature=0, max_tokens=64,
            extra_body={"return_token_ids": True, **more}).choices[0]
        return choice, choice.token_ids
    plain, tokens = ask()
    assert plain.finish_reason == "stop" and len(tokens) < 12
    longer, more_tokens = ask(min_tokens=20)
    assert len(more_tokens) >= 20
    assert more_tokens[:len(tokens) - 1] == tokens[:-1] and more_tokens[len(tokens) - 1] != tokens[-1]
    assert longer.message.content.startswith(plain.message.content)


def test_stop_strings_wait_for_min_tokens(client):
    def ask(**more):
        return client.completions.create(model=MODEL, prompt="1, 2, 3, 4,", max_tokens=24,
                                         temperature=0, stop=[","], extra_body=more).choices[0]
    assert ask().text == " 5"
    later = ask(min_tokens=8)
    assert later.text.count(",") >= 2 and later.finish_reason == "stop"


def test_min_p_of_one_is_greedy(server):
    assert complete(server, min_p=1, temperature=1.5, seed=5)[0] == complete(server)[0]
    assert complete(server, min_p=0, temperature=1.5, seed=5)[0] != complete(server)[0]


def test_filters_at_their_ends_are_greedy(server):
    greedy = complete(server)[0]
    # Every token but the best is more than a thousandth of a deviation away.
    assert complete(server, top_n_sigma=0.001, temperature=1.5, seed=5)[0] == greedy
    # Two tokens are left, and the better one is taken away.
    _, tops = complete(server, max_tokens=1)
    second = sorted(tops[0], key=tops[0].get)[-2]
    assert complete(server, max_tokens=1, temperature=1, top_k=2, xtc_probability=1,
                    xtc_threshold=0)[0] == [second]


def test_only_allowed_tokens_come(server):
    digits = [server.post("/tokenize", model=MODEL, prompt=f"{i}")["tokens"][0] for i in range(10)]
    tokens, _ = complete(server, allowed_token_ids=digits, max_tokens=12)
    assert len(tokens) == 12 and set(tokens) <= set(digits)
    tokens, _ = complete(server, allowed_token_ids=digits, max_tokens=12, temperature=2, seed=3)
    assert set(tokens) <= set(digits) and len(set(tokens)) > 3


def test_bad_words_do_not_come(server):
    tokens, _ = complete(server)
    text = server.post("/detokenize", model=MODEL, tokens=tokens)["prompt"]
    assert text.startswith(" apple,")
    for prompt in (PROMPT, server.post("/tokenize", model=MODEL, prompt=PROMPT)["tokens"]):
        others, _ = complete(server, prompt=prompt, bad_words=["apple", " banana"])
        text = server.post("/detokenize", model=MODEL, tokens=others)["prompt"]
        assert " apple" not in text and " banana" not in text
    # The first token of a word may come, if another one follows than its second.
    others, _ = complete(server, bad_words=["apple,"])
    assert others[0] == tokens[0] and others[1] != tokens[1]


def dry_penalties(history, multiplier, base, allowed, last_n):
    """By the definition in docs/api.md, without breakers: {token: penalty}."""
    history = history[-last_n:] if last_n > 0 else history
    longest = {}
    for place in range(1, len(history)):
        n = 0
        while n < place and history[place - 1 - n] == history[-1 - n]:
            n += 1
        longest[history[place]] = max(n, longest.get(history[place], 0))
    return {token: multiplier * base ** (n - allowed) for token, n in longest.items() if n >= allowed}


@pytest.mark.parametrize("multiplier, base, allowed, last_n",
                         [(0.8, 1.75, 2, -1), (3, 1, 1, -1), (2, 3, 3, 12)])
def test_dry_follows_the_formula(server, multiplier, base, allowed, last_n):
    prompt = server.post("/tokenize", model=MODEL, prompt=PROMPT)["tokens"]
    fields = dict(dry_multiplier=multiplier, dry_base=base, dry_allowed_length=allowed,
                  dry_penalty_last_n=last_n)
    tokens, tops = complete(server, dry_sequence_breakers=["@#@#@#"], **fields)
    changed = 0
    for place, (token, top) in enumerate(zip(tokens, tops)):
        penalties = dry_penalties(prompt + tokens[:place], multiplier, base, allowed, last_n)
        after = {t: logprob - penalties.get(t, 0) for t, logprob in top.items()}
        assert token in after and after[token] >= max(after.values()) - 1e-4, place
        changed += token != max(top, key=top.get)
    assert changed > 0
    # Behind a comma nothing has been said yet.
    assert complete(server, dry_sequence_breakers=[","], **fields)[0][0] == complete(server)[0][0]
    assert complete(server, **fields | {"dry_multiplier": 0})[0] == complete(server)[0]


def test_choices_are_requests_of_their_own(server):
    fields = {"model": MODEL, "prompt": PROMPT, "temperature": 1, "max_tokens": 16,
              "frequency_penalty": 0.8, "repetition_penalty": 1.2, "return_token_ids": True}
    choices = server.post("/v1/completions", **fields, n=3, seed=9)["choices"]
    for i, choice in enumerate(choices):
        [alone] = server.post("/v1/completions", **fields, seed=choice_seed(9, i))["choices"]
        assert choice["token_ids"] == alone["token_ids"], i


def test_over_grpc(server, stub, pb):
    expected, _ = complete(server, frequency_penalty=0.5, presence_penalty=0.25,
                           repetition_penalty=1.25, logit_bias={260: -3}, min_tokens=5,
                           temperature=0.5, seed=8, top_n_sigma=1.5, xtc_probability=0.25,
                           allowed_token_ids=list(range(2000)), bad_words=["fruit"],
                           dry_multiplier=0.5, dry_base=1.5, dry_allowed_length=1,
                           dry_penalty_last_n=20, dry_sequence_breakers=["."])
    request = pb.messages.GenerateRequest(
        model=MODEL, text=PROMPT, max_tokens=40, return_token_ids=True,
        sampling=dict(temperature=0.5, seed=8, frequency_penalty=0.5, presence_penalty=0.25,
                      repetition_penalty=1.25, top_n_sigma=1.5, xtc_probability=0.25,
                      allowed_token_ids=list(range(2000)), bad_words=["fruit"],
                      dry_multiplier=0.5, dry_base=1.5, dry_allowed_length=1,
                      dry_penalty_last_n=20, dry_sequence_breakers=["."],
                      logit_bias=[dict(token_id=260, bias=-3)]),
        stop=dict(min_tokens=5))
    tokens = [token for response in stub.Generate(request)
              for delta in response.deltas for token in delta.token_ids]
    assert tokens == expected
