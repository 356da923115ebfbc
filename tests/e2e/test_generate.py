"""Inference.Generate: what is streamed, what is reused, what the options do."""

from conftest import wait_until


def test_streams_report_text_and_end(v1, server, prompt):
    report, text, deltas, finished = server.generate(
        v1.GenerateRequest(prompt=prompt, blend={"reuse": v1.REUSE_NOTHING}, sampling={"max_tokens": 12}))
    assert text.strip()
    assert len(deltas) > 1, "the text comes in pieces"
    assert finished.usage.completion_tokens == sum(len(delta.token_ids) for delta in deltas) <= 12
    assert finished.usage.prompt_tokens == report.prompt_tokens
    assert 0 < finished.timings.time_to_first_token_seconds <= finished.timings.total_seconds
    assert report.reuse == v1.REUSE_NOTHING
    assert report.computed_tokens == report.prompt_tokens
    assert [chunk.index for chunk in report.chunks] == [0, 1, 2]


def test_stored_chunks_are_found(v1, server, prompt, stored):
    request = v1.GenerateRequest(namespace=stored, prompt=prompt, blend={"ratio": 0.5}, sampling={"max_tokens": 4})
    report, _, _, _ = server.generate(request)
    assert [chunk.source for chunk in report.chunks] == [
        v1.CHUNK_SOURCE_EXACT, v1.CHUNK_SOURCE_BLENDED, v1.CHUNK_SOURCE_BLENDED]
    assert all(chunk.tier == v1.TIER_HOST_MEMORY for chunk in report.chunks)
    assert report.policy == v1.POLICY_QUERY
    assert report.recomputed_tokens > 0 and report.reused_tokens > 0 and report.exact_tokens > 0
    assert abs(report.ratio - 0.5) < 0.1
    assert report.prompt_tokens == (report.exact_tokens + report.reused_tokens + report.recomputed_tokens
                                    + report.computed_tokens)
    assert report.chunks[0].recomputed_tokens == 0
    assert sum(chunk.recomputed_tokens for chunk in report.chunks) == report.recomputed_tokens

    del request.prompt.chunks[:]  # any order, any company
    request.prompt.chunks.extend([prompt.chunks[2], "Nobody has seen this passage before.\n", prompt.chunks[0]])
    report, _, _, _ = server.generate(request)
    assert report.chunks[1].source == v1.CHUNK_SOURCE_MISS
    assert report.chunks[2].source == v1.CHUNK_SOURCE_BLENDED


def test_a_share_of_few_tokens_is_the_least_number_of_them(v1, server, prompt, stored):
    def report_of(**blend):
        return server.generate(v1.GenerateRequest(namespace=stored, prompt=prompt, blend=blend, sampling={"max_tokens": 1}))[0]
    given = report_of(ratio=0.15)
    assert 0 < given.recomputed_tokens < 64, "taken as it is"
    least = min(64, given.recomputed_tokens + given.reused_tokens)
    assert report_of().recomputed_tokens == least
    by_load = report_of(ratio_mode=v1.RATIO_MODE_AUTO)
    assert by_load.recomputed_tokens >= least
    assert by_load.loading.ratio_min <= by_load.loading.ratio <= by_load.loading.ratio_max
    bounded = report_of(ratio_mode=v1.RATIO_MODE_AUTO, ratio_min=0.1, ratio_max=0.2)
    assert bounded.loading.ratio_max == 0.2 and bounded.loading.ratio <= 0.2


def test_missing_chunks_are_stored_behind_the_response(v1, server, prompt):
    request = v1.GenerateRequest(namespace="misses", prompt=prompt, sampling={"max_tokens": 2})
    report, _, _, _ = server.generate(request)
    assert {chunk.source for chunk in report.chunks} == {v1.CHUNK_SOURCE_MISS}
    keys = [chunk.key for chunk in report.chunks]
    wait_until(lambda: len(server.chunks.Stat(v1.StatChunksRequest(namespace="misses", keys=keys)).chunks) == 3,
               "the missing chunks in the store")
    report, _, _, _ = server.generate(request)
    assert v1.CHUNK_SOURCE_MISS not in {chunk.source for chunk in report.chunks}
    assert [chunk.key for chunk in report.chunks] == keys


def test_misses_stay_missing_when_asked(v1, server, prompt):
    request = v1.GenerateRequest(namespace="not stored", prompt=prompt, blend={"store_misses": False},
                                 sampling={"max_tokens": 1})
    server.generate(request)
    server.wait_until_idle()
    assert not server.chunks.List(v1.ListChunksRequest(namespace="not stored")).chunks


