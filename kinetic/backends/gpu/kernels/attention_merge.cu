// The chunks of attention.cu, merged in ascending order, and the sinks after them.

#include "pages.h"

#define MERGED 64 // chunks whose factors are in local memory at once

// out [T, heads, value_width], of which the rows of tiles from first_tile on are written; partials are those of
// attention.cu. Tiles * most * heads groups, `most` the rows that a tile may have. sinks [heads] are read if has_sinks.
KERNEL void attention_merge(GLOBAL float *out, GLOBAL const float *partials, GLOBAL const int *rows,
                            GLOBAL const int *tiles, GLOBAL const float *sinks, int has_sinks, int first_tile, int most,
                            int heads, int value_width, int begin, int chunks, int window, int causal)
{
    LOCAL float maxima[MERGED], totals[MERGED], before[MERGED], added[MERGED];
    GLOBAL const int *tile = tiles + 2 * (first_tile + GROUP / heads / most);
    int head = GROUP % heads, number = GROUP / heads % most, row = tile[0] + number, size = value_width + 2;
    if (number >= tile[1])
        return;
    rows += 3 * row;
    int first = first_key(rows[0], window, causal) / CHUNK;
    int end = (end_of_keys(rows[0], rows[2], window, causal) - 1) / CHUNK + 1;
    partials += (((size_t)(row - tiles[2 * first_tile]) * heads + head) * chunks + first - begin) * size;
    for (int base = 0; base < value_width; base += LANES) {
        int i = min(base + LANE, value_width - 1), count = end - first;
        float value = partials[i], largest = partials[value_width], total = partials[value_width + 1];
        for (int done = 1; done < count; done += MERGED) {
            GLOBAL const float *p = partials + (size_t)done * size;
            int here = min(MERGED, count - done);
            BARRIER;
            for (int c = LANE; c < here; c += LANES) {
                maxima[c] = p[(size_t)c * size + value_width];
                totals[c] = p[(size_t)c * size + value_width + 1];
            }
            BARRIER;
            for (int c = LANE; c < here; c += LANES) {
                float so_far = largest;
                for (int k = 0; k < c; k++)
                    so_far = maxima[k] > so_far ? maxima[k] : so_far;
                float larger = maxima[c] > so_far ? maxima[c] : so_far;
                before[c] = softmax_weight(so_far - larger);
                added[c] = softmax_weight(maxima[c] - larger);
            }
            BARRIER;
            UNROLL_BY(8)
            for (int c = 0; c < here; c++) {
                value = FMA(value, before[c], p[(size_t)c * size + i] * added[c]);
                total = FMA(total, before[c], totals[c] * added[c]);
                largest = maxima[c] > largest ? maxima[c] : largest;
            }
        }
        if (has_sinks) { // one key more, whose value is zeros
            float sink = sinks[head], larger = sink > largest ? sink : largest;
            float kept = softmax_weight(largest - larger), more = softmax_weight(sink - larger);
            value = FMA(value, kept, 0.0f * more);
            total = FMA(total, kept, 1.0f * more);
        }
        if (base + LANE < value_width)
            out[((size_t)row * heads + head) * value_width + i] = value / total;
    }
}
