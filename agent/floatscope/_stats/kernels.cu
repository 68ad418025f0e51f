// The statistics of many tensors in one pass: portable CUDA and HIP C++, compiled at run time.
//
// A block reads one piece of one tensor and merges it into the tensor's row: ten 64-bit words and 512 counters, in the
// layout of _rows.py. What to read comes with the launch as an argument, so there is no table on the device to upload,
// to keep in step with the host or to guard from being overwritten, and a captured graph carries its own.
//
// Macros: WAVE (threads of a warp or wavefront), THREADS (of a block), RESIDENT (blocks a multiprocessor should hold),
// UNROLL (16-byte loads in flight for each thread, a multiple of 4), TENSORS (entries of Work; 168 fill the 4 KB that arguments may
// have everywhere).

#if defined(__HIP__) && !defined(__HIPCC_RTC__)
#include <hip/hip_runtime.h>
#endif

#define WAVES (THREADS / WAVE)
#define GROUP 4  // vectors summed in fp32 before their sum goes on in double
#define BINS 512u
#define ZERO_BIN 511u  // zeros land here by themselves, see bin_of
#define FINITE_BINS 510u
#define INFINITY_BITS 0x7F800000u
#define MAGNITUDE 0x7FFFFFFFu
#define LARGEST 0x7F7FFFFFu
#define SQUARES_OVERFLOW 0x5E800000u  // 2^62: 16 squares below 2^124 fit in fp32
#define SQUARES_VANISH 0x2B800000u    // 2^-40: squares are 69 binary orders over the smallest fp32 number

enum Kind { FP32, BF16, FP16, FP64, FP8 };  // FP8 and above: FP8 + the number of the dtype's table
enum Word { ZEROS, NANS, INFS, ABSMAX, ABSMIN_GAP, SUM, SUMSQ, ELEMENTS, SAMPLED, COUNT, WORDS };

typedef unsigned long long u64;

struct Work {
    u64 address[TENSORS];
    u64 elements[TENSORS];
    unsigned row[TENSORS];    // bits 0-23: row; 24-30: kind; 31: the rest of a tensor that was counted already
    unsigned first[TENSORS];  // the block that reads the first piece
};

template <typename T>
__device__ __forceinline__ T exchanged(T value, int mask) {
#if defined(__HIP__)
    return __shfl_xor(value, mask);
#else
    return __shfl_xor_sync(0xFFFFFFFFu, value, mask);
#endif
}

// Larger of each unsigned 16-bit half.
__device__ __forceinline__ unsigned larger_halves(unsigned a, unsigned b) {
#if defined(__HIP__)
    return max(a & 0xFFFFu, b & 0xFFFFu) | max(a & 0xFFFF0000u, b & 0xFFFF0000u);
#else
    return __vmaxu2(a, b);
#endif
}

// Smaller of each signed 16-bit half.
__device__ __forceinline__ unsigned smaller_halves(unsigned a, unsigned b) {
#if defined(__HIP__)
    int high = min((int)(a & 0xFFFF0000u), (int)(b & 0xFFFF0000u));
    int low = min((int)(a << 16), (int)(b << 16));
    return (unsigned)high | ((unsigned)low >> 16);
#else
    return __vmins2(a, b);
#endif
}

__device__ __forceinline__ uint4 streamed(const uint4 *from) {
#if defined(__HIP__)
    return *from;
#else
    return __ldcs(from);
#endif
}

// (magnitude - 1) >> 22 without masking the sign; both zeros give ZERO_BIN.
__device__ __forceinline__ unsigned bin_of(unsigned bits) { return (bits * 2u - 1u) >> 23; }

// fp32 bits of the fp16 in the upper half of a word, for finite ones: the exponent is moved into place and rebiased by
// a multiplication, which is exact and makes subnormals normal.
__device__ __forceinline__ unsigned from_half(unsigned upper) {
    return __float_as_uint(__uint_as_float((unsigned)((int)upper >> 3) & 0x8FFFE000u) * __uint_as_float(0x77800000u));
}

// fp32 bits of any fp16.
__device__ __forceinline__ unsigned from_any_half(unsigned half) {
    unsigned exponent = half & 0x7C00u;
    if (exponent == 0x7C00u) return (half & 0x8000u) << 16 | INFINITY_BITS | (half & 0x3FFu) << 13;
    return from_half(half << 16);
}

