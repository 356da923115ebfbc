#include "engine/model/gguf/gguf_file.h"

#include <type_traits>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/model/files/mapped_file.h"
#include "engine/model/gguf/dequantize.h"
#include "engine/model/gguf/gguf_parser.h"
#include "engine/model/gguf/gguf_split.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {

namespace {

absl::Status WrongType(const GgufFile& file, const GgufEntry& entry, std::string_view allowed) {
  return absl::InvalidArgumentError(
      Concat(file.name(), ": key '", entry.key, "' is of type ", Name(entry.type), "; allowed: ", allowed));
}

absl::StatusOr<const GgufEntry*> Require(const GgufFile& file, std::string_view key) {
  const GgufEntry* entry = file.FindEntry(key);
  if (entry == nullptr)
    return absl::InvalidArgumentError(Concat(file.name(), ": key '", key, "' is missing"));
  return entry;
}

template <typename T>
absl::StatusOr<T> GetAs(const GgufFile& file, std::string_view key, std::string_view allowed) {
  KVBLEND_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(file, key));
  const T* value = std::get_if<T>(&entry->value);
  if (value == nullptr) return WrongType(file, *entry, allowed);
  return *value;
}

}  // namespace

int64_t GgufTensor::rows() const {
  int64_t rows = 1;
  for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
  return rows;
}

int64_t GgufTensor::row_bytes() const {
  const TensorTypeTraits& traits = TraitsOf(type);
  return cols() / traits.block_elements * traits.block_bytes;
}

absl::Status GgufTensor::CheckRow(int64_t row) const {
  if (row >= 0 && row < rows()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Concat("tensor '", name, "': row ", row, " was asked for; allowed: 0 to ", rows() - 1));
}

std::string_view GgufTensor::type_name() const {
  return made != nullptr ? made->type_name() : TraitsOf(type).name;
}

void GgufTensor::ReleasePages() const {
  ReleaseMappedPages(data);
  if (made == nullptr) return;
  for (const absl::Span<const std::byte> bytes : made->more()) ReleaseMappedPages(bytes);
}

int64_t GgufTensor::stored_bytes() const {
  size_t bytes = data.size();
  if (made != nullptr) {
    for (const absl::Span<const std::byte> piece : made->more()) bytes += piece.size();
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<absl::Span<const std::byte>> GgufTensor::RowBytes(int64_t row) const {
  KVBLEND_RETURN_IF_ERROR(CheckRow(row));
  if (made != nullptr) {
    return absl::InvalidArgumentError(Concat("tensor '", name, "' of type ", type_name(), " has no codes"));
  }
  return data.subspan(row * row_bytes(), row_bytes());
}

absl::Status GgufTensor::ReadRow(int64_t row, absl::Span<float> out) const {
  if (made != nullptr) {
    KVBLEND_RETURN_IF_ERROR(CheckRow(row));
    if (static_cast<int64_t>(out.size()) != cols()) {
      return absl::InvalidArgumentError(
          Concat("tensor '", name, "': room for ", out.size(), " elements of a row; allowed: ", cols()));
    }
    return made->ReadRow(row, out);
  }
  KVBLEND_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, RowBytes(row));
  return DequantizeRow(type, bytes, out);
}

std::optional<kernels::QuantizedFormat> GgufTensor::quantized_format() const {
  return made != nullptr ? made->format() : QuantizedFormatOf(type);
}

absl::Status GgufTensor::ReadCodes(int64_t row, const kernels::QuantizedRow& out) const {
  if (made != nullptr && made->format().has_value()) {
    KVBLEND_RETURN_IF_ERROR(CheckRow(row));
    return made->ReadCodes(row, out);
  }
  KVBLEND_ASSIGN_OR_RETURN(const absl::Span<const std::byte> bytes, RowBytes(row));
  return ReadQuantizedRow(type, bytes, out);
}

std::string GgufTensor::ShapeString() const { return Concat("[", absl::StrJoin(dims, ", "), "]"); }

GgufFile::GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  KVBLEND_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> first, MappedFile::Open(path));
  std::vector<GgufPart> parts(1);
  parts[0].name = path;
  KVBLEND_ASSIGN_OR_RETURN(parts[0].contents, ParseGguf(first->bytes(), path));
  KVBLEND_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(parts[0].contents, path));
  KVBLEND_ASSIGN_OR_RETURN(const std::vector<std::string> paths, PathsOfParts(path, keys));
  auto mappings = std::make_shared<std::vector<std::unique_ptr<MappedFile>>>();
  mappings->push_back(std::move(first));
  for (size_t i = 1; i < paths.size(); ++i) {
    absl::StatusOr<std::unique_ptr<MappedFile>> next = MappedFile::Open(paths[i]);
    if (!next.ok()) {
      return absl::Status(next.status().code(), Concat(next.status().message(), " (part ", i + 1, " of ",
                                                       paths.size(), " of ", path, ")"));
    }
    KVBLEND_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf((*next)->bytes(), paths[i]));
    parts.push_back({paths[i], std::move(contents)});
    mappings->push_back(*std::move(next));
  }
  if (parts.size() == 1) return FromContents(std::move(parts[0].contents), path, std::move(mappings));
  KVBLEND_ASSIGN_OR_RETURN(GgufContents whole, JoinParts(std::move(parts)));
  return FromContents(std::move(whole), path, std::move(mappings));
}

