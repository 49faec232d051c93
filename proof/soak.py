#!/usr/bin/env python3
"""Runs what searches for faults, for hours or on each version of each server. From the root of the repository:

cargo xtask soak --hours 8 [--round 120] [--seeds 1000] [--at-once 1] [--only WORD]...
    in rotation: the nemesis on each of its stores, the simulation, the contract of each crate. It begins where the
    last one on the same commit has ended, and adds a section to proof/RECORD.md.
cargo xtask matrix [NAME@VERSION]...
    on each version: the contract of its store, and the nemesis for a minute. It writes the rows of docs/servers.md.
"""

import argparse
import collections
import datetime
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "target/soak"
RECORD = ROOT / "proof/RECORD.md"
BEGIN = "<!-- Each section below is written by `cargo xtask soak`, which keeps the newest three. -->\n"
KEPT = 3
# Those that are under way, each with a process group of its own.
JOBS = set()
PAGE = ROOT / "docs/servers.md"
# A server of proof/services/servers.tsv: the variable that chooses it, the crate of its contract, the nemesis' store.
KINDS = {
    "redis": ("LATCHWORK_REDIS", "latchwork-redis", "redis"),
    "valkey": ("LATCHWORK_REDIS", "latchwork-redis", "redis"),
    "etcd": ("LATCHWORK_ETCD", "latchwork-etcd", "etcd"),
    "zookeeper": ("LATCHWORK_ZOOKEEPER", "latchwork-zookeeper", "zookeeper"),
    "postgres": ("LATCHWORK_POSTGRES", "latchwork-postgres", "postgres"),
    "kube-apiserver": ("LATCHWORK_KUBE_APISERVER", "latchwork-kubernetes", "kubernetes"),
}


def output(*command):
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def program(name):
    return str(ROOT / "target/release" / name)


def build():
    command = ["cargo", "build", "--quiet", "--release", "-p", "latchwork-nemesis", "-p", "latchwork-simulate"]
    subprocess.run(command, cwd=ROOT, check=True)


def contract(package, *more):
    return ["cargo", "test", "-q", "-p", package, "--all-features", "--test", "contract", "--", *more]


def nemesis(words, seconds):
    return [program("latchwork-nemesis"), "run", *words, "--for", f"{seconds}s"]


def stores():
    """Each store that the nemesis can break here, with the words of its run."""
    rows = (line.split("\t") for line in output(program("latchwork-nemesis"), "stores").splitlines())
    return {name: words.split() for name, words in rows}


def versions():
    """The newest of each server, which the nemesis runs on unless a variable chooses another, and the kernel."""
    newest = {}
    for line in (ROOT / "proof/services/servers.tsv").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, version = line.split("\t")[:2]
            newest[name] = version
    chosen = ", ".join(f"{name} {newest[name]}" for name in KINDS if name in newest)
    return f"{chosen}, {os.uname().sysname} {os.uname().release}."


def stop(job):
    """Ends all that a job has started, and what it has left."""
    JOBS.discard(job)
    for sign in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(job.pid, sign)
            job.wait(10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def run(command, log, **environment):
    """Runs a job; what it examined and found, and whether it is well."""
    with open(log, "w", encoding="utf-8") as file:
        job = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file, env=os.environ | environment, start_new_session=True)
    JOBS.add(job)
    code = job.wait()
    stop(job)
    text = pathlib.Path(log).read_text(encoding="utf-8", errors="replace")
    found = collections.Counter()
    for holds, faults in re.findall(r"events, (\d+) holds, (\d+) faults", text):
        found.update(holds=int(holds), faults=int(faults))
    for passed, failed in re.findall(r"test result: \w+\. (\d+) passed; (\d+) failed", text):
        found.update(checked=int(passed), violations=int(failed))
    for checked, excused, violations in re.findall(r"^[\w-]+ +(\d+) +(\d+) +(\d+) ", text, re.M):
        found.update(checked=int(checked), excused=int(excused), violations=int(violations))
    found.update(checked=sum(int(n) for n in re.findall(r"^(\d+) seeds from \d+ break no rule", text, re.M)))
    # An exit code alone is not enough: a job says that it has done its work.
    well = code == 0 and found["checked"] > 0 and found["violations"] == 0
    history = re.search(r"logs in (\S*/latchwork-nemesis-\S+)", text)
    if well:
        pathlib.Path(log).unlink()
        if history:
            shutil.rmtree(history[1], ignore_errors=True)
    return found, well, text