// fp32 bits of a float64, finite ones clamped to fp32's range.
__device__ __forceinline__ unsigned from_double(double value) {
    double limit = (double)__uint_as_float(LARGEST);
    if (value - value == 0.0) value = fmin(fmax(value, -limit), limit);
    return __float_as_uint((float)value);
}

struct Partial {
    unsigned high;  // bits of the largest magnitude
    unsigned low;   // bits of the smallest non-zero magnitude, less one
    unsigned zeros;
    double sum, sumsq;
};

struct Reduced {
    unsigned high[WAVES], low[WAVES], zeros[WAVES];
    double sum[WAVES], sumsq[WAVES];
    unsigned nans, infs;
};

struct Sums {
    float sum, sumsq;
};

template <bool HISTOGRAM>
__device__ __forceinline__ void add(unsigned bits, Sums &sums, unsigned *counters) {
    float value = __uint_as_float(bits);
    sums.sum += value;
    sums.sumsq = fmaf(value, value, sums.sumsq);
    if (HISTOGRAM) atomicAdd(counters + bin_of(bits), 1u);
}

// One 32-bit word of elements. Extremes and zeros of the 16-bit kinds are kept for both halves at once.
template <int KIND, bool HISTOGRAM>
__device__ __forceinline__ void add_word(
    unsigned word, Partial &part, unsigned &found, Sums &even, Sums &odd, bool first, unsigned *counters) {
    if (KIND == FP32) {
        unsigned doubled = word * 2u;
        part.high = max(part.high, doubled);
        part.low = min(part.low, doubled - 1u);
        if (!HISTOGRAM) found += doubled == 0u;
        add<HISTOGRAM>(word, first ? even : odd, counters);
    } else {
        unsigned magnitudes = word & 0x7FFF7FFFu;
        unsigned shifted = magnitudes + 0x7FFF7FFFu;  // |x| - 1 in signed order: zero becomes the largest
        part.high = larger_halves(part.high, magnitudes);
        part.low = smaller_halves(part.low, shifted);
        if (!HISTOGRAM) found += (shifted >> 15) & 0x00010001u;
        unsigned low = word << 16, high = word & 0xFFFF0000u;
        // A bfloat16's bin is (|x| - 1) >> 6 of its own bits: 512 less than that of the shifted ones, which saves an
        // instruction in five. Zeros get bin -1, which is the ZERO_BIN of the wave before.
        const bool counted = HISTOGRAM && KIND == FP16;
        add<counted>(KIND == FP16 ? from_half(low) : low, even, counters);
        add<counted>(KIND == FP16 ? from_half(high) : high, odd, counters);
        if (HISTOGRAM && KIND == BF16) {
            atomicAdd(counters + (int)((shifted & 0xFFFFu) >> 6) - 512, 1u);
            atomicAdd(counters + (int)(shifted >> 22) - 512, 1u);
        }
    }
}

template <int KIND, bool HISTOGRAM>
__device__ __forceinline__ void add_vector(
    uint4 v, Partial &part, unsigned &found, Sums &even, Sums &odd, unsigned *counters) {
    add_word<KIND, HISTOGRAM>(v.x, part, found, even, odd, true, counters);
    add_word<KIND, HISTOGRAM>(v.y, part, found, even, odd, false, counters);
    add_word<KIND, HISTOGRAM>(v.z, part, found, even, odd, true, counters);
    add_word<KIND, HISTOGRAM>(v.w, part, found, even, odd, false, counters);
}

// At most 16 fp32 additions follow one another, however long the tensor is: the error of a sum of squares stays below
// 2^-20 of it.
template <int KIND, bool HISTOGRAM>
__device__ __forceinline__ void add_group(const uint4 *loaded, Partial &part, unsigned *counters) {
    Sums even = {0.f, 0.f}, odd = {0.f, 0.f};
    unsigned found = 0u;
#pragma unroll
    for (int k = 0; k < GROUP; k++) add_vector<KIND, HISTOGRAM>(loaded[k], part, found, even, odd, counters);
    part.sum += (double)(even.sum + odd.sum);
    part.sumsq += (double)(even.sumsq + odd.sumsq);
    if (!HISTOGRAM) part.zeros += KIND == FP32 ? found : 8u * GROUP - (found >> 16) - (found & 0xFFFFu);
}

// Zeros that fast counts beyond the elements: those after the last whole vector, up to full groups of the block.
__device__ __forceinline__ unsigned padding(const char *from, unsigned elements, unsigned size) {
    unsigned head = (16u - ((unsigned)(u64)from & 15u) & 15u) / size, each = 16u / size;
    if (head > elements) head = elements;
    unsigned whole = (elements - head) / each, step = GROUP * THREADS;
    return ((whole + step - 1u) / step * step - whole) * each;
}

