class Module:
    """Nothing is one; who pickles asks."""
