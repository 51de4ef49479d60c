// Keys and values in pages, and which of them a row sees.
//
// A page holds 256 positions of a layer: keys [kv_heads, pieces, 256, 8], then values [kv_heads, 256, pieces, 8], zeros
// where a head's last piece has fewer than 8 elements. So lanes that own keys side by side read memory side by side,
// 16 bytes each, and so do lanes that own pieces of a value.

#include "functions.h"

#define PIECES(width) (((width) + 7) / 8)

// What a compiler for GPUs is to unroll. It is not told so in OpenCL, whose compilers do by themselves what is good for
// arrays of a lane: for a processor unrolling takes seconds and gives nothing.
#ifdef __OPENCL_VERSION__
#define UNROLL
#define UNROLL_BY(n)
#else
#define PRAGMA(text) _Pragma(#text)
#define UNROLL PRAGMA(unroll)
#define UNROLL_BY(n) PRAGMA(unroll n)
#endif

DEVICE int first_key(int position, int window, int causal)
{
    return window == 0 ? 0 : max(0, causal ? position + 1 - window : position - window / 2);
}

DEVICE int end_of_keys(int position, int length, int window, int causal)
{
    if (causal)
        return position + 1;
    return window == 0 ? length : min(length, position + window / 2 + 1);
}
