// The scalar functions, step by step those of reference/functions.py.

#include "common.h"

#define MAGIC 12582912.0f // 1.5 * 2^23
#define MAGIC_BITS 0x4B400000
#define INFINITE FLOAT_OF_BITS(0x7F800000)

DEVICE float power_of_two(int n)
{
    return FLOAT_OF_BITS((uint)(n + 127) << 23);
}

DEVICE float exp32(float x)
{
    float clamped = x < -104.0f ? -104.0f : x;
    clamped = clamped > 88.72f ? 88.72f : clamped;
    float shifted = FMA(clamped, 1.44269504088896341f, MAGIC);
    float n = shifted - MAGIC;
    float r = FMA(n, 2.12194440e-4f, FMA(n, -0.693359375f, clamped));
    float p = 1.9875691500e-4f;
    p = FMA(p, r, 1.3981999507e-3f);
    p = FMA(p, r, 8.3334519073e-3f);
    p = FMA(p, r, 4.1665795894e-2f);
    p = FMA(p, r, 1.6666665459e-1f);
    p = FMA(p, r, 5.0000001201e-1f);
    float y = FMA(p, r * r, r) + 1.0f;
    int exponent = (int)(BITS_OF_FLOAT(shifted) - MAGIC_BITS);
    int half_of_it = exponent >> 1;
    y = y * power_of_two(half_of_it) * power_of_two(exponent - half_of_it);
    return x > 88.72f ? INFINITE : y;
}

// exp(difference), 0 below -87. NaN stays NaN.
DEVICE float softmax_weight(float difference)
{
    return difference < -87.0f ? 0.0f : exp32(difference);
}

// The value of float16 bits, exactly. By integers where a device's own conversion may lose subnormals.
DEVICE float f16_to_f32(uint bits)
{
#ifdef CONVERTED_F16
    return CONVERTED_F16(bits);
#else
    uint moved = (bits & 0x7FFF) << 13;
    float magnitude = FLOAT_OF_BITS(moved) * 0x1p112f;
    magnitude = moved < 0x0F800000 ? magnitude : FLOAT_OF_BITS(moved | 0x7F800000);
    return bits & 0x8000 ? -magnitude : magnitude;
#endif
}

// Clamped to +-65504, then rounded to nearest even, subnormals kept. NaN stays NaN.
DEVICE ushort f32_to_f16(float x)
{
    uint bits = BITS_OF_FLOAT(x), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    uint rounded;
    if (magnitude > 0x7F800000)
        rounded = 0x7E00;
    else if (magnitude > 0x477FE000)
        rounded = 0x7BFF;
    else if (magnitude >= 0x38800000) {
        magnitude -= 0x38000000;
        rounded = (magnitude + 0xFFF + (magnitude >> 13 & 1)) >> 13;
    } else // a multiple of 2^-24: one rounding, by adding
        rounded = BITS_OF_FLOAT(FLOAT_OF_BITS(magnitude) * 0x1p24f + MAGIC) - MAGIC_BITS;
    return (ushort)(sign | rounded);
}

DEVICE float magnitude_of(float x)
{
    return FLOAT_OF_BITS(BITS_OF_FLOAT(x) & 0x7FFFFFFF);
}

DEVICE float sigmoid32(float x)
{
    return 1.0f / (1.0f + exp32(-x));
}

DEVICE float silu32(float x)
{
    return x / (1.0f + exp32(-x));
}

DEVICE float gelu32(float x)
{
    float u = (1.5957691216057308f * x) * FMA(0.044715f, x * x, 1.0f);
    return x / (1.0f + exp32(-u));
}

DEVICE float softplus32(float x)
{
    float y = exp32(-magnitude_of(x));
    float s = y / (2.0f + y), z = s * s, twice = s + s;
    float p = 1.3433775305747986e-1f;
    p = FMA(p, z, 1.4116978645324707e-1f);
    p = FMA(p, z, 2.000383585691452e-1f);
    p = FMA(p, z, 3.3333319425582886e-1f);
    return (x > 0.0f ? x : 0.0f) + FMA(twice * z, p, twice);
}

DEVICE float relu_sqr32(float x)
{
    float r = x < 0.0f ? 0.0f : x;
    return r * r;
}

DEVICE float tanh32(float x)
{
    float magnitude = magnitude_of(x), square = x * x;
    float p = -5.70498872745e-3f;
    p = FMA(p, square, 2.06390887954e-2f);
    p = FMA(p, square, -5.37397155531e-2f);
    p = FMA(p, square, 1.33314422036e-1f);
    p = FMA(p, square, -3.33332819422e-1f);
    float small = FMA(p * square, x, x);
    float large = 1.0f - 2.0f / (1.0f + exp32(magnitude + magnitude));
    large = FLOAT_OF_BITS((BITS_OF_FLOAT(large) & 0x7FFFFFFF) | (BITS_OF_FLOAT(x) & 0x80000000));
    return magnitude < 0.625f ? small : large;
}

DEVICE float softcap32(float x, float cap)
{
    float capped = cap * tanh32(x / cap);
    return magnitude_of(x) == INFINITE ? x : capped;
}

DEVICE float swiglu_oai32(float gate, float up)
{
    float g = gate > 7.0f ? 7.0f : gate;
    float u = up > 7.0f ? 7.0f : up;
    u = up < -7.0f ? -7.0f : u;
    return g / (1.0f + exp32(-(1.702f * g))) * (u + 1.0f);
}

// The activations of base.ACTIVATIONS, in their order.
DEVICE float activation32(float x, int kind)
{
    if (kind == 0)
        return silu32(x);
    if (kind == 1)
        return gelu32(x);
    return kind == 2 ? sigmoid32(x) : relu_sqr32(x);
}

// Sum of 16 partial sums: i + (i + 8), then + 4, + 2, + 1.
DEVICE float tree_sum16(float *partials)
{
    for (int distance = 8; distance > 0; distance /= 2)
        for (int i = 0; i < distance; i++)
            partials[i] = partials[i] + partials[i + distance];
    return partials[0];
}
