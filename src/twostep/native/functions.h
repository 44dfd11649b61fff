/* What generated code calls: functions that a compiler can turn into vector instructions.
   Polynomials with errors of one or two units in the last place, over the whole range of single precision;
   infinities and NaN go through them as through the functions of the C library. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define ROUTINE static __attribute__((noinline)) void

/* Sixteen floats; a machine whose registers are narrower takes several. */
typedef float wide __attribute__((vector_size(64), aligned(4), may_alias));
#define WIDE(p) (*(wide *)(p))

/* Products and sums that must be rounded in this order: sums may be taken in any other. */
#if defined(__FMA__) || defined(__aarch64__)
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FUSED(a, b, c) rounded((c) + rounded((a) * (b)))
INLINE float rounded(float x) { __asm__("" : "+m"(x)); return x; }
#endif

INLINE float as_float(int32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
INLINE int32_t as_bits(float x) { int32_t bits; memcpy(&bits, &x, 4); return bits; }

INLINE float fast_exp(float x) {
    float inside = x > 88.722839f ? 88.722839f : (x < -87.4f ? -87.4f : x);
    inside = x != x ? 0.0f : inside;
    float n = rintf(inside * 1.44269504f);
    float r = FUSED(n, 2.12194440e-4f, FUSED(n, -0.693359375f, inside));
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t up = n > 0.0f; /* p times 2^n, in two steps: 2^128 is no float */
    float y = as_float(as_bits(p) + (((int32_t)n - up) << 23)) * (up ? 2.0f : 1.0f);
    y = x > 88.722839f ? INFINITY : y;
    y = x < -87.33f ? 0.0f : y;
    return x != x ? x : y;
}

INLINE float fast_log(float x) {
    int32_t bits = as_bits(x);
    int32_t exponent = (bits >> 23) - 126;
    float m = as_float((bits & 0x007fffff) | 0x3f000000);
    int small = m < 0.707106781f;
    float e = (float)(small ? exponent - 1 : exponent);
    m = small ? m + m - 1.0f : m - 1.0f;
    float z = m * m;
    float p = 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    p = FUSED(e, -2.12194440e-4f, p * m * z) - 0.5f * z;
    float y = FUSED(e, 0.693359375f, m + p);
    y = x > 3.4028235e38f ? x : y;
    y = x < 1.17549435e-38f ? (x > 0.0f ? -87.33654f : -INFINITY) : y; /* below what is normal: as the smallest */
    return (x < 0.0f) | (x != x) ? NAN : y;
}

INLINE float fast_sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

INLINE float fast_tanh(float x) {
    float z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    p = p * z * x + x;
    float y = 1.0f - 2.0f / (fast_exp(2.0f * x) + 1.0f);
    return fabsf(x) < 0.625f ? p : y;
}

INLINE float fast_expm1(float x) { /* Taylor where exp(x) - 1 would lose digits */
    float p = 1.0f + x * (0.5f + x * (1.6666667e-1f + x * (4.1666667e-2f + x * (8.3333333e-3f + x * 1.3888889e-3f))));
    return fabsf(x) < 0.3f ? x * p : fast_exp(x) - 1.0f;
}

INLINE float smaller(float a, float b) { return (a < b) | (a != a) ? a : b; } /* NaN wins, as in torch */
INLINE float larger(float a, float b) { return (a > b) | (a != a) ? a : b; }
INLINE float sign_of(float x) { return (float)((x > 0.0f) - (x < 0.0f)); }

INLINE float log_add_exp(float a, float b) {
    float most = larger(a, b), least = smaller(a, b);
    return least == most ? most + 0.69314718f : most + log1pf(fast_exp(least - most));
}

static float digamma(float given) { /* upwards until the series converges, downwards by reflection */
    double x = given, shift = 0.0;
    if (given <= 0.0f) {
        if (given == floorf(given)) return given == 0.0f ? -INFINITY : NAN;
        shift = -M_PI / tan(M_PI * x);
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) shift -= 1.0 / x;
    double z = 1.0 / (x * x);
    double series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z / 132))));
    return (float)(shift + log(x) - 0.5 / x - series);
}

static float trigamma(float given) {
    double x = given, sum = 0.0, sign = 1.0;
    if (given < 0.5f) {
        double sine = sin(M_PI * x);
        sum = M_PI * M_PI / (sine * sine);
        sign = -1.0;
        x = 1.0 - x;
    }
    for (; x < 10.0; x += 1.0) sum += sign / (x * x);
    double z = 1.0 / (x * x);
    double series = z * (1.0 / 6 - z * (1.0 / 30 - z * (1.0 / 42 - z * (1.0 / 30))));
    return (float)(sum + sign * (1.0 + 0.5 / x + series) / x);
}
