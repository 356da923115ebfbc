// What learners tell each other of what they have seen: whatever is read is written again byte for byte, can
// be added, and can be fitted. Input: a note or a part without its checksum.
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/kv/moments_messages.h"
#include "engine/kv/sealed_bytes.h"
#include "tests/fuzz/check.h"

namespace {

using kvblend::kv::CorrectionLearner;
using kvblend::kv::LearnerOptions;
using kvblend::kv::MomentsNote;
using kvblend::kv::PairMoments;

/// The same moments for every layer, to be fitted and to judge.
class OnePart final : public kvblend::kv::OtherPairs {
 public:
  explicit OnePart(const PairMoments& part) : part_(part) {}
  Seen seen() const override {
    return {.fitted_chunks = 9, .kept_back_chunks = 3, .new_chunks = 9, .learners = 1};
  }
  bool AddTo(int32_t /*layer*/, PairMoments& fitted, PairMoments& kept_back,
             absl::FunctionRef<bool()> /*keep_going*/) override {
    fitted.Merge(part_);
    kept_back.Merge(part_);
    return true;
  }

 private:
  const PairMoments& part_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvblend::test_support::Check;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  kvblend::kv::Seal(bytes);
  for (const int64_t max_bytes : {int64_t{1} << 20, int64_t{1}}) {  // both kinds of moments
    const LearnerOptions options{.num_layers = 2, .num_kv_heads = 1, .head_dim = 2, .max_bytes = max_bytes};
    if (const auto note = kvblend::kv::DecodeMomentsNote(options, bytes); note.ok()) {
      Check(kvblend::kv::EncodeMomentsNote(options, *note) == bytes, "a note is written again");
    } else {
      Check(note.status().code() == absl::StatusCode::kInvalidArgument, "errors have one code");
    }
    for (int32_t number = 0; number < kvblend::kv::NumMomentsParts(options); ++number) {
      const auto part = kvblend::kv::DecodeMomentsPart(options, {.replica = 0x11}, number, bytes);
      if (!part.ok()) {
        Check(part.status().code() == absl::StatusCode::kInvalidArgument, "errors have one code");
        continue;
      }
      std::string again;
      part->AppendTo(again);
      Check(bytes.find(again) != std::string::npos, "moments are written again");
      // Numbers that no pairs give may come out of it, but nothing worse.
      CorrectionLearner learner(options);
      OnePart others(*part);
      learner.Fit([] { return true; }, &others);
    }
  }
  return 0;
}
