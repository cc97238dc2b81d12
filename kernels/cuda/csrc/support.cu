// What the runners need around the GEMM: producers of NVFP4 activations, the expansion of packed operands, a delay for
// timing, and the versions that a plan is bound to. Arithmetic follows kernels/nvfp4.py operation by operation, without
// fused multiply-add, so that codes and scale bytes equal the CPU's.
#include "abi.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

namespace {

constexpr int kBlock = 16, kThreads = 128;
constexpr float kE2m1Max = 6.0f, kUe4m3Max = 448.0f;

__host__ __device__ constexpr int padded(int value, int to) { return (value + to - 1) / to * to; }

// Byte of the scale of row `row` and K block `column` in tiles of 128 rows x 4 scales.
__device__ size_t swizzled(int row, int column, int columns) {
  size_t tile = static_cast<size_t>(row / 128) * (columns / 4) + column / 4;
  return tile * 512 + row % 32 * 16 + row % 128 / 32 * 4 + column % 4;
}

__device__ float ue4m3_decode(unsigned code) {
  unsigned exponent = code >> 3 & 15, mantissa = code & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-9f;
  return __uint_as_float((exponent + 120) << 23 | mantissa << 20);
}

__device__ unsigned ue4m3_encode(float value) {
  value = fminf(value, kUe4m3Max);
  if (value < 0x1p-6f) return static_cast<unsigned>(rintf(__fmul_rn(value, 512.0f)));
  unsigned bits = __float_as_uint(value);
  return ((bits + 0x7FFFF + (bits >> 20 & 1)) >> 20) - (120 << 3);
}

// The codes of 0, .5, 1, 1.5, 2, 3, 4, 6 lie on the lines 2v, v + 2 and v / 2 + 4, whichever is lowest.
__device__ unsigned e2m1_encode(float value) {
  float magnitude = fminf(fabsf(value), kE2m1Max);
  float code = fminf(fminf(rintf(__fmul_rn(magnitude, 2.0f)), rintf(magnitude) + 2.0f),
                     rintf(__fmul_rn(magnitude, 0.5f)) + 4.0f);
  return static_cast<unsigned>(code) | __float_as_uint(value) >> 28 & 8;
}

__device__ float e2m1_decode(unsigned code) {
  unsigned exponent = code >> 1 & 3, mantissa = code & 1;
  float magnitude = exponent ? __uint_as_float((exponent + 126) << 23 | mantissa << 22) : 0.5f * static_cast<float>(mantissa);
  return code & 8 ? -magnitude : magnitude;
}

__device__ void load_block(const float *values, float *out) {
#pragma unroll
  for (int i = 0; i < kBlock / 4; i++) {
    float4 four = reinterpret_cast<const float4 *>(values)[i];
    out[4 * i] = four.x, out[4 * i + 1] = four.y, out[4 * i + 2] = four.z, out[4 * i + 3] = four.w;
  }
}

__device__ void load_block(const __nv_bfloat16 *values, float *out) {
#pragma unroll
  for (int i = 0; i < kBlock / 8; i++) {
    uint4 eight = reinterpret_cast<const uint4 *>(values)[i];
    unsigned words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int j = 0; j < 4; j++) {
      out[8 * i + 2 * j] = __uint_as_float(words[j] << 16);
      out[8 * i + 2 * j + 1] = __uint_as_float(words[j] & 0xFFFF0000u);
    }
  }
}

// Sixteen codes under one scale as bfloat16. Exact: a product has six significant bits, so the upper half of the float
// is the bfloat16.
__device__ void store_expanded(uint2 codes, float scale, uint4 *out) {
  unsigned word[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    unsigned pair = (i < 4 ? codes.x : codes.y) >> i % 4 * 8;
    word[i] = __float_as_uint(e2m1_decode(pair & 15) * scale) >> 16 |
              (__float_as_uint(e2m1_decode(pair >> 4 & 15) * scale) & 0xFFFF0000u);
  }
  out[0] = make_uint4(word[0], word[1], word[2], word[3]);
  out[1] = make_uint4(word[4], word[5], word[6], word[7]);
}

// One thread a block of 16. `values` (rows, k), or (rows, 2 k) of gate and up halves when kSilu. Direct: the grid also
// covers the padding of the swizzled layout, whose bytes become zero. `expanded`, if any, gets the values that the codes
// and scales stand for, so that a GEMM of bfloat16 operands needs no pass of its own.
template <class Value, bool kSilu, bool kDirect>
__global__ void quantise(const Value *values, uint8_t *packed, uint8_t *scales, uint4 *expanded, int rows, int k,
                         float global_scale) {
  const int blocks = k / kBlock, columns = kDirect ? padded(blocks, 4) : blocks;
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y);
  if (column >= columns) return;
  if (row >= rows || column >= blocks) {
    if constexpr (kDirect) scales[swizzled(row, column, columns)] = 0;
    return;
  }
  float value[kBlock];
  const Value *source = values + static_cast<size_t>(row) * k * (kSilu ? 2 : 1) + column * kBlock;
  load_block(source, value);
  if constexpr (kSilu) {
    float up[kBlock];
    load_block(source + k, up);
#pragma unroll
    for (int i = 0; i < kBlock; i++) value[i] = __fmul_rn(__fdiv_rn(value[i], __fadd_rn(expf(-value[i]), 1.0f)), up[i]);
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kBlock; i++) largest = fmaxf(largest, fabsf(value[i]));
  const unsigned scale = ue4m3_encode(__fdiv_rn(__fmul_rn(largest, global_scale), kE2m1Max));
  const float inverse = scale ? __fmul_rn(__fdiv_rn(1.0f, ue4m3_decode(scale)), global_scale) : 0.0f;
  unsigned word[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kBlock; i++) word[i / 8] |= e2m1_encode(__fmul_rn(value[i], inverse)) << i % 8 * 4;
  const size_t block = static_cast<size_t>(row) * blocks + column;
  reinterpret_cast<uint2 *>(packed)[block] = make_uint2(word[0], word[1]);
  if (expanded) store_expanded(make_uint2(word[0], word[1]), ue4m3_decode(scale), expanded + 2 * block);
  const size_t place = kDirect ? swizzled(row, column, columns) : static_cast<size_t>(row) * columns + column;
  scales[place] = static_cast<uint8_t>(scale);
}

