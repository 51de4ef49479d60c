// Which experts a row gets, step by step those of reference/experts.py, and the sum of what they make.
//
// A row of experts is one expert of one row: T * used of them, in the order of routes [T, 2 * used], which has the
// chosen experts' numbers and then their weights.

#include "functions.h"

#define STRIDES 16
#define MOST_EXPERTS 1024
#define SOFTMAX 0
#define SIGMOID 1
#define SOFTMAX_CHOSEN 2

// The largest of n elements. A NaN is none.
DEVICE float largest_of(LOCAL_POINTER const float *x, int n)
{
    float largest = -INFINITE;
    for (int i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    return largest;
}

// Of n elements the sum of every sixteenth from s on.
DEVICE float stride_sum(LOCAL_POINTER const float *x, int n, int s)
{
    float sum = 0.0f;
    for (int i = s; i < n; i += STRIDES)
        sum = sum + x[i];
    return sum;
}

DEVICE float as_key(float x)
{
    return x == x ? x : -INFINITE;
}

// How many of n keys come before key i: those that are larger, and equal ones that stand before it. No key is NaN.
DEVICE int rank_of(LOCAL_POINTER const float *keys, int n, int i)
{
    int rank = 0;
    for (int j = 0; j < i; j++)
        rank += keys[j] >= keys[i];
    for (int j = i + 1; j < n; j++)
        rank += keys[j] > keys[i];
    return rank;
}

// The sum of the two largest of n keys, as a key.
DEVICE float two_best(LOCAL_POINTER const float *keys, int n)
{
    int first = 0, second = -1;
    for (int i = 1; i < n; i++) {
        if (keys[i] > keys[first]) {
            second = first;
            first = i;
        } else if (second < 0 || keys[i] > keys[second]) {
            second = i;
        }
    }
    return as_key(keys[first] + keys[second]);
}

// logits [T, experts]; bias and factors [experts], read if there are any. T groups.
KERNEL void route(GLOBAL float *routes, GLOBAL const float *logits, GLOBAL const float *bias,
                  GLOBAL const float *factors, int has_bias, int has_factors, int experts, int used, int gating,
                  int normalised, float scale, int groups, int used_groups)
{
    LOCAL float values[MOST_EXPERTS], keys[MOST_EXPERTS], group_keys[MOST_EXPERTS], weights[MOST_EXPERTS];
    LOCAL float shared[STRIDES];
    LOCAL int chosen[MOST_EXPERTS];
    float sums[STRIDES];
    int size = experts / groups;
    logits += (size_t)GROUP * experts;
    routes += (size_t)GROUP * 2 * used;
    for (int i = LANE; i < experts; i += LANES)
        values[i] = gating == SIGMOID ? sigmoid32(logits[i]) : logits[i];
    BARRIER;
    if (gating == SOFTMAX) {
        float largest = largest_of(values, experts);
        for (int i = LANE; i < experts; i += LANES)
            keys[i] = softmax_weight(values[i] - largest);
    }
    BARRIER;
    if (gating == SOFTMAX)
        for (int s = LANE; s < STRIDES; s += LANES)
            shared[s] = stride_sum(keys, experts, s);
    BARRIER;
    if (gating == SOFTMAX) {
        for (int s = 0; s < STRIDES; s++)
            sums[s] = shared[s];
        float total = tree_sum16(sums);
        for (int i = LANE; i < experts; i += LANES)
            values[i] = keys[i] / total;
    }
    for (int i = LANE; i < experts; i += LANES)
        keys[i] = as_key(has_bias ? values[i] + bias[i] : values[i]);
    BARRIER;
    if (groups > 1)
        for (int g = LANE; g < groups; g += LANES)
            group_keys[g] = two_best(keys + g * size, size);
    BARRIER;
    if (groups > 1)
        for (int i = LANE; i < experts; i += LANES)
            if (rank_of(group_keys, groups, i / size) >= used_groups)
                keys[i] = -INFINITE;
    BARRIER;
    for (int i = LANE; i < experts; i += LANES) {
        int rank = rank_of(keys, experts, i);
        if (rank < used) {
            chosen[rank] = i;
            weights[rank] = values[i];
        }
    }
    BARRIER;
    if (LANE > 0)
        return;
    if (gating == SOFTMAX_CHOSEN) {
        float largest = largest_of(weights, used);
        for (int rank = 0; rank < used; rank++)
            weights[rank] = softmax_weight(weights[rank] - largest);
        for (int s = 0; s < STRIDES; s++)
            sums[s] = stride_sum(weights, used, s);
        float sum = tree_sum16(sums);
        for (int rank = 0; rank < used; rank++)
            weights[rank] = weights[rank] / sum;
    }
    float total = 0.0f;
    for (int rank = 0; rank < used; rank++)
        total = total + weights[rank];
    total = total < 0x1p-14f ? 0x1p-14f : total;
    for (int rank = 0; rank < used; rank++) {
        float weight = (normalised ? weights[rank] / total : weights[rank]) * scale;
        routes[rank] = (float)chosen[rank];
        routes[used + rank] = has_factors ? weight * factors[chosen[rank]] : weight;
    }
}

// Row pairs[r] / used of x [., width] becomes row r of y [., width]. One lane owns one element of n.
KERNEL void take_pairs(GLOBAL float *y, GLOBAL const float *x, GLOBAL const int *pairs, int used, int width, int n)
{
    int i = GROUP * LANES + LANE;
    if (i < n)
        y[i] = x[(size_t)(pairs[i / width] / used) * width + i % width];
}

// Row r of x [., width] becomes row pairs[r] of y [., width]. One lane owns one element of n.
KERNEL void put_pairs(GLOBAL float *y, GLOBAL const float *x, GLOBAL const int *pairs, int width, int n)
{
    int i = GROUP * LANES + LANE;
    if (i < n)
        y[(size_t)pairs[i / width] * width + i % width] = x[i];
}

// bias [experts, width] is added to y [T * used, width], in place. One lane owns one element of n.
KERNEL void add_expert_bias(GLOBAL float *y, GLOBAL const float *bias, GLOBAL const float *routes, int used, int width,
                            int n)
{
    int i = GROUP * LANES + LANE, row = i / width;
    if (i < n)
        y[i] = y[i] + bias[(size_t)(int)routes[row / used * 2 * used + row % used] * width + i % width];
}

// y [T, width] of made [T * used, width]. One lane owns one element of n.
KERNEL void weigh(GLOBAL float *y, GLOBAL const float *made, GLOBAL const float *routes, int used, int width, int n)
{
    int i = GROUP * LANES + LANE, row = i / width;
    if (i >= n)
        return;
    made += (size_t)row * used * width + i % width;
    routes += (size_t)row * 2 * used + used;
    float total = made[0] * routes[0];
    for (int rank = 1; rank < used; rank++)
        total = total + made[(size_t)rank * width] * routes[rank];
    y[i] = total;
}
