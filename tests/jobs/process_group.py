"""process_group.py: a torch.distributed back end in Python, on NCCL's C interface through ctypes.

It exists because torch's own NCCL back end needs a GPU build. CPU tensors are host memory, which is what hostnccl's
NCCL works on. Every operation is enqueued on one stream and returns at once; a thread waits for its event and completes
the work's future, so that DistributedDataParallel overlaps communication with the backward pass as it does elsewhere.
"""
import queue
import threading

import torch
import torch.distributed as dist
from nccl import FLOAT32, FLOAT64, INT32, INT64, INT8, MAX, SUM, Cuda, Nccl, UniqueId
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future

TYPE = {torch.float32: FLOAT32, torch.float64: FLOAT64, torch.int32: INT32, torch.int64: INT64, torch.int8: INT8}
OP = {dist.ReduceOp.SUM: SUM, dist.ReduceOp.MAX: MAX}
NAME = "hostnccl"


class HostNcclGroup(dist.ProcessGroup):
    def __init__(self, store, rank, size):
        super().__init__(rank, size)
        self.nccl, self.cuda = Nccl(), Cuda()
        self.stream = self.cuda.stream()
        if rank == 0:
            store.set("unique-id", bytes(self.nccl.unique_id()))
        self.comm = self.nccl.init(size, UniqueId.from_buffer_copy(store.get("unique-id")), rank)
        self.pending = queue.SimpleQueue()
        threading.Thread(target=self._complete, daemon=True).start()

    def _complete(self):
        while True:
            event, future, tensors, finish = self.pending.get()
            self.cuda.wait(event)
            if finish:
                finish()
            future.set_result(tensors)

    def _work(self, tensors, finish=None):
        event, future = self.cuda.event(), Future()
        self.cuda.record(event, self.stream)
        self.pending.put((event, future, tensors, finish))
        return _create_work_from_future(future)

    def allreduce(self, tensors, opts=None):
        (tensor,) = tensors
        assert tensor.is_contiguous()
        op = OP[opts.reduceOp] if opts else SUM
        self.nccl.all_reduce(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), TYPE[tensor.dtype], op, self.comm,
                             self.stream)
        return self._work(tensors)

    def broadcast(self, tensors, opts=None):
        (tensor,) = tensors
        assert tensor.is_contiguous()
        root = opts.rootRank if opts else 0
        self.nccl.broadcast(tensor.data_ptr(), tensor.data_ptr(), tensor.numel(), TYPE[tensor.dtype], root, self.comm,
                            self.stream)
        return self._work(tensors)

    def allgather(self, outputs, tensors, opts=None):
        (tensor,), (places,) = tensors, outputs
        tensor = tensor.contiguous()
        flat = torch.empty(self.size() * tensor.numel(), dtype=tensor.dtype)
        self.nccl.all_gather(tensor.data_ptr(), flat.data_ptr(), tensor.numel(), TYPE[tensor.dtype], self.comm,
                             self.stream)

        def finish():
            for place, part in zip(places, flat.chunk(len(places))):
                place.copy_(part.view_as(place))

        return self._work(outputs, finish)

    def barrier(self, opts=None):
        return self.allreduce([torch.zeros(1)])

    def getBackendName(self):
        return NAME


groups = []  # torch keeps no reference to the Python half


def create(store, rank, size, timeout):
    groups.append(HostNcclGroup(store, rank, size))
    return groups[-1]


dist.Backend.register_backend(NAME, create)
