"""Kill a pre-training run again and again, and compare it with one that nobody disturbed.

    python benchmarks/long_run.py RECIPE CORPUS OUT [--kill-every SECONDS] [OPTION...]

RECIPE and OPTION go to `bertie pretrain`, such as `--set save_every=500`. The run OUT/killed gets
SIGKILL every SECONDS (120 unless given) and resumes, until it has finished. Meanwhile the run
OUT/undisturbed has the same settings. The benchmark prints the resident memory of each process and
compares the two runs: the model, the optimizer and the metrics (without timings) must be equal byte
for byte. The exit status is 1 if they differ.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from bertie.training.metrics_file import read_metrics

TIMINGS = ("seconds", "tokens_per_second")
WARM_UP_SECONDS = 30  # imports, compilation and the first steps
SAMPLE_SECONDS = 5


def resident_memory(pid: int) -> float:
    """Return the resident memory of a process, in MiB; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024


def run(name: str, arguments: Sequence[object], kill_after: float | None) -> bool:
    """Run `bertie pretrain`, kill it after some seconds, and return whether it finished before."""
    process = subprocess.Popen([sys.executable, "-m", "bertie", "pretrain", *map(str, arguments)])
    started, samples = time.monotonic(), []
    while process.poll() is None:
        elapsed = time.monotonic() - started
        if kill_after is not None and elapsed >= kill_after:
            process.kill()
            process.wait()
            break
        if elapsed >= WARM_UP_SECONDS:
            samples.append(resident_memory(process.pid))
        time.sleep(SAMPLE_SECONDS)
    samples = [sample for sample in samples if sample]
    memory = f"{samples[0]:.0f} → {samples[-1]:.0f}, at most {max(samples):.0f}" if samples else "too short"
    print(
        f"{name}: {time.monotonic() - started:6.0f} s, exit status {process.returncode:>3}, "
        f"RSS in MiB: {memory}",
        flush=True,
    )
    if process.returncode > 0:
        sys.exit(f"long_run: a run failed with exit status {process.returncode}")
    return process.returncode == 0


def run_killed(arguments: Sequence[object], out: Path, kill_every: float) -> int:
    """Kill and resume a run until it has finished; return the number of kills."""
    kills, resume = 0, list[str]()
    while not run("killed", [*arguments, out, *resume], kill_every):
        kills += 1
        resume = ["--resume"] if (out / "settings.toml").exists() else []
    return kills


def read_run(directory: Path) -> dict[str, Any]:
    """Return what two equal runs have in common: files by name, and metrics without timings."""
    files: dict[str, Any] = {
        str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*.safetensors")
    }
    rows = read_metrics(directory / "metrics.jsonl")
    files["metrics.jsonl"] = [{k: v for k, v in row.items() if k not in TIMINGS} for row in rows]
    return files


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kill-every", type=float, default=120)
    arguments, options = parser.parse_known_args()
    command = [arguments.recipe, "--corpus", arguments.corpus, *options, "--out"]
    killed, undisturbed = arguments.out / "killed", arguments.out / "undisturbed"
    with ThreadPoolExecutor() as threads:
        counted = threads.submit(run_killed, command, killed, arguments.kill_every)
        threads.submit(run, "undisturbed", [*command, undisturbed], None).result()
        kills = counted.result()
    found, expected = read_run(killed), read_run(undisturbed)
    different = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    steps = expected["metrics.jsonl"][-1]["step"]
    print(f"{kills} kills in {steps:,} steps; files that differ: {', '.join(different) or 'none'}")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
