"""``python -m latchwork`` is the command ``latchwork``, which ``latchwork-cli`` installs beside Python."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Iterator, NoReturn


def _folders() -> Iterator[str]:
    yield sysconfig.get_path("scripts")
    # `pip install --user` and `pip install --target`.
    user = "nt_user" if os.name == "nt" else "posix_user"
    if sys.platform == "darwin" and sys._framework:
        user = "osx_framework_user"
    yield sysconfig.get_path("scripts", scheme=user)
    package = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(os.path.dirname(package), "bin")


def command() -> str:
    """Returns the path of the command."""
    tried = list(_folders())
    for folder in tried:
        path = os.path.join(folder, "latchwork")
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise SystemExit(f"latchwork: the command is in none of {', '.join(tried)}; install it: pip install latchwork-cli")


def main() -> NoReturn:
    """Becomes the command."""
    path = command()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
