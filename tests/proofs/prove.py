#!/usr/bin/env python3
"""Proves with the solver z3 what the library's arithmetic promises, for all inputs: size classes, rounding, boundary bits.

`cargo xtask verify --deep` runs this. The solver is installed from PyPI into `target/proofs` at the first run. Each proof is of a model
that stands beside the Rust text it was made from; `source.py` fails if the library's text is another one now.
"""

import os
import pathlib
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target")).absolute() / "proofs"


def python() -> pathlib.Path:
    """The interpreter of an environment with the solver, made anew when the list of what it needs changes."""
    wanted, done = (HERE / "requirements.txt").read_text(), FOLDER / "installed.txt"
    interpreter = FOLDER / "bin" / "python"
    if not done.exists() or done.read_text() != wanted:
        venv.create(FOLDER, clear=True, with_pip=True)
        command = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "-r", HERE / "requirements.txt"], check=True)
        done.write_text(wanted)
    return interpreter


def main() -> None:
    """Runs the proofs, in the environment that has the solver."""
    if pathlib.Path(sys.prefix) != FOLDER:
        sys.exit(subprocess.run([python(), __file__]).returncode)
    sys.dont_write_bytecode = True
    import arithmetic
    import boundary_bits
    from solver import Proofs

    proofs = Proofs()
    arithmetic.prove(proofs)
    boundary_bits.prove(proofs)
    proofs.conclude()


if __name__ == "__main__":
    main()
