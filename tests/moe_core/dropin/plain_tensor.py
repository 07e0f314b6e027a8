"""As much of a tensor as rollcall.moe.layout and rollcall.moe.shards ask for, without PyTorch."""
import itertools


class Tensor:
    """Numbers with a shape; those that nothing has written are None."""

    def __init__(self, shape, memory=None, stride=None, offset=0):
        self.shape, self.offset, size = tuple(shape), offset, 1
        self.stride = stride or self.strides()
        for length in self.shape:
            size *= length
        self.memory = memory if memory is not None else [None] * size

    def strides(self):
        made = []
        for length in reversed(self.shape):
            made.insert(0, made[0] * before if made else 1)
            before = length
        return tuple(made)

    def places(self):
        return [self.offset + sum(i * s for i, s in zip(index, self.stride))
                for index in itertools.product(*map(range, self.shape))]

    def at(self, *index):
        return self.memory[self.offset + sum(i * s for i, s in zip(index, self.stride))]

    def new_empty(self, shape):
        return Tensor(shape)

    def as_strided(self, shape, stride, offset):
        return Tensor(shape, self.memory, stride, offset)

    def narrow(self, dim, offset, size):
        shape = self.shape[:dim] + (size,) + self.shape[dim + 1:]
        if not 0 <= offset <= offset + size <= self.shape[dim]:
            raise AssertionError(f"{offset} and {size} in {self.shape[dim]}")
        return Tensor(shape, self.memory, self.stride, self.offset + offset * self.stride[dim])

    def copy_(self, other):
        if self.shape != other.shape:
            raise AssertionError(f"{other.shape} copied to {self.shape}")
        for to, value in zip(self.places(), other.places()):
            self.memory[to] = other.memory[value]

    def detach(self):
        return self

    def contiguous(self):
        return self

    def storage_offset(self):
        return self.offset
