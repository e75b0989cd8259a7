"""Fits y = A x on several ranks by averaged gradients, with numpy and ctypes alone.

    mpirun -n 3 python3 average.py path/to/libconvoy_comm.so
"""
import ctypes
import sys

import numpy as np

comm = ctypes.CDLL(sys.argv[1])
comm.convoy_comm_error.restype = ctypes.c_char_p


def check(code):
    if code != 0:
        sys.exit(f"convoy_comm: {comm.convoy_comm_error().decode()}")


def average(tensors):
    """The mean over all ranks, in place, of a list of float64 arrays."""
    pointers = (ctypes.c_void_p * len(tensors))(*[t.ctypes.data for t in tensors])
    counts = (ctypes.c_size_t * len(tensors))(*[t.size for t in tensors])
    check(comm.convoy_comm_average(0, pointers, counts, len(tensors), 1))


check(comm.convoy_comm_initialise((ctypes.c_int * 1)(1), 1))
rank, size = ctypes.c_int(), ctypes.c_int()
check(comm.convoy_comm_rank(ctypes.byref(rank)))
check(comm.convoy_comm_size(ctypes.byref(size)))

truth = np.arange(12.0).reshape(3, 4)
weights = np.random.default_rng(rank.value).standard_normal((3, 4))
check(comm.convoy_comm_broadcast(0, ctypes.c_void_p(weights.ctypes.data), ctypes.c_size_t(weights.nbytes), 0))
x = np.random.default_rng(100 + rank.value).standard_normal((4, 16))
large = np.full(300_000, float(rank.value))  # travels on its own
for _ in range(400):
    gradient = (weights - truth) @ x @ x.T / 16
    average([gradient, large])
    weights -= 0.2 * gradient
if rank.value == 0:
    print(f"{size.value} ranks: largest error {np.abs(weights - truth).max():.2e}")
fits = np.abs(weights - truth).max() < 1e-6 and np.allclose(large, (size.value - 1) / 2)
check(comm.convoy_comm_finalise())
sys.exit(0 if fits else 1)
