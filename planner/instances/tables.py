#!/usr/bin/env python3
"""Plans every instance of this folder in 1, 10 and 60 seconds, beside MiniMalloc and idealloc, and writes one table.

    planner/instances/tables.py --minimalloc PROGRAM --idealloc PROGRAM

It builds the program `allotment` in release, or takes the one that `--program` names. `--limits` changes the seconds; the table goes to
`benches/results/plan/collection.csv`, or to the file that `--output` names. Other planners get each limit on one thread, so that most of
the time is theirs: half an hour for all. `--alone 60` leaves them out of the run of 60 seconds, which brings it down to 8 minutes.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import pathlib
import subprocess
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def arguments() -> argparse.Namespace:
    """What the user asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--minimalloc", type=pathlib.Path)
    parser.add_argument("--idealloc", type=pathlib.Path)
    parser.add_argument("--limits", type=int, nargs="+", default=[1, 10, 60])
    parser.add_argument("--alone", type=int, nargs="+", default=[], help="limits at which the others are not run")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "benches" / "results" / "plan" / "collection.csv")
    return parser.parse_args()


def printed(*command: object) -> str:
    """What a command prints; ends with an error if it fails."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout


def measured(program: pathlib.Path, asked: argparse.Namespace, limit: int) -> list[dict[str, Any]]:
    """One run of all instances."""
    peers = [("--minimalloc", asked.minimalloc), ("--idealloc", asked.idealloc)]
    beside = [word for name, path in peers if path and limit not in asked.alone for word in (name, path)]
    options = ["--time-limit", f"{limit}s", "--threads", asked.threads, "--json"]
    rows: list[dict[str, Any]] = json.loads(printed(program, "plan", HERE, "--bench", *beside, *options))
    return rows


def ours(row: dict[str, Any]) -> str:
    """Our peak: how far it lies above the bound, and when it was found."""
    gap = "optimal" if row["peak"] == row["bound"] else f"{row['gap_percent']:+.3f} %"
    return f"{gap}, {row['found'] or 0:.2f} s"


def theirs(row: dict[str, Any], name: str) -> str:
    """Another planner's plan: how far it lies above the bound, and its seconds."""
    made = row.get(name) or {"result": "not run"}
    if made["result"] != "planned":
        return {"out-of-time": "none in time", "unsuited": "not for it"}.get(made["result"], made["result"])
    gap = 100 * (made["peak"] / row["bound"] - 1)
    return f"{'optimal' if made['peak'] == row['bound'] else f'{gap:+.3f} %'}, {made['seconds']:.2f} s"


def table(runs: dict[int, list[dict[str, Any]]]) -> str:
    """All runs side by side."""
    head = ["instance", "buffers", "bound, B", "best known, B"]
    head += [f"{limit} s" for limit in runs]
    others = [(title, limit) for title in ("MiniMalloc", "idealloc") for limit in runs if any(title.lower() in row for row in runs[limit])]
    head += [f"{title}, {limit} s" for title, limit in others]
    lines = [head]
    for rows in zip(*runs.values()):
        first, by_limit = rows[0], dict(zip(runs, rows))
        line = [first["name"], str(first["buffers"]), str(max(row["bound"] for row in rows)), str(first["known"])]
        line += [ours(row) for row in rows]
        line += [theirs(by_limit[limit], title.lower()) for title, limit in others]
        lines.append(line)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def main() -> None:
    """Builds, measures and writes."""
    asked = arguments()
    program = asked.program
    if program is None:
        subprocess.run(["cargo", "build", "--release", "--quiet", "--package", "allotment-cli"], check=True, cwd=ROOT)
        program = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "allotment"
    loads = [os.getloadavg()[1]]
    runs = {}
    for limit in asked.limits:
        runs[limit] = measured(program, asked, limit)
        loads.append(os.getloadavg()[1])
    limits = ", ".join(str(limit) for limit in runs)
    text = f"""### The collection of instances, beside MiniMalloc and idealloc

* machine: {os.cpu_count()} cores, load averages of {min(loads):.0f} to {max(loads):.0f}
* compiler: {printed("rustc", "--version").strip()}, release; allotment at {printed("git", "describe", "--always", "--dirty").strip()}
* command: planner/instances/tables.py --minimalloc PROGRAM --idealloc PROGRAM{"".join(f" --alone {limit}" for limit in asked.alone)}

One search of each length ({limits} s), {asked.threads} threads. How far the peak lies above the bound, and the seconds after which it was found. \
MiniMalloc is asked for a plan of our peak, and idealloc makes one plan; both get the same time on one thread. *failed*: it ended \
without a plan.

"""
    prose = "".join(f"# {line}\n" if line else "\n" for line in text.splitlines())
    asked.output.write_text(prose + table(runs))
    print(f"{asked.output} is written")


if __name__ == "__main__":
    main()