// Elements of 4 or 2 bytes as if all were finite and their squares in fp32's range: exact's result wherever that holds.
template <int KIND, bool HISTOGRAM>
__device__ __forceinline__ Partial fast(const char *from, unsigned elements, unsigned *counters) {
    const unsigned size = KIND == FP32 ? 4 : 2, each = 16 / size;
    unsigned head = (16u - ((unsigned)(u64)from & 15u) & 15u) / size;
    if (head > elements) head = elements;
    const uint4 *vectors = (const uint4 *)(from + head * size);
    unsigned whole = (elements - head) / each, rest = (elements - head) % each, start = 0u;

    Partial part = {0u, KIND == FP32 ? 0xFFFFFFFFu : 0x7FFF7FFFu, 0u, 0.0, 0.0};
    uint4 loaded[UNROLL];
    for (; start + UNROLL * THREADS <= whole; start += UNROLL * THREADS) {
#pragma unroll
        for (int k = 0; k < UNROLL; k++) loaded[k] = streamed(vectors + start + k * THREADS + threadIdx.x);
#pragma unroll
        for (int k = 0; k < UNROLL; k += GROUP) add_group<KIND, HISTOGRAM>(loaded + k, part, counters);
    }
    if (start < whole) {
        // Loaded at once too, which for a small piece is most of its time. What lies after the last vector counts as
        // zeros, which padding() tells.
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            unsigned at = start + k * THREADS + threadIdx.x;
            loaded[k] = make_uint4(0u, 0u, 0u, 0u);
            if (at < whole) loaded[k] = streamed(vectors + at);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k += GROUP)
            if (start + k * THREADS < whole) add_group<KIND, HISTOGRAM>(loaded + k, part, counters);
    }
    if (KIND == FP32) {
        part.high >>= 1;
        part.low = part.low == 0xFFFFFFFFu ? part.low : part.low >> 1;
    } else {
        unsigned high = max(part.high & 0xFFFFu, part.high >> 16);
        int low = min((int)(part.low << 16) >> 16, (int)part.low >> 16);
        part.high = KIND == BF16 ? high << 16 : from_any_half(high);
        unsigned smallest = (unsigned)(low + 32769);  // meaningless if low is 32767: nothing but zeros
        part.low = low == 32767 ? 0xFFFFFFFFu : (KIND == BF16 ? smallest << 16 : from_any_half(smallest)) - 1u;
    }
    // Before the first and after the last whole vector.
    if (threadIdx.x < head + rest) {
        unsigned place = threadIdx.x + (threadIdx.x < head ? 0u : whole * each);
        Sums even = {0.f, 0.f};
        unsigned bits = KIND == FP32   ? ((const unsigned *)from)[place]
                        : KIND == BF16 ? (unsigned)((const unsigned short *)from)[place] << 16
                                       : from_any_half(((const unsigned short *)from)[place]);
        unsigned magnitude = bits & MAGNITUDE;
        part.high = max(part.high, magnitude);
        part.low = min(part.low, magnitude - 1u);
        if (!HISTOGRAM) part.zeros += magnitude == 0u;
        add<HISTOGRAM>(bits, even, counters);
        part.sum += (double)even.sum;
        part.sumsq += (double)even.sumsq;
    }
    return part;
}

__device__ __forceinline__ void add_exactly(
    unsigned bits, unsigned times, Partial &part, Reduced *reduced, unsigned *counters) {
    unsigned magnitude = bits & MAGNITUDE;
    if (magnitude > INFINITY_BITS) {
        atomicAdd(&reduced->nans, times);
        return;
    }
    if (magnitude == INFINITY_BITS) {
        atomicAdd(&reduced->infs, times);
        return;
    }
    double value = (double)__uint_as_float(bits);
    part.high = max(part.high, magnitude);
    part.low = min(part.low, magnitude - 1u);
    part.sum += times * value;
    part.sumsq += times * (value * value);
    if (counters) atomicAdd(counters + bin_of(bits), times);
    else part.zeros += magnitude == 0u ? times : 0u;
}

