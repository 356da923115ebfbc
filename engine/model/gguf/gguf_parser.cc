#include "engine/model/gguf/gguf_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_cursor.h"
#include "engine/model/gguf/gguf_text.h"
#include "engine/text/utf8.h"

namespace kvblend::model {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 65536;
constexpr uint64_t kMaxKeyBytes = 65535;                     // GGUF specification
constexpr uint64_t kMaxTensorNameBytes = 64;                 // GGUF specification
constexpr uint32_t kMaxDims = 4;                             // GGUF specification
constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;           // key length, key, type, value
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, dims, one dim, type, offset

class Parser {
 public:
  Parser(absl::Span<const std::byte> bytes, std::string_view name) : in_(bytes, name) {}

  absl::StatusOr<GgufContents> Parse();

 private:
  absl::Status ParseHeader();
  absl::Status ParseEntry();
  absl::Status ParseArray(std::string_view key, GgufArray& array);
  absl::Status ParseScalar(std::string_view what, GgufEntry& entry);
  absl::Status ParseTensorInfo();
  absl::Status FindAlignment();
  absl::Status PlaceTensors();

  struct Placement {
    uint64_t offset;  // from the start of the data section
    uint64_t bytes;
  };

  GgufCursor in_;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  absl::flat_hash_set<std::string_view> keys_;
  absl::flat_hash_set<std::string_view> tensor_names_;
  std::vector<Placement> placements_;
  GgufContents contents_;
};

absl::Status Parser::ParseHeader() {
  std::array<char, 4> magic = {};
  KVBLEND_RETURN_IF_ERROR(in_.Read("the magic number", magic));
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return in_.Invalid(Concat("magic number is ", Quote({magic.data(), 4}), "; allowed: 'GGUF'"));
  }
  uint32_t version = 0;
  KVBLEND_RETURN_IF_ERROR(in_.Read("the version", version));
  if (version != 2 && version != 3) {
    const bool swapped = version != 0 && (version & 0xFFFF) == 0;
    return in_.Unimplemented(Concat("GGUF version ", version, swapped ? " (a big-endian file)" : "",
                                    " cannot be read; readable: 2, 3, little endian"));
  }
  KVBLEND_RETURN_IF_ERROR(in_.Read("the tensor count", num_tensors_));
  KVBLEND_RETURN_IF_ERROR(in_.Read("the metadata count", num_entries_));
  // Bounding both counts by what could fit keeps later reservations no larger than a few times the file.
  if (num_entries_ > in_.remaining() / kMinEntryBytes) {
    return in_.Damaged(Concat("metadata count is ", num_entries_, "; allowed: at most ",
                              in_.remaining() / kMinEntryBytes, " in a file of ", in_.bytes().size(),
                              " bytes"));
  }
  if (num_tensors_ > in_.remaining() / kMinTensorBytes) {
    return in_.Damaged(Concat("tensor count is ", num_tensors_, "; allowed: at most ",
                              in_.remaining() / kMinTensorBytes, " in a file of ", in_.bytes().size(),
                              " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseScalar(std::string_view what, GgufEntry& entry) {
  const ValueTypeTraits& traits = TraitsOf(entry.type);
  if (traits.read != nullptr) {
    absl::Span<const std::byte> stored;
    KVBLEND_RETURN_IF_ERROR(in_.ReadBytes(what, traits.bytes, stored));
    const GgufNumber number = traits.read(stored.data());
    std::visit([&](auto value) { entry.value = value; }, number);
    if (entry.type != GgufValueType::kBool) return absl::OkStatus();
    const uint64_t flag = std::get<uint64_t>(number);
    if (flag > 1) return in_.Invalid(Concat(what, " is a bool of value ", flag, "; allowed: 0, 1"));
    entry.value = flag == 1;
    return absl::OkStatus();
  }
  if (entry.type == GgufValueType::kString) {
    return in_.ReadString(what, entry.value.emplace<std::string_view>());
  }
  if (entry.type == GgufValueType::kArray) return ParseArray(what, entry.value.emplace<GgufArray>());
  return in_.Invalid(
      Concat(what, " has value type ", static_cast<uint32_t>(entry.type), "; allowed: 0 to 12"));
}

absl::Status Parser::ParseArray(std::string_view what, GgufArray& array) {
  uint32_t type = 0;
  uint64_t count = 0;
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the element type of ", what), type));
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the element count of ", what), count));
  array.element_type = static_cast<GgufValueType>(type);
  const bool is_string = array.element_type == GgufValueType::kString;
  const uint64_t element_bytes = is_string ? sizeof(uint64_t) : TraitsOf(array.element_type).bytes;
  if (element_bytes == 0) {
    return in_.Invalid(Concat(what, " is an array of type ", type, " (", Name(array.element_type),
                              "); allowed: scalars and strings"));
  }
  if (count > in_.remaining() / element_bytes) {
    return in_.Damaged(Concat(what, " claims ", count, " elements of type ", Name(array.element_type),
                              "; allowed: at most ", in_.remaining() / element_bytes,
                              " in the rest of the file"));
  }
  array.count = static_cast<int64_t>(count);
  if (!is_string) {
    array.scalars = in_.Take(count * element_bytes);
    return absl::OkStatus();
  }
  array.strings.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (auto status = in_.ReadString(what, array.strings[i]); !status.ok()) {
      return absl::Status(status.code(), Concat(status.message(), " (element ", i, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseEntry() {
  GgufEntry entry;
  const std::string ordinal = Concat("metadata key ", contents_.metadata.size());
  KVBLEND_RETURN_IF_ERROR(in_.ReadString(ordinal, entry.key));
  if (entry.key.empty() || entry.key.size() > kMaxKeyBytes) {
    return in_.Invalid(Concat(ordinal, " has ", entry.key.size(), " bytes; allowed: 1 to ", kMaxKeyBytes));
  }
  if (text::FirstInvalidUtf8(entry.key)) {
    return in_.Invalid(Concat(ordinal, " ", Quote(entry.key), " is not valid UTF-8"));
  }
  if (!keys_.insert(entry.key).second) {
    return in_.Damaged(Concat("metadata key ", Quote(entry.key), " appears twice"));
  }
  const std::string what = Concat("key ", Quote(entry.key));
  uint32_t type = 0;
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the value type of ", what), type));
  entry.type = static_cast<GgufValueType>(type);
  KVBLEND_RETURN_IF_ERROR(ParseScalar(what, entry));
  contents_.metadata.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status Parser::ParseTensorInfo() {
  GgufTensor tensor;
  const std::string ordinal = Concat("the name of tensor ", contents_.tensors.size());
  KVBLEND_RETURN_IF_ERROR(in_.ReadString(ordinal, tensor.name));
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return in_.Invalid(
        Concat(ordinal, " has ", tensor.name.size(), " bytes; allowed: 1 to ", kMaxTensorNameBytes));
  }
  if (text::FirstInvalidUtf8(tensor.name)) {
    return in_.Invalid(Concat(ordinal, " ", Quote(tensor.name), " is not valid UTF-8"));
  }
  if (!tensor_names_.insert(tensor.name).second) {
    return in_.Damaged(Concat("tensor ", Quote(tensor.name), " appears twice"));
  }
  const std::string what = Concat("tensor ", Quote(tensor.name));

  uint32_t num_dims = 0;
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the dimension count of ", what), num_dims));
  if (num_dims < 1 || num_dims > kMaxDims) {
    return in_.Invalid(Concat(what, " has ", num_dims, " dimensions; allowed: 1 to ", kMaxDims));
  }
  // No element takes less than a quarter of a byte, so a larger product cannot lie in this file; this also
  // rules out overflow.
  const uint64_t max_elements = 4 * static_cast<uint64_t>(in_.bytes().size());
  uint64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("dimension ", i, " of ", what), dim));
    if (dim < 1 || dim > max_elements / elements) {
      return in_.Damaged(Concat(what, " has dimension ", i, " of ", dim, "; allowed: 1 to ",
                                max_elements / elements, " in a file of ", in_.bytes().size(), " bytes"));
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }

  uint32_t type = 0;
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the type of ", what), type));
  const auto traits = FindTensorType(type);
  if (!traits.ok()) {
    return in_.Unimplemented(Concat(what, ": ", traits.status().message()));
  }
  tensor.type = traits->type;
  if (tensor.dims[0] % traits->block_elements != 0) {
    return in_.Invalid(Concat(what, " has rows of ", tensor.dims[0], " elements; allowed for ", traits->name,
                              ": multiples of ", traits->block_elements));
  }
  Placement placement = {};
  placement.bytes = elements / traits->block_elements * traits->block_bytes;
  KVBLEND_RETURN_IF_ERROR(in_.Read(Concat("the offset of ", what), placement.offset));
  placements_.push_back(placement);
  contents_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status Parser::FindAlignment() {
  for (const GgufEntry& entry : contents_.metadata) {
    if (entry.key != "general.alignment") continue;
    const auto* value = std::get_if<uint64_t>(&entry.value);
    if (value == nullptr || entry.type != GgufValueType::kUint32) {
      return in_.Invalid(Concat("key 'general.alignment' is a ", Name(entry.type), "; allowed: uint32"));
    }
    if (*value < 8 || *value > kMaxAlignment || !std::has_single_bit(*value)) {
      return in_.Invalid(Concat("key 'general.alignment' is ", *value, "; allowed: powers of two from 8 to ",
                                kMaxAlignment));
    }
    alignment_ = *value;
  }
  return absl::OkStatus();
}

absl::Status Parser::PlaceTensors() {
  if (contents_.tensors.empty()) return absl::OkStatus();
  const uint64_t data_begin = (in_.position() + alignment_ - 1) / alignment_ * alignment_;
  if (data_begin > in_.bytes().size()) {
    return in_.Damaged(Concat("truncated: tensor data should begin at offset ", data_begin, ", the file has ",
                              in_.bytes().size(), " bytes"));
  }
  const uint64_t data_bytes = in_.bytes().size() - data_begin;
  for (size_t i = 0; i < contents_.tensors.size(); ++i) {
    const auto [offset, bytes] = placements_[i];
    const std::string what = Concat("tensor ", Quote(contents_.tensors[i].name));
    if (offset % alignment_ != 0) {
      return in_.Damaged(Concat(what, " has offset ", offset, "; allowed: multiples of ", alignment_));
    }
    if (offset > data_bytes || bytes > data_bytes - offset) {
      return in_.Damaged(Concat(what, " takes ", bytes, " bytes at data offset ", offset,
                                "; allowed: within the ", data_bytes, " bytes of tensor data in the file"));
    }
    contents_.tensors[i].data = in_.bytes().subspan(data_begin + offset, bytes);
  }
  std::vector<size_t> by_offset(contents_.tensors.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return placements_[a].offset < placements_[b].offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const Placement& before = placements_[by_offset[i - 1]];
    const Placement& after = placements_[by_offset[i]];
    if (before.offset + before.bytes > after.offset) {
      return in_.Damaged(Concat("tensors ", Quote(contents_.tensors[by_offset[i - 1]].name), " and ",
                                Quote(contents_.tensors[by_offset[i]].name), " overlap at data offset ",
                                after.offset));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufContents> Parser::Parse() {
  KVBLEND_RETURN_IF_ERROR(ParseHeader());
  for (uint64_t i = 0; i < num_entries_; ++i) {
    KVBLEND_RETURN_IF_ERROR(ParseEntry());
  }
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    KVBLEND_RETURN_IF_ERROR(ParseTensorInfo());
  }
  KVBLEND_RETURN_IF_ERROR(FindAlignment());
  KVBLEND_RETURN_IF_ERROR(PlaceTensors());
  return std::move(contents_);
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).Parse();
}

}  // namespace kvblend::model
