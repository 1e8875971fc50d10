from typing import Generic, TypeVar

T = TypeVar("T", covariant=True)


class DataLoader(Generic[T]):
    """Yields one item after the other, in this process."""

    def __init__(self, dataset, collate_fn, batch_size=1, shuffle=False, **others):
        assert batch_size == 1 and not shuffle
        self.dataset, self.collate_fn = dataset, collate_fn

    def __iter__(self):
        return (self.collate_fn([item]) for item in self.dataset)