// Any value of any kind but float8, one element at a time and summed in double: what is not finite is counted and left
// out, and squares neither overflow nor vanish.
__device__ Partial exact(const char *from, unsigned elements, unsigned kind, Reduced *reduced, unsigned *counters) {
    Partial part = {0u, 0xFFFFFFFFu, 0u, 0.0, 0.0};
    for (unsigned at = threadIdx.x; at < elements; at += THREADS) {
        unsigned bits = kind == FP32   ? ((const unsigned *)from)[at]
                        : kind == BF16 ? (unsigned)((const unsigned short *)from)[at] << 16
                        : kind == FP16 ? from_any_half(((const unsigned short *)from)[at])
                                       : from_double(((const double *)from)[at]);
        add_exactly(bits, 1u, part, reduced, counters);
    }
    return part;
}

// float8: the 256 codes are counted; `table` has the fp32 bits of each.
template <bool HISTOGRAM>
__device__ Partial coded(
    const unsigned char *from, unsigned elements, const unsigned *table, Reduced *reduced, unsigned *all) {
    unsigned *counters = all + threadIdx.x / WAVE * 256u;
    unsigned head = 16u - ((unsigned)(u64)from & 15u) & 15u;
    if (head > elements) head = elements;
    const uint4 *vectors = (const uint4 *)(from + head);
    unsigned whole = (elements - head) / 16u, rest = (elements - head) % 16u;
#pragma unroll 4
    for (unsigned at = threadIdx.x; at < whole; at += THREADS) {
        uint4 v = streamed(vectors + at);
        unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            atomicAdd(counters + (words[k] & 0xFFu), 1u);
            atomicAdd(counters + (words[k] >> 8 & 0xFFu), 1u);
            atomicAdd(counters + (words[k] >> 16 & 0xFFu), 1u);
            atomicAdd(counters + (words[k] >> 24), 1u);
        }
    }
    if (threadIdx.x < head + rest) atomicAdd(counters + from[threadIdx.x + (threadIdx.x < head ? 0u : whole * 16u)], 1u);
    __syncthreads();
    unsigned times = 0u;
    if (threadIdx.x < 256u)
        for (int k = 0; k < WAVES; k++) times += all[k * 256u + threadIdx.x];
    __syncthreads();
    if (HISTOGRAM) {
        for (unsigned k = threadIdx.x; k < WAVES * BINS; k += THREADS) all[k] = 0u;
        __syncthreads();
    }
    Partial part = {0u, 0xFFFFFFFFu, 0u, 0.0, 0.0};
    if (times) add_exactly(table[threadIdx.x], times, part, reduced, HISTOGRAM ? all : 0);
    return part;
}

// Leaves one value of every wave in `reduced`, for all to see.
__device__ __forceinline__ void reduce(Partial part, Reduced *reduced) {
#pragma unroll
    for (int mask = WAVE / 2; mask; mask >>= 1) {
        part.high = max(part.high, exchanged(part.high, mask));
        part.low = min(part.low, exchanged(part.low, mask));
        part.zeros += exchanged(part.zeros, mask);
        part.sum += exchanged(part.sum, mask);
        part.sumsq += exchanged(part.sumsq, mask);
    }
    if (threadIdx.x % WAVE == 0) {
        int wave = threadIdx.x / WAVE;
        reduced->high[wave] = part.high;
        reduced->low[wave] = part.low;
        reduced->zeros[wave] = part.zeros;
        reduced->sum[wave] = part.sum;
        reduced->sumsq[wave] = part.sumsq;
    }
    __syncthreads();
}

__device__ __forceinline__ void clear(unsigned *counters, unsigned count, Reduced *reduced) {
    for (unsigned k = threadIdx.x; k < count; k += THREADS) counters[k] = 0u;
    if (threadIdx.x == 0) reduced->nans = reduced->infs = 0u;
    __syncthreads();
}

