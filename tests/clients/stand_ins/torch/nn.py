class Module:
    """A type that no object has. Code that pickles objects asks for it."""
