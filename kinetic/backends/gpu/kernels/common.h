// The common subset of CUDA C and OpenCL C: what the two languages spell differently.
//
// Kernels use plain + - * / and SQRT on float, which the options of source.py keep apart
// and correctly rounded, and FMA where one rounding is meant. A launch is a row of groups
// of LANES lanes each; their number never changes a bit.

#ifdef __OPENCL_VERSION__
#pragma OPENCL FP_CONTRACT OFF

#define KERNEL __kernel
#define DEVICE
#define GLOBAL __global
#define CONSTANT __constant
#define LOCAL __local
#define LOCAL_POINTER __local
#define GROUP ((int)get_group_id(0))
#define LANE ((int)get_local_id(0))
#define LANES ((int)get_local_size(0))
#define BARRIER barrier(CLK_LOCAL_MEM_FENCE)
#define FMA(a, b, c) fma(a, b, c)
#define SQRT(a) sqrt(a)
#define FLOAT_OF_BITS(u) as_float(u)
#define BITS_OF_FLOAT(f) as_uint(f)
typedef char schar;

#else

#define KERNEL extern "C" __global__
#define DEVICE __device__
#define GLOBAL
#define CONSTANT __device__ const
#define LOCAL __shared__
#define LOCAL_POINTER
#define GROUP ((int)blockIdx.x)
#define LANE ((int)threadIdx.x)
#define LANES ((int)blockDim.x)
#define BARRIER __syncthreads()
#define FMA(a, b, c) __fmaf_rn(a, b, c)
#define SQRT(a) sqrtf(a)
#define FLOAT_OF_BITS(u) __uint_as_float(u)
#define BITS_OF_FLOAT(f) __float_as_uint(f)
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

#endif

#define CHUNK 256 // elements of a chunk of weights, keys of a chunk of attention
#define BLOCK 32  // activations that share a scale
