"""Takes llama-server's flags and starts `realizar serve`, or llama-server itself, with one local model.

Environment: ENGINE (the program), ENGINE_KIND (`realizar` or `llama`), MODEL (a GGUF file) and
TRANSLATE: `flags` translates the command line alone; `paths` also puts `paths.py` before the server,
which translates llama-server's own endpoints and shapes.

What asks for something that realizar does not have ends with an error and status 2.
"""

import os
import signal
import subprocess
import sys
import tempfile

# The templates that the tests name, as llama.cpp has them built in.
TEMPLATES = {
    "chatml": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "llama3": "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
    "command-r": "{% for m in messages %}<|START_OF_TURN_TOKEN|>"
    "{% if m.role == 'system' %}<|SYSTEM_TOKEN|>{% elif m.role == 'user' %}<|USER_TOKEN|>"
    "{% else %}<|CHATBOT_TOKEN|>{% endif %}{{ m.content | trim }}<|END_OF_TURN_TOKEN|>{% endfor %}"
    "{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}",
}

# llama-server's flag -> ours, with a value each.
SAME = {
    "--host": "--host",
    "--temp": "--temp",
    "--seed": "--seed",
    "--threads": "--threads",
    "--alias": "--alias",
    "--api-key": "--api-key",
    "--batch-size": "--chunk",
    "--chat-template-file": "--template",
    "-ctk": "--kv-type",
    "--models-dir": "--models-dir",
    "--models-max": "--models-max",
    "--cors-origins": "--cors-origin",
    "--model-draft": "--draft-model",
    "--spec-draft-n-max": "--draft-max",
}
# With a value, read below or by `paths.py`.
READ = ["--port", "--ctx-size", "--parallel", "--n-predict", "--chat-template"]
READ += ["--reasoning", "--reasoning-format", "--pooling"]
# Without meaning here: where the model is from, and how llama-server divides its work.
IGNORED = ["--model", "--hf-repo", "--hf-file", "--ubatch-size", "-fa", "-ctv", "--n-gpu-layers"]
IGNORED += ["--cache-ram", "--spec-draft-n-min"]
SWITCHES = ["--no-models-autoload"]
# Without a value and without a meaning here.
BARE = ["--offline", "--no-slots", "--slots", "--no-jinja", "--jinja", "--cont-batching"]
BARE += ["--metrics", "--swa-full", "--no-cache-idle-slots", "--no-mmproj", "--backend_sampling"]


def read(args):
    """(our flags, what was asked for by name)"""
    ours, asked = [], {}
    rest = iter(args)
    for flag in rest:
        if flag in BARE:
            continue
        if flag in SWITCHES:
            ours.append(flag)
        elif flag in ["--embedding", "--reranking", "--kv-unified", "--verbose"]:
            asked[flag] = True
        elif flag in IGNORED:
            next(rest)
        elif flag in SAME:
            asked[flag] = next(rest)
            ours += [SAME[flag], asked[flag]]
        elif flag in READ:
            asked[flag] = next(rest)
        else:
            sys.exit(f"realizar has nothing for {flag}")
    return ours, asked


def file_of(template):
    """A file with a template that was given by name or as text."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja", delete=False) as file:
        file.write(TEMPLATES.get(template, template))
    return file.name


def command(args):
    """The command line of `realizar serve`, without its port, and what was asked for."""
    ours, asked = read(args)
    n_slots = int(asked.get("--parallel", 1))
    if "--ctx-size" in asked:
        n_ctx = int(asked["--ctx-size"])
        # llama-server divides its context among the slots unless they share it.
        shares = "--kv-unified" in asked
        ours += ["--ctx", str(n_ctx if shares else n_ctx // n_slots)]
        ours += ["--kv-tokens", str(n_ctx)] if shares else []
    # The tests kill a server that has not ended after 5 seconds.
    ours += ["--parallel", str(n_slots), "--grace", "1"]
    if "--chat-template" in asked:
        ours += ["--template", file_of(asked["--chat-template"])]
    if asked.get("--pooling") in ("none", "rank"):
        sys.exit(f"realizar has no pooling `{asked['--pooling']}`")
    if "--cors-origin" not in ours:
        ours += ["--cors-origin", "*"]
    model = os.environ["MODEL"]
    if "--models-dir" in ours:
        models = []
    elif "--embedding" in asked or "--reranking" in asked:
        models = ["--embedding-model", f"{ours[ours.index('--alias') + 1]}={model}"]
        at = ours.index("--alias")
        del ours[at : at + 2]
    else:
        models = [model]
    return [os.environ["ENGINE"], "serve", *models, *ours], asked


def main():
    args = sys.argv[1:]
    if os.environ["ENGINE_KIND"] == "llama":
        for flag in ["--hf-repo", "--hf-file", "--model"]:
            if flag in args:
                at = args.index(flag)
                del args[at : at + 2]
        engine = os.environ["ENGINE"]
        os.execv(engine, [engine, "--model", os.environ["MODEL"], *args])
    line, asked = command(args)
    if os.environ["TRANSLATE"] == "flags":
        os.execv(line[0], [*line, "--port", asked["--port"]])
    import paths

    child = subprocess.Popen([*line, "--port", "0"], stdout=subprocess.PIPE, text=True)
    # The tests end the program by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    sys.exit(paths.serve(child, line[line.index("--host") + 1], asked))


main()
