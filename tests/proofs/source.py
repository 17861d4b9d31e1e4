"""The Rust text that a model was made from."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def expect(file: str, text: str) -> None:
    """Fails if the file does not contain the text any more; white space, and comments of a line, do not count."""

    def plain(rust: str) -> str:
        return re.sub(r"\s+", "", re.sub(r"//[^\n]*", "", rust))

    if plain(text) not in plain((ROOT / file).read_text()):
        raise SystemExit(
            f"{file} has changed where the proofs model it. Look whether the model still fits, and put the new text there:\n{text}"
        )
