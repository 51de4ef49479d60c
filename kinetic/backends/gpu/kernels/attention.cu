// Attention over a float16 cache, in the order of reference/attention.py.
//
// Keys and values lie in pages of 256 positions: keys float16 [pages, 256, kv_heads, width], values [pages, 256,
// kv_heads, value_width]. tables [sequences, chunks] says which page holds a chunk of a sequence. rows [T, 3] has each
// row's position, the number of its sequence in tables, and how long that is.
//
// In attention_chunks one group owns one chunk of 256 keys of one head of one row, so that a long context is spread over
// the device; in attention_merge one group owns a head of a row and merges its chunks in ascending order.

#include "functions.h"

#define STRIDES 16
#define FIRST_OF(s) (low + (((s)-low) & (STRIDES - 1))) // first visible key j of a chunk with j mod 16 = s

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

DEVICE float score(GLOBAL const float *q, GLOBAL const ushort *key, int width, float scale)
{
    float sum = 0.0f;
    for (int i = 0; i < width; i++)
        sum = FMA(q[i] * scale, f16_to_f32(key[i]), sum);
    return sum;
}

// x [T, width], keys or values, as float16 into their pages. One lane owns one element of n.
KERNEL void store_rows(GLOBAL ushort *pages, GLOBAL const float *x, GLOBAL const int *rows, GLOBAL const int *tables,
                       int width, int chunks, int n)
{
    int i = GROUP * LANES + LANE;
    if (i >= n)
        return;
    int position = rows[3 * (i / width)], sequence = rows[3 * (i / width) + 1];
    size_t page = tables[sequence * chunks + position / CHUNK];
    pages[(page * CHUNK + position % CHUNK) * width + i % width] = f32_to_f16(x[i]);
}

// partials [rows here, heads, chunks, value_width + 2]: weighted values, maximum, sum of weights; q [T, heads, width].
// Rows from first on; rows here * heads * chunks groups. A chunk without a visible key is left as it is. softcap 0: none.
KERNEL void attention_chunks(GLOBAL float *partials, GLOBAL const float *q, GLOBAL const ushort *keys,
                             GLOBAL const ushort *values, GLOBAL const int *rows, GLOBAL const int *tables, int first,
                             int heads, int kv_heads, int width, int value_width, int chunks, int window, int causal,
                             float scale, float softcap)
{
    LOCAL float weights[CHUNK], maxima[STRIDES], sums[STRIDES];
    int owner = GROUP / chunks + first * heads, chunk = GROUP % chunks, start = chunk * CHUNK;
    rows += 3 * (owner / heads);
    int position = rows[0], sequence = rows[1], low = max(first_key(position, window, causal) - start, 0);
    int high = min(end_of_keys(position, rows[2], window, causal) - start, CHUNK);
    if (low >= high)
        return;
    GLOBAL float *out = partials + (size_t)GROUP * (value_width + 2);
    size_t page = tables[sequence * chunks + chunk], head = owner % heads / (heads / kv_heads);
    size_t row = (size_t)kv_heads * width, value_row = (size_t)kv_heads * value_width;
    keys += page * CHUNK * row + head * width;
    values += page * CHUNK * value_row + head * value_width;

    for (int j = low + LANE; j < high; j += LANES) {
        float found = score(q + (size_t)owner * width, keys + j * row, width, scale);
        weights[j] = softcap == 0.0f ? found : softcap32(found, softcap);
    }
    BARRIER;
    for (int s = LANE; s < STRIDES; s += LANES) {
        float largest = -INFINITE; // exact in any order; NaN is never larger
        for (int j = FIRST_OF(s); j < high; j += STRIDES)
            largest = weights[j] > largest ? weights[j] : largest;
        maxima[s] = largest;
    }
    BARRIER;
    float maximum = maxima[0];
    for (int s = 1; s < STRIDES; s++)
        maximum = maxima[s] > maximum ? maxima[s] : maximum;
    for (int j = low + LANE; j < high; j += LANES)
        weights[j] = softmax_weight(weights[j] - maximum);
    BARRIER;
    for (int s = LANE; s < STRIDES; s += LANES) {
        float sum = 0.0f;
        for (int j = FIRST_OF(s); j < high; j += STRIDES)
            sum = sum + weights[j];
        sums[s] = sum;
    }
    for (int i = LANE; i < value_width; i += LANES) {
        float sum = 0.0f;
        for (int j = low; j < high; j++)
            sum = FMA(weights[j], f16_to_f32(values[j * value_row + i]), sum);
        out[i] = sum;
    }
    BARRIER;
    if (LANE == 0) {
        for (int distance = STRIDES / 2; distance > 0; distance /= 2)
            for (int i = 0; i < distance; i++)
                sums[i] = sums[i] + sums[i + distance];
        out[value_width] = maximum;
        out[value_width + 1] = sums[0];
    }
}

// out [T, heads, value_width], of which rows from first on are written. rows here * heads groups. sinks [heads] are read
// if has_sinks.
KERNEL void attention_merge(GLOBAL float *out, GLOBAL const float *partials, GLOBAL const int *rows,
                            GLOBAL const float *sinks, int has_sinks, int first, int heads, int value_width, int chunks,
                            int window, int causal)
{
    int owner = GROUP + first * heads, position = rows[3 * (owner / heads)];
    int begin = first_key(position, window, causal) / CHUNK;
    int last = (end_of_keys(position, rows[3 * (owner / heads) + 2], window, causal) - 1) / CHUNK;
    for (int i = LANE; i < value_width; i += LANES) {
        GLOBAL const float *p = partials + ((size_t)GROUP * chunks + begin) * (value_width + 2);
        float value = p[i], maximum = p[value_width], total = p[value_width + 1];
        for (int chunk = begin + 1; chunk <= last; chunk++) {
            p += value_width + 2;
            float larger = p[value_width] > maximum ? p[value_width] : maximum;
            float before = softmax_weight(maximum - larger), added = softmax_weight(p[value_width] - larger);
            value = FMA(value, before, p[i] * added);
            total = FMA(total, before, p[value_width + 1] * added);
            maximum = larger;
        }
        if (has_sinks) { // one key more, whose value is zeros
            float sink = sinks[owner % heads], larger = sink > maximum ? sink : maximum;
            float before = softmax_weight(maximum - larger), added = softmax_weight(sink - larger);
            value = FMA(value, before, 0.0f * added);
            total = FMA(total, before, 1.0f * added);
        }
        out[(size_t)owner * value_width + i] = value / total;
    }
}
