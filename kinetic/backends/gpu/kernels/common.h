// The common subset of CUDA C and OpenCL C: what the two languages spell differently.
//
// Kernels use plain + - * / and SQRT on float, which the options of source.py keep apart
// and correctly rounded, and FMA where one rounding is meant. A launch is a row of groups
// of LANES lanes each; their number never changes a bit.
//
// DOT4(a, b, c): the four signed bytes of a times those of b, added to c, exact in int.
// BYTE_PERM(a, b, s): byte k of it is byte (s >> 4 k) & 7 of those of a, then b. No digit of s is above 7.

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

#if defined(cl_khr_integer_dot_product) && defined(__opencl_c_integer_dot_product_input_4x8bit_packed)
#define DOT4(a, b, c) (dot_4x8packed_ss_int(a, b) + (c))
#else
#define DOT4(a, b, c) dot4(a, b, c)
int dot4(uint a, uint b, int c)
{
    char4 x = as_char4(a), y = as_char4(b);
    return c + x.x * y.x + x.y * y.y + x.z * y.z + x.w * y.w;
}
#endif

#ifdef POCL_DEVICE_ADDRESS_BITS // on a processor it only takes time to compile
#define UNROLL
#define UNROLL_SOME
#else
#define UNROLL _Pragma("unroll")
#define UNROLL_SOME _Pragma("unroll 8")
#endif

#define BYTE_PERM(a, b, s) byte_perm(a, b, s)
uint byte_perm(uint a, uint b, uint s)
{
    ulong bytes = (ulong)b << 32 | a;
    return (uint)(bytes >> 8 * (s & 7) & 255) | (uint)(bytes >> 8 * (s >> 4 & 7) & 255) << 8
           | (uint)(bytes >> 8 * (s >> 8 & 7) & 255) << 16 | (uint)(bytes >> 8 * (s >> 12 & 7) & 255) << 24;
}

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
#define DOT4(a, b, c) __dp4a((int)(a), (int)(b), c)
#define BYTE_PERM(a, b, s) __byte_perm(a, b, s)
#define UNROLL _Pragma("unroll")
#define UNROLL_SOME _Pragma("unroll 8")
typedef signed char schar;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

// Exact: it has no form that flushes.
#define CONVERTED_F16(bits) converted_f16((ushort)(bits))
DEVICE float converted_f16(ushort bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

#endif

#define CHUNK 256 // elements of a chunk of weights, keys of a chunk of attention
#define BLOCK 32  // activations that share a scale
