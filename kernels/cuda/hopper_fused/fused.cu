// The hopper_fused_w4a4 runner: D = alpha * A . B^T for few tokens, FP4 weights read once and decoded in registers.
//
// Weights are the 16-row side of mma.m16n8k16, tokens the 8-wide side. A chunk is 64 weight rows x 64 of K: 2,048 bytes
// of codes in the order lanes consume them (four 16-byte loads a lane) and 256 of scales. Chunks lie K-first, so a
// thread block's share of them (Stream-K: every block gets as many, give or take one) is one stretch of memory, and its
// warps take every WARPS-th chunk of it. Within a chunk lane % 4 owns one block of 16, hence one scale, of weights and
// tokens alike. Warps of a block are summed in order of warp, blocks in order of block: results are bit-equal.
//
// e2m1 x ue4m3 has at most 6 significant bits and is exact in fp16: a decoded value is code * scale * 2^-7.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "abi.h"

namespace {

constexpr int kRows = 64, kDepth = 64, kLanes = 32;
constexpr int kCounters = 1 << 20;  // of groups that blocks share; they lead the workspace and are zero between calls
constexpr int kCodeBytes = kRows * kDepth / 2, kScaleBytes = kRows * kDepth / 16;
constexpr uint32_t kValue = 0x8E008E00u, kMagnitude = 0x0E000E00u, kSign = 0x80008000u;

__device__ __forceinline__ uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                    uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 stream16(const void *p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ uint2 stream8(const void *p) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}

// Eight packed weight codes to four half2 of columns (0,4) (1,5) (2,6) (3,7): 11 instructions and the multiplications.
__device__ __forceinline__ void decode_weights(uint32_t q, uint32_t scale, uint32_t (&o)[4]) {
  o[0] = multiply(q & kValue, scale);
  o[1] = multiply(q << 8 & kValue, scale);
  o[2] = multiply((q >> 3 & kMagnitude) | (q << 15 & kSign), scale);
  o[3] = multiply((q << 5 & kMagnitude) | (q << 7 & kSign), scale);
}

// The same of eight codes in the standard order, low nibble first.
__device__ __forceinline__ void decode_tokens(uint32_t q, uint32_t scale, uint32_t *o) {
  o[0] = multiply((q << 12 & kSign) | (q << 9 & kMagnitude), scale);
  o[1] = multiply((q << 8 & kSign) | (q << 5 & kMagnitude), scale);
  o[2] = multiply((q << 4 & kSign) | (q << 1 & kMagnitude), scale);
  o[3] = multiply((q & kSign) | (q >> 3 & kMagnitude), scale);
}

template <int kByte>
__device__ __forceinline__ uint32_t weight_scale(uint32_t word) {  // a 5-bit exponent, 3-bit mantissa byte to half2
  return __byte_perm(word, 0, (kByte << 12) | 0x400 | (kByte << 4) | 4) >> 1;
}

// What a warp holds of one chunk while it is on its way.
template <int kTokens>
struct Chunk {
  uint4 codes[4];
  uint2 scales, tokens[kTokens];
  uint32_t token_scale[kTokens];
};

template <int kTokens, int kWarps, int kAhead, int kBlocks, bool kOverlap>
__global__ void __launch_bounds__(kWarps *kLanes, kBlocks)
    fused(const uint8_t *__restrict__ packed, const uint8_t *__restrict__ a, const uint8_t *__restrict__ sfa,
          const float *__restrict__ alpha, __nv_bfloat16 *__restrict__ d, float *__restrict__ partial,
          int *__restrict__ counters, int m, int n, int k) {
  constexpr int kSums = kRows * 8 * kTokens, kThreads = kWarps * kLanes;
  extern __shared__ float4 shared4[];
  float *shared = reinterpret_cast<float *>(shared4);
  __shared__ int is_last;
  const int tid = static_cast<int>(threadIdx.x), warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
  const int depth = k / kDepth, total = n / kRows * depth, blocks = static_cast<int>(gridDim.x);
  const int block = static_cast<int>(blockIdx.x), tile = static_cast<int>(blockIdx.y), m0 = tile * 8 * kTokens;
  const int begin = static_cast<int>(static_cast<int64_t>(block) * total / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(block + 1) * total / blocks);
  const uint8_t *codes = packed + lane * 16, *scales = packed + static_cast<size_t>(total) * kCodeBytes + lane * 8;
  const uint8_t *token[kTokens], *token_scale[kTokens];
  bool live[kTokens];
#pragma unroll
  for (int j = 0; j < kTokens; j++) {
    int row = m0 + j * 8 + g;
    live[j] = row < m;
    row = live[j] ? row : m - 1;
    token[j] = a + static_cast<size_t>(row) * (k / 2) + t * 8;
    token_scale[j] = sfa + static_cast<size_t>(row / 128) * depth * 512 + row % 32 * 16 + row / 32 % 4 * 4 + t;
  }
  int step = (begin + warp) % depth;
  auto fetch_weights = [&](Chunk<kTokens> &c, int u) {
    if (u >= end) return;
#pragma unroll
    for (int i = 0; i < 4; i++) c.codes[i] = stream16(codes + static_cast<size_t>(u) * kCodeBytes + i * 512);
    c.scales = stream8(scales + static_cast<size_t>(u) * kScaleBytes);
  };
  auto fetch_tokens = [&](Chunk<kTokens> &c, int u) {
    if (u >= end) return;
#pragma unroll
    for (int j = 0; j < kTokens; j++) {
      c.tokens[j] = __ldg(reinterpret_cast<const uint2 *>(token[j] + step * 32));
      c.token_scale[j] = live[j] ? __ldg(token_scale[j] + step * 512) : 0;
    }
    for (step += kWarps; step >= depth;) step -= depth;  // fetches come in order, so no division
  };
  float sum[4][kTokens][4] = {};
  auto consume = [&](const Chunk<kTokens> &c) {
    uint32_t b[kTokens][8];
#pragma unroll
    for (int j = 0; j < kTokens; j++) {
      const uint32_t scale = multiply(c.token_scale[j] << 7 | c.token_scale[j] << 23, 0x78007800u);
      decode_tokens(c.tokens[j].x, scale, b[j]);
      decode_tokens(c.tokens[j].y, scale, b[j] + 4);
    }
    const uint32_t low[4] = {weight_scale<0>(c.scales.x), weight_scale<2>(c.scales.x), weight_scale<0>(c.scales.y),
                             weight_scale<2>(c.scales.y)};
    const uint32_t high[4] = {weight_scale<1>(c.scales.x), weight_scale<3>(c.scales.x), weight_scale<1>(c.scales.y),
                              weight_scale<3>(c.scales.y)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      uint32_t x[4], y[4];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        decode_weights(half ? c.codes[i].z : c.codes[i].x, low[i], x);
        decode_weights(half ? c.codes[i].w : c.codes[i].y, high[i], y);
#pragma unroll
        for (int j = 0; j < kTokens; j++) {
          mma(sum[i][j], x[0], y[0], x[1], y[1], b[j][half * 4], b[j][half * 4 + 1]);
          mma(sum[i][j], x[2], y[2], x[3], y[3], b[j][half * 4 + 2], b[j][half * 4 + 3]);
        }
      }
    }
  };
  Chunk<kTokens> chunk[kAhead];
  int mine = begin + warp;
#pragma unroll
  for (int p = 0; p < kAhead; p++) fetch_weights(chunk[p], mine + p * kWarps);
  if constexpr (kOverlap) {  // weights never depend on the kernel before; tokens, workspace and output do
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
  }
#pragma unroll
  for (int p = 0; p < kAhead; p++) fetch_tokens(chunk[p], mine + p * kWarps);
  const float scale = *alpha * 16384.0f;
  auto store = [&](int group, int e, float value) {
    const int r = e % 4, l = e / 4 % 32, j = e / 128 % kTokens, i = e / 128 / kTokens;
    const int column = group * kRows + i * 16 + l / 4 + r / 2 * 8, row = m0 + j * 8 + l % 4 * 2 + r % 2;
    if (row < m) d[static_cast<size_t>(row) * n + column] = __float2bfloat16(value * scale);
  };
  auto finish = [&](int group, int from, bool to_end) {  // add the warps up; where blocks share the group, the blocks
    float4 *own = reinterpret_cast<float4 *>(shared + warp * kSums) + lane;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
      for (int j = 0; j < kTokens; j++) {
        own[(i * kTokens + j) * 32] = make_float4(sum[i][j][0], sum[i][j][1], sum[i][j][2], sum[i][j][3]);
#pragma unroll
        for (int r = 0; r < 4; r++) sum[i][j][r] = 0;
      }
    __syncthreads();
    const int first = group * depth;
    const bool whole = from == first && to_end;
    float *out = partial + (static_cast<size_t>(tile * blocks + block) * 2 + (from == first)) * kSums;
    for (int e = tid; e < kSums; e += kThreads) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kWarps; w++) value += shared[w * kSums + e];
      if (whole) store(group, e, value);
      else __stcg(out + e, value);
    }
    if (whole) return;
    const int low = static_cast<int>((static_cast<int64_t>(first + 1) * blocks - 1) / total);
    const int high = static_cast<int>((static_cast<int64_t>(first + depth) * blocks - 1) / total);
    __threadfence();
    __syncthreads();
    if (tid == 0) {
      int *counter = counters + tile * (n / kRows) + group;
      is_last = atomicAdd(counter, 1) == high - low;
      if (is_last) *counter = 0;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) return;
    for (int e = tid; e < kSums; e += kThreads) {
      float value = 0;
      for (int y = low; y <= high; y++)
        value += __ldcg(partial + (static_cast<size_t>(tile * blocks + y) * 2 + (y == low)) * kSums + e);
      store(group, e, value);
    }
  };
  // Slots are named by constants, so nothing waits for a load but its use. Every warp finishes every group, in order.
  int from = begin, group = begin / depth, stop = min(end, (group + 1) * depth);
  auto advance = [&](Chunk<kTokens> &c) __attribute__((always_inline)) {
    while (mine >= stop) {
      finish(group, from, stop == (group + 1) * depth);
      if (stop == end) return false;
      from = stop;
      group++;
      stop = min(end, stop + depth);
    }
    consume(c);
    fetch_weights(c, mine + kAhead * kWarps);
    fetch_tokens(c, mine + kAhead * kWarps);
    mine += kWarps;
    return true;
  };
  while (true) {  // written out: the compiler leaves a loop over slots rolled, and the slots in local memory
    if (!advance(chunk[0])) return;
    if constexpr (kAhead > 1)
      if (!advance(chunk[1])) return;
    if constexpr (kAhead > 2)
      if (!advance(chunk[2])) return;
    if constexpr (kAhead > 3)
      if (!advance(chunk[3])) return;
  }
}

