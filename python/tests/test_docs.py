"""The examples of the docstrings run, and the types are complete."""

import asyncio
import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import latchwork

MODULES = sorted(
    f"latchwork.{module.name}"
    for module in pkgutil.iter_modules(latchwork.__path__)
    if module.name not in ("_native", "__main__")
)


PAGES = Path(__file__).parent.parent / "README.md", *(
    Path(__file__).parent.parent.parent / "docs" / name for name in ("python.md", "python-migration.md")
)

#: What the examples of the pages take for granted.
GIVEN = """
from __future__ import annotations
from typing import List
import latchwork, pytest
from contextlib import AbstractContextManager
from latchwork import aio
locks: latchwork.Locks
def FileLock(path: str, timeout: int) -> AbstractContextManager[None]: raise NotImplementedError
def write(token: int) -> None: ...
async def work() -> None: ...
def count(guard: latchwork.Guard) -> None: ...
"""


class Finder(doctest.DocTestFinder):
    """Finds the examples of methods too, in whichever module their class is shown."""

    def _from_module(self, module, item):
        item = item.fget if isinstance(item, property) else item
        of = item.__globals__["__name__"] if inspect.isfunction(item) else getattr(item, "__module__", None)
        return str(of).split(".")[0] == "latchwork"


def examples():
    """The examples of all docstrings, each once."""
    found = {}
    for name in ["latchwork", *MODULES]:
        for test in Finder().find(importlib.import_module(name), extraglobs={}):
            if test.examples:
                found.setdefault(test.docstring, test)
    return list(found.values())


def blocks(page):
    return re.findall("```python\n(.*?)```", page.read_text(), re.DOTALL)


@pytest.mark.parametrize("test", examples(), ids=lambda test: test.name)
def test_the_examples_of_docstrings_run(test, monkeypatch):
    monkeypatch.setenv("LATCHWORK_STORE", "mem:")
    # A page says what it imports.
    test.globs = {}
    assert doctest.DocTestRunner().run(test).failed == 0


def test_the_examples_have_types(tmp_path):
    """`mypy --strict` and pyright accept the examples of all docstrings and pages."""
    texts = ["".join(example.source for example in test.examples) for test in examples()]
    texts += [block for page in PAGES for block in blocks(page)]
    names = [f"{'async ' if re.search('^async ', text, re.M) else ''}def example_{n}() -> None" for n, text in enumerate(texts)]
    program = tmp_path / "examples.py"
    program.write_text(GIVEN + "".join(f"{name}:\n{textwrap.indent(text, '    ')}\n" for name, text in zip(names, texts)))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", program]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
    said = pyright(program)
    assert said.returncode == 0, said.stdout


def test_both_apis_have_the_same_names():
    from latchwork import aio

    both = [(latchwork, aio), (latchwork.Locks, aio.Locks), (latchwork.Lock, aio.Lock), (latchwork.Guard, aio.Guard)]
    both += [(getattr(latchwork, name), getattr(aio, name)) for name in ("RWLock", "ReentrantLock", "Election", "Once", "Run")]
    for blocking, awaited in both:
        names = {name for name in dir(blocking) if not name.startswith("_")}
        missing = names - set(dir(awaited))
        if blocking is latchwork:
            # What neither waits nor is waited for is there once.
            shared = {name for name in names if inspect.isclass(getattr(latchwork, name)) or inspect.ismodule(getattr(latchwork, name))}
            missing -= shared | {"Duration", "default_store"}
        assert missing == set(), (blocking, missing)


def test_there_are_examples():
    assert sum(len(test.examples) for test in examples()) > 90
    assert {"Locks.synchronized", "Factory.rwlock"} <= {".".join(test.name.split(".")[-2:]) for test in examples()}


