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

// Softmax of n elements, in place.
DEVICE void softmax(LOCAL_POINTER float *x, int n)
{
    float sums[STRIDES], largest = -INFINITE;
    for (int i = 0; i < n; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int s = 0; s < STRIDES; s++)
        sums[s] = 0.0f;
    for (int i = 0; i < n; i++) {
        x[i] = softmax_weight(x[i] - largest);
        sums[i % STRIDES] = sums[i % STRIDES] + x[i];
    }
    float total = tree_sum16(sums);
    for (int i = 0; i < n; i++)
        x[i] = x[i] / total;
}

// The largest of n keys that is not taken, of equal ones the first.
DEVICE int best_of(LOCAL_POINTER const float *keys, LOCAL_POINTER const int *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || keys[i] > keys[best]))
            best = i;
    return best;
}

DEVICE float as_key(float x)
{
    return x == x ? x : -INFINITE;
}

// logits [T, experts]; bias and factors [experts], read if there are any. T groups of one lane.
KERNEL void route(GLOBAL float *routes, GLOBAL const float *logits, GLOBAL const float *bias,
                  GLOBAL const float *factors, int has_bias, int has_factors, int experts, int used, int gating,
                  int normalised, float scale, int groups, int used_groups)
{
    LOCAL float values[MOST_EXPERTS], keys[MOST_EXPERTS], group_keys[MOST_EXPERTS], weights[MOST_EXPERTS];
    LOCAL int taken[MOST_EXPERTS], group_taken[MOST_EXPERTS];
    if (LANE > 0)
        return;
    logits += (size_t)GROUP * experts;
    routes += (size_t)GROUP * 2 * used;
    for (int i = 0; i < experts; i++)
        values[i] = gating == SIGMOID ? sigmoid32(logits[i]) : logits[i];
    if (gating == SOFTMAX)
        softmax(values, experts);
    for (int i = 0; i < experts; i++) {
        keys[i] = as_key(has_bias ? values[i] + bias[i] : values[i]);
        taken[i] = 0;
    }
    if (groups > 1) {
        int size = experts / groups;
        for (int g = 0; g < groups; g++) {
            int first = g * size + best_of(keys + g * size, taken + g * size, size);
            taken[first] = 1;
            int second = g * size + best_of(keys + g * size, taken + g * size, size);
            taken[first] = 0;
            group_keys[g] = as_key(keys[first] + keys[second]);
            group_taken[g] = 0;
        }
        for (int kept = 0; kept < used_groups; kept++)
            group_taken[best_of(group_keys, group_taken, groups)] = 1;
        for (int i = 0; i < experts; i++)
            keys[i] = group_taken[i / size] ? keys[i] : -INFINITE;
    }
    for (int rank = 0; rank < used; rank++) {
        int best = best_of(keys, taken, experts);
        taken[best] = 1;
        routes[rank] = (float)best;
        weights[rank] = values[best];
    }
    if (gating == SOFTMAX_CHOSEN)
        softmax(weights, used);
    float total = 0.0f;
    for (int rank = 0; rank < used; rank++)
        total = total + weights[rank];
    total = total < 0x1p-14f ? 0x1p-14f : total;
    for (int rank = 0; rank < used; rank++) {
        float weight = (normalised ? weights[rank] / total : weights[rank]) * scale;
        routes[used + rank] = has_factors ? weight * factors[(int)routes[rank]] : weight;
    }
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
