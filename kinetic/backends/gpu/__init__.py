"""Kernels for GPUs: one source in the common subset of CUDA C and OpenCL C.

Not a backend yet. It holds what proves that the order of every sum suits a
GPU: a matmul and the attention, bit-equal to ``reference`` through OpenCL,
which the tests run on the processor. The backend that runs whole models on
these kernels comes with a later part; nothing else imports this folder.

    source.py     reads kernels, names the options they must be built with
    self_test.py  the edge vectors that a device must pass before it is used
    opencl.py     builds and runs kernels; the only module that imports pyopencl
    kernels/      common.h, functions.h, and one .cu file a kernel
"""
