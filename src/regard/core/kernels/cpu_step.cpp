// The decoding step of a small decoder on a CPU: one token of each row through all blocks, and what
// a search takes from its logits. The same function as `Stack.forward` on one position; there the
// time of a small model goes into calling its dozens of operators.
//
// R rows, D the width of the model, H heads, G key heads, K their width, V the vocabulary.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int TILE = 12;  // rows whose sums are in registers: 24 of 32
#elif defined(__AVX__)
constexpr int LANES = 8;
constexpr int TILE = 6;
#else
constexpr int LANES = 4;
constexpr int TILE = 6;
#endif
constexpr int PANEL = 2 * LANES;  // outputs that are computed together

typedef float Vector __attribute__((vector_size(LANES * 4)));
typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
constexpr float MINUS_INFINITY = -std::numeric_limits<float>::infinity();

// ------------------------------------------------------------------ what Python describes

extern "C" {

// A linear map. Float32 weights stand as [panel][inputs][PANEL], int8 ones as
// [panel][inputs / 4][PANEL][4] with a scale and the sum of its weights for each output. All have
// whole panels; zeros follow the last output.
struct Matrix {
    const void *weights;
    const float *scales;  // null: float32
    const int32_t *sums;
    const float *bias;  // may be null
    int64_t inputs;
    int64_t outputs;
};

struct Norm {
    const float *weight;  // null: no norm
    const float *bias;    // null: RMSNorm, or a LayerNorm without one
    double eps;
    int64_t rms;
};

struct Attention {
    Matrix project;  // q, k and v together, or q of a memory
    Matrix output;
    Norm norm;
    int64_t heads;
    int64_t groups;
    int64_t width;  // K
    double scale;
};

struct Block {
    Attention self;
    Attention cross;  // without a matrix where there is no memory
    Matrix inner;
    Matrix outer;
    Norm norm;  // of the feed-forward network
    int64_t activation;
    int64_t gated;
};

struct Model {
    const Block *blocks;
    int64_t layers;
    int64_t pre_norm;
    Norm final;
    Matrix head;
    const float *table;  // [V, D]
    double embedding_scale;
    Norm embedding;
    int64_t d_model;
};

// Keys and values of a layer, [rows, G, positions, columns, K] with K numbers side by side.
struct Cache {
    float *k;
    float *v;
    int64_t row;  // strides
    int64_t group;
    int64_t position;
};

struct LayerCache {
    Cache past;
    Cache memory;  // of an encoder: [sentences, G, S, K]
};

struct State {
    const LayerCache *layers;
    int64_t rows;
    int64_t columns;            // beams that share a row of the cache
    int64_t position;           // of the new token,
    const int64_t *positions;   // or that of each row; may be null
    int64_t *ancestry;          // [rows, length]: the beam that wrote what each continues; may be null
    int64_t ancestry_length;
    const float *position_rows; // [positions, D], added to the embedding; may be null
    int64_t sentences;
    int64_t memory_length;
    const bool *memory_mask;    // [sentences, S], true at tokens; null: all are
    int64_t memory_mask_row;    // its stride
};

static inline int64_t position_of(const State &state, int64_t row) {
    return state.positions ? state.positions[row] : state.position;
}
}

// ------------------------------------------------------------------ vectors

static inline Vector load(const float *x) {
    Vector v;
    std::memcpy(&v, x, sizeof v);
    return v;
}

static inline void store(float *x, Vector v) { std::memcpy(x, &v, sizeof v); }

static inline Vector broadcast(float x) { return x - Vector{}; }

static inline float sum(Vector v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)v);
#else
    for (int i = LANES / 2; i > 0; i /= 2)
        for (int j = 0; j < i; j++) v[j] += v[j + i];
    return v[0];
#endif
}

static inline Vector maximum(Vector a, Vector b) { return a > b ? a : b; }

