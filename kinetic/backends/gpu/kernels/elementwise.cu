// What is done to each element by itself, or only moved. One lane owns one element of n.

#include "functions.h"

#define ELEMENT (GROUP * LANES + LANE)

KERNEL void scale_rows(GLOBAL float *y, GLOBAL const float *x, float factor, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = x[i] * factor;
}

KERNEL void softcap_rows(GLOBAL float *y, GLOBAL const float *x, float cap, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = softcap32(x[i], cap);
}

KERNEL void add_rows(GLOBAL float *y, GLOBAL const float *a, GLOBAL const float *b, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = a[i] + b[i];
}

KERNEL void mul_rows(GLOBAL float *y, GLOBAL const float *a, GLOBAL const float *b, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = a[i] * b[i];
}

// bias [width] is added to every row of y, in place.
KERNEL void add_bias(GLOBAL float *y, GLOBAL const float *bias, int width, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = y[i] + bias[i % width];
}

KERNEL void activate_rows(GLOBAL float *y, GLOBAL const float *x, int kind, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = activation32(x[i], kind);
}

// gate [T, width], or [T, 1] where gate_width is 1. kind 4 is swiglu_oai.
KERNEL void gate_rows(GLOBAL float *y, GLOBAL const float *gate, GLOBAL const float *up, int kind, int gate_width,
                      int width, int n)
{
    int i = ELEMENT;
    if (i < n) {
        float g = gate[gate_width == 1 ? i / width : i];
        y[i] = kind == 4 ? swiglu_oai32(g, up[i]) : activation32(g, kind) * up[i];
    }
}

// Row rows[t] of x [., width] becomes row t of y.
KERNEL void take_rows(GLOBAL float *y, GLOBAL const float *x, GLOBAL const int *rows, int width, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = x[(size_t)rows[i / width] * width + i % width];
}

// Elements first .. first + count - 1 of each head of x, whose heads are width wide.
KERNEL void cut_heads(GLOBAL float *y, GLOBAL const float *x, int width, int first, int count, int n)
{
    int i = ELEMENT;
    if (i < n)
        y[i] = x[(size_t)(i / count) * width + first + i % count];
}

// Each head of a, left wide, and behind it that of b, right wide; one of b for all heads of a row if shared.
KERNEL void join_heads(GLOBAL float *y, GLOBAL const float *a, GLOBAL const float *b, int left, int right, int heads,
                       int shared, int n)
{
    int i = ELEMENT, head = i / (left + right), at = i % (left + right);
    if (i < n)
        y[i] = at < left ? a[(size_t)head * left + at] : b[(size_t)(shared ? head / heads : head) * right + at - left];
}

// Row t of y is the mean of rows spans[t] of x [., width]: the first, and how many.
KERNEL void average_rows(GLOBAL float *y, GLOBAL const float *x, GLOBAL const int *spans, int width, int n)
{
    int i = ELEMENT;
    if (i >= n)
        return;
    int first = spans[2 * (i / width)], count = spans[2 * (i / width) + 1];
    float sum = 0.0f;
    for (int row = first; row < first + count; row++)
        sum = sum + x[(size_t)row * width + i % width];
    y[i] = sum / (float)count;
}
