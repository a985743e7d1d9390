"""The model class of lm-eval for completions: it scores given tokens and tells whether each of them is
the most likely one."""

import json
import urllib.request

import abilities as a
from lm_eval.models.openai_completions import LocalCompletionsAPI

CONTEXTS = ["The capital of France is", "Once upon a time, there was a"]


def post(path, body):
    request = urllib.request.Request(
        a.URL + path, json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        return json.load(answer)


def scorer():
    model = LocalCompletionsAPI(base_url=a.API + "/completions", model=a.MODEL, tokenizer_backend=None)
    # Tokens come from the server; the class asks only whether there is a tokenizer.
    model.tokenizer, model.tokenized_requests = "the server's", True
    return model


def logprobs():
    requests, greedy = [], []
    for text in CONTEXTS:
        context = post("/tokenize", {"prompt": text})["tokens"]
        ask = {"prompt": context, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
        tokens = post("/v1/completions", {**ask, "return_tokens": True})["choices"][0]["tokens"]
        a.check(len(tokens) == 24, tokens)
        requests.append((None, context, tokens))
        greedy.append(True)
        # The last token is another one.
        requests.append((None, context, tokens[:-1] + context[-1:]))
        greedy.append(tokens[-1] == context[-1])
    scores = scorer()._loglikelihood_tokens(requests)
    a.check([is_greedy for _, is_greedy in scores] == greedy, scores)
    for (best, _), (other, _) in zip(scores[::2], scores[1::2]):
        a.check(other <= best < 0, scores)


a.run(logprobs=logprobs)