static inline float maximum(Vector v) {
    float largest = v[0];
    for (int i = 1; i < LANES; i++) largest = std::max(largest, v[i]);
    return largest;
}

// e^x by 2^n · e^r with |r| ≤ ln 2 / 2 and a polynomial: within 2 units in the last place.
static inline Vector exponential(Vector x) {
    x = maximum(x, broadcast(-87.0f));
    x = x < broadcast(88.0f) ? x : broadcast(88.0f);
    const Vector shifter = broadcast(12582912.0f);  // 1.5 · 2^23: rounds to an integer
    Vector n = x * 1.44269504f + shifter;
    n -= shifter;
    Vector r = x - n * 0.693359375f;
    r += n * 2.12194440e-4f;
    Vector p = broadcast(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    Integers power = (__builtin_convertvector(n, Integers) + 127) << 23;
    Vector scale;
    std::memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

// ------------------------------------------------------------------ products

template <int ROWS>
static void tile_float32(const float *x, int64_t inputs, const float *w, float *y) {
    Vector sums[ROWS][2] = {};
    for (int64_t k = 0; k < inputs; k++) {
        Vector w0 = load(w + k * PANEL);
        Vector w1 = load(w + k * PANEL + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            Vector one = broadcast(x[r * inputs + k]);
            sums[r][0] += one * w0;
            sums[r][1] += one * w1;
        }
    }
    for (int r = 0; r < ROWS; r++) {
        store(y + r * PANEL, sums[r][0]);
        store(y + r * PANEL + LANES, sums[r][1]);
    }
}

// A product of ROWS rows quantised to 8 bits, as sums of 32 bits.
template <int ROWS>
static void tile_int8(const uint8_t *x, int64_t inputs, const int8_t *w, int32_t *y) {
#if defined(__AVX512VNNI__)
    __m512i sums[ROWS][2];
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < inputs; k += 4) {
        __m512i w0 = _mm512_loadu_si512(w + k * PANEL);
        __m512i w1 = _mm512_loadu_si512(w + k * PANEL + 64);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            int32_t four;
            std::memcpy(&four, x + r * inputs + k, 4);
            __m512i one = _mm512_set1_epi32(four);
            sums[r][0] = _mm512_dpbusd_epi32(sums[r][0], one, w0);
            sums[r][1] = _mm512_dpbusd_epi32(sums[r][1], one, w1);
        }
    }
    for (int r = 0; r < ROWS; r++) {
        _mm512_storeu_si512(y + r * PANEL, sums[r][0]);
        _mm512_storeu_si512(y + r * PANEL + LANES, sums[r][1]);
    }
#endif
}

// Calls a tile with as many rows as there are, up to TILE.
template <int ROWS, template <int> class Tile, class... Arguments>
static inline void of_rows(int rows, Arguments... arguments) {
    if (rows == ROWS) return Tile<ROWS>::run(arguments...);
    if constexpr (ROWS > 1) of_rows<ROWS - 1, Tile>(rows, arguments...);
}

template <int ROWS> struct Float32 {
    static void run(const float *x, int64_t inputs, const float *w, float *y) {
        tile_float32<ROWS>(x, inputs, w, y);
    }
};

template <int ROWS> struct Int8 {
    static void run(const uint8_t *x, int64_t inputs, const int8_t *w, int32_t *y) {
        tile_int8<ROWS>(x, inputs, w, y);
    }
};

// Each row as 8 bits with a scale and a zero of its own, so that no row depends on another.
struct Quantized {
    std::vector<uint8_t> values;
    std::vector<float> scales;
    std::vector<int32_t> zeros;
};

