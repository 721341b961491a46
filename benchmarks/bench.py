"""Measure every claim about speed and memory beside its strongest peer, and write one table.

    python benchmarks/bench.py [GROUP …] [--rounds 5] [--out benchmarks/results]
    python benchmarks/bench.py --quote

`make bench` is the first command, in an environment with all peers (the extra `bench`). A group is a module
of this folder with a function `rows(rounds)`. Groups run one after the other, each in a process pinned to
one core. The table goes to stdout and, with the versions and the processor, to DATE-PROCESSOR.md and .json
in `--out`, after each group; with AMX the name ends in -amx, with AVX-512 in -avx512. Groups that are not
run keep the rows that the files already have.

The whole table takes 45 to 70 minutes. With `--rounds 1`, a third of it is enough for a first look.

`--quote` brings the documents up to date: README.md and the pages of docs/ that name a file of results
take their figures from the file that they name last before a figure, or first of all. A figure is followed by
a comment with its row and field:

    tokens in a second: **4.8**<!-- training-tiny.ratio --> × as many

The tables of all processors are between two comments each, in docs/benchmarks.md.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from itertools import pairwise
from pathlib import Path
from typing import Any

from measure import DATA, set_up

FOLDER = Path(__file__).parent
GROUPS = (
    "tokenizer_peers",
    "tokenizer_costs",
    "starts",
    "examples",
    "wordpiece_trainer",
    "training",
    "finetuning",
    "embedding",
    "inference",
    "inference_base",
    "classification",
    "features",
    "squad",
    "checkpoint",
    "scaling",
    "memory",
)
PACKAGES = [
    "torch",
    "numpy",
    "numba",
    "transformers",
    "tokenizers",
    "tokie",
    "iree-tokenizer",
    "nanotoken",
    "sentence-transformers",
    "onnxruntime",
    "openvino",
    "ctranslate2",
]
INSTRUCTIONS = ["avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_bf16", "amx_int8"]
# The endings of the names of files: a processor has the ending of the first of these that it has.
ENDINGS = {"amx_bf16": "-amx", "avx512f": "-avx512"}
# The columns of the table of all processors: files of results.
PROCESSORS = {
    "EPYC, AVX2": "2026-11-30-amd-epyc",
    "EPYC, Zen 4": "2026-11-29-amd-epyc-avx512",
    "EPYC, Zen 5": "2026-11-28-amd-epyc-avx512",
    "Xeon, 3rd gen.": "2026-11-29-intel-r-xeon-r-processor-2-80ghz-avx512",
    "Xeon, 5th gen.": "2026-11-29-intel-r-xeon-r-processor-avx512",
    "with AMX": "2026-11-29-intel-r-xeon-r-processor-amx",
}
ALL_PROCESSORS = re.compile(
    r"(?P<begin><!-- (?P<figure>\w+) on all processors -->\n\n).*?(?P<end>\n\n<!-- end -->)", re.DOTALL
)
DOCUMENTS = [FOLDER.parent / "README.md", *sorted((FOLDER.parent / "docs").rglob("*.md"))]
NAMED_RESULTS = re.compile(r"benchmarks/results/([\w.-]+)\.md")
QUOTED = re.compile(
    r"(?P<figure>-?[\d,]*\d(?:\.\d+)?)(?P<between>[^\d|<]*)<!-- (?P<row>[\w-]+)\.(?P<field>[\w.]+) -->"
)


def describe_machine() -> dict[str, Any]:
    """Describe this machine and the versions of both sides."""
    cpu = dict(
        line.split(":", 1)
        for line in Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        if ":" in line
    )
    cpu = {name.strip(): value.strip() for name, value in cpu.items()}
    flags = cpu.get("flags", cpu.get("Features", "")).split()
    return {
        "processor": cpu.get("model name", "unknown"),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
        "cores": os.cpu_count(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "versions": {name: found for name in PACKAGES if (found := find_version(name))},
    }


@cache  # the results of the first group change the checkout, but not the code that is measured
def find_commit() -> str:
    """Return the commit that is measured, with "-dirty" if files were changed since."""
    git = ["git", "-C", str(FOLDER), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def find_version(package: str) -> str | None:
    from importlib.metadata import version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run_group(name: str, rounds: int, output: Path) -> None:
    """Write the rows of a group to a file as they are measured, in this process."""
    set_up()
    commit = find_commit()
    with output.open("w") as file:
        for row in import_module(name).rows(rounds):
            circumstances = {"group": name, "load": round(os.getloadavg()[0], 1), "commit": commit}
            print(json.dumps({**row.as_dict(), **circumstances}), file=file, flush=True)
            print(f"{row.name}: {figures(row.as_dict())}", file=sys.stderr, flush=True)


def measure_group(name: str, rounds: int) -> tuple[list[dict[str, Any]], bool]:
    """Run a group in a separate process; return its rows, and whether it succeeded."""
    print(f"{name} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rows.jsonl"
        command = [sys.executable, __file__, name, "--rounds", str(rounds), "--rows", str(output)]
        succeeded = not subprocess.run(command).returncode
        return list(map(json.loads, output.read_text().splitlines() if output.exists() else [])), succeeded


def figures(row: dict[str, Any]) -> str:
    """Say a row in a line."""
    if "sizes" in row:
        return f"exponent {row['exponent']:.2f} (bar {row['bar']:g})"
    bar = "no bar" if row["bar"] is None else f"bar {row['bar']:g}, {'met' if row['met'] else 'MISSED'}"
    ours, theirs = show(row["ours"]), show(row["theirs"])
    return f"{ours} {row['unit']}, {row['peer']} {theirs}: {row['ratio']:.2f} ({bar})"


def show(number: float) -> str:
    """Return a number with three digits, or all before the decimal point."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def to_markdown(results: dict[str, Any]) -> str:
    """Return the tables of a file of results."""
    machine = results["machine"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items())
    commits = ", ".join(sorted({row["commit"] for row in results["rows"]}))
    lines = [
        f"# Measured on {results['date']}",
        "",
        f"`make bench`, {machine['processor']} ({', '.join(machine['instructions'])}), "
        f"{machine['cores']} cores, commit {commits}. Python {machine['python']}, {versions}.",
        "",
        "Each side has one thread on one core unless the claim says otherwise. Figures are of processor",
        "time. A ratio is the median over alternating rounds, with the lowest and the highest beside it;",
        "`clock` is the same ratio of the time on the clock, and `load` the load average.",
        "",
        "| row | claim | peer | unit | bertie | peer | ratio | spread | clock | bar | met | load |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in (row for row in results["rows"] if "sizes" not in row):
        low, high = row["spread"]
        clock = f"{row['clock_ratio']:.2f}" if row["clock_ratio"] else ""
        bar = "" if row["bar"] is None else f"{'≤' if row['at_most'] else '≥'} {row['bar']:g}"
        met = {True: "yes", False: "**no**", None: ""}[row["met"]]
        cells = [row["name"], row["claim"], row["peer"], row["unit"], show(row["ours"]), show(row["theirs"])]
        cells += [f"**{row['ratio']:.2f}**", f"{low:.2f}–{high:.2f}", clock, bar, met, f"{row['load']}"]
        lines.append(f"| {' | '.join(cells)} |")
        notes += [f"- {row['name']}: {row['note']}"] if row["note"] else []
    lines += [
        "",
        "## Cost as work grows",
        "",
        "An exponent of 1 is linear, of 0 constant. It is fitted to all sizes; `last` is the exponent from",
        "the last size but one to the last.",
        "",
        "| row | claim | sizes | costs | exponent | last | bar | met | load |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for row in results["rows"] if "sizes" in row):
        costs = f"{', '.join(map(show, row['costs']))} {row['unit']}"
        met = "yes" if row["met"] else "**no**"
        cells = [row["name"], row["claim"], ", ".join(f"{size:,.0f}" for size in row["sizes"]), costs]
        cells += [
            f"**{row['exponent']:.2f}**",
            f"{row['last_exponent']:.2f}",
            f"≤ {row['bar']:g}",
            met,
            f"{row['load']}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        notes += [f"- {row['name']}: {row['note']}"] if row["note"] else []
    return "\n".join([*lines, *(["", "## Notes", "", *notes] if notes else []), ""])


def quote(text: str, results: dict[str, Any]) -> str:
    """Return a document with its marked figures from a file of results, with as many decimals as before.

    Raises:
        KeyError: the document names a row or a field that the results lack.
    """
    rows = {row["name"]: row for row in results["rows"]}

    def replace(match: re.Match[str]) -> str:
        field, _, index = match["field"].partition(".")  # such as costs.0
        value = rows[match["row"]][field]
        if index:
            value = value[int(index)]
        decimals = len(match["figure"].partition(".")[2])
        comment = match[0][len(match["figure"]) + len(match["between"]) :]
        return f"{value:,.{decimals}f}{match['between']}{comment}"

    return QUOTED.sub(replace, text)


def compare_processors(results: dict[str, dict[str, Any]], figure: str) -> str:
    """Return a table of all rows that have a bar, with a column for each processor.

    Args:
        results: contents of the files of results, by the heading of their column.
        figure: `ratio` or `exponent`, the field that the table shows; bold if the bar was missed.
    """
    found = {heading: {row["name"]: row for row in file["rows"]} for heading, file in results.items()}
    # The longest list first, since only some processors have rows in bfloat16.
    names = dict.fromkeys(name for rows in sorted(found.values(), key=len, reverse=True) for name in rows)
    columns = ["", *(["peer"] if figure == "ratio" else []), "bar", *found]
    table = [columns, ["---"] * len(columns)]
    for rows in ([of_processor.get(name) for of_processor in found.values()] for name in names):
        row = next(filter(None, reversed(rows)))
        if figure not in row or row["bar"] is None:
            continue
        cells = [re.sub(r" \([^)]*\)$", "", row["claim"])]  # without the engine, which differs
        if figure == "ratio":  # without the versions, and without how a peer is used
            peers = dict.fromkeys(re.sub(r"(,| \d).*", "", row["peer"]) for row in rows if row)
            cells.append(" or ".join(peers))
        cells.append(f"{'≤' if row.get('at_most', True) else '≥'} {row['bar']:g}")
        for row in rows:
            emphasis = "" if row is None or row["met"] else "**"
            cells.append("" if row is None else f"{emphasis}{row[figure]:.2f}{emphasis}")
        table.append(cells)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in table)


def read_results(name: str) -> dict[str, Any]:
    """Return the contents of a file of results."""
    results: dict[str, Any] = json.loads((FOLDER / "results" / f"{name}.json").read_text())
    return results


def update(text: str) -> str:
    """Return a document with its marked figures, and the tables of all processors, from the files of results.

    A figure is from the file that is named last before it, or from the first one.
    """

    def replace(match: re.Match[str]) -> str:
        files = {heading: read_results(name) for heading, name in PROCESSORS.items()}
        return match["begin"] + compare_processors(files, match["figure"]) + match["end"]

    text = ALL_PROCESSORS.sub(replace, text)
    named = list(NAMED_RESULTS.finditer(text))
    bounds = [0, *(match.start() for match in named[1:]), len(text)]
    return "".join(
        quote(text[begin:end], read_results(match[1]))
        for match, (begin, end) in zip(named, pairwise(bounds), strict=True)
    )


def quoted_documents() -> list[Path]:
    """Return the documents that name a file of results."""
    return [path for path in DOCUMENTS if NAMED_RESULTS.search(path.read_text(encoding="utf-8"))]


def write_results(rows: list[dict[str, Any]], group: str | None, folder: Path, date: str) -> str:
    """Add the rows of a group to the files of results, or replace its former ones; return the table.

    A group that failed is None: its former rows are kept.
    """
    machine = describe_machine()
    slug = re.sub(r"\W+", "-", machine["processor"]).strip("-").lower()
    # Virtual machines have one name for several processors.
    slug += next((ending for name, ending in ENDINGS.items() if name in machine["instructions"]), "")
    path = folder / f"{date}-{slug}.json"
    if path.exists():
        former = json.loads(path.read_text())["rows"]
        rows = [row for row in former if row["group"] != group] + rows
    rows.sort(key=lambda row: GROUPS.index(row["group"]))
    results = {"date": date, "machine": machine, "rows": rows}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    table = to_markdown(results)
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(GROUPS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=FOLDER / "results", help="default: benchmarks/results")
    parser.add_argument("--quote", action="store_true", help="only bring figures in documents up to date")
    parser.add_argument("--rows", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.groups) - set(GROUPS):
        parser.error(f"unknown group {', '.join(sorted(unknown))}; choose from {', '.join(GROUPS)}")
    if options.quote:
        for path in quoted_documents():
            path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
        return
    if options.rows:
        (name,) = options.groups
        run_group(name, options.rounds, options.rows)
        return
    if not DATA.is_dir():
        parser.error(f"{DATA}: no data to measure with; set BERTIE_DATA to their folder")
    date, failed = datetime.date.today().isoformat(), []
    for name in options.groups or GROUPS:
        rows, succeeded = measure_group(name, options.rounds)
        if not succeeded:
            failed.append(name)
        # After each group, so that a stop loses only the group that it interrupts.
        table = write_results(rows, name if succeeded else None, options.out, date)
    print(table)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
