#!/usr/bin/env python3
"""Builds the wheel, installs it in a fresh virtual environment without a network, and tests it.

`cargo xtask ci` runs this. Its folder is `target/python`; the tools in it are kept between runs. With `--installed` it ends after
`installed.py`: models are planned in the fresh environment, and the program and C find the same offsets. With `--built` it takes the program
and the C library that the tests of both left in `target/debug`, if they are there, instead of building them. Other arguments go to pytest.
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
PROGRAM = FOLDER.parent / "debug" / "allotment"
LIBRARY = FOLDER.parent / "debug" / "deps" / "liballotment_planner_c.a"


def run(*command: object, **options: object) -> None:
    """Runs a command, and ends with its status if it fails."""
    done = subprocess.run([str(word) for word in command], **options)  # type: ignore[call-overload]
    if done.returncode:
        print("failed:", *command, file=sys.stderr)
        sys.exit(done.returncode)


def python_of(folder: pathlib.Path) -> pathlib.Path:
    """The interpreter of a virtual environment."""
    return folder / "bin" / "python"


def environment(name: str, listed: str) -> pathlib.Path:
    """The interpreter of an environment with the packages of a list, made anew when the list changes."""
    folder, wanted = FOLDER / name, (HERE / listed).read_text()
    done = folder / "installed.txt"
    if not done.exists() or done.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        run(python_of(folder), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", HERE / listed)
        done.write_text(wanted)
    return python_of(folder)


def linked() -> pathlib.Path:
    """The C program of the C library's tests, linked with the static library that Cargo built for them."""
    capi, program = HERE.parent / "capi", FOLDER / "plan"
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    cc = os.environ.get("CC", "cc")
    run(cc, *strict, "-I", capi / "include", capi / "tests" / "plan.c", LIBRARY, "-lpthread", "-ldl", "-lm", "-o", program)
    return program


def main() -> None:
    """Does all of it."""
    arguments = [word for word in sys.argv[1:] if word not in ("--installed", "--built")]
    wheels = FOLDER / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    # The program and the C library as their own tests build them, so that nothing is compiled where those ran before.
    built = ["--package", "allotment-cli", "--test", "tool", "--package", "allotment-planner-capi", "--test", "c"]
    if "--built" not in sys.argv or not (PROGRAM.exists() and LIBRARY.exists()):
        run("cargo", "test", "--quiet", "--no-run", *built, cwd=ROOT)
    # Not optimised: it is compiled for these tests alone, whose instances are small.
    build = ["--profile", "dev", "--interpreter", sys.executable, "--out", wheels, "--quiet"]
    run(environment("build", "requirements-build.txt"), "-m", "maturin", "build", *build, cwd=HERE)
    (wheel,) = wheels.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    fresh = FOLDER / "fresh"
    venv.create(fresh, clear=True, with_pip=True)
    run(python_of(fresh), *install, wheel)
    run(python_of(fresh), "-I", HERE / "installed.py", PROGRAM, linked())
    if "--installed" in sys.argv:
        return
    tool = environment("tools", "requirements.txt")
    run(tool, *install, "--force-reinstall", "--no-deps", wheel)
    run(tool, "-m", "mypy", "--cache-dir", FOLDER / "mypy", "python/allotment_planner", "installed.py", cwd=HERE)
    # PyTorch and ExecuTorch take 6 GB; the graphs that they exported are stored, and looked at here.
    chosen = ["-p", "no:cacheprovider", "-m", "not torch"]
    run(tool, "-m", "pytest", "--quiet", *chosen, *arguments, cwd=HERE, env={**os.environ, "ALLOTMENT": str(PROGRAM)})


if __name__ == "__main__":
    main()