static void quantize(const float *x, int64_t rows, int64_t inputs, Quantized &q) {
    q.values.resize(rows * inputs);
    q.scales.resize(rows);
    q.zeros.resize(rows);
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * inputs;
        Vector highest = {}, lowest = {};  // zero is always exact
        for (int64_t k = 0; k < inputs; k += LANES) {
            highest = maximum(highest, load(row + k));
            lowest = maximum(lowest, -load(row + k));
        }
        const float least = -maximum(lowest);
        float scale = std::max((maximum(highest) - least) / 255.0f, 1e-30f);
        float zero = std::nearbyint(-least / scale);
        float inverse = 1.0f / scale;
        uint8_t *out = q.values.data() + r * inputs;
        for (int64_t k = 0; k < inputs; k++) {
            float level = std::nearbyint(row[k] * inverse) + zero;
            level = level < 0.0f ? 0.0f : level;
            out[k] = (uint8_t)(int32_t)(level > 255.0f ? 255.0f : level);
        }
        q.scales[r] = scale;
        q.zeros[r] = (int32_t)zero;
    }
}

// One row of a panel: the sums of its products become outputs, or are added to them.
static inline void finish(const Matrix &m, int64_t first, const float *sums, float *y, bool add) {
    float panel[PANEL];
    for (int half = 0; half < PANEL; half += LANES) {
        Vector value = load(sums + half);
        if (m.bias) value += load(m.bias + first + half);
        store(panel + half, value);
    }
    const int width = (int)std::min<int64_t>(PANEL, m.outputs - first);
    if (width < PANEL) {
        for (int o = 0; o < width; o++) y[o] = add ? y[o] + panel[o] : panel[o];
        return;
    }
    for (int half = 0; half < PANEL; half += LANES) {
        Vector value = load(panel + half);
        store(y + half, add ? load(y + half) + value : value);
    }
}

// y [rows, outputs] = x Wᵀ + b, or what is added to y.
static void linear(const Matrix &m, const float *x, int64_t rows, float *y, bool add = false) {
    static thread_local Quantized q;
    const bool is_int8 = m.scales != nullptr;
    if (is_int8) quantize(x, rows, m.inputs, q);
    float sums[TILE * PANEL];
    int32_t integers[TILE * PANEL];
    for (int64_t first = 0; first < m.outputs; first += PANEL) {
        for (int64_t row = 0; row < rows; row += TILE) {
            const int count = (int)std::min<int64_t>(TILE, rows - row);
            if (is_int8) {
                const int8_t *w = (const int8_t *)m.weights + first * m.inputs;
                of_rows<TILE, Int8>(count, q.values.data() + row * m.inputs, m.inputs, w, integers);
                for (int r = 0; r < count; r++)
                    for (int o = 0; o < PANEL; o += LANES) {
                        Integers centred;
                        std::memcpy(&centred, integers + r * PANEL + o, sizeof centred);
                        Integers totals;
                        std::memcpy(&totals, m.sums + first + o, sizeof totals);
                        centred -= totals * q.zeros[row + r];
                        Vector value = __builtin_convertvector(centred, Vector);
                        store(sums + r * PANEL + o,
                              value * (load(m.scales + first + o) * q.scales[row + r]));
                    }
            } else {
                const float *w = (const float *)m.weights + first * m.inputs;
                of_rows<TILE, Float32>(count, x + row * m.inputs, m.inputs, w, sums);
            }
            for (int r = 0; r < count; r++)
                finish(m, first, sums + r * PANEL, y + (row + r) * m.outputs + first, add);
        }
    }
}

// ------------------------------------------------------------------ norms and activations

static void normalize(const Norm &norm, const float *x, int64_t rows, int64_t width, float *y) {
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        Vector mean = {}, squares = {};
        if (!norm.rms) {
            for (int64_t i = 0; i < width; i += LANES) mean += load(x + i);
            mean = broadcast(sum(mean) / width);
        }
        for (int64_t i = 0; i < width; i += LANES) {
            Vector centred = load(x + i) - mean;
            squares += centred * centred;
        }
        const float scale = 1.0f / std::sqrt(sum(squares) / width + (float)norm.eps);
        for (int64_t i = 0; i < width; i += LANES) {
            Vector value = (load(x + i) - mean) * scale * load(norm.weight + i);
            store(y + i, norm.bias ? value + load(norm.bias + i) : value);
        }
    }
}

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

