// The reference engine's own operations between the GEMMs, in float32, where the array library has none that a graph can
// hold: CuPy refuses cuBLAS while a stream is captured.
#include "abi.h"

#include <cuda_runtime.h>

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kRows = 8;

__device__ float warp_sum(float value) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(~0u, value, offset);
  return value;
}

__device__ float warp_max(float value) {
#pragma unroll
  for (int offset = 16; offset; offset /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, offset));
  return value;
}

// The sum (or maximum) over a block, in every thread. `scratch` holds kWarps floats.
template <bool kMaximum>
__device__ float block_reduce(float value, float *scratch) {
  value = kMaximum ? warp_max(value) : warp_sum(value);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float all = scratch[0];
#pragma unroll
  for (int warp = 1; warp < kWarps; warp++) all = kMaximum ? fmaxf(all, scratch[warp]) : all + scratch[warp];
  return all;
}

__global__ void rms_norm(const float *values, const float *weight, float *out, int hidden, float epsilon) {
  __shared__ float scratch[kWarps];
  values += static_cast<size_t>(blockIdx.x) * hidden;
  out += static_cast<size_t>(blockIdx.x) * hidden;
  const int first = static_cast<int>(threadIdx.x);
  float square = 0;
  for (int i = first; i < hidden; i += kThreads) square += values[i] * values[i];
  const float scale = 1.0f / sqrtf(block_reduce<false>(square, scratch) / static_cast<float>(hidden) + epsilon);
  for (int i = first; i < hidden; i += kThreads) out[i] = values[i] * scale * weight[i];
}

// One block a row and query head. The new token's key and value are read from `keys` and `values` and stored in the
// cache by the first head of each group, so that no block waits for another.
__global__ void decode_attention(const float *queries, const float *keys, const float *values, float *key_cache,
                                 float *value_cache, const int64_t *slots, const int64_t *positions, float *out,
                                 int heads, int kv_heads, int size, int limit) {
  extern __shared__ float weights[];
  __shared__ float scratch[kWarps];
  float *query = weights + limit;
  const int head = static_cast<int>(blockIdx.x), row = static_cast<int>(blockIdx.y), group = heads / kv_heads;
  const int kv = head / group, first = static_cast<int>(threadIdx.x);
  const int position = static_cast<int>(positions[row]);
  const size_t cache = (static_cast<size_t>(slots[row]) * kv_heads + kv) * size * limit;
  const float *key = keys + (static_cast<size_t>(row) * kv_heads + kv) * size;
  const float *value = values + (static_cast<size_t>(row) * kv_heads + kv) * size;
  key_cache += cache, value_cache += cache;
  const float root = rsqrtf(static_cast<float>(size));
  for (int i = first; i < size; i += kThreads) {
    query[i] = queries[(static_cast<size_t>(row) * heads + head) * size + i] * root;
    if (head % group == 0) {
      key_cache[static_cast<size_t>(i) * limit + position] = key[i];
      value_cache[static_cast<size_t>(position) * size + i] = value[i];
    }
  }
  __syncthreads();
  float largest = -INFINITY;
  for (int p = first; p <= position; p += kThreads) {
    float score = 0;
    for (int i = 0; i < size; i++) {
      score += query[i] * (p == position ? key[i] : key_cache[static_cast<size_t>(i) * limit + p]);
    }
    weights[p] = score;
    largest = fmaxf(largest, score);
  }
  largest = block_reduce<true>(largest, scratch);
  float total = 0;
  for (int p = first; p <= position; p += kThreads) total += weights[p] = expf(weights[p] - largest);
  total = block_reduce<false>(total, scratch);
  for (int i = first; i < size; i += kThreads) {
    float mixed = weights[position] * value[i];
    for (int p = 0; p < position; p++) mixed += weights[p] * value_cache[static_cast<size_t>(p) * size + i];
    out[(static_cast<size_t>(row) * heads + head) * size + i] = mixed / total;
  }
}

// out (m, n) = a (m, k) . b (n, k)^T: a warp computes kRows rows of one column.
__global__ void logits(const float *a, const float *b, float *out, int m, int n, int k) {
  const int column = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int top = static_cast<int>(blockIdx.y) * kRows, lane = static_cast<int>(threadIdx.x) % 32;
  if (column >= n) return;
  float sum[kRows] = {};
  for (int i = lane; i < k; i += 32) {
    const float weight = b[static_cast<size_t>(column) * k + i];
#pragma unroll
    for (int r = 0; r < kRows; r++) {
      if (top + r < m) sum[r] += a[static_cast<size_t>(top + r) * k + i] * weight;
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; r++) {
    const float all = warp_sum(sum[r]);
    if (lane == 0 && top + r < m) out[static_cast<size_t>(top + r) * n + column] = all;
  }
}

}  // namespace

NVFP4_EXPORT int nvfp4_rms_norm(const void *values, const void *weight, void *out, int rows, int hidden, float epsilon,
                                void *stream) {
  rms_norm<<<static_cast<unsigned>(rows), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float *>(values), static_cast<const float *>(weight), static_cast<float *>(out), hidden, epsilon);
  return static_cast<int>(cudaGetLastError());
}

// queries, out (rows, heads, size); keys, values (rows, kv_heads, size); key_cache (slots, kv_heads, size, limit),
// value_cache (slots, kv_heads, limit, size); slots, positions (rows) int64. A row sees its slot's tokens before
// `position` and its own.
NVFP4_EXPORT int nvfp4_decode_attention(const void *queries, const void *keys, const void *values, void *key_cache,
                                        void *value_cache, const void *slots, const void *positions, void *out, int rows,
                                        int heads, int kv_heads, int size, int limit, void *stream) {
  const size_t shared = sizeof(float) * static_cast<size_t>(limit + size);
  if (cudaError_t error = cudaFuncSetAttribute(reinterpret_cast<const void *>(decode_attention),
                                               cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared))) {
    return static_cast<int>(error);
  }
  decode_attention<<<dim3(static_cast<unsigned>(heads), static_cast<unsigned>(rows)), kThreads, shared,
                     static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float *>(queries), static_cast<const float *>(keys), static_cast<const float *>(values),
      static_cast<float *>(key_cache), static_cast<float *>(value_cache), static_cast<const int64_t *>(slots),
      static_cast<const int64_t *>(positions), static_cast<float *>(out), heads, kv_heads, size, limit);
  return static_cast<int>(cudaGetLastError());
}

NVFP4_EXPORT int nvfp4_logits(const void *a, const void *b, void *out, int m, int n, int k, void *stream) {
  const dim3 blocks(static_cast<unsigned>((n + kWarps - 1) / kWarps), static_cast<unsigned>((m + kRows - 1) / kRows));
  logits<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const float *>(a), static_cast<const float *>(b), static_cast<float *>(out), m, n, k);
  return static_cast<int>(cudaGetLastError());
}
