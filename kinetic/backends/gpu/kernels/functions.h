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

// The value of float16 bits, exactly. By integers, since a device's own conversion may lose subnormals.
DEVICE float f16_to_f32(uint bits)
{
    uint moved = (bits & 0x7FFF) << 13;
    float magnitude = FLOAT_OF_BITS(moved) * 0x1p112f;
    magnitude = moved < 0x0F800000 ? magnitude : FLOAT_OF_BITS(moved | 0x7F800000);
    return bits & 0x8000 ? -magnitude : magnitude;
}