static inline Vector hyperbolic_tangent(Vector x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// In the order of `cpu_step.ACTIVATIONS`.
static inline Vector activate(Vector x, int64_t kind) {
    switch (kind) {
    case 0:
        return x > Vector{} ? x : Vector{};
    case 1:
        for (int i = 0; i < LANES; i++) x[i] *= 0.5f * (1.0f + std::erf(x[i] * 0.70710678f));
        return x;
    case 2:
        return 0.5f * x * (1.0f + hyperbolic_tangent(0.79788456f * (x + 0.044715f * x * x * x)));
    case 3:
        return x * sigmoid(1.702f * x);
    case 4:
        return x * sigmoid(x);
    default:
        return hyperbolic_tangent(x);
    }
}

// ------------------------------------------------------------------ attention

// What one head finds among `count` keys, of which key(i) and value(i) are the addresses, or null
// where a query may not attend. Nothing to attend to is zero. K is PARTS vectors.
template <int PARTS, class Key, class Value>
static void attend(const float *q, int64_t count, float scale, Key key, Value value, float *scores,
                   float *out) {
    Vector query[PARTS];
    for (int p = 0; p < PARTS; p++) query[p] = load(q + p * LANES) * scale;
    const int64_t padded = (count + LANES - 1) / LANES * LANES;
    for (int64_t i = 0; i < count; i++) {
        const float *k = key(i);
        Vector total = {};
        for (int p = 0; k && p < PARTS; p++) total += query[p] * load(k + p * LANES);
        scores[i] = k ? sum(total) : MINUS_INFINITY;
    }
    std::fill(scores + count, scores + padded, MINUS_INFINITY);
    Vector largest = load(scores);
    for (int64_t i = LANES; i < padded; i += LANES) largest = maximum(largest, load(scores + i));
    const float most = maximum(largest);
    Vector totals = {}, found[PARTS] = {};
    if (most > MINUS_INFINITY) {
        for (int64_t i = 0; i < padded; i += LANES) {
            Vector score = load(scores + i);
            Vector weight = score == MINUS_INFINITY ? Vector{} : exponential(score - most);
            store(scores + i, weight);
            totals += weight;
        }
        for (int64_t i = 0; i < count; i++) {
            if (scores[i] == 0.0f) continue;
            const float *v = value(i);
            for (int p = 0; p < PARTS; p++) found[p] += scores[i] * load(v + p * LANES);
        }
    }
    const float inverse = most > MINUS_INFINITY ? 1.0f / sum(totals) : 0.0f;
    for (int p = 0; p < PARTS; p++) store(out + p * LANES, found[p] * inverse);
}

// `attend` for a width of K numbers: at most 128, in whole vectors.
template <class... Arguments>
static inline void attend_over(int64_t width, Arguments... arguments) {
    switch (width / LANES) {
    case 1: return attend<1>(arguments...);
    case 2: return attend<2>(arguments...);
    case 4: return attend<4>(arguments...);
    case 8: return attend<8>(arguments...);
    default: return attend<16>(arguments...);
    }
}

static void self_attention(const Attention &part, const State &state, const Cache &cache,
                           const float *qkv, float *scores, float *mixed) {
    const int64_t heads = part.heads, groups = part.groups, width = part.width;
    for (int64_t row = 0; row < state.rows; row++) {
        const float *q = qkv + row * (heads + 2 * groups) * width;
        const int64_t column = row % state.columns, now = position_of(state, row);
        int64_t *beams = state.ancestry ? state.ancestry + row * state.ancestry_length : nullptr;
        if (beams) beams[now] = column;
        auto offset = [&](int64_t group, int64_t position) {
            return row / state.columns * cache.row + group * cache.group +
                   position * cache.position + (beams ? beams[position] : column) * width;
        };
        for (int64_t g = 0; g < groups; g++) {
            const float *k = q + (heads + g) * width;
            std::memcpy(cache.k + offset(g, now), k, width * sizeof(float));
            std::memcpy(cache.v + offset(g, now), k + groups * width, width * sizeof(float));
        }
        for (int64_t h = 0; h < heads; h++) {
            const int64_t g = h / (heads / groups);
            attend_over(
                width, q + h * width, now + 1, (float)part.scale,
                [&](int64_t i) { return cache.k + offset(g, i); },
                [&](int64_t i) { return cache.v + offset(g, i); }, scores,
                mixed + (row * heads + h) * width);
        }
    }
}

static void cross_attention(const Attention &part, const State &state, const Cache &memory,
                            const float *q, float *scores, float *mixed) {
    const int64_t heads = part.heads, width = part.width;
    const int64_t beams = state.rows / state.sentences;
    for (int64_t row = 0; row < state.rows; row++) {
        const int64_t sentence = row / beams;
        const bool *mask =
            state.memory_mask ? state.memory_mask + sentence * state.memory_mask_row : nullptr;
        for (int64_t h = 0; h < heads; h++) {
            const int64_t g = h / (heads / part.groups);
            const int64_t first = sentence * memory.row + g * memory.group;
            attend_over(
                width, q + (row * heads + h) * width, state.memory_length, (float)part.scale,
                [&](int64_t i) {
                    return mask && !mask[i] ? nullptr : memory.k + first + i * memory.position;
                },
                [&](int64_t i) { return memory.v + first + i * memory.position; }, scores,
                mixed + (row * heads + h) * width);
        }
    }
}

// ------------------------------------------------------------------ the step

// Calls a sublayer on x [rows, D], with its norm before it or after the sum.
template <class Sublayer>
static void around(bool pre_norm, const Norm &norm, std::vector<float> &x, std::vector<float> &normed,
                   int64_t rows, int64_t width, Sublayer sublayer) {
    if (pre_norm) normalize(norm, x.data(), rows, width, normed.data());
    sublayer(pre_norm ? normed.data() : x.data());
    if (!pre_norm) normalize(norm, x.data(), rows, width, x.data());
}

extern "C" int64_t lanes() { return LANES; }

extern "C" int64_t has_int8() {
#if defined(__AVX512VNNI__)
    return 1;
#else
    return 0;
#endif
}

// Weights [outputs, inputs] as panels; what is missing in the last one is zero.
extern "C" void pack_float32(const float *w, int64_t outputs, int64_t inputs, float *packed) {
    for (int64_t o = 0; o < (outputs + PANEL - 1) / PANEL * PANEL; o++)
        for (int64_t k = 0; k < inputs; k++)
            packed[(o / PANEL * inputs + k) * PANEL + o % PANEL] = o < outputs ? w[o * inputs + k] : 0;
}

extern "C" void pack_int8(const int8_t *w, int64_t outputs, int64_t inputs, int8_t *packed,
                          int32_t *sums) {
    for (int64_t o = 0; o < (outputs + PANEL - 1) / PANEL * PANEL; o++) {
        int32_t total = 0;
        for (int64_t k = 0; k < inputs; k++) {
            int8_t value = o < outputs ? w[o * inputs + k] : 0;
            packed[((o / PANEL * inputs + k / 4 * 4) * PANEL) + o % PANEL * 4 + k % 4] = value;
            total += value;
        }
        sums[o] = total;
    }
}

// tokens [rows] → logits [rows, V]; the caches take in the new position.
extern "C" void step(const Model *model, const State *state, const int64_t *tokens, float *logits) {
    const int64_t rows = state->rows, width = model->d_model;
    int64_t widest = width;
    for (int64_t n = 0; n < model->layers; n++) {
        const Block &block = model->blocks[n];
        widest = std::max({widest, block.self.project.outputs, block.inner.outputs,
                           block.cross.project.outputs});
    }
    static thread_local std::vector<float> x, normed, wide, mixed, scores;
    x.resize(rows * width);
    normed.resize(rows * width);
    wide.resize(rows * widest);
    mixed.resize(rows * widest);
    int64_t longest = state->memory_length;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t position = position_of(*state, r);
        longest = std::max(longest, position + 1);
        const float *row = model->table + tokens[r] * width;
        const float *added = state->position_rows + position * width;
        for (int64_t i = 0; i < width; i++) {
            float value = row[i] * (float)model->embedding_scale;
            x[r * width + i] = state->position_rows ? value + added[i] : value;
        }
    }
    scores.resize(longest + LANES);
    if (model->embedding.weight) normalize(model->embedding, x.data(), rows, width, x.data());
    const bool pre_norm = model->pre_norm;
    for (int64_t n = 0; n < model->layers; n++) {
        const Block &block = model->blocks[n];
        const LayerCache &cache = state->layers[n];
        around(pre_norm, block.self.norm, x, normed, rows, width, [&](const float *in) {
            linear(block.self.project, in, rows, wide.data());
            self_attention(block.self, *state, cache.past, wide.data(), scores.data(), mixed.data());
            linear(block.self.output, mixed.data(), rows, x.data(), true);
        });
        if (block.cross.project.weights)
            around(pre_norm, block.cross.norm, x, normed, rows, width, [&](const float *in) {
                linear(block.cross.project, in, rows, wide.data());
                cross_attention(block.cross, *state, cache.memory, wide.data(), scores.data(),
                                mixed.data());
                linear(block.cross.output, mixed.data(), rows, x.data(), true);
            });
        around(pre_norm, block.norm, x, normed, rows, width, [&](const float *in) {
            linear(block.inner, in, rows, wide.data());
            const int64_t inner = block.inner.outputs, hidden = block.outer.inputs;
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < hidden; i += LANES) {
                    const float *from = wide.data() + r * inner + i;
                    Vector value = activate(load(from), block.activation);
                    if (block.gated) value *= load(from + hidden);
                    store(mixed.data() + r * hidden + i, value);
                }
            linear(block.outer, mixed.data(), rows, x.data(), true);
        });
    }
    if (model->final.weight) normalize(model->final, x.data(), rows, width, x.data());
    linear(model->head, x.data(), rows, logits);
}