def soak(asked):
    build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    manifests = sorted(ROOT.glob("crates/*/tests/contract*"))
    suites = [(f"contract {it.parent.parent.name}", contract(it.parent.parent.name)) for it in manifests]
    broken = [(f"nemesis {name}", nemesis(words, asked.round)) for name, words in stores().items()]
    jobs = [job for three in itertools.zip_longest(broken, [("simulation", None)] * len(broken), suites) for job in three]
    jobs = [job for job in jobs if job and (not asked.only or any(word in job[0] for word in asked.only))]
    commit, state = output("git", "rev-parse", "--short=10", "HEAD"), FOLDER / "state.json"
    done = json.loads(state.read_text()) if state.exists() else {}
    if done.get("commit") != commit:
        done = {"commit": commit, "began": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M}", "versions": versions(), "jobs": 0, "rows": {}, "failed": []}
    end, numbers, lock = time.monotonic() + asked.hours * 3600, itertools.count(done["jobs"]), threading.Lock()

    def work():
        while time.monotonic() < end:
            with lock:
                number = next(numbers)
            name, command = jobs[number % len(jobs)]
            if command is None:
                command = [program("latchwork-simulate"), "--seeds", str(asked.seeds), "--from", str(number * asked.seeds)]
            begun, log = time.monotonic(), FOLDER / f"{number}.txt"
            found, well, _ = run(command, log)
            if not end:
                return
            with lock:
                row = collections.Counter(done["rows"].get(name, {}))
                row.update(found, hours=(time.monotonic() - begun) / 3600, runs=1, failed=int(not well))
                done["rows"][name] = row
                done["failed"] += [] if well else [f"{name}: `target/soak/{number}.txt`"]
                done["jobs"] += 1
                state.write_text(json.dumps(done))
                record(done)
            print(f"{name}: {'ok' if well else 'FAILED, see ' + str(log)}, {dict(found)}", flush=True)

    workers = [threading.Thread(target=work, daemon=True) for _ in range(asked.at_once)]
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        # No worker begins another job; main() stops those that are under way.
        end = 0
        print("interrupted: the jobs under way are not counted")
    return done["jobs"] > 0 and not done["failed"]


def record(done):
    """Puts the section of this soak on top of the others, in place of itself."""
    head = f"## {done['began']}, Latchwork {done['commit']}\n"
    columns = ["runs", "failed", "holds", "checked", "faults", "excused"]
    cells = {name: [f"{row['hours']:.2f}", *(str(row.get(it, 0)) for it in columns)] for name, row in sorted(done["rows"].items())}
    rows = "".join(f"| {' | '.join([name, *row])} |\n" for name, row in cells.items())
    failed = "".join(f"- {line}\n" for line in done["failed"]) or "No job has found something.\n"
    titles = " | ".join(["job", "hours", *columns])
    text = f"{head}\n{done['versions']}\n\n| {titles} |\n|{' --- |' * (len(columns) + 2)}\n{rows}\n{failed}\n"
    before, after = RECORD.read_text(encoding="utf-8").split(BEGIN)
    others = [one for one in re.split(r"^(?=## )", after, flags=re.M) if one.startswith("## ") and not one.startswith(head)]
    RECORD.write_text(f"{before}{BEGIN}\n{text}{''.join(others[:KEPT - 1])}", encoding="utf-8")


def matrix(asked):
    build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = (ROOT / "proof/services/servers.tsv").read_text(encoding="utf-8").splitlines()
    known = ["@".join(line.split("\t")[:2]) for line in lines if not line.startswith("#")]
    known = [server for server in known if server.split("@")[0] in KINDS]
    offered, all_well = stores(), True
    for server in asked.servers or known:
        if server not in known:
            sys.exit(f"{server} is none of {', '.join(known)}")
        variable, package, store = KINDS[server.split("@")[0]]
        # As many trials at a time as in CI; Valkey is a form of its own there, beside the server that is chosen here.
        threads = "4" if store in ("postgres", "kubernetes") else "10"
        log = FOLDER / f"{server}.txt"
        trials, is_well, text = run(contract(package, "--skip", "valkey::", "--test-threads", threads), log, **{variable: server})
        last = text.rsplit("\nfailures:\n", 1)
        again = re.findall(r"^    (\S+)$", last[1], re.M) if len(last) > 1 else []
        again = sum(run(contract(package, "--exact", name), FOLDER / "again.txt", **{variable: server})[1] for name in again)
        faults, well, _ = run(nemesis(offered[store], 60), FOLDER / f"{server}-nemesis.txt", **{variable: server})
        passed, all_trials = trials["checked"] + again, trials["checked"] + trials["violations"]
        all_well &= well and (is_well or again > 0) and passed == all_trials > 0
        second = f", {again} at a second try" if again else ""
        name, holds = server.replace("@", " "), f"{faults['holds']} holds, {faults['violations']} violations"
        row = f"| {name} | {passed} of {all_trials}{second} | {holds} | {datetime.date.today()} |"
        page = PAGE.read_text(encoding="utf-8")
        # What differs for its users is written by hand, in the last column. A new row comes last.
        new, count = re.subn(rf"^\| {re.escape(name)} \|.*?\|.*?\|.*?\|", lambda _: row, page, flags=re.M)
        page = new if count else re.sub(r"\n\n(?!\|)(?=[^|]*\Z)", lambda _: f"\n{row}  |\n\n", page, count=1)
        PAGE.write_text(page, encoding="utf-8")
        print(row, flush=True)
    return all_well


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("soak")
    one.add_argument("--hours", type=float, required=True)
    one.add_argument("--round", type=float, default=120, help="seconds of one run of the nemesis")
    one.add_argument("--at-once", type=int, default=1, help="jobs at a time, each with servers of its own")
    one.add_argument("--seeds", type=int, default=1000)
    one.add_argument("--only", action="append", default=[])
    one.set_defaults(run=soak)
    one = commands.add_parser("matrix")
    one.add_argument("servers", nargs="*")
    one.set_defaults(run=matrix)
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        sys.exit(not asked.run(asked))
    finally:
        for job in list(JOBS):
            stop(job)


if __name__ == "__main__":
    main()
