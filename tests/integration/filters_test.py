"""Top-n-sigma and XTC by twins in numpy: each token that the server draws is the twins'.

The twins take raw log-probabilities, which are logits up to a constant. They are written from the
papers (SamplingParams names them) and from docs/api.md, which has the order of the filters.
"""

import numpy as np
import pytest

from flotilla_server import MODEL
from parallel_sampling_test import choice_seed

PROMPT = "Once upon a time, there was a"
SEED = 2024
CHOICES = 48
BIAS = 7
XTC_DRAW = 0xFFFFFFFF  # the number of XTC's draw, where noise has a token's


def mix64(x):
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return x ^ x >> np.uint64(31)


def mix32(x):
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return x ^ x >> np.uint32(16)


def uniform(seed, index, numbers):
    """Hashes of a sequence's seed, the index of an output token and each of the numbers, in (0, 1)."""
    key = mix64(mix64(mix64(np.array([seed], np.uint64))) ^ np.uint64(index))
    low, high = key.astype(np.uint32), (key >> np.uint64(32)).astype(np.uint32)
    hashed = mix32(mix32(np.array(numbers, np.uint32) * np.uint32(0x9E3779B1) ^ low) ^ high)
    return (hashed >> np.uint32(8) | np.uint32(1)) * 2.0 ** -24


def draw(logits, temperature, seed, index):
    """{token: logit} to a token: the arg-max with Gumbel noise."""
    tokens = np.array(list(logits))
    noise = -np.log(-np.log(uniform(seed, index, tokens)))
    return int(tokens[np.argmax(np.array(list(logits.values())) / temperature + noise)])


def select(logits, kept):
    return {token: logit for (token, logit), keep in zip(logits.items(), kept) if keep}


def top_n_sigma(logits, n):
    """Tang et al. 2024, algorithm 1."""
    x = np.array(list(logits.values()))
    return select(logits, x >= x.max() - n * x.std())


def min_p(logits, share, temperature):
    x = np.array(list(logits.values())) / temperature
    return select(logits, np.exp(x - x.max()) >= share)


def top_k(logits, k):
    x = np.array(list(logits.values()))
    return select(logits, x >= np.sort(x)[-min(k, len(x))])


def xtc(logits, threshold, temperature):
    """What its draw does when it comes: of the tokens above the threshold the least likely stays."""
    x = np.array(list(logits.values())) / temperature
    p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    above = p >= threshold
    return select(logits, ~above | (p == p[above].min())) if above.any() else logits


def alternatives(choice):
    return [{int(name.removeprefix("token_id:")): logprob for name, logprob in top.items()}
            for top in choice["logprobs"]["top_logprobs"]]


def complete(server, **fields):
    return server.post("/v1/completions", model=MODEL, prompt=PROMPT, ignore_eos=True,
                       return_token_ids=True, return_tokens_as_token_ids=True, **fields)["choices"]


@pytest.fixture(scope="module", name="row")
def a_row_of_logits(server):
    """The 20 best tokens, and 28 others with a bias that brings them nearer: {token: logit}."""
    [choice] = complete(server, max_tokens=1, temperature=0, logprobs=20)
    row = alternatives(choice)[0]
    for token in range(1000, 1000 + 28 * 1500, 1500):
        if token not in row:
            [choice] = complete(server, max_tokens=1, temperature=0, logprobs=0,
                                allowed_token_ids=[token])
            assert choice["token_ids"] == [token]
            row[token] = choice["logprobs"]["token_logprobs"][0] + BIAS
    return row


def drawn(server, row, **fields):
    """The first tokens of many choices, of those of the row."""
    answer = complete(server, max_tokens=1, n=CHOICES, seed=SEED, allowed_token_ids=list(row),
                      logit_bias={token: BIAS for token in list(row)[20:]}, **fields)
    return [choice["token_ids"][0] for choice in answer]


def drawn_by_twin(kept, temperature):
    return [draw(kept, temperature, choice_seed(SEED, i), 0) for i in range(CHOICES)]


@pytest.mark.parametrize("n", [0.05, 0.3, 0.6, 1])
def test_top_n_sigma_keeps_what_its_twin_keeps(server, row, n):
    kept = top_n_sigma(row, n)
    assert 0 < len(kept) < len(row)
    expected = drawn_by_twin(kept, 2)
    assert drawn(server, row, temperature=2, top_n_sigma=n) == expected
    assert expected != drawn_by_twin(row, 2)


def test_top_n_sigma_comes_before_min_p(server, row):
    """Behind min-p the deviation would be smaller."""
    n, share, temperature = 1.2, 0.1, 1.5
    kept = min_p(top_n_sigma(row, n), share, temperature)
    other_order = top_n_sigma(min_p(row, share, temperature), n)
    assert len(other_order) < len(kept) < len(top_n_sigma(row, n))
    expected = drawn_by_twin(kept, temperature)
    assert drawn(server, row, temperature=temperature, top_n_sigma=n, min_p=share) == expected
    assert expected != drawn_by_twin(other_order, temperature)


@pytest.mark.parametrize("probability, threshold, temperature",
                         [(0.5, 0.1, 1), (0.3, 0.02, 1.4), (1, 0.1, 0.7), (0, 0.1, 1)])
def test_xtc_comes_last_and_its_draw_is_a_hash(server, probability, threshold, temperature):
    """It acts on what top-k leaves, and draws anew for each seed and index."""
    k, draws, changed, other_order = 6, [], 0, 0
    choices = complete(server, max_tokens=24, n=4, seed=SEED, logprobs=20, top_k=k,
                       temperature=temperature, xtc_probability=probability, xtc_threshold=threshold)
    for i, choice in enumerate(choices):
        seed = choice_seed(SEED, i)
        for index, (token, row) in enumerate(zip(choice["token_ids"], alternatives(choice))):
            kept = best = top_k(row, k)
            draws.append(bool(uniform(seed, index, [XTC_DRAW])[0] < probability))
            if draws[-1]:
                kept = xtc(best, threshold, temperature)
                first = top_k(xtc(row, threshold, temperature), k)
                other_order += token != draw(first, temperature, seed, index)
            assert token == draw(kept, temperature, seed, index), (i, index)
            changed += token != draw(best, temperature, seed, index)
    assert set(draws) == {probability > 0, probability == 1}
    assert (changed > 0) == (other_order > 0) == (probability > 0)