// ------------------------------------------------------------------ what a search takes

static float largest_of(const float *x, int64_t size) {
    Vector most = broadcast(MINUS_INFINITY);
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) most = maximum(most, load(x + i));
    float largest = maximum(most);
    for (; i < size; i++) largest = std::max(largest, x[i]);
    return largest;
}

// log Σ exp; NaN if any of them is, as the caller must see it.
static float log_sum_exp(const float *x, int64_t size, float largest) {
    if (largest == MINUS_INFINITY) return MINUS_INFINITY;
    Vector totals = {}, defects = {};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        Vector value = load(x + i) - largest;
        defects += value == value ? Vector{} : value;
        totals += exponential(value);
    }
    double total = sum(totals) + sum(defects);
    for (; i < size; i++) total += std::exp(x[i] - largest);
    return largest + (float)std::log(total);
}

// The best `count` of each row of logits [rows, V], best first, of equals the first; log Σ exp.
extern "C" void top(const float *logits, int64_t rows, int64_t size, int64_t count, float *values,
                    int64_t *tokens, float *normalizers) {
    for (int64_t r = 0; r < rows; r++, logits += size, values += count, tokens += count) {
        int64_t filled = 0;
        auto offer = [&](int64_t token) {
            const float value = logits[token];
            if (filled == count && !(value > values[count - 1])) return;
            int64_t place = filled < count ? filled++ : count - 1;
            for (; place > 0 && value > values[place - 1]; place--) {
                values[place] = values[place - 1];
                tokens[place] = tokens[place - 1];
            }
            values[place] = value;
            tokens[place] = token;
        };
        int64_t i = 0;
        for (; i < size && filled < count; i++) offer(i);
        for (; i + LANES <= size; i += LANES) {
            Integers better = load(logits + i) > broadcast(values[count - 1]);
            int32_t any = 0;
            for (int j = 0; j < LANES; j++) any |= better[j];
            if (any)
                for (int j = 0; j < LANES; j++) offer(i + j);
        }
        for (; i < size; i++) offer(i);
        normalizers[r] = log_sum_exp(logits, size, values[0]);
    }
}

