// One tile on Hopper (90a), which has no FP4 instruction: the operands arrive expanded to bfloat16, exactly, since code
// times scale needs six significant bits. Tile K is half of the SM120 tile's, as an element is four times as wide.
#include "gemm.cuh"

namespace nvfp4 {

using Tile = cute::Shape<cute::Int<NVFP4_TILE_M>, cute::Int<NVFP4_TILE_N>, cute::Int<NVFP4_TILE_K / 2>>;
constexpr int kAlignment = 8;  // 16 bytes

template <bool SwapAB, bool StreamK>
struct Expanded {
  static constexpr bool kSwapAB = SwapAB;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, OutputLayout<SwapAB>, kAlignment,
      cutlass::bfloat16_t, OutputLayout<SwapAB>, kAlignment, cutlass::epilogue::TmaWarpSpecializedCooperative,
      Alpha>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, cutlass::bfloat16_t, cutlass::layout::RowMajor, kAlignment,
      cutlass::bfloat16_t, cutlass::layout::ColumnMajor, kAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                                      Scheduler<StreamK>>;

  template <class Arguments, class Shape>
  static void operands(Arguments &args, const Shape &, const void *a, const void *b, const void *, const void *) {
    args.ptr_A = static_cast<const cutlass::bfloat16_t *>(a);
    args.ptr_B = static_cast<const cutlass::bfloat16_t *>(b);
  }
};

}  // namespace nvfp4

NVFP4_TILE(nvfp4::Expanded)
