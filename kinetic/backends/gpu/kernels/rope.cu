// Rotary positions. Cosines and sines come from the host (rope_tables.py).

#include "functions.h"

// y and x [T, heads, width]; table [T, 2 * half]: cosines of a row's pairs, then sines. One lane owns one element of n.
KERNEL void rope(GLOBAL float *y, GLOBAL const float *x, GLOBAL const float *table, int row_width, int width, int half_width,
                 int first, int interleaved, int n)
{
    int i = GROUP * LANES + LANE, at = i % width - first;
    if (i >= n)
        return;
    if (at < 0 || at >= 2 * half_width) {
        y[i] = x[i];
        return;
    }
    int pair = interleaved ? at / 2 : at % half_width, odd = interleaved ? at % 2 : at / half_width;
    int distance = interleaved ? 1 : half_width;
    float cosine = table[(size_t)(i / row_width) * 2 * half_width + pair];
    float sine = table[(size_t)(i / row_width) * 2 * half_width + half_width + pair];
    float e = x[odd ? i - distance : i], o = x[odd ? i : i + distance];
    y[i] = odd ? FMA(e, sine, o * cosine) : FMA(e, cosine, -(o * sine));
}
