"""Functions of scipy.special alone: the same ones, and the package is whole for whoever imports it."""

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from scipy import special

from kanalyze.machinery import distributions as module
from kanalyze.machinery.distributions import Distributions, distributions

ALONE = """
import sys
from kanalyze.machinery.distributions import distributions
found = distributions()
print("scipy.special" in sys.modules)
import scipy.stats
from scipy import special
print(special.stdtrit is found.stdtrit, float(scipy.stats.t.ppf(0.975, 3)) == float(found.stdtrit(3, 0.975)))
print(special.digamma is found.digamma, float(special.polygamma(1, 2.5)) == float(found.zeta(2, 2.5)))
"""


@pytest.fixture(autouse=True)
def again():
    """Each test looks for the functions anew, and leaves nothing."""
    distributions.cache_clear()
    yield
    distributions.cache_clear()


@pytest.mark.slow
def test_the_package_is_not_imported_and_can_be_imported_later():
    words = [sys.executable, "-c", ALONE]
    ran = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603 - this very Python
    assert ran.stdout.split() == ["False", "True", "True", "True", "True"]


@pytest.mark.slow
def test_beside_another_thread_the_package_is_imported():
    code = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()" + ALONE
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - as above
    assert ran.stdout.split()[0] == "True"


@pytest.mark.parametrize("alone", [None, ModuleType("empty")])
def test_without_the_compiled_module_or_its_names_the_functions_are_the_package_s(monkeypatch, alone):
    monkeypatch.setattr(module, "_ufuncs", lambda: alone)
    assert distributions() == Distributions(*(getattr(special, name) for name in Distributions._fields))


def test_zeta_has_the_derivatives_of_digamma():
    at = np.geomspace(0.1, 1000, 50)
    zeta = distributions().zeta
    assert zeta(2, at) == pytest.approx(special.polygamma(1, at), rel=1e-14)
    assert -2 * zeta(3, at) == pytest.approx(special.polygamma(2, at), rel=1e-14)
