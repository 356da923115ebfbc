#include "engine/kv/correction_file.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/kv/atomic_file.h"
#include "kernels/kv_correction.h"

namespace kvblend::kv {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kMagic = "kvblcorr";
constexpr uint32_t kFittedVersion = 1, kLearnedVersion = 2;
constexpr size_t kHeaderBytes = 368, kDataAt = 112, kChecksumBytes = 8;
constexpr uint32_t kMaxLayers = 1 << 16, kMaxHeads = 1 << 16, kMaxHeadDim = 1 << 16;

template <typename T>
void Put(T value, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

void PutFloats(const std::vector<float>& values, std::string& bytes) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

/// Takes values from the front of bytes that are known to be enough.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  std::string_view Take(size_t count) {
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

absl::Status TakeFloats(Reader& reader, size_t count, size_t layer, std::string_view name,
                        std::vector<float>& values) {
  if (count == 0) return absl::OkStatus();  // memcpy must not get null, not even for no bytes
  if (reader.left() / sizeof(float) < count) {
    return Bad("layer ", layer, " ends within its ", std::string(name));
  }
  const std::string_view bytes = reader.Take(count * sizeof(float));
  values.resize(count);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  const auto bad =
      std::find_if(values.begin(), values.end(), [](float value) { return !std::isfinite(value); });
  if (bad == values.end()) return absl::OkStatus();
  return Bad("layer ", layer, ": ", std::string(name), "[", bad - values.begin(), "] is ", *bad,
             "; allowed: finite");
}

absl::Status TakeLayer(Reader& reader, size_t channels, size_t rank, size_t index, LayerCorrection& layer) {
  if (reader.left() < sizeof(uint32_t)) return Bad("the file ends before layer ", index);
  const auto present = reader.Take<uint32_t>();
  if (present == 0) return absl::OkStatus();
  if (present != 1) return Bad("layer ", index, " begins with ", present, "; allowed: 0, 1");
  KVBLEND_RETURN_IF_ERROR(TakeFloats(reader, channels, index, "scale", layer.scale));
  KVBLEND_RETURN_IF_ERROR(
      TakeFloats(reader, kernels::kNumKvCorrectionPlaces * channels, index, "offset", layer.offset));
  KVBLEND_RETURN_IF_ERROR(TakeFloats(reader, channels * rank, index, "down", layer.down));
  return TakeFloats(reader, channels * rank, index, "up", layer.up);
}

}  // namespace

std::string EncodeCorrection(const LearnedCorrection& correction) {
  std::string bytes(kMagic);
  const LearnedFrom learned = correction.learned.value_or(LearnedFrom());
  Put(correction.learned.has_value() ? kLearnedVersion : kFittedVersion, bytes);
  Put(static_cast<uint32_t>(correction.anchoring == Anchoring::kIsolated), bytes);
  bytes.append(reinterpret_cast<const char*>(correction.model_fingerprint.data()),
               correction.model_fingerprint.size());
  Put(static_cast<uint32_t>(correction.layers.size()), bytes);
  Put(correction.num_kv_heads, bytes);
  Put(correction.head_dim, bytes);
  Put(correction.rank, bytes);
  Put(static_cast<uint64_t>(correction.origin.tokens), bytes);
  bytes.append(learned.base);
  bytes.resize(88, '\0');
  const std::string_view data =
      std::string_view(correction.origin.data).substr(0, CorrectionOrigin::kMaxBytes);
  Put(static_cast<uint32_t>(data.size()), bytes);
  Put(learned.encoding, bytes);
  Put(correction.origin.kl_before, bytes);
  Put(correction.origin.kl_after, bytes);
  bytes.append(data);
  bytes.resize(kHeaderBytes, '\0');
  for (const LayerCorrection& layer : correction.layers) {
    Put(static_cast<uint32_t>(!layer.empty()), bytes);
    for (const auto* values : {&layer.scale, &layer.offset, &layer.down, &layer.up})
      PutFloats(*values, bytes);
  }
  Put(static_cast<uint64_t>(XXH3_64bits(bytes.data(), bytes.size())), bytes);
  return bytes;
}

absl::StatusOr<LearnedCorrection> DecodeCorrection(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return Bad("no learned correction: it does not begin with ", std::string(kMagic),
               ", or ends within its header");
  }
  Reader reader(bytes.substr(kMagic.size()));
  const auto version = reader.Take<uint32_t>();
  if (version != kFittedVersion && version != kLearnedVersion) {
    return Bad("version is ", version, "; this kvblend reads ", kFittedVersion, " and ", kLearnedVersion);
  }
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  const auto checksum = Reader(bytes.substr(body.size())).Take<uint64_t>();
  if (checksum != XXH3_64bits(body.data(), body.size()))
    return Bad("the checksum does not fit: the file is damaged");