__device__ uint32_t scatter(uint32_t code, int pair) {  // one code's bits inside 16, as decode_weights gathers them
  const uint32_t magnitude = code & 7, sign = code >> 3;
  switch (pair) {
    case 0: return magnitude << 9 | sign << 15;
    case 1: return magnitude << 1 | sign << 7;
    case 2: return magnitude << 12 | sign;
    default: return magnitude << 4 | sign << 8;
  }
}

__device__ uint32_t scale_byte(uint32_t byte) {  // ue4m3 x 2^7 as 5-bit exponent (bias 15) and 3-bit mantissa
  const uint32_t exponent = byte >> 3 & 15, mantissa = byte & 7;
  if (exponent) return (exponent + 15) << 3 | mantissa;
  if (mantissa >= 4) return 15 << 3 | (mantissa - 4) * 2;
  if (mantissa >= 2) return 14 << 3 | (mantissa - 2) * 4;
  return mantissa ? 13 << 3 : 0;
}

__global__ void pack(const uint8_t *b, const uint8_t *sfb, uint8_t *out, int n, int k) {
  const int depth = k / kDepth, u = static_cast<int>(blockIdx.x), i = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32, step = u % depth, t = lane % 4;
  uint32_t word[4];
  uint8_t *scales = out + static_cast<size_t>(n) * k / 2 + static_cast<size_t>(u) * kScaleBytes + lane * 8 + i * 2;
  for (int high = 0; high < 2; high++) {
    const int row = u / depth * kRows + i * 16 + high * 8 + lane / 4;
    const uint2 q = *reinterpret_cast<const uint2 *>(b + static_cast<size_t>(row) * (k / 2) + step * 32 + t * 8);
    for (int half = 0; half < 2; half++) {
      uint32_t w = 0;
      for (int c = 0; c < 8; c++) w |= scatter((half ? q.y : q.x) >> 4 * c & 15, c % 4) << (c / 4 * 16);
      word[half * 2 + high] = w;
    }
    const size_t place = static_cast<size_t>(row / 128) * depth * 512 + step * 512 + row % 32 * 16 + row / 32 % 4 * 4 + t;
    scales[high] = static_cast<uint8_t>(scale_byte(sfb[place]));
  }
  reinterpret_cast<uint4 *>(out + static_cast<size_t>(u) * kCodeBytes)[i * 32 + lane] =
      make_uint4(word[0], word[1], word[2], word[3]);
}

