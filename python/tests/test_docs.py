"""The examples of the docstrings run, and the types are complete."""

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import latchwork

MODULES = sorted(
    f"latchwork.{module.name}"
    for module in pkgutil.iter_modules(latchwork.__path__)
    if module.name not in ("_native", "__main__")
)


@pytest.mark.parametrize("name", ["latchwork", *MODULES])
def test_the_examples_of_docstrings_run(name, monkeypatch):
    monkeypatch.setenv("LATCHWORK_STORE", "mem:")
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    found = [doctest.DocTestFinder().find(importlib.import_module(name)) for name in ["latchwork", *MODULES]]
    assert sum(len(test.examples) for tests in found for test in tests) > 30


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
    assert said.stdout == "['19', 'catalogue', 'gpu', 'a', 'b', 'account', 'me', 'Monday', '7']\n", said
    # A mistake is found: the check does check.
    wrong = "import latchwork\nlatchwork.connect('mem:').lock('a').acquire(timeout='5')\n"
    said = subprocess.run([*command, "-c", wrong], cwd=recipe.parent, capture_output=True, text=True)
    assert said.returncode == 1 and "timeout" in said.stdout, said


def test_everything_public_has_a_docstring():
    import inspect

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
