"""How far a server is from Transformers."""

from __future__ import annotations

from contextlib import closing

from support.api import Api
from support.reference import Reference


def missed(url: str, reference: Reference, text: str) -> list[float]:
    """By how much the log-probability of each token of a prompt differs from Transformers', at a server."""
    expected = reference.prompt_logprobs(text)
    parameters = {"details": True, "decoder_input_details": True, "max_new_tokens": 1}
    with closing(Api(url)) as api:
        answer = api.post("/generate", {"inputs": text, "parameters": parameters})
    got = [token["logprob"] for token in answer["details"]["prefill"]][1:]
    assert len(got) == len(expected)
    return [abs(ours - theirs) for ours, theirs in zip(got, expected, strict=True)]
