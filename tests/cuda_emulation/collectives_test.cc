// Indices, barriers, shuffles, votes, reductions and atomics, as the CUDA C++ Programming Guide defines them.
#include <vector>

#include "tests/cuda_emulation/run_kernel.h"

namespace kvblend::kernels::cuda {
namespace {

struct IntsParams {
  int32_t* out;
};

KVBLEND_KERNEL(64, 1) IndexKernel(IntsParams p) {
  const int block = (BlockZ() * 2 + BlockY()) * GridX() + BlockX();
  p.out[block * BlockThreads() + ThreadIndex()] = block * 10000 + Warp() * 100 + Lane();
}

TEST(CudaEmulationTest, EveryThreadOfEveryBlockRunsOnce) {
  std::vector<int32_t> out(3 * 2 * 4 * 64, -1);
  RunKernel<IndexKernel>({.blocks_x = 3, .blocks_y = 2, .blocks_z = 4, .threads = 64},
                         IntsParams{out.data()});
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], static_cast<int>(i / 64 * 10000 + i % 64 / 32 * 100 + i % 32));
  }
}

KVBLEND_KERNEL(32, 1) ShuffleKernel(IntsParams p) {
  const int lane = Lane();
  int32_t* out = p.out + lane * 8;
  out[0] = Shuffle(lane * 3, 5);
  out[1] = Shuffle(lane * 3, (lane + 1) % 32);
  out[2] = ShuffleXor(lane * 3, 6);
  out[3] = ShuffleUp(lane * 3, 4);
  out[4] = static_cast<int32_t>(Ballot(lane % 3 == 0));
  out[5] = WarpInclusiveSum(lane);
  out[6] = static_cast<int32_t>(WarpSum(static_cast<float>(lane)));
  out[7] = static_cast<int32_t>(WarpMax(static_cast<float>((lane * 7) % 32)));
}

TEST(CudaEmulationTest, ShufflesVotesAndReductions) {
  std::vector<int32_t> out(32 * 8);
  RunKernel<ShuffleKernel>({.threads = 32}, IntsParams{out.data()});
  uint32_t thirds = 0;
  for (int lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
  for (int lane = 0; lane < 32; ++lane) {
    const int32_t* row = out.data() + lane * 8;
    EXPECT_EQ(row[0], 15);
    EXPECT_EQ(row[1], (lane + 1) % 32 * 3);
    EXPECT_EQ(row[2], (lane ^ 6) * 3);
    EXPECT_EQ(row[3], (lane < 4 ? lane : lane - 4) * 3);
    EXPECT_EQ(static_cast<uint32_t>(row[4]), thirds);
    EXPECT_EQ(row[5], lane * (lane + 1) / 2);
    EXPECT_EQ(row[6], 31 * 16);
    EXPECT_EQ(row[7], 31);
  }
}

// A lane may run ahead to its next collective while others have yet to read the results of this one.
KVBLEND_KERNEL(32, 1) ManyShufflesKernel(IntsParams p) {
  int value = Lane();
  for (int i = 0; i < 100; ++i) value = Shuffle(value, (Lane() + 1) % 32) + (Lane() % 2 == 0 ? 0 : 0);
  p.out[Lane()] = value;
}

TEST(CudaEmulationTest, ShufflesInARow) {
  std::vector<int32_t> out(32);
  RunKernel<ManyShufflesKernel>({.threads = 32}, IntsParams{out.data()});
  for (int lane = 0; lane < 32; ++lane) EXPECT_EQ(out[lane], (lane + 100) % 32);
}

// Each thread passes a value on to the next one, over and over.
KVBLEND_KERNEL(96, 1) RingKernel(IntsParams p) {
  SharedArena arena;
  SharedArray<int32_t> ring = arena.Take<int32_t>(96);
  ring[ThreadIndex()] = ThreadIndex();
  SyncThreads();
  for (int i = 0; i < 10; ++i) {
    const int32_t next = ring[(ThreadIndex() + 1) % 96];
    SyncThreads();
    ring[ThreadIndex()] = next;
    SyncThreads();
  }
  p.out[BlockX() * 96 + ThreadIndex()] = ring[ThreadIndex()];
}

TEST(CudaEmulationTest, SharedMemoryBetweenBarriers) {
  std::vector<int32_t> out(2 * 96);
  RunKernel<RingKernel>({.blocks_x = 2, .threads = 96, .shared_bytes = 96 * 4}, IntsParams{out.data()});
  for (int i = 0; i < 2 * 96; ++i) EXPECT_EQ(out[i], (i % 96 + 10) % 96);
}

// Within a warp SyncWarp is barrier enough.
KVBLEND_KERNEL(64, 1) WarpRingKernel(IntsParams p) {
  SharedArena arena;
  SharedArray<int32_t> ring = arena.Take<int32_t>(64).Slice(Warp() * 32, 32);
  ring[Lane()] = Lane();
  for (int i = 0; i < 10; ++i) {
    SyncWarp();
    const int32_t next = ring[(Lane() + 1) % 32];
    const int32_t own = ring[Lane()];
    SyncWarp();
    ring[Lane()] = next + own - own;
  }
  p.out[ThreadIndex()] = ring[Lane()];
}

TEST(CudaEmulationTest, SharedMemoryBetweenWarpBarriers) {
  std::vector<int32_t> out(64);
  RunKernel<WarpRingKernel>({.threads = 64, .shared_bytes = 256}, IntsParams{out.data()});
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], (i % 32 + 10) % 32);
}

struct BlockSumParams {
  float* block_sums;
};

KVBLEND_KERNEL(64, 1) BlockSumKernel(BlockSumParams p) {
  SharedArena arena;
  const float sum = BlockSum(static_cast<float>(ThreadIndex()), arena.Take<float>(32));
  p.block_sums[BlockX() * 64 + ThreadIndex()] = sum;
}

TEST(CudaEmulationTest, BlockSums) {
  std::vector<float> block_sums(3 * 64);
  RunKernel<BlockSumKernel>({.blocks_x = 3, .threads = 64, .shared_bytes = 128},
                            BlockSumParams{block_sums.data()});
  for (const float value : block_sums) EXPECT_EQ(value, 63 * 32);
}

}  // namespace
}  // namespace kvblend::kernels::cuda
