"""Says what pyproject.toml says of versions: `pythons` of its classifiers, or the `lowest` of every dependency.

The lowest are lines for `pip install --constraint`, of the dependencies and of those extras that are named behind it.
"""

import re
import sys
import tomllib
from pathlib import Path

_PYTHON = re.compile(r"Programming Language :: Python :: (\d+\.\d+)")
_ALLOWED = re.compile(r"([\w.-]+)>=([\w.]+)")


def pythons(project: dict) -> list[str]:
    """The versions of Python that the classifiers name, such as 3.11."""
    return [found[1] for line in project["classifiers"] if (found := _PYTHON.fullmatch(line))]


def lowest(project: dict, extras: list[str]) -> list[str]:
    """The lowest version of each dependency that the project allows, as a constraint.

    Raises:
        ValueError: A dependency says no lowest version, or more than that.
    """
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    if unclear := [line for line in wanted if not _ALLOWED.fullmatch(line)]:
        raise ValueError(f"no lowest version, and nothing else, is said of {', '.join(unclear)}")
    return [_ALLOWED.sub(r"\1==\2", line) for line in wanted]


if __name__ == "__main__":
    declared = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    what, *named = sys.argv[1:]
    print("\n".join({"pythons": lambda: pythons(declared), "lowest": lambda: lowest(declared, named)}[what]()))
