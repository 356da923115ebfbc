"""Inference.Score: log-probabilities of a given continuation."""

import math
import statistics

CONTINUATION = "Ada Lorne was born in Skarn."


def request(v1, prompt, **fields):
    fields.setdefault("blend", {"reuse": v1.REUSE_NOTHING})
    return v1.ScoreRequest(prompt=prompt, **fields)


def test_scores_text_and_token_ids_alike(v1, server, prompt):
    report, tokens = server.score(request(v1, prompt, continuation_text=CONTINUATION))
    assert "".join(token.text for token in tokens) == CONTINUATION
    assert all(token.logprob <= token.top_logprob <= 0 and not token.distribution for token in tokens)
    assert report.prompt_tokens > 0
    _, by_ids = server.score(request(v1, prompt, continuation_token_ids={"ids": [t.token_id for t in tokens]}))
    assert by_ids == tokens


def test_likely_text_scores_above_nonsense(v1, server, prompt):
    def mean(text):
        _, tokens = server.score(request(v1, prompt, continuation_text=text))
        return sum(token.logprob for token in tokens) / len(tokens)

    assert mean(CONTINUATION) > mean("Skarn qux purple seven the the born Lorne.") + 1


def test_agrees_with_generate(v1, server, prompt):
    _, _, deltas, _ = server.generate(v1.GenerateRequest(
        prompt=prompt, blend={"reuse": v1.REUSE_NOTHING},
        sampling={"max_tokens": 6, "ignore_eos": True, "top_logprobs": 0}))
    generated = [entry for delta in deltas for entry in delta.logprobs]
    _, scored = server.score(request(v1, prompt, continuation_token_ids={"ids": [t.token_id for t in generated]}))
    for token, entry in zip(scored, generated, strict=True):
        assert token.token_id == entry.token_id
        assert abs(token.logprob - entry.logprob) < 0.05, "scoring and decoding differ by rounding only"


def test_distributions_are_whole(v1, server, prompt):
    vocab_size = server.admin.GetInfo(v1.GetInfoRequest()).model.vocab_size
    _, tokens = server.score(request(v1, prompt, continuation_text="Skarn", return_distributions=True))
    for token in tokens:
        assert len(token.distribution) == vocab_size
        assert abs(math.fsum(math.exp(value) for value in token.distribution) - 1) < 1e-3
        assert abs(token.distribution[token.token_id] - token.logprob) < 1e-4
        assert max(token.distribution) == token.distribution[token.top_token_id]


def test_recomputing_everything_is_full_prefill(v1, server, prompt, stored):
    def logprobs(**blend):
        report, tokens = server.score(request(v1, prompt, namespace=stored, blend=blend,
                                              continuation_text=CONTINUATION))
        return report, [token.logprob for token in tokens]

    _, full = logprobs(reuse=v1.REUSE_NOTHING)
    report, everything = logprobs(policy=v1.POLICY_ALL)
    assert report.recomputed_tokens > 0
    _, nothing = logprobs(policy=v1.POLICY_NONE)

    def off(some):
        return statistics.mean(abs(a - b) for a, b in zip(full, some, strict=True))

    # The chunk that stands first is reused in 8 bits all the same, and activations may be rounded to as many.
    assert off(everything) < 0.05
    assert off(everything) < off(nothing) / 3, "plain reuse is another computation"
