#!/usr/bin/env python3
"""Builds the wheel, installs it in a fresh virtual environment without a network, and tests it.

`cargo xtask ci` runs this. Its folder is `target/python`; the tools in it are kept between runs. Arguments go to pytest.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "python"

# What the package promises to somebody who has nothing but Python.
SMOKE = """
import sys, allotment_planner
made = allotment_planner.plan([8, 4, 8], [0, 2, 3], [3, 5, 6])
assert (made.peak, made.status) == (12, "optimal"), made
assert "numpy" not in sys.modules
print("installed", allotment_planner.__version__, "in", sys.prefix)
"""


def run(*command: object, **options: object) -> None:
    """Runs a command, and ends with its status if it fails."""
    done = subprocess.run([str(word) for word in command], **options)  # type: ignore[call-overload]
    if done.returncode:
        print("failed:", *command, file=sys.stderr)
        sys.exit(done.returncode)


def python_of(folder: pathlib.Path) -> pathlib.Path:
    """The interpreter of a virtual environment."""
    return folder / "bin" / "python"


def tools() -> pathlib.Path:
    """The environment with what builds and tests the wheel, made anew when the list of it changes."""
    folder, wanted = FOLDER / "tools", (HERE / "requirements.txt").read_text()
    done = folder / "installed.txt"
    if not done.exists() or done.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        run(python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", HERE / "requirements.txt")
        done.write_text(wanted)
    return python_of(folder)


def main() -> None:
    """Does all of it."""
    tool = tools()
    wheels = FOLDER / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    # Not optimised: it is compiled for these tests alone, whose instances are small.
    build = ["--profile", "dev", "--interpreter", sys.executable, "--out", wheels, "--quiet"]
    run(tool, "-m", "maturin", "build", *build, cwd=HERE)
    (wheel,) = wheels.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    fresh = FOLDER / "fresh"
    venv.create(fresh, clear=True, with_pip=True)
    run(python_of(fresh), *install, wheel)
    run(python_of(fresh), "-I", "-c", SMOKE)
    run(tool, *install, "--force-reinstall", "--no-deps", wheel)
    run(tool, "-m", "mypy", "--cache-dir", FOLDER / "mypy", "python/allotment_planner", cwd=HERE)
    # The program as the host tool's own tests build it, so that nothing is compiled where those ran before.
    run("cargo", "test", "--quiet", "--no-run", "--package", "allotment-cli", "--test", "tool", cwd=ROOT)
    program = FOLDER.parent / "debug" / "allotment"
    # PyTorch and ExecuTorch take 6 GB; the graphs that they exported are stored, and looked at here.
    chosen = ["-p", "no:cacheprovider", "-m", "not torch"]
    run(tool, "-m", "pytest", "--quiet", *chosen, *sys.argv[1:], cwd=HERE, env={**os.environ, "ALLOTMENT": str(program)})


if __name__ == "__main__":
    main()
