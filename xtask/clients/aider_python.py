"""aider, run as docs/use-it-from.md says, in a repository of its own and without a terminal.

Its only way out is a proxy that does not exist, so it fetches nothing.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import abilities as a

BROKEN = "def add(a, b):\n    return a - b\n"
MENDED = "def add(a, b):\n    return a + b\n"


def git(folder, *args):
    return subprocess.check_output(["git", *args], cwd=folder, text=True)


def aider(folder, **more):
    """Runs the lines of the document, which start a conversation, with one message instead."""
    settings = {
        "ANALYTICS_DISABLE": "true",
        "CHECK_UPDATE": "false",
        "GITIGNORE": "false",
        "PRETTY": "false",
        "SHOW_MODEL_WARNINGS": "false",
        "YES_ALWAYS": "true",
        **more,
    }
    environment = {
        **os.environ,
        **{f"AIDER_{name}": value for name, value in settings.items()},
        "HOME": str(folder.parent),
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PATH": os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]),
    }
    done = subprocess.run(
        ["bash", "-e", a.SNIPPET],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=a.TIMEOUT,
    )
    sys.stderr.write(done.stdout)
    a.check(done.returncode == 0, done.returncode)
    return done.stdout


def in_repository(ability):
    """A repository with one file, in a folder that is removed."""

    def tried():
        with tempfile.TemporaryDirectory() as home:
            folder = pathlib.Path(home) / "repository"
            folder.mkdir()
            git(folder, "init", "--quiet")
            git(folder, "config", "user.name", "nobody")
            git(folder, "config", "user.email", "nobody@example.com")
            (folder / "total.py").write_text(BROKEN)
            git(folder, "add", "total.py")
            git(folder, "commit", "--quiet", "--message", "add")
            ability(folder)

    return tried


@in_repository
def document(folder):
    said = aider(folder, MESSAGE=a.QUESTION)
    a.check("Tokens:" in said and "received" in said, said[-500:])


@in_repository
def edit(folder):
    # A small model does not edit files, so the answer is the one that its grammar allows.
    answer = f"total.py\n```\n{MENDED}```\n"
    settings = {
        "name": f"openai/{a.MODEL}",
        "edit_format": "whole",
        "extra_params": {"extra_body": {"guided_choice": [answer]}},
    }
    file = folder.parent / "settings.yml"
    file.write_text(json.dumps([settings]))
    aider(folder, MESSAGE="Mend add.", FILE="total.py", MODEL_SETTINGS_FILE=str(file))
    a.check((folder / "total.py").read_text() == MENDED, (folder / "total.py").read_text())
    a.check(len(git(folder, "log", "--oneline").splitlines()) == 2)


a.run(document=document, edit=edit)
