#include "engine/model/gguf_parser.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "engine/model/gguf_text.h"

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
  Parser(absl::Span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  absl::StatusOr<GgufContents> Parse();

 private:
  absl::Status ParseHeader();
  absl::Status ParseEntry();
  absl::Status ParseArray(std::string_view key, GgufArray& array);
  absl::Status ParseScalar(std::string_view what, GgufEntry& entry);
  absl::Status ParseTensorInfo();
  absl::Status FindAlignment();
  absl::Status PlaceTensors();

  template <typename T>
  absl::Status Read(std::string_view what, T& value);
  absl::Status ReadString(std::string_view what, std::string_view& text);

  absl::Status Invalid(std::string_view what) const {
    return absl::InvalidArgumentError(Concat(name_, ": ", what));
  }
  absl::Status Damaged(std::string_view what) const { return absl::DataLossError(Concat(name_, ": ", what)); }
  uint64_t Remaining() const { return bytes_.size() - position_; }

  struct Placement {
    uint64_t offset;  // from the start of the data section
    uint64_t bytes;
  };

  absl::Span<const std::byte> bytes_;
  std::string_view name_;
  uint64_t position_ = 0;
  uint64_t num_entries_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  absl::flat_hash_set<std::string_view> keys_;
  absl::flat_hash_set<std::string_view> tensor_names_;
  std::vector<Placement> placements_;
  GgufContents contents_;
};

template <typename T>
absl::Status Parser::Read(std::string_view what, T& value) {
  if (Remaining() < sizeof(T)) {
    return Damaged(Concat("truncated: ", what, " needs ", sizeof(T), " bytes at offset ", position_,
                          ", the file has ", bytes_.size()));
  }
  std::memcpy(&value, bytes_.data() + position_, sizeof(T));
  position_ += sizeof(T);
  return absl::OkStatus();
}

absl::Status Parser::ReadString(std::string_view what, std::string_view& text) {
  uint64_t length = 0;
  if (auto status = Read(Concat("the length of ", what), length); !status.ok()) return status;
  if (length > Remaining()) {
    return Damaged(Concat(what, " at offset ", position_, " claims ", length, " bytes; allowed: up to the ",
                          Remaining(), " that the file still has"));
  }
  text = {reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<size_t>(length)};
  position_ += length;
  return absl::OkStatus();
}

