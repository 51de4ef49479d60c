// What the functions of weight formats (kinetic/formats, GPU) share.

#include "functions.h"

DEVICE float f16_at(GLOBAL const uchar *bytes)
{
    return f16_to_f32(bytes[0] | (uint)bytes[1] << 8);
}

// Of row v of a product with several matrices. kind 0: experts that share a row of activations; 1: experts with a row
// each; 2: heads, each with its part of a row and its own matrix.
#define EXPERT(v) (kind == 2 ? v % used : (int)routes[v / used * 2 * used + v % used])
#define SOURCE(v) (kind == 0 ? v / used : v)

// Element i of a row of the float formats.
DEVICE float f32_value(GLOBAL const uchar *row, int i)
{
    return ((GLOBAL const float *)row)[i];
}

DEVICE float f16_value(GLOBAL const uchar *row, int i)
{
    return f16_to_f32(((GLOBAL const ushort *)row)[i]);
}

DEVICE float bf16_value(GLOBAL const uchar *row, int i)
{
    return FLOAT_OF_BITS((uint)((GLOBAL const ushort *)row)[i] << 16);
}

// Factors of 32-block b of a superblock of Q4_K or Q5_K, step by step those of formats/k_scales.py.
DEVICE int k_scale_factor(GLOBAL const uchar *w, int b)
{
    return b < 4 ? w[4 + b] & 63 : (w[8 + b] & 15) | w[b] >> 6 << 4;
}

DEVICE int k_minimum_factor(GLOBAL const uchar *w, int b)
{
    return b < 4 ? w[8 + b] & 63 : w[8 + b] >> 4 | w[4 + b] >> 6 << 4;
}
