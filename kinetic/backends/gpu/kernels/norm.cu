// Norms over groups of n elements. One group of lanes owns one of them.

#include "functions.h"

#define STRIDES 16
#define PIECE 1024 // elements that all lanes fetch together, since only STRIDES of them add; a multiple of STRIDES

// Sum of n elements x, less ``mean`` if ``is_centred``, or of their squares: 16 partial sums, then a tree.
DEVICE float sum_of(LOCAL_POINTER float *partials, LOCAL_POINTER float *piece, GLOBAL const float *x, int n,
                    int is_centred, float mean, int is_squared)
{
    float own[STRIDES];
    for (int s = LANE; s < STRIDES; s += LANES)
        partials[s] = 0.0f;
    for (int start = 0; start < n; start += PIECE) {
        int count = min(PIECE, n - start);
        for (int i = LANE; i < count; i += LANES)
            piece[i] = is_centred ? x[start + i] - mean : x[start + i];
        BARRIER;
        for (int s = LANE; s < STRIDES; s += LANES) {
            float sum = partials[s];
            UNROLL_SOME
            for (int i = s; i < count; i += STRIDES)
                sum = is_squared ? FMA(piece[i], piece[i], sum) : sum + piece[i];
            partials[s] = sum;
        }
        BARRIER;
    }
    for (int s = 0; s < STRIDES; s++)
        own[s] = partials[s];
    return tree_sum16(own);
}

// y and x [groups, n]; weight [kinds, n], group g has those of g mod kinds.
KERNEL void rms_norm(GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *weight, int n, int kinds, float eps)
{
    LOCAL float partials[STRIDES], piece[PIECE];
    x += (size_t)GROUP * n;
    y += (size_t)GROUP * n;
    weight += (size_t)(GROUP % kinds) * n;
    float r = 1.0f / SQRT(sum_of(partials, piece, x, n, 0, 0.0f, 1) / (float)n + eps);
    for (int i = LANE; i < n; i += LANES)
        y[i] = (x[i] * r) * weight[i];
}

// Layer norm; bias is read if has_bias, else it is +0.
KERNEL void layer_norm(GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *weight, GLOBAL const float *bias,
                       int has_bias, int n, float eps)
{
    LOCAL float partials[STRIDES], squares[STRIDES], piece[PIECE];
    x += (size_t)GROUP * n;
    y += (size_t)GROUP * n;
    float mean = sum_of(partials, piece, x, n, 0, 0.0f, 0) / (float)n;
    float r = 1.0f / SQRT(sum_of(squares, piece, x, n, 1, mean, 1) / (float)n + eps);
    for (int i = LANE; i < n; i += LANES)
        y[i] = FMA((x[i] - mean) * r, weight[i], has_bias ? bias[i] : 0.0f);
}