// Counters first and in one place, so that calls of any shape and tactic can share a workspace.
struct Grid {
  int blocks, tiles;
  bool counted;  // there are counters enough
  size_t bytes;
};

Grid grid_of(int tokens, int per_sm, int m, int n, int k, int sms) {
  const int total = n / kRows * (k / kDepth), tiles = (m + 8 * tokens - 1) / (8 * tokens);
  const int blocks = sms * per_sm < total ? sms * per_sm : total;
  const size_t partial = static_cast<size_t>(tiles) * blocks * 2 * kRows * 8 * tokens * sizeof(float);
  return {blocks, tiles, static_cast<int64_t>(tiles) * (n / kRows) <= kCounters, kCounters * sizeof(int) + partial};
}

template <int kTokens, int kWarps, int kAhead, int kBlocks, bool kOverlap>
int launch(NVFP4_GEMM_PARAMETERS) {
  (void)sfb;
  const Grid grid = grid_of(kTokens, kBlocks, m, n, k, sms);
  if (!grid.counted) return kCannotImplement;
  if (ws_bytes < grid.bytes) return kWorkspaceTooSmall;
  auto *kernel = fused<kTokens, kWarps, kAhead, kBlocks, kOverlap>;
  constexpr int kShared = kWarps * kRows * 8 * kTokens * static_cast<int>(sizeof(float));
  // Once a process, which drives one device.
  static const cudaError_t raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (raised != cudaSuccess) return kCannotInitialise + raised;
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid.blocks, grid.tiles);
  config.blockDim = dim3(kWarps * kLanes);
  config.dynamicSmemBytes = kShared;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &overlap;
  config.numAttrs = kOverlap ? 1 : 0;
  auto *counters = static_cast<int *>(ws);
  auto *partial = reinterpret_cast<float *>(counters + kCounters);
  const cudaError_t error = cudaLaunchKernelEx(
      &config, kernel, static_cast<const uint8_t *>(b), static_cast<const uint8_t *>(a),
      static_cast<const uint8_t *>(sfa), alpha, static_cast<__nv_bfloat16 *>(d), partial, counters, m, n, k);
  return error == cudaSuccess ? 0 : kCannotLaunch + error;
}

