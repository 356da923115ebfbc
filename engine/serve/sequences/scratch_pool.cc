#include "engine/serve/sequences/scratch_pool.h"

#include <utility>

namespace kvblend {

ScratchPool::Lease ScratchPool::Borrow() {
  std::unique_ptr<blend::PrefillScratch> scratch;
  if (idle_.empty()) {
    scratch = std::make_unique<blend::PrefillScratch>();
  } else {
    scratch = std::move(idle_.back());
    idle_.pop_back();
  }
  return Lease(scratch.release(), [this](blend::PrefillScratch* returned) { idle_.emplace_back(returned); });
}

}  // namespace kvblend
