/* Statistics of a list of tensors, merged into rows (_rows.py), in one pass over their memory. Compiled at run time
 * (_cpu_library.py); its floating point must not be relaxed, or a NaN is lost.
 *
 * Magnitudes are handled as the integers of their float32 bits, whose order is that of the values: subnormals keep
 * their value in a thread that flushes denormals. Sums are in float64, where the square of a float32 number is exact.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 4096          /* elements: 16 KB of float32, which stay in the first cache for a second loop */
#define SAMPLE 16           /* of a large tensor the histogram covers every so many blocks */
#define CHUNK (64 * BLOCK)  /* what a thread takes at a time; a multiple of SAMPLE blocks */
#define LANES 16
#define MAX_THREADS 64

#define MAGNITUDE 0x7FFFFFFFu
#define INFINITE 0x7F800000u
#define BINS 512
#define TABLE 1024          /* bins by (bits - 1) >> 22, where zero has the last place */

/* The square is exact, so that one rounding is what two are. */
#ifdef __FP_FAST_FMA
#define SQUARE_ADDED(value, sum) __builtin_fma(value, value, sum)
#else
#define SQUARE_ADDED(value, sum) ((sum) + (value) * (value))
#endif

enum { ZEROS, NANS, INFS, ABSMAX, ABSMIN_GAP, SUM, SUMSQ, ELEMENTS, SAMPLED, TENSORS, WORDS };
enum { FLOAT32, BFLOAT16, FLOAT16, FLOAT64, CODES };

typedef struct {
    const void *data;
    int64_t elements;
    int64_t dtype;          /* above CODES: bytes whose values are in the table number dtype - CODES */
    int64_t row;
    int64_t tensors;        /* 1 for the first run of a tensor whose memory is in several, else 0 */
} run;

typedef struct {
    int64_t zeros, nans, infs, sampled;
    uint32_t absmax, rank;  /* rank: least of (bits - 1), where zero loses against every other element */
    double sum, sumsq;
} part;

/* Views may start at any byte. */
typedef uint16_t any16 __attribute__((aligned(1), may_alias));
typedef double any64 __attribute__((aligned(1), may_alias));

static double as_double(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* float32 bits of one block. Integer arithmetic wherever a number may be subnormal. */
static const uint32_t *block_of(const run *t, const uint32_t (*tables)[256], int64_t at, int n, uint32_t *buffer) {
    if (t->dtype == FLOAT32 && (uintptr_t)t->data % 4 == 0) return (const uint32_t *)t->data + at;
    if (t->dtype == FLOAT32) {
        memcpy(buffer, (const char *)t->data + 4 * at, 4 * (size_t)n);
    } else if (t->dtype == BFLOAT16) {
        const any16 *from = (const any16 *)t->data + at;
        for (int i = 0; i < n; i++) buffer[i] = (uint32_t)from[i] << 16;
    } else if (t->dtype == FLOAT16) {
        const any16 *from = (const any16 *)t->data + at;
        for (int i = 0; i < n; i++) {
            uint32_t sign = (uint32_t)(from[i] & 0x8000) << 16, magnitude = from[i] & 0x7FFFu, subnormal;
            float value = (float)(int32_t)magnitude * 0x1p-24f;
            memcpy(&subnormal, &value, 4);
            uint32_t wide = (magnitude << 13) + (112u << 23) + (magnitude >= 0x7C00u ? 112u << 23 : 0);
            buffer[i] = sign | (magnitude < 0x400u ? subnormal : wide);
        }
    } else if (t->dtype == FLOAT64) {
        const any64 *from = (const any64 *)t->data + at;
        const double limit = 0x1.fffffep127, infinity = __builtin_inf();
        for (int i = 0; i < n; i++) {
            double value = from[i];
            double clamped = value > limit ? limit : value < -limit ? -limit : value;
            float single = (float)(value == infinity || value == -infinity ? value : clamped);
            memcpy(&buffer[i], &single, 4);
        }
    } else {
        const uint32_t *values = tables[t->dtype - CODES];
        const uint8_t *from = (const uint8_t *)t->data + at;
        for (int i = 0; i < n; i++) buffer[i] = values[from[i]];
    }
    return buffer;
}

/* A block with a NaN or an Inf. */
static void masked(const uint32_t *x, int n, part *p) {
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = x[i] & MAGNITUDE;
        if (magnitude >= INFINITE) {
            p->infs += magnitude == INFINITE;
            p->nans += magnitude > INFINITE;
            continue;
        }
        uint32_t rank = magnitude - 1;
        double value = as_double(x[i]);
        p->absmax = magnitude > p->absmax ? magnitude : p->absmax;
        p->rank = rank < p->rank ? rank : p->rank;
        p->zeros += magnitude == 0;
        p->sum += value;
        p->sumsq += value * value;
    }
}

