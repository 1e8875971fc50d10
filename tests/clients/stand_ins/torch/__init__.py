"""Stands in for PyTorch, which brings 3 GB of CUDA. GuideLLM uses only its data loader, and sends
and reads with its own code."""

from . import nn, utils  # noqa: F401: torch.nn, torch.utils

__version__ = "0"


class Tensor:
    """A type that no object has. Code that pickles objects asks for it."""


class Generator:
    """A generator that draws no number, because GuideLLM shuffles nothing."""

    def manual_seed(self, seed):
        return self
