// The C entry points of a kernel library. Python reaches them through ctypes, so there is no C++ type in any of them.
//
// One signature serves every GEMM. d (m, n) bfloat16 = alpha * a (m, k) . b (n, k)^T, row-major, all on the device:
//   a, b      operands in the form the runner reads: packed e2m1 (rows, k / 2), or bfloat16 (rows, k)
//   sfa, sfb  128x4-swizzled ue4m3 scales of packed operands; unused by runners that read bfloat16
//   alpha     one float32
//   ws        ws_bytes of scratch, at least what nvfp4_workspace_ID answered for the same m, n, k, sms
//   sms       multiprocessors the schedule may count on
//   stream    a cudaStream_t; the call only enqueues, so it can be captured
// Answers 0, or a code of Refusal plus the status behind it. Ask for a workspace on the device that will run it: a
// Stream-K schedule needs an occupancy query, and without a device it would answer 0.
#pragma once
#include <cstddef>
#include <cstdint>

enum Refusal {
  kCannotImplement = 1000,   // the operands do not fit the tile: alignment or size
  kWorkspaceTooSmall = 2000,
  kCannotInitialise = 3000,
  kCannotLaunch = 4000,
};

#define NVFP4_EXPORT extern "C" __attribute__((visibility("default")))
#define NVFP4_GEMM_PARAMETERS                                                                                    \
  void *d, const void *a, const void *b, const void *sfa, const void *sfb, const float *alpha, int m, int n,     \
      int k, void *ws, size_t ws_bytes, int sms, void *stream
#define NVFP4_GEMM_ARGUMENTS d, a, b, sfa, sfb, alpha, m, n, k, ws, ws_bytes, sms, stream