/* What is in a block; returns whether all of it is finite. Two loops, each of which keeps its sums in registers. */
static int measure_block(const uint32_t *x, int n, part *p) {
    part rest = {.rank = ~0u};
    uint32_t zeros = 0;
    for (int i = 0; i < n; i++) {
        uint32_t magnitude = x[i] & MAGNITUDE, rank = magnitude - 1;
        rest.absmax = magnitude > rest.absmax ? magnitude : rest.absmax;
        rest.rank = rank < rest.rank ? rank : rest.rank;
        zeros += magnitude == 0;
    }
    rest.zeros = zeros;
    int finite = rest.absmax < INFINITE;
    if (finite) {
        double sum[LANES] = {0}, sumsq[LANES] = {0};
        int i = 0;
        for (; i + LANES <= n; i += LANES)
            for (int k = 0; k < LANES; k++) {
                double value = as_double(x[i + k]);
                sum[k] += value;
                sumsq[k] = SQUARE_ADDED(value, sumsq[k]);
            }
        for (int k = 0; i < n; i++, k++) {
            double value = as_double(x[i]);
            sum[k] += value;
            sumsq[k] = SQUARE_ADDED(value, sumsq[k]);
        }
        for (int k = 0; k < LANES; k++) {
            rest.sum += sum[k];
            rest.sumsq += sumsq[k];
        }
    } else {
        rest = (part){.rank = ~0u};
        masked(x, n, &rest);
    }
    p->zeros += rest.zeros;
    p->nans += rest.nans;
    p->infs += rest.infs;
    p->absmax = rest.absmax > p->absmax ? rest.absmax : p->absmax;
    p->rank = rest.rank < p->rank ? rest.rank : p->rank;
    p->sum += rest.sum;
    p->sumsq += rest.sumsq;
    return finite;
}

/* Four tables, so that equal bins in a row do not wait for each other. */
static void count_bins(const uint32_t *x, int n, int finite, uint32_t bins[4][TABLE]) {
    int i = 0;
    if (finite)
        for (; i + 4 <= n; i += 4)
            for (int k = 0; k < 4; k++) bins[k][((x[i + k] & MAGNITUDE) - 1) >> 22]++;
    for (; i < n; i++)
        if ((x[i] & MAGNITUDE) < INFINITE) bins[0][((x[i] & MAGNITUDE) - 1) >> 22]++;
}

static void measure_chunk(const run *t, const uint32_t (*tables)[256], int64_t begin, uint32_t *hist, part *p) {
    uint32_t buffer[BLOCK], bins[4][TABLE];
    int64_t end = begin + CHUNK < t->elements ? begin + CHUNK : t->elements;
    int64_t every = t->elements < (int64_t)SAMPLE * BLOCK ? 1 : SAMPLE;
    if (hist) memset(bins, 0, sizeof bins);
    for (int64_t at = begin; at < end; at += BLOCK) {
        int n = end - at < BLOCK ? (int)(end - at) : BLOCK;
        const uint32_t *x = block_of(t, tables, at, n, buffer);
        int finite = measure_block(x, n, p);
        if (hist && at / BLOCK % every == 0) {
            count_bins(x, n, finite, bins);
            p->sampled += n;
        }
    }
    if (hist)
        for (int b = 0; b < BINS; b++) {
            uint32_t count = bins[0][b] + bins[1][b] + bins[2][b] + bins[3][b];
            if (count) __atomic_fetch_add(&hist[b], count, __ATOMIC_RELAXED);
        }
}

typedef struct {
    const run *runs;
    int64_t chunks, next;
    const uint32_t (*tables)[256];
    uint32_t *hist;
    part *parts;
} work;

static int64_t chunks_of(const run *t) { return (t->elements + CHUNK - 1) / CHUNK; }

static void *measure_chunks(void *argument) {
    work *w = argument;
    int64_t at = 0, before = 0, chunk;
    while ((chunk = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED)) < w->chunks) {
        while (chunk >= before + chunks_of(&w->runs[at])) before += chunks_of(&w->runs[at++]);
        const run *t = &w->runs[at];
        w->parts[chunk] = (part){.rank = ~0u};
        measure_chunk(t, w->tables, (chunk - before) * CHUNK, w->hist ? w->hist + t->row * BINS : 0, &w->parts[chunk]);
    }
    return 0;
}

static void add(int64_t *word, double value) {
    double known;
    memcpy(&known, word, 8);
    known += value;
    memcpy(word, &known, 8);
}

/* words: [rows, WORDS]; hist: [rows, BINS], or null for no histogram. Returns 0, and -1 without memory. */
int floatscope_measure(const run *runs, int64_t count, const uint32_t (*tables)[256], int64_t *words,
                       uint32_t *hist, int threads) {
    work w = {.runs = runs, .tables = tables, .hist = hist};
    for (int64_t i = 0; i < count; i++) w.chunks += chunks_of(&runs[i]);
    if (w.chunks && !(w.parts = malloc((size_t)w.chunks * sizeof(part)))) return -1;
    pthread_t started[MAX_THREADS];
    int helpers = 0;
    /* A thread takes 30 us to start and measures a chunk in 50. */
    while (helpers + 1 < threads && helpers < MAX_THREADS && (helpers + 1) * 4 < w.chunks
           && pthread_create(&started[helpers], 0, measure_chunks, &w) == 0) helpers++;
    measure_chunks(&w);
    while (helpers) pthread_join(started[--helpers], 0);
    /* In order, so that the sums do not depend on which thread was first. */
    part *p = w.parts;
    for (int64_t i = 0; i < count; i++) {
        int64_t *row = words + runs[i].row * WORDS;
        for (int64_t c = chunks_of(&runs[i]); c > 0; c--, p++) {
            int64_t gap = p->rank < INFINITE - 1 ? (int64_t)(INFINITE - 1 - p->rank) : 0;
            row[ZEROS] += p->zeros;
            row[NANS] += p->nans;
            row[INFS] += p->infs;
            row[ABSMAX] = p->absmax > row[ABSMAX] ? p->absmax : row[ABSMAX];
            row[ABSMIN_GAP] = gap > row[ABSMIN_GAP] ? gap : row[ABSMIN_GAP];
            row[SAMPLED] += p->sampled;
            add(&row[SUM], p->sum);
            add(&row[SUMSQ], p->sumsq);
        }
        row[ELEMENTS] += runs[i].elements;
        row[TENSORS] += runs[i].tensors;
    }
    free(w.parts);
    return 0;
}