// A step of greedy decoding, as `kernels.topk.take_best`.
extern "C" void take_best(const float *logits, int64_t rows, int64_t size, int64_t end,
                          const int64_t *steps, int64_t step_stride, const int64_t *limits,
                          bool *ended, float *totals, int64_t *tokens, int64_t length,
                          int64_t *last) {
    for (int64_t r = 0; r < rows; r++, logits += size) {
        const int64_t t = steps[r * step_stride];
        const bool done = ended[r] || limits[r] <= t;
        int64_t token = end;
        if (!done) {
            const float most = largest_of(logits, size);
            token = std::find(logits, logits + size, most) - logits;
            token = std::min(token, size - 1);
            totals[r] += most - log_sum_exp(logits, size, most);
            ended[r] = token == end;
        }
        tokens[r * length + t] = token;
        last[r] = std::max<int64_t>(token, 0);  // −1 where there is no end token
    }
}

// The state of a beam search, as `decode.beam_search.SearchState`: B sentences of N, W beams.
struct Search {
    int64_t sentences;  // B
    int64_t width;      // W
    int64_t length;     // L
    int64_t per_row;    // candidates of each beam, best first
    int64_t refilled;   // whether a finished hypothesis gives its slot on
    int64_t stop;       // in the order of `cpu_step.STOPS`
    int64_t best;       // how many hypotheses are asked for
    const int64_t *t;   // tokens so far, of all sentences or of each
    int64_t t_stride;
    const int64_t *ends;  // the tokens that end a hypothesis
    int64_t end_count;
    const float *divisors;  // [L], the length penalty
    int64_t divisor_count;
    const int64_t *sentence;  // [B], which of the N
    const int64_t *limits;    // [N]
    float *sums;              // [B, W]
    int64_t *tokens;          // [B, W, L]
    bool *running;            // [B]
    float *finished_scores;   // [N, W]
    float *finished_sums;
    int64_t *finished_lengths;
    bool *finished_ended;
    int64_t *finished_tokens;  // [N, W, L]
    int64_t *parents;          // [B, W], the rows that the new beams continue
};

