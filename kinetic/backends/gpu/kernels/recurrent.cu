// Recurrences: short convolution, selective scan, gated DeltaNet, in the order of backends/reference.
//
// One lane owns one channel of one sequence, and takes the sequence's rows one after the other. order [T] has the rows
// of the batch sequence by sequence, spans [sequences, 3] where in it each begins, how many it has, and its place in
// states [places, stride], which are changed: a recurrence has its own from offset on.

#include "functions.h"

#define FLUSHED(h) (magnitude_of(h) < 0x1p-100f ? 0.0f : h)
#define SUM4(p) ((p[0] + p[2]) + (p[1] + p[3]))
#define COLUMNS 16 // elements of a head that lie side by side in a state
#define ROWS_OF(sequence) spans[3 * (sequence) + 1]
#define ROW(sequence, t) ((size_t)order[spans[3 * (sequence)] + (t)])
#define STATE_OF(sequence) (states + (size_t)spans[3 * (sequence) + 2] * stride + offset)

// y and x [T, channels]; taps [channels, count], oldest first; state [count - 1, channels]. kind -1: no activation.
KERNEL void short_conv(GLOBAL float *states, GLOBAL const int *order, GLOBAL const int *spans, int stride, int offset,
                       GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *taps, GLOBAL const float *bias,
                       int has_bias, int kind, int channels, int count, int n)
{
    int i = GROUP * LANES + LANE, sequence = i / channels, c = i % channels, before = count - 1;
    if (i >= n)
        return;
    int rows = ROWS_OF(sequence);
    GLOBAL float *state = STATE_OF(sequence) + c;
    taps += (size_t)c * count;
    for (int t = 0; t < rows; t++) {
        float sum = 0.0f;
        for (int k = 0; k < count; k++) {
            int at = t - before + k;
            float value = at < 0 ? state[(size_t)(at + before) * channels] : x[ROW(sequence, at) * channels + c];
            sum = FMA(value, taps[k], sum);
        }
        if (has_bias)
            sum = sum + bias[c];
        y[ROW(sequence, t) * channels + c] = kind < 0 ? sum : activation32(sum, kind);
    }
    for (int k = 0; k < before; k++) { // what is read lies behind what is written
        int at = rows - before + k;
        state[(size_t)k * channels] =
            at < 0 ? state[(size_t)(at + before) * channels] : x[ROW(sequence, at) * channels + c];
    }
}

// y [T, heads * width]; x [T, heads * width + 2 * groups * size] with B and C behind; dt [T, heads]; a, d, bias [heads];
// state [heads, width / 16 rounded up, size, 16].
KERNEL void scan(GLOBAL float *states, GLOBAL const int *order, GLOBAL const int *spans, int stride, int offset,
                 GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *dt, GLOBAL const float *a,
                 GLOBAL const float *d, GLOBAL const float *bias, int heads, int width, int groups, int size, int n)
{
    int i = GROUP * LANES + LANE, head = i / width % heads, e = i % width, sequence = i / width / heads;
    if (i >= n)
        return;
    int inner = heads * width, row_width = inner + 2 * groups * size, group = head / (heads / groups);
    int blocks = (width + COLUMNS - 1) / COLUMNS;
    GLOBAL float *state = STATE_OF(sequence) + ((size_t)head * blocks + e / COLUMNS) * size * COLUMNS + e % COLUMNS;
    for (int t = 0; t < ROWS_OF(sequence); t++) {
        size_t row = ROW(sequence, t);
        GLOBAL const float *b = x + row * row_width + inner + group * size, *c = b + groups * size;
        float value = x[row * row_width + head * width + e], step = softplus32(dt[row * heads + head] + bias[head]);
        float decay = exp32(step * a[head]), scaled = value * step, partials[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int k = 0; k < size; k++) {
            float h = FMA(state[k * COLUMNS], decay, scaled * b[k]);
            h = FLUSHED(h);
            state[k * COLUMNS] = h;
            partials[k % 4] = FMA(h, c[k], partials[k % 4]);
        }
        y[row * inner + head * width + e] = FMA(value, d[head], SUM4(partials));
    }
}

// y and x [groups, n]: x * (1 / sqrt(sum(x * x) + eps)) * factor. One group of lanes owns one of them.
KERNEL void l2_norm(GLOBAL float *y, GLOBAL const float *x, int n, float eps, float factor)
{
    LOCAL float partials[16];
    float own[16];
    x += (size_t)GROUP * n;
    y += (size_t)GROUP * n;
    for (int s = LANE; s < 16; s += LANES) {
        float sum = 0.0f;
        for (int i = s; i < n; i += 16)
            sum = FMA(x[i], x[i], sum);
        partials[s] = sum;
    }
    BARRIER;
    for (int s = 0; s < 16; s++)
        own[s] = partials[s];
    float r = 1.0f / SQRT(tree_sum16(own) + eps);
    for (int i = LANE; i < n; i += LANES)
        y[i] = (x[i] * r) * factor;
}

// y and v [T, heads * width]; q and k [T, key_heads * width], normed; gate and beta [T, heads]; a and bias [heads];
// state [heads, width / 16, width, 16].
KERNEL void delta(GLOBAL float *states, GLOBAL const int *order, GLOBAL const int *spans, int stride, int offset,
                  GLOBAL float *y, GLOBAL const float *q, GLOBAL const float *k, GLOBAL const float *v,
                  GLOBAL const float *gate, GLOBAL const float *beta, GLOBAL const float *a, GLOBAL const float *bias,
                  int heads, int key_heads, int width, int n)
{
    int i = GROUP * LANES + LANE, head = i / width % heads, e = i % width, sequence = i / width / heads;
    if (i >= n)
        return;
    size_t block = (size_t)head * (width / COLUMNS) + e / COLUMNS;
    GLOBAL float *state = STATE_OF(sequence) + block * width * COLUMNS + e % COLUMNS;
    for (int t = 0; t < ROWS_OF(sequence); t++) {
        size_t row = ROW(sequence, t);
        size_t key = (row * key_heads + head % key_heads) * width;
        float kept = exp32(a[head] * softplus32(gate[row * heads + head] + bias[head]));
        float learned = sigmoid32(beta[row * heads + head]);
        float known[4] = {0.0f, 0.0f, 0.0f, 0.0f}, sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        for (int j = 0; j < width; j++)
            known[j % 4] = FMA(state[j * COLUMNS] * kept, k[key + j], known[j % 4]);
        float news = (v[(row * heads + head) * width + e] - SUM4(known)) * learned;
        for (int j = 0; j < width; j++) {
            float h = FMA(k[key + j], news, state[j * COLUMNS] * kept);
            h = FLUSHED(h);
            state[j * COLUMNS] = h;
            sums[j % 4] = FMA(h, q[key + j], sums[j % 4]);
        }
        y[(row * heads + head) * width + e] = SUM4(sums);
    }
}