def test_the_types_are_complete():
    # The sources, beside which lie no other packages.
    package = Path(__file__).parent.parent / "package"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.9", "--cache-dir", "/dev/null"]
    said = subprocess.run([*command, "-p", "latchwork"], cwd=package, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout


def test_a_typed_program_is_accepted_and_runs():
    recipe = Path(__file__).parent.parent / "recipes" / "typed_stock.py"
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.9", "--cache-dir", "/dev/null"]
    said = subprocess.run([*command, recipe.name], cwd=recipe.parent, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout
    said = subprocess.run([sys.executable, recipe], capture_output=True, text=True)
    assert said.stdout == "['19', 'catalogue', 'gpu', 'a', 'b', 'account', 'me', 'Monday', 'Ada user/7', '7']\n", said
    # A mistake is found: the check does check.
    wrong = "import latchwork\nlatchwork.connect('mem:').lock('a').acquire(timeout='5')\n"
    said = subprocess.run([*command, "-c", wrong], cwd=recipe.parent, capture_output=True, text=True)
    assert said.returncode == 1 and "timeout" in said.stdout, said
    said = subprocess.run([*command, "-c", WRONG_CALLS], cwd=recipe.parent, capture_output=True, text=True)
    assert said.stdout.count("error: ") == 8, said


#: Decorators keep the parameters of a function, for threads and for tasks.
WRONG_CALLS = """
import latchwork, latchwork.aio
def threads(locks: latchwork.Locks) -> None:
    @locks.once("report", every="1d")
    def report(day: str) -> int:
        return 7
    report(1)
    report("Monday", x=5)
    report("Monday").value
async def tasks(locks: latchwork.aio.Locks) -> None:
    @locks.once("report", every="1d")
    async def report(day: str) -> int:
        return 7
    await report(1)
    @locks.synchronized("user/{user_id}")
    async def rename(user_id: int) -> str:
        return "renamed"
    await rename("7")
    (await rename(7)).upper()
def arguments_of_other_locks(locks: latchwork.Locks, tasks: latchwork.aio.Locks) -> None:
    locks.lock("a").acquire(blocking=False)
    locks.lock("a", timeout=30)
    latchwork.lock("a", sleep=0.1)
    tasks.lock("a", ttl=30).acquire(blocking_timeout=5)
"""


def pyright(*arguments):
    # It takes the Python that is first on the path.
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    command = [folder / "pyright", "--level", "error", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_pyright_accepts_a_typed_program_and_knows_every_type(tmp_path):
    said = pyright(Path(__file__).parent.parent / "recipes" / "typed_stock.py")
    assert said.returncode == 0, said.stdout
    # Everything public has a type, which others' checkers then see.
    said = pyright("--ignoreexternal", "--verifytypes", "latchwork")
    assert said.returncode == 0 and "completeness score: 100%" in said.stdout, said.stdout
    # A mistake is found: the check does check.
    wrong = tmp_path / "wrong.py"
    wrong.write_text("import latchwork\nlatchwork.connect('mem:').lock('a').acquire(timeout='5').token.upper()\n")
    said = pyright(wrong)
    assert said.returncode == 1 and "timeout" in said.stdout and "upper" in said.stdout, said.stdout
    wrong.write_text(WRONG_CALLS)
    assert pyright(wrong).stdout.count(" - error: ") == 8, pyright(wrong).stdout


def test_the_first_page_shows_code_that_runs(redis_server, monkeypatch):
    first = blocks(PAGES[0])
    assert len(first) == 3
    blocking, awaited, _ = (block.replace("redis://127.0.0.1:6379", redis_server) for block in first)
    written = []
    exec(blocking, {"write": lambda token: written.append(token)})
    assert written[0] > 0

    async def work():
        written.append("worked")

    names = {"work": work}
    exec("async def main():\n" + textwrap.indent(awaited, "    "), names)
    asyncio.run(names["main"]())
    assert written[1] == "worked"
    monkeypatch.setenv("LATCHWORK_STORE", redis_server)
    exec("import latchwork\n" + first[2], names)
    assert names["rename"](7, "Ada") is None


def test_the_other_pages_show_code_that_runs(tmp_path, monkeypatch):
    (test,), (both,) = (blocks(page) for page in PAGES[1:])
    # A user's test fails if the code under test goes on after the loss, and passes if it checks.
    given = "import latchwork, pytest\ndef count(guard):\n    guard.ensure_held()\n"
    for name, text, passes in ("good", given, True), ("bad", given.replace("guard.ensure_held()", "pass"), False):
        (tmp_path / f"test_{name}.py").write_text(text + test)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"test_{name}.py"]
        assert (subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0) == passes
    from filelock import FileLock

    with latchwork.connect("mem:") as locks:
        text = both.replace("...", "held.append(guard.ensure_held())")
        names = {"FileLock": lambda _, timeout: FileLock(tmp_path / "stock.lock", timeout=timeout), "locks": locks, "held": []}
        exec(text, names)
        assert names["held"] and locks.show("stock").is_free


def test_everything_public_has_a_docstring():
    missing = []
    for module in (latchwork, importlib.import_module("latchwork.aio")):
        for name in module.__all__:
            item = getattr(module, name)
            if name == "Duration":
                continue
            if not inspect.getdoc(item):
                missing.append(name)
            if inspect.isclass(item):
                for member, value in inspect.getmembers(item):
                    if not member.startswith("_") and callable(value) and not inspect.getdoc(value):
                        missing.append(f"{name}.{member}")
    assert missing == []


def test_a_program_of_threads_imports_what_it_uses():
    """The import of these takes longer than that of the package."""
    heavy = ["asyncio", "dataclasses", "inspect", "logging", "socket", "urllib.parse"]
    said = subprocess.run(
        [sys.executable, "-I", "-c", f"""
import sys
before = set(sys.modules)
import latchwork
with latchwork.connect("mem:") as locks, locks.lock("stock").acquire(timeout=5) as guard:
    guard.ensure_held()
print([name for name in {heavy} if name in set(sys.modules) - before])
"""], capture_output=True, text=True,
    )
    assert said.stdout == "[]\n", said
    assert {*latchwork.__all__} <= {*dir(latchwork)} and latchwork.Leader("me", 1).term == 1
    with pytest.raises(AttributeError, match="no attribute 'Lokcs'"):
        latchwork.Lokcs
