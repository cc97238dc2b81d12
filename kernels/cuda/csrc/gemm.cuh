// One CUTLASS GEMM behind the C entry points of abi.h. A tile's source names the collective operations; everything that
// is the same on each architecture is here.
#pragma once
#include "abi.h"

#include <utility>

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>

namespace nvfp4 {

template <bool SwapAB>
using OutputLayout = cute::conditional_t<SwapAB, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
template <bool StreamK>
using Scheduler = cute::conditional_t<StreamK, cutlass::gemm::StreamKScheduler, cutlass::gemm::PersistentScheduler>;
using Alpha = cutlass::epilogue::fusion::LinearCombination<cutlass::bfloat16_t, float, void, float>;
using Cluster = cute::Shape<cute::_1, cute::_1, cute::_1>;

struct Problem {
  int m, n, k;
  const void *a, *b, *sfa, *sfb;
};

template <class Configuration>
struct Runner {
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<typename Configuration::Kernel>;
  using Kernel = typename Gemm::GemmKernel;

  static typename Gemm::Arguments arguments(const Problem &problem, void *d, const float *alpha, int sms) {
    auto [m, n, k, a, b, sfa, sfb] = problem;
    if constexpr (Configuration::kSwapAB) {  // computes the transpose: its column-major output is our row-major one
      std::swap(m, n);
      std::swap(a, b);
      std::swap(sfa, sfb);
    }
    typename Gemm::Arguments args{};
    args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    args.problem_shape = cute::make_shape(m, n, k, 1);
    Configuration::operands(args.mainloop, args.problem_shape, a, b, sfa, sfb);
    args.mainloop.dA = cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {m, k, 1});
    args.mainloop.dB = cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {n, k, 1});
    args.epilogue.thread.alpha_ptr = alpha;
    args.epilogue.ptr_D = static_cast<cutlass::bfloat16_t *>(d);
    args.epilogue.dD = cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {m, n, 1});
    args.hw_info.sm_count = sms;
    args.hw_info.cluster_shape = dim3(1, 1, 1);
    args.hw_info.cluster_shape_fallback = dim3(1, 1, 1);
    return args;
  }

  static int64_t workspace(int m, int n, int k, int sms) {
    return static_cast<int64_t>(Gemm::get_workspace_size(arguments({m, n, k, {}, {}, {}, {}}, nullptr, nullptr, sms)));
  }

  // A kernel may use more than 48 KB of shared memory only after this; once a process, which drives one device.
  static cudaError_t raise_shared_memory_limit() {
    static const cudaError_t raised =
        cudaFuncSetAttribute(reinterpret_cast<const void *>(cutlass::device_kernel<Kernel>),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, Kernel::SharedStorageSize);
    return raised;
  }

  static int run(NVFP4_GEMM_PARAMETERS) {
    auto args = arguments({m, n, k, a, b, sfa, sfb}, d, alpha, sms);
    if (auto status = Gemm::can_implement(args); status != cutlass::Status::kSuccess) {
      return kCannotImplement + static_cast<int>(status);
    }
    if (Gemm::get_workspace_size(args) > ws_bytes) return kWorkspaceTooSmall;
    if (cudaError_t error = raise_shared_memory_limit()) return kCannotInitialise + static_cast<int>(error);
    auto queue = static_cast<cudaStream_t>(stream);
    auto params = Kernel::to_underlying_arguments(args, ws);
    if (auto status = Kernel::initialize_workspace(args, ws, queue); status != cutlass::Status::kSuccess) {
      return kCannotInitialise + static_cast<int>(status);
    }
    if (auto status = Gemm::run(params, queue); status != cutlass::Status::kSuccess) {
      return kCannotLaunch + static_cast<int>(status);
    }
    return 0;
  }
};

}  // namespace nvfp4

#define NVFP4_ENTRY(id, ...) NVFP4_ENTRY_(id, __VA_ARGS__)
#define NVFP4_ENTRY_(id, ...)                                                                                      \
  NVFP4_EXPORT int64_t nvfp4_workspace_##id(int m, int n, int k, int sms) {                                       \
    return nvfp4::Runner<__VA_ARGS__>::workspace(m, n, k, sms);                                                   \
  }                                                                                                               \
  NVFP4_EXPORT int nvfp4_run_##id(NVFP4_GEMM_PARAMETERS) {                                                        \
    return nvfp4::Runner<__VA_ARGS__>::run(NVFP4_GEMM_ARGUMENTS);                                                 \
  }

// Id = 4 * tile + 2 * stream_k + (0 if swap_ab else 1); the build passes the four ids and the tile's size.
#define NVFP4_TILE(Configuration)                                                                                 \
  NVFP4_TILE_ENTRIES(Configuration, NVFP4_ID_0, NVFP4_ID_1, NVFP4_ID_2, NVFP4_ID_3)
#define NVFP4_TILE_ENTRIES(Configuration, id0, id1, id2, id3)                                                     \
  NVFP4_ENTRY(id0, Configuration<true, false>)                                                                    \
  NVFP4_ENTRY(id1, Configuration<false, false>)                                                                   \
  NVFP4_ENTRY(id2, Configuration<true, true>)                                                                     \
  NVFP4_ENTRY(id3, Configuration<false, true>)
