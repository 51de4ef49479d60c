// What a device must compute exactly before it is used: see self_test.py.

#include "functions.h"

// out [8, n]; a, b, c [n]. n lanes in all.
KERNEL void self_test(GLOBAL float *out, GLOBAL const float *a, GLOBAL const float *b, GLOBAL const float *c, int n)
{
    int i = GROUP * LANES + LANE;
    out[i] = a[i] * b[i] + c[i];
    out[n + i] = FMA(a[i], b[i], c[i]);
    out[2 * n + i] = a[i] / b[i];
    out[3 * n + i] = SQRT(a[i]);
    out[4 * n + i] = exp32(a[i]);
    out[5 * n + i] = f16_to_f32(i & 0xFFFF);
    uint x = BITS_OF_FLOAT(a[i]), y = BITS_OF_FLOAT(b[i]), z = BITS_OF_FLOAT(c[i]);
    out[6 * n + i] = (float)DOT4(x, y, (int)z >> 16);
    uint chosen = BYTE_PERM(x, y, z & 0x7777);
    out[7 * n + i] = (float)(int)(chosen >> 8 ^ (chosen & 0xFFFFFF));
}