  LearnedCorrection correction;
  const auto anchoring = reader.Take<uint32_t>();
  if (anchoring > 1) return Bad("anchoring is ", anchoring, "; allowed: 0, 1");
  correction.anchoring = anchoring == 0 ? Anchoring::kAnchored : Anchoring::kIsolated;
  const std::string_view fingerprint = reader.Take(correction.model_fingerprint.size());
  std::memcpy(correction.model_fingerprint.data(), fingerprint.data(), fingerprint.size());
  const auto layers = reader.Take<uint32_t>(), heads = reader.Take<uint32_t>(),
             head_dim = reader.Take<uint32_t>(), rank = reader.Take<uint32_t>();
  const struct {
    const char* name;
    uint32_t value, min, max;
  } sizes[] = {{"layers", layers, 1, kMaxLayers},
               {"num_kv_heads", heads, 1, kMaxHeads},
               {"head_dim", head_dim, 1, kMaxHeadDim},
               {"rank", rank, 0, static_cast<uint32_t>(kernels::kMaxKvCorrectionRank)}};
  for (const auto& size : sizes) {
    if (size.value >= size.min && size.value <= size.max) continue;
    return Bad(size.name, " is ", size.value, "; allowed: ", size.min, " to ", size.max);
  }
  correction.num_kv_heads = static_cast<int32_t>(heads);
  correction.head_dim = static_cast<int32_t>(head_dim);
  correction.rank = static_cast<int32_t>(rank);
  correction.origin.tokens = static_cast<int64_t>(reader.Take<uint64_t>());
  const std::string_view base = reader.Take(LearnedFrom::kBaseBytes);
  const auto data_bytes = reader.Take<uint32_t>();
  if (data_bytes > CorrectionOrigin::kMaxBytes) {
    return Bad("the origin has ", data_bytes, " bytes; allowed: at most ", CorrectionOrigin::kMaxBytes);
  }
  const auto encoding = reader.Take<uint32_t>();
  correction.origin.kl_before = reader.Take<double>();
  correction.origin.kl_after = reader.Take<double>();
  const std::string_view text = reader.Take(kHeaderBytes - kDataAt);
  correction.origin.data = std::string(text.substr(0, data_bytes));
  const auto zero = [](std::string_view values) { return values.find_first_not_of('\0') == values.npos; };
  const bool learned = version == kLearnedVersion;
  if ((!learned && (encoding != 0 || !zero(base))) || !zero(text.substr(data_bytes))) {
    return Bad("the header's reserved bytes are not all zero");
  }
  if (learned) {
    if (!zero(base) && base.find_first_not_of("0123456789abcdef") != base.npos) {
      return Bad("the version of what learning began with is not ", LearnedFrom::kBaseBytes,
                 " hexadecimal digits");
    }
    correction.learned = LearnedFrom{.encoding = encoding, .base = std::string(zero(base) ? "" : base)};
  }

  Reader values(body.substr(kHeaderBytes));
  for (uint32_t i = 0; i < layers; ++i) {
    LayerCorrection& layer = correction.layers.emplace_back();
    KVBLEND_RETURN_IF_ERROR(TakeLayer(values, correction.channels(), rank, i, layer));
  }
  if (values.left() != 0) return Bad(values.left(), " bytes stand behind the last layer; allowed: none");
  return correction;
}

std::string CorrectionVersion(std::string_view bytes) {
  return absl::StrFormat("%016x", XXH3_64bits(bytes.data(), bytes.size()));
}

absl::StatusOr<CorrectionFile> ReadCorrectionFile(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path, kMagic));
  absl::StatusOr<LearnedCorrection> correction = DecodeCorrection(bytes);
  if (!correction.ok()) {
    return absl::Status(correction.status().code(), absl::StrCat(path, ": ", correction.status().message()));
  }
  return CorrectionFile{*std::move(correction), CorrectionVersion(bytes)};
}

absl::Status CheckCorrectionWritable(const std::string& path) {
  KVBLEND_RETURN_IF_ERROR(CheckReplaceable(path));
  const absl::StatusOr<std::string> bytes = ReadWholeFile(path, kMagic);
  if (absl::IsNotFound(bytes.status())) return absl::OkStatus();
  KVBLEND_RETURN_IF_ERROR(bytes.status());
  if (bytes->empty() || bytes->starts_with(kMagic)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is something else than a learned correction; allowed: one, or a new name"));
}

absl::Status WriteCorrectionFile(const std::string& path, const LearnedCorrection& correction) {
  return ReplaceFile(path, EncodeCorrection(correction));
}

}  // namespace kvblend::kv
