#!/usr/bin/env python3
"""What the prefix cache of a running server saves: tokens of prompts that were computed and found.

    realizar serve MODEL --alias m --parallel 16 &
    python3 benches/prefix_reuse.py http://127.0.0.1:8080 m

Two scenarios, each in Markdown: a chat of ten turns, whose answers are given texts, so that every
model has the same chat; and streams at the same time that share a system message of a given number of
tokens. Numbers are those of `usage` in the answers. Python's standard library is all that it needs.
"""

import argparse
import json
import random
import urllib.request
from concurrent.futures import ThreadPoolExecutor

WORDS = (
    "the a of and to in that it was for on with as they at be this from have by one had not but what all "
    "were when we there can an your which their said if do will each about how up out then she many some so "
    "these would other into has more two like him see time could no make than first been its who now people"
).split()


def post(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def text(dice, n_words):
    return " ".join(dice.choice(WORDS) for _ in range(n_words))


def chat(url, model, messages, max_tokens):
    """Tokens of the prompt, and those of them that were found in the cache."""
    body = {"model": model, "messages": messages, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    usage = post(url, "/v1/chat/completions", body)["usage"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def ten_turns(url, model, dice):
    print("| turn | prompt | new since the turn before | found | computed |\n|---|---|---|---|---|")
    messages, before, totals = [], 0, [0, 0]
    for turn in range(1, 11):
        messages.append({"role": "user", "content": text(dice, 30)})
        prompt, found = chat(url, model, messages, 8)
        print(f"| {turn} | {prompt} | {prompt - before} | {found} | {prompt - found} |")
        totals = [totals[0] + prompt, totals[1] + found]
        before = prompt
        messages.append({"role": "assistant", "content": text(dice, 80)})
    print(f"| all | {totals[0]} | {before} | {totals[1]} | {totals[0] - totals[1]} |\n")


def shared_system(url, model, dice, n_streams, n_tokens):
    def count(content):
        return len(post(url, "/tokenize", {"model": model, "content": content})["tokens"])

    words = [dice.choice(WORDS) for _ in range(n_tokens)]
    while count(" ".join(words)) > n_tokens:
        words.pop()
    while count(" ".join(words)) < n_tokens:
        words.append("the")
    system = {"role": "system", "content": " ".join(words)}
    chats = [[system, {"role": "user", "content": text(dice, 20)}] for _ in range(n_streams)]
    with ThreadPoolExecutor(n_streams) as pool:
        usages = list(pool.map(lambda messages: chat(url, model, messages, 16), chats))
    prompts, found = (sum(column) for column in zip(*usages))
    computed = sorted((prompt - cached for prompt, cached in usages), reverse=True)
    print(f"{n_streams} streams, a system message of {count(system['content'])} tokens: "
          f"{prompts} tokens of prompts, {found} found, {prompts - found} computed; by stream {computed}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--system", type=int, default=561, help="tokens of the shared system message")
    args = parser.parse_args()
    dice = random.Random(1)
    ten_turns(args.url, args.model, dice)
    shared_system(args.url, args.model, dice, args.streams, args.system)


main()