struct Entry {
  int tokens, per_sm;
  int (*run)(NVFP4_GEMM_PARAMETERS);
};

#define TACTIC(tokens, warps, ahead, per_sm, overlap) {tokens, per_sm, launch<tokens, warps, ahead, per_sm, overlap>}
// In the order of tactics.json.
constexpr Entry kTactics[] = {
    TACTIC(1, 16, 1, 1, false), TACTIC(1, 16, 2, 1, false), TACTIC(1, 12, 2, 1, false), TACTIC(1, 8, 2, 2, false),
    TACTIC(1, 8, 1, 3, false), TACTIC(1, 4, 2, 4, false), TACTIC(1, 8, 4, 1, false), TACTIC(2, 16, 1, 1, false),
    TACTIC(2, 12, 2, 1, false), TACTIC(2, 8, 1, 2, false), TACTIC(2, 8, 3, 1, false), TACTIC(4, 8, 2, 1, false),
    TACTIC(4, 12, 1, 1, false), TACTIC(1, 16, 1, 1, true), TACTIC(1, 16, 2, 1, true), TACTIC(1, 8, 2, 2, true),
    TACTIC(1, 8, 1, 3, true), TACTIC(2, 16, 1, 1, true), TACTIC(2, 12, 2, 1, true), TACTIC(2, 8, 1, 2, true),
    TACTIC(4, 8, 2, 1, true), TACTIC(4, 12, 1, 1, true),
};
constexpr int kCount = sizeof(kTactics) / sizeof(kTactics[0]);

bool fits(int tactic, int m, int n, int k) {
  return tactic >= 0 && tactic < kCount && m > 0 && n > 0 && k > 0 && n % kRows == 0 && k % kDepth == 0;
}

}  // namespace

NVFP4_EXPORT int nvfp4_fused_tactics() { return kCount; }

NVFP4_EXPORT const char *nvfp4_fused_version() { return "hopper_fused_w4a4 1, layout 64x64"; }

NVFP4_EXPORT int64_t nvfp4_fused_packed_bytes(int n, int k) {
  return fits(0, 1, n, k) ? static_cast<int64_t>(n) * k / 16 * 9 : -1;
}

NVFP4_EXPORT int nvfp4_fused_pack(const void *b, const void *sfb, void *out, int n, int k, void *stream) {
  if (!fits(0, 1, n, k)) return kCannotImplement;
  pack<<<n / kRows * (k / kDepth), 128, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint8_t *>(b), static_cast<const uint8_t *>(sfb), static_cast<uint8_t *>(out), n, k);
  return static_cast<int>(cudaGetLastError());
}

NVFP4_EXPORT int64_t nvfp4_fused_workspace(int tactic, int m, int n, int k, int sms) {
  if (!fits(tactic, m, n, k)) return -1;
  const Grid grid = grid_of(kTactics[tactic].tokens, kTactics[tactic].per_sm, m, n, k, sms);
  return grid.counted ? static_cast<int64_t>(grid.bytes) : -1;
}

NVFP4_EXPORT int nvfp4_fused_run(int tactic, NVFP4_GEMM_PARAMETERS) {
  if (!fits(tactic, m, n, k)) return kCannotImplement;
  return kTactics[tactic].run(NVFP4_GEMM_ARGUMENTS);
}
