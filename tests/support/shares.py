"""What keeps tests from holding nothing: loops over something, and property tests whose examples have cases.

A loop over an empty list passes; so does a property of rows where no example gives a row. :func:`some` refuses the
first. The second is a matter of shares: a property test says by :func:`holds` whether an example had a case, and by
:func:`cases` in which share of them it must, where these are enough to tell.
"""

from functools import wraps

#: Fewer examples say nothing of shares: those of the quick profile; the slow step draws more.
_ENOUGH = 20

#: How many examples the property test under way looked at, and how many of them had a case.
_counted = {"examples": 0, "cases": 0}


def some(values):
    """The `values` as a list, which is not empty."""
    found = [*values]
    assert found, "a loop over nothing holds nothing"
    return found


def holds(case):
    """Count one example, and whether it had a case; gives that, for what is held of it alone."""
    _counted["examples"] += 1
    _counted["cases"] += bool(case)
    return bool(case)


def cases(share):
    """Fail a property test, around whose `given` this stands, if fewer than this share of its examples had a case."""

    def decorate(test):
        @wraps(test)
        def run(*arguments, **fixtures):
            _counted.update(examples=0, cases=0)
            test(*arguments, **fixtures)
            examples, found = _counted["examples"], _counted["cases"]
            assert examples, "no example said whether it had a case"
            told = f"{found} of {examples} examples had a case, not {share:.0%}"
            assert examples < _ENOUGH or found >= share * examples, told

        return run

    return decorate
