"""What the OpenAPI document cannot say of a valid request, so that some of those that schemathesis
makes are answered: the names of models and roles, the size of a vocabulary, and few tokens.

Invalid requests are sent as they are."""

import os

import schemathesis

MODEL = os.environ["REALIZAR_MODEL"]
ROLES = ["system", "developer", "user", "assistant", "tool", "function"]
# Every model has more tokens than this.
VOCABULARY = 200
OF_EMBEDDINGS = ["/v1/embeddings", "/rerank", "/v1/rerank", "/score", "/v1/score"]
MOST_TOKENS = ["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"]
ANSWERS = ["n", "best_of"]
ABOVE_ZERO = ["top_p", "typical_p", "repetition_penalty", "repeat_penalty"]
# The types of fields that are changed. Where the document has no such field, it can be of any type.
TYPES = {
    **dict.fromkeys([*MOST_TOKENS, *ABOVE_ZERO, "min_tokens"], (int, float)),
    "logit_bias": (dict, list),
    "messages": list,
    "stop_token_ids": list,
}
FORMS = [
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "json_schema",
]


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Changes a request that is valid by the document."""
    is_valid = case.meta is not None and case.meta.generation.mode.is_positive
    if is_valid and isinstance(case.body, dict):
        case.body = answerable(case.body)
        if case.operation.path in OF_EMBEDDINGS:
            # The first model that was loaded for them answers.
            case.body.pop("model", None)


def answerable(body):
    """The request with values that the server can honour."""
    body = {
        key: value
        for key, value in body.items()
        if value is not None and isinstance(value, TYPES.get(key, object))
    }
    if "model" in body:
        body["model"] = MODEL
    for key in MOST_TOKENS:
        if key in body:
            body[key] = 1 + body[key] % 4
    for key in ANSWERS:
        if key in body:
            body[key] = 1
    # A request has one form; most that are made at random are none.
    forms = [key for key in FORMS if key in body]
    for key in forms[len(body) % 2 :]:
        del body[key]
    if "stream_options" in body:
        body["stream"] = True
    if "top_logprobs" in body:
        body["logprobs"] = True
    if "repeat_penalty" in body:
        body.pop("repetition_penalty", None)
    if body.get("continue_final_message"):
        body.pop("add_generation_prompt", None)
    if "messages" in body:
        body.pop("documents", None)
    for key in ["reasoning_effort", "reasoning", "thinking", "thinking_budget_tokens", "output_config", "dimensions"]:
        body.pop(key, None)
    if not body.get("tools") or isinstance(body.get("tool_choice"), dict):
        body.pop("tool_choice", None)
    for key in ABOVE_ZERO:
        if key in body:
            # Above zero as a number of 32 bits, too.
            body[key] = max(body[key], 1e-6)
    if "logit_bias" in body:
        biases = body["logit_bias"]
        pairs = biases.items() if isinstance(biases, dict) else biases
        body["logit_bias"] = [[known_token(token), bias] for token, bias in pairs]
    if "stop_token_ids" in body:
        body["stop_token_ids"] = [known_token(token) for token in body["stop_token_ids"]]
    if "min_tokens" in body:
        body["min_tokens"] %= 2
    if "logprobs" in body or "top_logprobs" in body:
        body.pop("n_probs", None)
    if body.get("stream"):
        body.pop("prompt_logprobs", None)
    # Most orders are not this server's.
    body.pop("samplers", None)
    for key in ["prompt", "input", "tokens"]:
        if key in body:
            body[key] = known(body[key])
    for message in body.get("messages", []):
        if message["role"] not in ROLES:
            message["role"] = "user"
    return body


def known_token(token):
    """A token that every model has, by its id; or a text."""
    if not isinstance(token, str) or token.isdecimal():
        return int(token) % VOCABULARY
    return token


def known(prompt):
    """A prompt of tokens that every model has; one without tokens gets one."""
    if isinstance(prompt, int):
        return prompt % VOCABULARY
    if isinstance(prompt, list):
        return [known(part) for part in prompt] or [1]
    return prompt
