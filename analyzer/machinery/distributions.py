"""The functions of scipy.special that statistics need, without the rest of that package."""

from __future__ import annotations

import sys
import threading
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

_PACKAGE: Final = "scipy.special"


class Distributions(NamedTuple):
    """Functions of scipy.special, by their names there."""

    stdtr: Any
    stdtrit: Any
    nctdtr: Any
    fdtri: Any
    chdtri: Any
    digamma: Any
    zeta: Any  # Hurwitz', of two arguments


@cache
def distributions() -> Distributions:
    """The functions; the package is imported if they are not to be had alone.

    Importing scipy.special takes 0.25 s, since it makes numpy import what is only loaded on demand (f2py, testing,
    random, ma), and writes the documentation of each function. Two baselines are compared in 0.3 s without it, and in
    0.5 with it.
    """
    alone = _ufuncs()
    if alone is not None:
        names = {"digamma": "psi", "zeta": "_zeta"}
        found = [getattr(alone, names.get(name, name), None) for name in Distributions._fields]
        if None not in found:
            return Distributions(*found)
    package = import_module(_PACKAGE)
    return Distributions(*(getattr(package, name) for name in Distributions._fields))


def _ufuncs() -> ModuleType | None:
    """The compiled module in the package, whose own beginning is skipped; None where the package has to be imported.

    In the meantime the package stands empty among the modules, where another thread could find it: so only if there is
    none. Whoever imports the package later gets all of it.
    """
    if _PACKAGE in sys.modules or threading.active_count() > 1:
        return None
    spec = find_spec(_PACKAGE)
    if spec is None:
        return None
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        return import_module(f"{_PACKAGE}._ufuncs")
    except Exception:  # noqa: BLE001 - whatever another version needs of the package, that is imported then
        return None
    finally:
        del sys.modules[_PACKAGE]
