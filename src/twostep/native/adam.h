/* Adam and AdamW over all parameters: for each the addresses of gradient, weight, both moments and step count. */
#include <math.h>
#include <stdint.h>

void adam(int64_t count, float *const *addresses, const int64_t *sizes, double lr, double beta1, double beta2,
          double epsilon, double decay, int64_t decoupled) {
    for (int64_t i = 0; i < count; i++) {
        float *const *p = addresses + 5 * i;
        float *restrict weight = p[1], *restrict first = p[2], *restrict second = p[3];
        const float *restrict gradient = p[0];
        double step = *p[4] += 1.0f;
        double root = sqrt(1.0 - pow(beta2, step));
        float size = (float)(lr / (1.0 - pow(beta1, step))), scale = (float)(1.0 / root);
        float into_first = (float)(1.0 - beta1), into_second = (float)(1.0 - beta2), keep = (float)beta2;
        float shrink = decoupled ? (float)(1.0 - lr * decay) : 1.0f, pull = decoupled ? 0.0f : (float)decay;
        float least = (float)epsilon;
        for (int64_t n = 0; n < sizes[i]; n++) {
            float w = weight[n] * shrink, g = gradient[n] + pull * w;
            float m = first[n] + into_first * (g - first[n]);
            float v = keep * second[n] + into_second * g * g;
            first[n] = m;
            second[n] = v;
            weight[n] = w - size * m / (sqrtf(v) * scale + least);
        }
    }
}