struct Candidate {
    float sum;
    int64_t parent;
    int64_t token;
    bool ends;
    float score;  // after the length penalty; −∞: it does not finish
};

// The most that the sum of a hypothesis which goes on can still be worth; see `_is_decided`.
static bool is_decided(const Search &search, const float *scores, float best_sum, int64_t t,
                       int64_t limit) {
    const float worst = scores[search.width - 1];
    switch (search.stop) {
    case 0: return worst > MINUS_INFINITY;
    case 1: return worst >= best_sum / search.divisors[t];
    default:
        const float at_limit = search.divisors[limit - 1];
        const float at_next = search.divisors[std::min(t + 1, search.divisor_count - 1)];
        return scores[search.best - 1] >= best_sum / std::max(at_limit, at_next);
    }
}

// The hypotheses of a sentence that finish now join the best W finished ones.
static void add_finished(const Search &search, int64_t n, int64_t t,
                         const std::vector<Candidate> &candidates, const int64_t *tokens) {
    const int64_t width = search.width, length = search.length;
    float *scores = search.finished_scores + n * width;
    for (const Candidate &one : candidates) {
        if (!(one.score > scores[width - 1])) continue;
        int64_t place = width - 1;
        for (; place > 0 && one.score > scores[place - 1]; place--) {
            const int64_t to = n * width + place;
            search.finished_scores[to] = search.finished_scores[to - 1];
            search.finished_sums[to] = search.finished_sums[to - 1];
            search.finished_lengths[to] = search.finished_lengths[to - 1];
            search.finished_ended[to] = search.finished_ended[to - 1];
            int64_t *text = search.finished_tokens + to * length;
            std::memcpy(text, text - length, length * sizeof(int64_t));
        }
        const int64_t to = n * width + place;
        search.finished_scores[to] = one.score;
        search.finished_sums[to] = one.sum;
        search.finished_lengths[to] = t + 1 - one.ends;
        search.finished_ended[to] = one.ends;
        int64_t *text = search.finished_tokens + to * length;
        std::memcpy(text, tokens + one.parent * length, length * sizeof(int64_t));
        text[t] = one.token;
    }
}

