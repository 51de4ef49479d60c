// Norms over groups of n elements. One group of lanes owns one of them.

#include "functions.h"

#define STRIDES 16

// y and x [groups, n]; weight [kinds, n], group g has those of g mod kinds.
KERNEL void rms_norm(GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *weight, int n, int kinds, float eps)
{
    LOCAL float partials[STRIDES];
    float own[STRIDES];
    x += (size_t)GROUP * n;
    y += (size_t)GROUP * n;
    weight += (size_t)(GROUP % kinds) * n;
    for (int s = LANE; s < STRIDES; s += LANES) {
        float sum = 0.0f;
        for (int i = s; i < n; i += STRIDES)
            sum = FMA(x[i], x[i], sum);
        partials[s] = sum;
    }
    BARRIER;
    for (int s = 0; s < STRIDES; s++)
        own[s] = partials[s];
    float r = 1.0f / SQRT(tree_sum16(own) / (float)n + eps);
    for (int i = LANE; i < n; i += LANES)
        y[i] = (x[i] * r) * weight[i];
}

// Layer norm; bias is read if has_bias, else it is +0.
KERNEL void layer_norm(GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *weight, GLOBAL const float *bias,
                       int has_bias, int n, float eps)
{
    LOCAL float partials[STRIDES], squares[STRIDES];
    float own[STRIDES];
    x += (size_t)GROUP * n;
    y += (size_t)GROUP * n;
    for (int s = LANE; s < STRIDES; s += LANES) {
        float sum = 0.0f;
        for (int i = s; i < n; i += STRIDES)
            sum = sum + x[i];
        partials[s] = sum;
    }
    BARRIER;
    for (int s = 0; s < STRIDES; s++)
        own[s] = partials[s];
    float mean = tree_sum16(own) / (float)n;
    for (int s = LANE; s < STRIDES; s += LANES) {
        float sum = 0.0f;
        for (int i = s; i < n; i += STRIDES)
            sum = FMA(x[i] - mean, x[i] - mean, sum);
        squares[s] = sum;
    }
    BARRIER;
    for (int s = 0; s < STRIDES; s++)
        own[s] = squares[s];
    float r = 1.0f / SQRT(tree_sum16(own) / (float)n + eps);
    for (int i = LANE; i < n; i += LANES)
        y[i] = FMA((x[i] - mean) * r, weight[i], has_bias ? bias[i] : 0.0f);
}