absl::Status Parser::ParseHeader() {
  std::array<char, 4> magic = {};
  if (auto status = Read("the magic number", magic); !status.ok()) return status;
  if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
    return Invalid(Concat("magic number is ", Quote({magic.data(), 4}), "; allowed: 'GGUF'"));
  }
  if (auto status = Read("the version", contents_.version); !status.ok()) return status;
  if (contents_.version != 2 && contents_.version != 3) {
    const bool swapped = contents_.version != 0 && (contents_.version & 0xFFFF) == 0;
    return absl::UnimplementedError(Concat(name_, ": GGUF version ", contents_.version,
                                           swapped ? " (a big-endian file)" : "",
                                           " cannot be read; readable: 2, 3, little endian"));
  }
  if (auto status = Read("the tensor count", num_tensors_); !status.ok()) return status;
  if (auto status = Read("the metadata count", num_entries_); !status.ok()) return status;
  // Bounding both counts by what could fit keeps later reservations no larger than a few times the file.
  if (num_entries_ > Remaining() / kMinEntryBytes) {
    return Damaged(Concat("metadata count is ", num_entries_, "; allowed: at most ",
                          Remaining() / kMinEntryBytes, " in a file of ", bytes_.size(), " bytes"));
  }
  if (num_tensors_ > Remaining() / kMinTensorBytes) {
    return Damaged(Concat("tensor count is ", num_tensors_, "; allowed: at most ",
                          Remaining() / kMinTensorBytes, " in a file of ", bytes_.size(), " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseScalar(std::string_view what, GgufEntry& entry) {
  const auto read = [&]<typename Stored, typename Wide>(Stored stored, Wide) -> absl::Status {
    auto status = Read(what, stored);
    if (status.ok()) entry.value = static_cast<Wide>(stored);
    return status;
  };
  switch (entry.type) {
    case GgufValueType::kUint8:
      return read(uint8_t{}, uint64_t{});
    case GgufValueType::kInt8:
      return read(int8_t{}, int64_t{});
    case GgufValueType::kUint16:
      return read(uint16_t{}, uint64_t{});
    case GgufValueType::kInt16:
      return read(int16_t{}, int64_t{});
    case GgufValueType::kUint32:
      return read(uint32_t{}, uint64_t{});
    case GgufValueType::kInt32:
      return read(int32_t{}, int64_t{});
    case GgufValueType::kUint64:
      return read(uint64_t{}, uint64_t{});
    case GgufValueType::kInt64:
      return read(int64_t{}, int64_t{});
    case GgufValueType::kFloat32:
      return read(float{}, double{});
    case GgufValueType::kFloat64:
      return read(double{}, double{});
    case GgufValueType::kBool: {
      uint8_t stored = 0;
      if (auto status = Read(what, stored); !status.ok()) return status;
      if (stored > 1) return Invalid(Concat(what, " is a bool of value ", stored, "; allowed: 0, 1"));
      entry.value = stored == 1;
      return absl::OkStatus();
    }
    case GgufValueType::kString: {
      std::string_view text;
      auto status = ReadString(what, text);
      entry.value = text;
      return status;
    }
    case GgufValueType::kArray: {
      GgufArray array;
      auto status = ParseArray(what, array);
      entry.value = std::move(array);
      return status;
    }
  }
  return Invalid(Concat(what, " has value type ", static_cast<uint32_t>(entry.type), "; allowed: 0 to 12"));
}

absl::Status Parser::ParseArray(std::string_view what, GgufArray& array) {
  uint32_t type = 0;
  uint64_t count = 0;
  if (auto status = Read(Concat("the element type of ", what), type); !status.ok()) return status;
  if (auto status = Read(Concat("the element count of ", what), count); !status.ok()) return status;
  array.element_type = static_cast<GgufValueType>(type);
  const bool is_string = array.element_type == GgufValueType::kString;
  const uint64_t element_bytes = is_string ? sizeof(uint64_t) : ScalarBytes(array.element_type);
  if (element_bytes == 0) {
    return Invalid(Concat(what, " is an array of type ", type, " (", Name(array.element_type),
                          "); allowed: scalars and strings"));
  }
  if (count > Remaining() / element_bytes) {
    return Damaged(Concat(what, " claims ", count, " elements of type ", Name(array.element_type),
                          "; allowed: at most ", Remaining() / element_bytes, " in the rest of the file"));
  }
  array.count = static_cast<int64_t>(count);
  if (!is_string) {
    array.scalars = bytes_.subspan(position_, count * element_bytes);
    position_ += count * element_bytes;
    return absl::OkStatus();
  }
  array.strings.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    if (auto status = ReadString(what, array.strings[i]); !status.ok()) {
      return absl::Status(status.code(), Concat(status.message(), " (element ", i, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status Parser::ParseEntry() {
  GgufEntry entry;
  const std::string ordinal = Concat("metadata key ", contents_.metadata.size());
  if (auto status = ReadString(ordinal, entry.key); !status.ok()) return status;
  if (entry.key.empty() || entry.key.size() > kMaxKeyBytes) {
    return Invalid(Concat(ordinal, " has ", entry.key.size(), " bytes; allowed: 1 to ", kMaxKeyBytes));
  }
  if (!IsValidUtf8(entry.key)) return Invalid(Concat(ordinal, " ", Quote(entry.key), " is not valid UTF-8"));
  if (!keys_.insert(entry.key).second) {
    return Damaged(Concat("metadata key ", Quote(entry.key), " appears twice"));
  }
  const std::string what = Concat("key ", Quote(entry.key));
  uint32_t type = 0;
  if (auto status = Read(Concat("the value type of ", what), type); !status.ok()) return status;
  entry.type = static_cast<GgufValueType>(type);
  if (auto status = ParseScalar(what, entry); !status.ok()) return status;
  contents_.metadata.push_back(std::move(entry));
  return absl::OkStatus();
}

absl::Status Parser::ParseTensorInfo() {
  GgufTensor tensor;
  const std::string ordinal = Concat("the name of tensor ", contents_.tensors.size());
  if (auto status = ReadString(ordinal, tensor.name); !status.ok()) return status;
  if (tensor.name.empty() || tensor.name.size() > kMaxTensorNameBytes) {
    return Invalid(
        Concat(ordinal, " has ", tensor.name.size(), " bytes; allowed: 1 to ", kMaxTensorNameBytes));
  }
  if (!IsValidUtf8(tensor.name))
    return Invalid(Concat(ordinal, " ", Quote(tensor.name), " is not valid UTF-8"));
  if (!tensor_names_.insert(tensor.name).second) {
    return Damaged(Concat("tensor ", Quote(tensor.name), " appears twice"));
  }
  const std::string what = Concat("tensor ", Quote(tensor.name));

  uint32_t num_dims = 0;
  if (auto status = Read(Concat("the dimension count of ", what), num_dims); !status.ok()) return status;
  if (num_dims < 1 || num_dims > kMaxDims) {
    return Invalid(Concat(what, " has ", num_dims, " dimensions; allowed: 1 to ", kMaxDims));
  }
  // No element takes less than half a byte, so a larger product cannot lie in this file; this also rules out
  // overflow.
  const uint64_t max_elements = 2 * static_cast<uint64_t>(bytes_.size());
  uint64_t elements = 1;
  for (uint32_t i = 0; i < num_dims; ++i) {
    uint64_t dim = 0;
    if (auto status = Read(Concat("dimension ", i, " of ", what), dim); !status.ok()) return status;
    if (dim < 1 || dim > max_elements / elements) {
      return Damaged(Concat(what, " has dimension ", i, " of ", dim, "; allowed: 1 to ",
                            max_elements / elements, " in a file of ", bytes_.size(), " bytes"));
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }

  uint32_t type = 0;
  if (auto status = Read(Concat("the type of ", what), type); !status.ok()) return status;
  const auto traits = FindTensorType(type);
  if (!traits.ok()) {
    return absl::Status(traits.status().code(), Concat(name_, ": ", what, ": ", traits.status().message()));
  }
  tensor.type = traits->type;
  if (tensor.dims[0] % traits->block_elements != 0) {
    return Invalid(Concat(what, " has rows of ", tensor.dims[0], " elements; allowed for ", traits->name,
                          ": multiples of ", traits->block_elements));
  }
  Placement placement = {};
  placement.bytes = elements / traits->block_elements * traits->block_bytes;
  if (auto status = Read(Concat("the offset of ", what), placement.offset); !status.ok()) return status;
  placements_.push_back(placement);
  contents_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status Parser::FindAlignment() {
  for (const GgufEntry& entry : contents_.metadata) {
    if (entry.key != "general.alignment") continue;
    const auto* value = std::get_if<uint64_t>(&entry.value);
    if (value == nullptr || entry.type != GgufValueType::kUint32) {
      return Invalid(Concat("key 'general.alignment' is a ", Name(entry.type), "; allowed: uint32"));
    }
    if (*value < 8 || *value > kMaxAlignment || !std::has_single_bit(*value)) {
      return Invalid(Concat("key 'general.alignment' is ", *value, "; allowed: powers of two from 8 to ",
                            kMaxAlignment));
    }
    alignment_ = *value;
  }
  return absl::OkStatus();
}

absl::Status Parser::PlaceTensors() {
  if (contents_.tensors.empty()) return absl::OkStatus();
  const uint64_t data_begin = (position_ + alignment_ - 1) / alignment_ * alignment_;
  if (data_begin > bytes_.size()) {
    return Damaged(Concat("truncated: tensor data should begin at offset ", data_begin, ", the file has ",
                          bytes_.size(), " bytes"));
  }
  const uint64_t data_bytes = bytes_.size() - data_begin;
  for (size_t i = 0; i < contents_.tensors.size(); ++i) {
    const auto [offset, bytes] = placements_[i];
    const std::string what = Concat("tensor ", Quote(contents_.tensors[i].name));
    if (offset % alignment_ != 0) {
      return Damaged(Concat(what, " has offset ", offset, "; allowed: multiples of ", alignment_));
    }
    if (offset > data_bytes || bytes > data_bytes - offset) {
      return Damaged(Concat(what, " takes ", bytes, " bytes at data offset ", offset,
                            "; allowed: within the ", data_bytes, " bytes of tensor data in the file"));
    }
    contents_.tensors[i].data = bytes_.subspan(data_begin + offset, bytes);
  }
  std::vector<size_t> by_offset(contents_.tensors.size());
  std::iota(by_offset.begin(), by_offset.end(), size_t{0});
  std::sort(by_offset.begin(), by_offset.end(),
            [&](size_t a, size_t b) { return placements_[a].offset < placements_[b].offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    const Placement& before = placements_[by_offset[i - 1]];
    const Placement& after = placements_[by_offset[i]];
    if (before.offset + before.bytes > after.offset) {
      return Damaged(Concat("tensors ", Quote(contents_.tensors[by_offset[i - 1]].name), " and ",
                            Quote(contents_.tensors[by_offset[i]].name), " overlap at data offset ",
                            after.offset));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufContents> Parser::Parse() {
  if (auto status = ParseHeader(); !status.ok()) return status;
  for (uint64_t i = 0; i < num_entries_; ++i) {
    if (auto status = ParseEntry(); !status.ok()) return status;
  }
  for (uint64_t i = 0; i < num_tensors_; ++i) {
    if (auto status = ParseTensorInfo(); !status.ok()) return status;
  }
  if (auto status = FindAlignment(); !status.ok()) return status;
  if (auto status = PlaceTensors(); !status.ok()) return status;
  return std::move(contents_);
}

}  // namespace

absl::StatusOr<GgufContents> ParseGguf(absl::Span<const std::byte> bytes, std::string_view name) {
  return Parser(bytes, name).Parse();
}

}  // namespace kvblend::model
