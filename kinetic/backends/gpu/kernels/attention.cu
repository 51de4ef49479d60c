// Attention over a float16 cache, in the order of reference/attention.py.
//
// Two launches. In attention_chunks one group owns one chunk of 256 keys of one head of
// one row, so that a long context is spread over the device; in attention_merge one group
// owns a head of a row and merges its chunks in ascending order.

#include "functions.h"

#define STRIDES 16
#define FIRST_OF(s) (low + (((s)-low) & (STRIDES - 1))) // first visible key j of a chunk with j mod 16 = s

DEVICE int first_key(int position, int window)
{
    return window == 0 ? 0 : max(0, position + 1 - window);
}

DEVICE float score(GLOBAL const float *q, GLOBAL const ushort *key, int width, float scale)
{
    float sum = 0.0f;
    for (int i = 0; i < width; i++)
        sum = FMA(q[i] * scale, f16_to_f32(key[i]), sum);
    return sum;
}

// partials [T, heads, chunks, width + 2]: weighted values, maximum, sum of weights; q [T, heads, width];
// keys and values float16 [positions, kv_heads, width]; positions int32 [T]. T * heads * chunks groups.
// A chunk without a visible key is left as it is.
KERNEL void attention_chunks(GLOBAL float *partials, GLOBAL const float *q, GLOBAL const ushort *keys,
                             GLOBAL const ushort *values, GLOBAL const int *positions, int heads, int kv_heads,
                             int width, int chunks, int window, float scale)
{
    LOCAL float weights[CHUNK], maxima[STRIDES], sums[STRIDES];
    int owner = GROUP / chunks, start = GROUP % chunks * CHUNK, position = positions[owner / heads];
    int low = max(first_key(position, window) - start, 0), high = min(position + 1 - start, CHUNK);
    if (low >= high)
        return;
    GLOBAL float *out = partials + (size_t)GROUP * (width + 2);
    size_t row = kv_heads * width, offset = start * row + owner % heads / (heads / kv_heads) * width;
    keys += offset;
    values += offset;

    for (int j = low + LANE; j < high; j += LANES)
        weights[j] = score(q + owner * width, keys + j * row, width, scale);
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
    for (int i = LANE; i < width; i += LANES) {
        float sum = 0.0f;
        for (int j = low; j < high; j++)
            sum = FMA(weights[j], f16_to_f32(values[j * row + i]), sum);
        out[i] = sum;
    }
    BARRIER;
    if (LANE == 0) {
        for (int distance = STRIDES / 2; distance > 0; distance /= 2)
            for (int i = 0; i < distance; i++)
                sums[i] = sums[i] + sums[i + distance];
        out[width] = maximum;
        out[width + 1] = sums[0];
    }
}

// out [T, heads, width]. T * heads groups.
KERNEL void attention_merge(GLOBAL float *out, GLOBAL const float *partials, GLOBAL const int *positions, int heads,
                            int width, int chunks, int window)
{
    int position = positions[GROUP / heads], begin = first_key(position, window) / CHUNK;
    for (int i = LANE; i < width; i += LANES) {
        GLOBAL const float *p = partials + ((size_t)GROUP * chunks + begin) * (width + 2);
        float value = p[i], maximum = p[width], total = p[width + 1];
        for (int chunk = begin + 1; chunk <= position / CHUNK; chunk++) {
            p += width + 2;
            float larger = p[width] > maximum ? p[width] : maximum;
            float before = softmax_weight(maximum - larger), added = softmax_weight(p[width] - larger);
            value = FMA(value, before, p[i] * added);
            total = FMA(total, before, p[width + 1] * added);
            maximum = larger;
        }
        out[GROUP * width + i] = value / total;
    }
}