// The new beam of every sentence from the best tokens of each row, [B · W, per_row], and their
// log-probabilities less that of the row's normalizer; the same as `beam_search._advance`.
extern "C" void advance(const Search *s, const float *values, const int64_t *next_tokens,
                        const float *normalizers) {
    const Search &search = *s;
    const int64_t width = search.width, length = search.length, per_row = search.per_row;
    const int64_t count = std::min(2 * width, width * per_row);
    std::vector<Candidate> candidates;
    std::vector<int64_t> before(width * length);
    for (int64_t b = 0; b < search.sentences; b++) {
        const int64_t n = search.sentence[b], t = search.t[b * search.t_stride];
        const bool at_limit = search.limits[n] == t + 1;
        float *scores = search.finished_scores + n * width;
        float *sums = search.sums + b * width;
        int64_t *tokens = search.tokens + b * width * length;
        auto slots = [&] {
            if (search.refilled) return width;
            return width - std::count_if(scores, scores + width,
                                         [](float score) { return score > MINUS_INFINITY; });
        };
        candidates.clear();
        for (int64_t w = 0; w < width; w++)
            for (int64_t i = 0; i < per_row; i++) {
                const int64_t at = (b * width + w) * per_row + i;
                const float sum = sums[w] + (values[at] - normalizers[b * width + w]);
                if ((int64_t)candidates.size() == count) {
                    if (!(sum > candidates.back().sum)) break;  // nor is what follows
                    candidates.pop_back();
                }
                auto place = candidates.end();
                while (place != candidates.begin() && sum > (place - 1)->sum) --place;
                candidates.insert(place, {sum, w, next_tokens[at], false, MINUS_INFINITY});
            }
        const int64_t free = slots();
        for (int64_t rank = 0; rank < (int64_t)candidates.size(); rank++) {
            Candidate &one = candidates[rank];
            const int64_t *last = search.ends + search.end_count;
            one.ends = std::find(search.ends, last, one.token) != last;
            if (rank < free && (one.ends || at_limit)) one.score = one.sum / search.divisors[t];
        }
        add_finished(search, n, t, candidates, tokens);
        // What goes on, in order; then, to fill the beam, what does not.
        std::stable_partition(candidates.begin(), candidates.end(),
                              [](const Candidate &one) { return !one.ends; });
        const int64_t left = at_limit ? 0 : slots();
        std::memcpy(before.data(), tokens, width * length * sizeof(int64_t));
        float best_sum = MINUS_INFINITY;
        for (int64_t w = 0; w < width; w++) {
            const Candidate &one = candidates[w];
            sums[w] = w < left ? one.sum : MINUS_INFINITY;
            best_sum = std::max(best_sum, sums[w]);
            const int64_t *history = before.data() + one.parent * length;
            std::memcpy(tokens + w * length, history, length * sizeof(int64_t));
            tokens[w * length + t] = one.token;
            search.parents[b * width + w] = b * width + one.parent;
        }
        const bool decided = is_decided(search, scores, best_sum, t, search.limits[n]);
        search.running[b] = best_sum > MINUS_INFINITY && !decided;
    }
}
