// Activations as blocks of 32 int8 with one scale, step by step those of reference/quantise.py.

#include "functions.h"

#define SMALLEST 0x12800000 // bits of 2^-90
#define INFINITE_BITS 0x7F800000

// q int8 [n, 32] and d [n] of x [n, 32]. One lane owns one block.
KERNEL void quantise(GLOBAL schar *q, GLOBAL float *d, GLOBAL const float *x, int n)
{
    int b = GROUP * LANES + LANE;
    if (b >= n)
        return;
    q += (size_t)b * BLOCK;
    x += (size_t)b * BLOCK;
    uint largest = 0;
    for (int i = 0; i < BLOCK; i++) {
        uint bits = BITS_OF_FLOAT(x[i]) & 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
    }
    bool usable = largest >= SMALLEST && largest < INFINITE_BITS;
    float amax = usable ? FLOAT_OF_BITS(largest) : 1.0f, inverse = 127.0f / amax;
    for (int i = 0; i < BLOCK; i++)
        q[i] = (schar)((int)BITS_OF_FLOAT(FMA(usable ? x[i] : 0.0f, inverse, MAGIC)) - MAGIC_BITS);
    d[b] = usable ? amax / 127.0f : FLOAT_OF_BITS(largest >= INFINITE_BITS ? 0x7FC00000 : 0);
}