template <bool HISTOGRAM>
__device__ __forceinline__ void piece(
    const char *from, unsigned elements, unsigned kind, const unsigned *tables, u64 *words, unsigned *hist) {
    const unsigned size = HISTOGRAM ? WAVES * BINS : WAVES * 256u;
    __shared__ unsigned storage[1u + size];  // each wave counts for itself; the first word is before the first wave's
    __shared__ Reduced shared;
    unsigned *all = storage + 1;
    unsigned *counters = all + threadIdx.x / WAVE * BINS;
    clear(storage, HISTOGRAM || kind >= FP8 ? 1u + size : 0u, &shared);

    Partial part;
    if (kind == FP32) part = fast<FP32, HISTOGRAM>(from, elements, counters);
    else if (kind == BF16) part = fast<BF16, HISTOGRAM>(from, elements, counters);
    else if (kind == FP16) part = fast<FP16, HISTOGRAM>(from, elements, counters);
    else if (kind == FP64) part = exact(from, elements, kind, &shared, HISTOGRAM ? counters : 0);
    else part = coded<HISTOGRAM>((const unsigned char *)from, elements, tables + (kind - FP8) * 256u, &shared, all);
    reduce(part, &shared);

    unsigned high = 0u, added = kind < FP64 ? padding(from, elements, kind == FP32 ? 4u : 2u) : 0u;
    for (int k = 0; k < WAVES; k++) high = max(high, shared.high[k]);
    if (kind < FP64 && (high >= SQUARES_OVERFLOW || (high && high < SQUARES_VANISH))) {
        __syncthreads();
        clear(storage, HISTOGRAM ? 1u + size : 0u, &shared);
        reduce(exact(from, elements, kind, &shared, HISTOGRAM ? counters : 0), &shared);
        high = added = 0u;
        for (int k = 0; k < WAVES; k++) high = max(high, shared.high[k]);
    }

    if (HISTOGRAM) {
        for (unsigned bin = threadIdx.x; bin < BINS; bin += THREADS) {
            unsigned count = bin == ZERO_BIN ? storage[0] : 0u;
            for (int k = 0; k < WAVES; k++) count += all[k * BINS + bin];
            if (count && bin < FINITE_BINS) atomicAdd(hist + bin, count);
            if (bin == ZERO_BIN && count != added) atomicAdd(words + ZEROS, (u64)(count - added));
        }
    }
    if (threadIdx.x == 0) {
        unsigned low = 0xFFFFFFFFu, zeros = 0u;
        double sum = 0.0, sumsq = 0.0;
        for (int k = 0; k < WAVES; k++) {
            low = min(low, shared.low[k]);
            zeros += shared.zeros[k];
            sum += shared.sum[k];
            sumsq += shared.sumsq[k];
        }
        if (high) {
            atomicMax(words + ABSMAX, (u64)high);
            atomicMax(words + ABSMIN_GAP, (u64)(INFINITY_BITS - 1u - low));
            atomicAdd((double *)(words + SUM), sum);
            atomicAdd((double *)(words + SUMSQ), sumsq);
        }
        if (!HISTOGRAM && zeros != added) atomicAdd(words + ZEROS, (u64)(zeros - added));
        if (shared.nans) atomicAdd(words + NANS, (u64)shared.nans);
        if (shared.infs) atomicAdd(words + INFS, (u64)shared.infs);
    }
}

template <bool HISTOGRAM>
__device__ __forceinline__ void pieces(
    const Work &work, unsigned tensors, unsigned piece_bytes, const unsigned *tables, u64 *words, unsigned *hist) {
    unsigned tensor = 0u, after = tensors;  // tensor: the last one whose first block is not after this one
    while (after - tensor > 1u) {
        unsigned middle = (tensor + after) / 2u;
        if (work.first[middle] <= blockIdx.x) tensor = middle;
        else after = middle;
    }
    unsigned row = work.row[tensor], kind = row >> 24 & 0x7Fu;
    u64 elements = work.elements[tensor], index = blockIdx.x - work.first[tensor];
    words += (u64)(row & 0xFFFFFFu) * WORDS;
    if (HISTOGRAM) hist += (u64)(row & 0xFFFFFFu) * BINS;
    if (index == 0u && threadIdx.x == 0) {
        if (!(row >> 31)) atomicAdd(words + COUNT, (u64)1);
        atomicAdd(words + ELEMENTS, elements);
        if (HISTOGRAM) atomicAdd(words + SAMPLED, elements);
    }
    unsigned size = kind == FP64 ? 8u : kind == FP32 ? 4u : kind >= FP8 ? 1u : 2u;
    u64 each = piece_bytes / size, begin = index * each;
    if (begin >= elements) return;
    u64 left = elements - begin;
    piece<HISTOGRAM>((const char *)work.address[tensor] + begin * size, (unsigned)(left < each ? left : each), kind,
                     tables, words, hist);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) statistics_and_histogram(
    const Work work, unsigned tensors, unsigned piece_bytes, const unsigned *tables, u64 *words, unsigned *hist) {
    pieces<true>(work, tensors, piece_bytes, tables, words, hist);
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) statistics(
    const Work work, unsigned tensors, unsigned piece_bytes, const unsigned *tables, u64 *words, unsigned *hist) {
    pieces<false>(work, tensors, piece_bytes, tables, words, hist);
}