absl::StatusOr<GgufFile> GgufFile::FromMemory(absl::Span<const std::byte> bytes, std::string name) {
  KVBLEND_ASSIGN_OR_RETURN(GgufContents contents, ParseGguf(bytes, name));
  return FromContents(std::move(contents), std::move(name), nullptr);
}

GgufFile GgufFile::FromContents(GgufContents contents, std::string name, std::shared_ptr<const void> owner) {
  GgufFile file;
  file.owner_ = std::move(owner);
  file.name_ = std::move(name);
  file.metadata_ = std::move(contents.metadata);
  file.tensors_ = std::move(contents.tensors);
  for (size_t i = 0; i < file.metadata_.size(); ++i) file.metadata_index_.emplace(file.metadata_[i].key, i);
  for (size_t i = 0; i < file.tensors_.size(); ++i) file.tensor_index_.emplace(file.tensors_[i].name, i);
  return file;
}

const GgufEntry* GgufFile::FindEntry(std::string_view key) const {
  const auto found = metadata_index_.find(key);
  return found == metadata_index_.end() ? nullptr : &metadata_[found->second];
}

const GgufTensor* GgufFile::FindTensor(std::string_view name) const {
  const auto found = tensor_index_.find(name);
  return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

absl::StatusOr<int64_t> GgufFile::GetInteger(std::string_view key, int64_t min, int64_t max) const {
  KVBLEND_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto check = [&](auto value) -> absl::StatusOr<int64_t> {
    if (std::cmp_less(value, min) || std::cmp_greater(value, max)) {
      return absl::InvalidArgumentError(
          Concat(name_, ": key '", key, "' is ", value, "; allowed: ", min, " to ", max));
    }
    return static_cast<int64_t>(value);
  };
  if (const auto* value = std::get_if<uint64_t>(&entry->value)) return check(*value);
  if (const auto* value = std::get_if<int64_t>(&entry->value)) return check(*value);
  return WrongType(*this, *entry, "integers");
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  return GetAs<double>(*this, key, "float32, float64");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const { return GetAs<bool>(*this, key, "bool"); }

absl::StatusOr<std::string_view> GgufFile::GetString(std::string_view key) const {
  return GetAs<std::string_view>(*this, key, "string");
}

absl::StatusOr<absl::Span<const std::string_view>> GgufFile::GetStringArray(std::string_view key) const {
  KVBLEND_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* array = std::get_if<GgufArray>(&entry->value);
  if (array == nullptr || array->element_type != GgufValueType::kString) {
    return WrongType(*this, *entry, "array of strings");
  }
  return absl::MakeConstSpan(array->strings);
}

absl::StatusOr<std::vector<int32_t>> GgufFile::GetInt32Array(std::string_view key) const {
  KVBLEND_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* array = std::get_if<GgufArray>(&entry->value);
  if (array == nullptr) return WrongType(*this, *entry, "array of integers");
  const ValueTypeTraits& traits = TraitsOf(array->element_type);
  if (!traits.is_integer) return WrongType(*this, *entry, "array of integers");
  std::vector<int32_t> values;
  values.reserve(array->count);
  for (int64_t i = 0; i < array->count; ++i) {
    const GgufNumber number = traits.read(array->scalars.data() + i * traits.bytes);
    const auto* unsigned_number = std::get_if<uint64_t>(&number);
    values.push_back(std::visit([](auto value) { return static_cast<int32_t>(value); }, number));
    if (unsigned_number != nullptr ? std::in_range<int32_t>(*unsigned_number)
                                   : std::in_range<int32_t>(std::get<int64_t>(number))) {
      continue;
    }
    return absl::InvalidArgumentError(Concat(
        name_, ": key '", key, "' holds a value outside of 32 bits; allowed: -2147483648 to 2147483647"));
  }
  return values;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloatArray(std::string_view key) const {
  KVBLEND_ASSIGN_OR_RETURN(const GgufEntry* entry, Require(*this, key));
  const auto* array = std::get_if<GgufArray>(&entry->value);
  if (array == nullptr || array->element_type != GgufValueType::kFloat32) {
    return WrongType(*this, *entry, "array of float32");
  }
  std::vector<float> values(array->count);
  if (!values.empty()) std::memcpy(values.data(), array->scalars.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace kvblend::model
