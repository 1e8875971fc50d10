"""What must hold for every overlay. An invariant yields complaints, or none if it holds.

mutations_test.py breaks each of them.
"""

INVARIANTS = {}


def invariant(check):
    """Registers check(fleet), which yields a sentence for each thing that is wrong."""
    assert check.__name__ not in INVARIANTS
    INVARIANTS[check.__name__] = check
    return check
