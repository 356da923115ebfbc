// Backend memory that passes of prompts and of kept sequences use one after the other.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "engine/blend/pass_context.h"

namespace kvblend {

/// Scratch that one pass after the other uses. For the engine thread only.
class ScratchPool {
 public:
  using Lease = std::unique_ptr<blend::PrefillScratch, std::function<void(blend::PrefillScratch*)>>;

  /// The pool must outlive the lease.
  Lease Borrow();

 private:
  std::vector<std::unique_ptr<blend::PrefillScratch>> idle_;
};

}  // namespace kvblend
