from . import data  # noqa: F401: torch.utils.data