def test_namespaces_do_not_see_each_other(v1, server, prompt, stored):
    report, _, _, _ = server.generate(v1.GenerateRequest(
        namespace=stored + "?", prompt=prompt, blend={"store_misses": False}, sampling={"max_tokens": 1}))
    assert {chunk.source for chunk in report.chunks} == {v1.CHUNK_SOURCE_MISS}


def test_policies_and_ratios_do_what_they_say(v1, server, prompt, stored):
    def report(**blend):
        # What a prompt before it has computed in full would be exact in this one, too.
        return server.generate(v1.GenerateRequest(namespace=stored, prompt=prompt, blend={"share_prefix": False, **blend},
                                                  sampling={"max_tokens": 1}))[0]

    assert report(policy=v1.POLICY_NONE).recomputed_tokens == 0
    assert report(policy=v1.POLICY_ALL).reused_tokens == 0
    recomputed = [report(ratio=ratio).recomputed_tokens for ratio in (0, 0.25, 0.5, 0.75, 1)]
    assert recomputed == sorted(recomputed) and recomputed[0] == 0 and recomputed[-1] > recomputed[1] > 0
    for policy in (v1.POLICY_QUERY, v1.POLICY_HKVD, v1.POLICY_RANDOM):
        assert report(policy=policy, ratio=0.3).policy == policy
    link = report(policy=v1.POLICY_LINK, link_tokens=3)
    assert [chunk.recomputed_tokens for chunk in link.chunks] == [0, 3, 3]
    prefix = report(reuse=v1.REUSE_PREFIX)
    assert prefix.reused_tokens == prefix.recomputed_tokens == 0 < prefix.exact_tokens


def test_same_seed_same_text(v1, server, prompt):
    def sample(seed):
        _, text, _, finished = server.generate(v1.GenerateRequest(
            prompt=prompt, blend={"reuse": v1.REUSE_NOTHING},
            sampling={"max_tokens": 12, "temperature": 1.5, "seed": seed, "ignore_eos": True}))
        return text, finished.seed

    text, seed = sample(0)
    assert seed != 0, "the server chose a seed and tells it"
    assert sample(seed) == (text, seed)
    assert len({sample(other)[0] for other in (1, 2, 3)}) > 1


def test_log_probabilities(v1, server, prompt):
    _, _, deltas, finished = server.generate(v1.GenerateRequest(
        prompt=prompt, blend={"reuse": v1.REUSE_NOTHING}, sampling={"max_tokens": 5, "top_logprobs": 3}))
    token_ids = [token for delta in deltas for token in delta.token_ids]
    logprobs = [entry for delta in deltas for entry in delta.logprobs]
    top = [entry for delta in deltas for entry in delta.top_logprobs]
    assert [entry.token_id for entry in logprobs] == token_ids
    assert len(token_ids) == len(top) == finished.usage.completion_tokens
    for chosen, candidates in zip(logprobs, top):
        values = [candidate.logprob for candidate in candidates.tokens]
        assert len(values) == 3 and values == sorted(values, reverse=True)
        assert candidates.tokens[0].token_id == chosen.token_id, "greedy takes the most likely"
        assert values[0] == chosen.logprob <= 0


def test_stop_strings_and_max_tokens(v1, server, prompt):
    sampling = {"max_tokens": 16, "ignore_eos": True}
    request = v1.GenerateRequest(prompt=prompt, blend={"reuse": v1.REUSE_NOTHING}, sampling=sampling)
    _, text, _, finished = server.generate(request)
    assert finished.reason == v1.FINISH_REASON_MAX_TOKENS
    assert finished.usage.completion_tokens == 16
    stop = text[5:9]
    request.sampling.stop.append(stop)
    _, stopped, _, finished = server.generate(request)
    assert finished.reason == v1.FINISH_REASON_STOP_STRING
    assert finished.stop_string == stop
    assert stopped == text[:text.index(stop)]


def test_history_is_part_of_the_prompt(v1, server, prompt):
    request = v1.GenerateRequest(prompt=prompt, blend={"reuse": v1.REUSE_NOTHING}, sampling={"max_tokens": 1})
    without, _, _, _ = server.generate(request)
    request.prompt.history.add(text="Hello.")
    request.prompt.history.add(role=v1.ROLE_ASSISTANT, text="Hello. What would you like to know?")
    with_history, _, _, _ = server.generate(request)
    assert with_history.prompt_tokens > without.prompt_tokens + 8