__global__ void swizzle(const uint8_t *linear, uint8_t *scales, int rows, int blocks) {
  const int columns = padded(blocks, 4), row = static_cast<int>(blockIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  const bool inside = row < rows && column < blocks;
  scales[swizzled(row, column, columns)] = inside ? linear[static_cast<size_t>(row) * blocks + column] : uint8_t{0};
}

__global__ void expand(const uint8_t *packed, const uint8_t *scales, uint4 *out, int rows, int k) {
  const int blocks = k / kBlock, column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= blocks) return;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    const size_t place = static_cast<size_t>(row) * blocks + column;
    const uint2 codes = reinterpret_cast<const uint2 *>(packed)[place];
    store_expanded(codes, ue4m3_decode(scales[swizzled(row, column, padded(blocks, 4))]), out + 2 * place);
  }
}

__global__ void widen(const uint16_t *values, float *out, size_t count) {
  const size_t index = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index < count) out[index] = __uint_as_float(static_cast<unsigned>(values[index]) << 16);
}

__global__ void delay(unsigned long long nanoseconds) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - start < nanoseconds);
}

dim3 grid(int columns, int rows) {
  return dim3(static_cast<unsigned>((columns + kThreads - 1) / kThreads), static_cast<unsigned>(rows));
}

template <class Value, bool kSilu>
void launch_quantise(const void *values, void *packed, void *scales, void *expanded, int rows, int k,
                     float global_scale, bool direct, cudaStream_t stream) {
  auto *in = static_cast<const Value *>(values);
  auto *wide = static_cast<uint4 *>(expanded);
  auto *codes = static_cast<uint8_t *>(packed), *bytes = static_cast<uint8_t *>(scales);
  const int blocks = k / kBlock;
  if (direct) {
    quantise<Value, kSilu, true>
        <<<grid(padded(blocks, 4), padded(rows, 128)), kThreads, 0, stream>>>(in, codes, bytes, wide, rows, k,
                                                                              global_scale);
  } else {
    quantise<Value, kSilu, false>
        <<<grid(blocks, rows), kThreads, 0, stream>>>(in, codes, bytes, wide, rows, k, global_scale);
  }
}

}  // namespace

// values (rows, k) to packed codes and scales: swizzled ones when `direct`, else linear (rows, k / 16). `silu`: values
// are (rows, 2 k), gate and up halves, and silu(gate) * up is quantised. `bf16`: values are bfloat16, else float32.
// `expanded`, unless null: (rows, k) bfloat16, what nvfp4_expand would make of codes and scales.
NVFP4_EXPORT int nvfp4_quantise(const void *values, void *packed, void *scales, void *expanded, int rows, int k,
                                float global_scale, int bf16, int silu, int direct, void *stream) {
  auto queue = static_cast<cudaStream_t>(stream);
  auto launch = bf16 ? (silu ? launch_quantise<__nv_bfloat16, true> : launch_quantise<__nv_bfloat16, false>)
                     : (silu ? launch_quantise<float, true> : launch_quantise<float, false>);
  launch(values, packed, scales, expanded, rows, k, global_scale, direct != 0, queue);
  return static_cast<int>(cudaGetLastError());
}

NVFP4_EXPORT int nvfp4_swizzle(const void *linear, void *scales, int rows, int k, void *stream) {
  const int blocks = k / kBlock;
  swizzle<<<grid(padded(blocks, 4), padded(rows, 128)), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint8_t *>(linear), static_cast<uint8_t *>(scales), rows, blocks);
  return static_cast<int>(cudaGetLastError());
}

// Packed codes and swizzled scales to bfloat16 (rows, k), code x scale.
NVFP4_EXPORT int nvfp4_expand(const void *packed, const void *scales, void *out, int rows, int k, void *stream) {
  expand<<<grid(k / kBlock, rows < 65535 ? rows : 65535), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint8_t *>(packed), static_cast<const uint8_t *>(scales), static_cast<uint4 *>(out), rows, k);
  return static_cast<int>(cudaGetLastError());
}

// bfloat16 to float32.
NVFP4_EXPORT int nvfp4_widen(const void *values, void *out, size_t count, void *stream) {
  widen<<<static_cast<unsigned>((count + 255) / 256), 256, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint16_t *>(values), static_cast<float *>(out), count);
  return static_cast<int>(cudaGetLastError());
}

// Keep the stream busy, so that what is enqueued behind it runs back to back.
NVFP4_EXPORT int nvfp4_delay(int microseconds, void *stream) {
  delay<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<unsigned long long>(microseconds) * 1000);
  return static_cast<int>(cudaGetLastError());
}

NVFP4_EXPORT int nvfp4_versions(int *driver, int *runtime) {
  if (cudaError_t error = cudaDriverGetVersion(driver)) return static_cast<int>(error);
  return static_cast<int>(cudaRuntimeGetVersion(runtime));
}

NVFP4_EXPORT const char *nvfp4_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }
