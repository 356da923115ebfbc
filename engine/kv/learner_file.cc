#include "engine/kv/learner_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kLearnerMagic = "kvblmomt";
constexpr uint32_t kLearnerVersion = 1;
constexpr size_t kLearnerHeader = 112, kLearnerChecksum = 8, kBaseAt = 88, kBaseBytes = 16;

/// Everything before the counts, which has to be the same for moments to be of use.
std::string Preamble(const LearnerOptions& options) {
  std::string bytes(kLearnerMagic);
  const auto put = [&](auto value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(kLearnerVersion);
  put(static_cast<uint32_t>(options.anchoring == Anchoring::kIsolated));
  bytes.append(reinterpret_cast<const char*>(options.model_fingerprint.data()),
               options.model_fingerprint.size());
  put(options.encoding);
  put(options.num_layers);
  put(options.num_kv_heads);
  put(static_cast<uint16_t>(options.head_dim));
  put(static_cast<uint16_t>(KindOfMoments(options)));
  return bytes;
}

size_t FileBytes(const LearnerOptions& options) {
  const int64_t moments = PairMoments::EncodedBytes(options.channels(), KindOfMoments(options));
  return kLearnerHeader + static_cast<size_t>(2 * options.num_layers * moments) + kLearnerChecksum;
}

absl::Status BadMoments(std::string_view what) { return absl::InvalidArgumentError(std::string(what)); }

}  // namespace

std::string EncodeLearner(const LearnerOptions& options, const LearnerState& state) {
  std::string bytes = Preamble(options);
  const auto put = [&](int64_t value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
  put(state.fitted_chunks);
  put(state.kept_back_chunks);
  put(state.tokens);
  bytes.append(state.base);
  bytes.resize(kLearnerHeader, '\0');
  bytes.reserve(FileBytes(options));
  for (const auto* side : {&state.fitted, &state.kept_back}) {
    for (const PairMoments& layer : *side) layer.AppendTo(bytes);
  }
  const uint64_t checksum = XXH3_64bits(bytes.data(), bytes.size());
  bytes.append(reinterpret_cast<const char*>(&checksum), sizeof(checksum));
  return bytes;
}

absl::StatusOr<LearnerState> DecodeLearner(const LearnerOptions& options, std::string_view bytes) {
  const std::string expected = Preamble(options);
  if (bytes.substr(0, kLearnerMagic.size()) != kLearnerMagic) {
    return BadMoments(
        absl::StrCat("no moments of a correction: it does not begin with ", std::string(kLearnerMagic)));
  }
  if (bytes.size() < kLearnerHeader + kLearnerChecksum) return BadMoments("the file ends within its header");
  const std::string_view body = bytes.substr(0, bytes.size() - kLearnerChecksum);
  uint64_t checksum;
  std::memcpy(&checksum, bytes.data() + body.size(), sizeof(checksum));
  if (checksum != XXH3_64bits(body.data(), body.size())) {
    return BadMoments("the checksum does not fit: the file is damaged");
  }
  if (bytes.substr(0, expected.size()) != expected) {
    return BadMoments("it is of another version, model, anchoring, chunk format, size or memory budget");
  }
  if (bytes.size() != FileBytes(options)) {
    return BadMoments(absl::StrCat("it has ", bytes.size(), " bytes; allowed: ", FileBytes(options)));
  }
  LearnerState state;
  size_t at = expected.size();
  for (int64_t* count : {&state.fitted_chunks, &state.kept_back_chunks, &state.tokens}) {
    std::memcpy(count, bytes.data() + at, sizeof(*count));
    at += sizeof(*count);
    if (*count < 0) return BadMoments(absl::StrCat("a count is ", *count, "; allowed: 0 or more"));
  }
  const std::string_view base = bytes.substr(kBaseAt, kBaseBytes);
  if (base[0] != '\0') state.base = base;
  const std::string_view zeros =
      bytes.substr(kBaseAt + state.base.size(), kLearnerHeader - kBaseAt - state.base.size());
  if (zeros.find_first_not_of('\0') != zeros.npos)
    return BadMoments("the header's reserved bytes are not all zero");
  std::string_view values = body.substr(kLearnerHeader);
  for (auto* side : {&state.fitted, &state.kept_back}) {
    side->assign(options.num_layers, PairMoments(options.channels(), KindOfMoments(options)));
    for (PairMoments& layer : *side) KVBLEND_RETURN_IF_ERROR(layer.TakeFrom(values));
  }
  return state;
}

}  // namespace kvblend::kv
