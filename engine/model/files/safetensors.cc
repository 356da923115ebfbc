#include "engine/model/files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/model/files/json_text.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr uint64_t kMaxHeaderBytes = uint64_t{32}
                                     << 20;  // of a model in one file with 100,000 tensors: 15 MB
constexpr size_t kMaxShapeDims = 4;
constexpr std::string_view kDescriptionKey = "__metadata__";

struct SafeDtypeTraits {
  SafeDtype dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<SafeDtypeTraits, 6> kSafeDtypes = {{
    {SafeDtype::kF32, "F32", 4},
    {SafeDtype::kF16, "F16", 2},
    {SafeDtype::kBF16, "BF16", 2},
    {SafeDtype::kF8E4M3, "F8_E4M3", 1},
    {SafeDtype::kI64, "I64", 8},  // counters that some checkpoints hold beside the weights
    {SafeDtype::kU8, "U8", 1},    // codes
}};

class HeaderReader {
 public:
  HeaderReader(absl::Span<const std::byte> data, std::string_view name) : data_(data), name_(name) {}

  absl::StatusOr<SafeTensor> Read(const std::string& tensor_name, const nlohmann::json& value) const;

 private:
  absl::Status Invalid(const std::string& tensor, std::string_view what) const {
    return absl::InvalidArgumentError(Concat(name_, ": tensor ", Quote(tensor), " ", what));
  }
  absl::Status ReadShape(const nlohmann::json& value, SafeTensor& tensor) const;
  absl::Status ReadOffsets(const nlohmann::json& value, SafeTensor& tensor) const;

  absl::Span<const std::byte> data_;
  std::string_view name_;
};

absl::Status HeaderReader::ReadShape(const nlohmann::json& value, SafeTensor& tensor) const {
  if (!value.is_array() || value.size() > kMaxShapeDims) {
    return Invalid(tensor.name,
                   Concat("has shape ", ShowJson(value), "; allowed: up to ", kMaxShapeDims, " dimensions"));
  }
  // No element takes less than a byte, so a larger product does not lie in this file; nor does it overflow.
  uint64_t elements = 1;
  for (const nlohmann::json& dim : value) {
    const uint64_t allowed = data_.size() / elements;
    if (!dim.is_number_unsigned() || dim.get<uint64_t>() < 1 || dim.get<uint64_t>() > allowed) {
      return Invalid(tensor.name, Concat("has dimension ", ShowJson(dim), "; allowed: 1 to ", allowed, " in ",
                                         data_.size(), " bytes"));
    }
    tensor.shape.push_back(dim.get<int64_t>());
    elements *= dim.get<uint64_t>();
  }
  return absl::OkStatus();
}

absl::Status HeaderReader::ReadOffsets(const nlohmann::json& value, SafeTensor& tensor) const {
  const bool is_pair =
      value.is_array() && value.size() == 2 && value[0].is_number_unsigned() && value[1].is_number_unsigned();
  if (!is_pair) {
    return Invalid(tensor.name, Concat("has offsets ", ShowJson(value), "; allowed: begin and end"));
  }
  const auto begin = value[0].get<uint64_t>(), end = value[1].get<uint64_t>();
  if (begin > end || end > data_.size()) {
    return absl::DataLossError(Concat(name_, ": tensor ", Quote(tensor.name), " lies at ", begin, " to ", end,
                                      "; allowed: within the ", data_.size(), " bytes behind the header"));
  }
  const uint64_t expected = static_cast<uint64_t>(tensor.elements()) * SizeOf(tensor.dtype);
  if (end - begin != expected) {
    return absl::DataLossError(Concat(name_, ": tensor ", Quote(tensor.name), " has ", end - begin,
                                      " bytes; allowed: ", expected, ", for ", Name(tensor.dtype), " ",
                                      tensor.ShapeString()));
  }
  tensor.data = data_.subspan(begin, end - begin);
  return absl::OkStatus();
}

absl::StatusOr<SafeTensor> HeaderReader::Read(const std::string& tensor_name,
                                              const nlohmann::json& value) const {
  SafeTensor tensor;
  tensor.name = tensor_name;
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets") || !value["dtype"].is_string()) {
    return Invalid(tensor.name, Concat("is described by ", ShowJson(value),
                                       "; allowed: 'dtype', 'shape' and 'data_offsets'"));
  }
  const auto& dtype = value["dtype"].get_ref<const std::string&>();
  const auto traits = std::find_if(kSafeDtypes.begin(), kSafeDtypes.end(),
                                   [&](const SafeDtypeTraits& known) { return known.name == dtype; });
  if (traits == kSafeDtypes.end()) {
    return absl::UnimplementedError(Concat(name_, ": tensor ", Quote(tensor.name), " is of dtype ",
                                           Quote(dtype), "; readable: F32, F16, BF16, F8_E4M3, U8"));
  }
  tensor.dtype = traits->dtype;
  KVBLEND_RETURN_IF_ERROR(ReadShape(value["shape"], tensor));
  KVBLEND_RETURN_IF_ERROR(ReadOffsets(value["data_offsets"], tensor));
  return tensor;
}

absl::Status CheckNoOverlap(const std::vector<SafeTensor>& tensors, std::string_view name) {
  std::vector<const SafeTensor*> by_place;
  by_place.reserve(tensors.size());
  for (const SafeTensor& tensor : tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const SafeTensor* a, const SafeTensor* b) { return a->data.data() < b->data.data(); });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const SafeTensor &before = *by_place[i - 1], &after = *by_place[i];
    if (before.data.data() + before.data.size() > after.data.data()) {
      return absl::DataLossError(
          Concat(name, ": tensors ", Quote(before.name), " and ", Quote(after.name), " overlap"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(SafeDtype dtype) { return kSafeDtypes[static_cast<size_t>(dtype)].name; }
bool IsPlainFloat(SafeDtype dtype) {
  return dtype == SafeDtype::kF32 || dtype == SafeDtype::kF16 || dtype == SafeDtype::kBF16;
}
int64_t SizeOf(SafeDtype dtype) { return kSafeDtypes[static_cast<size_t>(dtype)].bytes; }

int64_t SafeTensor::elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

std::string SafeTensor::ShapeString() const { return Concat("[", absl::StrJoin(shape, ", "), "]"); }

absl::StatusOr<std::vector<SafeTensor>> ParseSafetensors(absl::Span<const std::byte> bytes,
                                                         std::string_view name) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return absl::DataLossError(
        Concat(name, ": truncated: ", bytes.size(), " bytes; allowed: 8 for the header's length, or more"));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t rest = bytes.size() - sizeof(header_bytes);
  if (header_bytes > std::min(rest, kMaxHeaderBytes)) {
    return absl::DataLossError(Concat(name, ": the header takes ", header_bytes, " bytes; allowed: up to ",
                                      std::min(rest, kMaxHeaderBytes)));
  }
  KVBLEND_ASSIGN_OR_RETURN(
      const nlohmann::json header,
      ParseJsonObject(bytes.subspan(sizeof(header_bytes), header_bytes), name, kMaxHeaderBytes));
  const HeaderReader reader(bytes.subspan(sizeof(header_bytes) + header_bytes), name);
  std::vector<SafeTensor> tensors;
  for (const auto& [tensor_name, value] : header.items()) {
    if (tensor_name == kDescriptionKey) continue;
    KVBLEND_ASSIGN_OR_RETURN(SafeTensor tensor, reader.Read(tensor_name, value));
    tensors.push_back(std::move(tensor));
  }
  KVBLEND_RETURN_IF_ERROR(CheckNoOverlap(tensors, name));
  return tensors;
}

}  // namespace kvblend::model
