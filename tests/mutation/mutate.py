"""Changes one place of a module at a time, in a clone, and names the changes that no test sees.

python -m tests.mutation.mutate units --sample 100: the file units.toml beside this one says what is
mutated, and by which tests. What is committed is cloned, so that a mutant never stands in a working tree.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent


def prepare(subject: str, clone: Path, session: Path) -> dict[str, str]:
    """The clone, whose tests pass, with a session of all mutants; and the environment to run them in."""
    subprocess.run(["git", "clone", "--quiet", str(HERE.parents[1]), str(clone)], check=True)
    config = clone / "tests" / "mutation" / f"{subject}.toml"
    paths = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {**os.environ, "PYTHONPATH": str(clone), "PATH": os.pathsep.join(paths)}
    environment["MODELBUDGET_WITHOUT_TORCH"] = "1"
    for command in (
        ["cosmic-ray", "init", str(config), str(session)],
        ["cr-filter-operators", str(session), str(config)],
        ["cosmic-ray", "baseline", str(config)],
        # Mutants change faster than a file's time: bytecode is held against the source itself.
        [sys.executable, "-m", "compileall", "-qf", "--invalidation-mode", "checked-hash", "pytest_modelbudget"],
    ):
        subprocess.run(command, cwd=clone, env=environment, check=True)
    return environment | {"PYTHONDONTWRITEBYTECODE": "1"}


def keep_sample(session: Path, count: int, seed: int) -> int:
    """Leave so many mutants at random in the session, and say how many there were."""
    with closing(sqlite3.connect(session)) as store, store:
        store.execute("DELETE FROM work_items WHERE job_id IN (SELECT job_id FROM work_results)")
        store.execute("DELETE FROM mutation_specs WHERE job_id NOT IN (SELECT job_id FROM work_items)")
        store.execute("DELETE FROM work_results")
        jobs = store.execute(
            "SELECT job_id FROM mutation_specs ORDER BY module_path, operator_name, occurrence"
        ).fetchall()
        left_out = random.Random(seed).sample(jobs, max(0, len(jobs) - count))
        store.executemany("DELETE FROM work_items WHERE job_id = ?", left_out)
        store.executemany("DELETE FROM mutation_specs WHERE job_id = ?", left_out)
    return len(jobs)


def report(session: Path) -> None:
    """Every mutant that lives, as a change; then the counts."""
    with closing(sqlite3.connect(session)) as store:
        results = store.execute("SELECT test_outcome, diff FROM work_results ORDER BY diff").fetchall()
    for outcome, diff in results:
        if outcome != "KILLED":
            print(outcome, "", *(line for line in diff.splitlines() if line[:1] in "@+-"), sep="\n")
    counts = Counter(outcome for outcome, _ in results)
    print(", ".join(f"{count} {outcome.lower()}" for outcome, count in sorted(counts.items())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=sorted(path.stem for path in HERE.glob("*.toml")))
    parser.add_argument("--sample", type=int, default=sys.maxsize, help="how many mutants, drawn at random; else all")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    clone, session = folder / "clone", folder / "session.sqlite"
    try:
        environment = prepare(arguments.subject, clone, session)
        count = keep_sample(session, arguments.sample, arguments.seed)
        print(f"{min(arguments.sample, count)} of {count} mutants of {arguments.subject}", flush=True)
        config = clone / "tests" / "mutation" / f"{arguments.subject}.toml"
        subprocess.run(["cosmic-ray", "exec", str(config), str(session)], cwd=clone, env=environment, check=True)
        report(session)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
