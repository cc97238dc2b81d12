// One tile of the SM120 family (120a, 121a): NVFP4 operands straight into the block-scaled tensor-core instruction.
#include "gemm.cuh"

#include <cutlass/detail/sm100_blockscaled_layout.hpp>

namespace nvfp4 {

using Tile = cute::Shape<cute::Int<NVFP4_TILE_M>, cute::Int<NVFP4_TILE_N>, cute::Int<NVFP4_TILE_K>>;
using Operand = cutlass::nv_float4_t<cutlass::float_e2m1_t>;
constexpr int kOperandAlignment = 32, kOutputAlignment = 8;  // 16 bytes of either

template <bool SwapAB, bool StreamK>
struct BlockScaled {
  static constexpr bool kSwapAB = SwapAB;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm120, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, OutputLayout<SwapAB>, kOutputAlignment,
      cutlass::bfloat16_t, OutputLayout<SwapAB>, kOutputAlignment, cutlass::epilogue::TmaWarpSpecialized,
      Alpha>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm120, cutlass::arch::OpClassBlockScaledTensorOp, Operand, cutlass::layout::RowMajor,
      kOperandAlignment, Operand, cutlass::layout::ColumnMajor, kOperandAlignment, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Mainloop, Epilogue,
                                                      Scheduler<StreamK>>;

  template <class Arguments, class Shape>
  static void operands(Arguments &args, const Shape &shape, const void *a, const void *b, const void *sfa,
                       const void *sfb) {
    using Scales = typename Mainloop::Sm1xxBlkScaledConfig;
    args.ptr_A = static_cast<const cutlass::float_e2m1_t *>(a);
    args.ptr_B = static_cast<const cutlass::float_e2m1_t *>(b);
    args.ptr_SFA = static_cast<const cutlass::float_ue4m3_t *>(sfa);
    args.ptr_SFB = static_cast<const cutlass::float_ue4m3_t *>(sfb);
    args.layout_SFA = Scales::tile_atom_to_shape_SFA(shape);
    args.layout_SFB = Scales::tile_atom_to_shape_SFB(shape);
  }
};

}  // namespace nvfp4

NVFP4_TILE(nvfp4::BlockScaled)
