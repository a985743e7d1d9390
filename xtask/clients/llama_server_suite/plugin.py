"""pytest plugin: runs llama.cpp's server tests with local models and writes what came of each.

The tests fetch models from a hub when the session begins; here `program.py`, which they start as
the server, gives one local model for all names. OUTCOMES names the file of results: a JSON object
of test -> [outcome, last line of the reason].
"""

import json
import os

outcomes = {}


def pytest_sessionstart():
    import utils  # in the folder of the tests

    utils.ServerPreset.load_all = staticmethod(lambda: None)


def pytest_runtest_logreport(report):
    name = report.nodeid.removeprefix("unit/")
    if report.skipped:
        outcomes.setdefault(name, ["skipped", reason(report)])
    elif report.failed:
        outcomes[name] = ["failed", reason(report)]
    elif report.when == "call":
        outcomes[name] = ["passed", ""]


def reason(report):
    """The assertion or exception, without the values that pytest prints around it."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2]
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.splitlines()[0] if crash and crash.message else ""


def pytest_sessionfinish():
    with open(os.environ["OUTCOMES"], "w") as file:
        json.dump(outcomes, file, indent=1, sort_keys=True)
