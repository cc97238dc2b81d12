// A GPU's threads as a CPU's, to run kernels whose blocks never wait for each other: blocks in turn, the threads of one
// at once. What a warp does together (a matrix product, a shuffle) is a meeting of its 32 threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __global__ static
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
using std::min;

struct float4 { float x, y, z, w; };
struct uint4 { uint32_t x, y, z, w; };
struct uint2 { uint32_t x, y; };
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

using cudaError_t = int;
using cudaStream_t = void *;
constexpr int cudaSuccess = 0, cudaFuncAttributeMaxDynamicSharedMemorySize = 8;
constexpr int cudaLaunchAttributeProgrammaticStreamSerialization = 6;
struct cudaLaunchAttribute {
  int id;
  struct { int programmaticStreamSerializationAllowed; } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute *attrs;
  unsigned numAttrs;
};
template <class Kernel>
cudaError_t cudaFuncSetAttribute(Kernel, int, int) { return cudaSuccess; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaDriverGetVersion(int *) { return cudaSuccess; }
inline cudaError_t cudaRuntimeGetVersion(int *) { return cudaSuccess; }
inline const char *cudaGetErrorString(cudaError_t) { return ""; }

inline thread_local dim3 threadIdx, blockIdx;
inline dim3 gridDim, blockDim;

namespace cpu {

struct Warp {
  std::barrier<> meeting{32};
  uint32_t a[32][4], b[32][2];
  float value[32];
};
inline thread_local Warp *warp;
inline std::barrier<> *block;
inline std::vector<float4> shared;

struct Launch {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};

inline void run(const Launch &launch, const std::function<void()> &kernel) {
  constexpr float kNone = std::numeric_limits<float>::quiet_NaN();  // shared memory starts as anything
  gridDim = launch.grid, blockDim = launch.block;
  for (unsigned y = 0; y < gridDim.y; y++)
    for (unsigned x = 0; x < gridDim.x; x++) {
      shared.assign(launch.shared / sizeof(float4) + 1, float4{kNone, kNone, kNone, kNone});
      std::barrier<> meeting(blockDim.x);
      block = &meeting;
      std::vector<Warp> warps(blockDim.x / 32);
      std::vector<std::thread> threads;
      for (unsigned t = 0; t < blockDim.x; t++)
        threads.emplace_back([&, t] {
          threadIdx = dim3(t, 0, 0), blockIdx = dim3(x, y, 0), warp = &warps[t / 32];
          kernel();
          block->arrive_and_drop();  // a thread that returned is waited for no more
        });
      for (auto &thread : threads) thread.join();
    }
}

inline float half(uint32_t word, int high) {
  const auto bits = static_cast<uint16_t>(high ? word >> 16 : word);
  _Float16 value;
  std::memcpy(&value, &bits, sizeof value);
  return static_cast<float>(value);
}

}  // namespace cpu

template <class Kernel, class... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, Kernel kernel, Arguments... arguments) {
  cpu::run({config->gridDim, config->blockDim, config->dynamicSmemBytes, nullptr}, [&] { kernel(arguments...); });
  return cudaSuccess;
}

inline void __syncthreads() { cpu::block->arrive_and_wait(); }
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline int atomicAdd(int *place, int value) { return __atomic_fetch_add(place, value, __ATOMIC_SEQ_CST); }
template <class Value>
Value __ldg(const Value *place) { return *place; }
template <class Value>
Value __ldcg(const Value *place) { return *place; }
template <class Value>
void __stcg(Value *place, Value value) { *place = value; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }
inline uint32_t __float_as_uint(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Byte i of the result is the byte of y:x that nibble i of the selector names.
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = static_cast<uint64_t>(y) << 32 | x;
  uint32_t word = 0;
  for (int i = 0; i < 4; i++) word |= static_cast<uint32_t>(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return word;
}

inline float __shfl_xor_sync(unsigned, float value, int offset) {
  const unsigned lane = threadIdx.x % 32;
  cpu::warp->value[lane] = value;
  cpu::warp->meeting.arrive_and_wait();
  const float other = cpu::warp->value[lane ^ static_cast<unsigned>(offset)];
  cpu::warp->meeting.arrive_and_wait();
  return other;
}

// What fused.cu writes in PTX: mul.f16x2, mma.m16n8k16 (fragments as the PTX manual lays them out), and two loads.
inline uint32_t multiply(uint32_t a, uint32_t b) {
  uint32_t word = 0;
  for (int i = 0; i < 2; i++) {
    const auto product = static_cast<_Float16>(cpu::half(a, i) * cpu::half(b, i));
    uint16_t bits;
    std::memcpy(&bits, &product, sizeof bits);
    word |= static_cast<uint32_t>(bits) << 16 * i;
  }
  return word;
}

inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  auto &warp = *cpu::warp;
  const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  std::memcpy(warp.a[lane], a, sizeof a);
  std::memcpy(warp.b[lane], b, sizeof b);
  warp.meeting.arrive_and_wait();
  for (int e = 0; e < 4; e++) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 16; k++) {
      const float left = cpu::half(warp.a[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
      c[e] += left * cpu::half(warp.b[column * 4 + k % 8 / 2][k / 8], k % 2);
    }
  }
  warp.meeting.arrive_and_wait();
}

template <class Value>
Value loaded(const void *place) {
  Value value;
  std::memcpy(&value, place, sizeof value);
  return value;
}
inline uint4 stream16(const void *place) { return loaded<uint4>(place); }
inline uint2 stream8(const void *place) { return loaded<uint2>(place); }
