#include "tests/support/gguf_builder.h"

#include <algorithm>
#include <utility>

namespace kvblend::test_support {

void AppendGgufString(std::string& out, std::string_view text) {
  AppendBytes<uint64_t>(out, text.size());
  out.append(text);
}

GgufBuilder& GgufBuilder::SetRaw(std::string_view key, uint32_t type, std::string value) {
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  Entry entry{std::string(key), type, std::move(value)};
  if (found == entries_.end()) {
    entries_.push_back(std::move(entry));
  } else {
    *found = std::move(entry);
  }
  return *this;
}

GgufBuilder& GgufBuilder::SetString(std::string_view key, std::string_view value) {
  std::string bytes;
  AppendGgufString(bytes, value);
  return SetRaw(key, kGgufString, std::move(bytes));
}

GgufBuilder& GgufBuilder::SetUint32(std::string_view key, uint32_t value) {
  std::string bytes;
  AppendBytes(bytes, value);
  return SetRaw(key, kGgufUint32, std::move(bytes));
}

GgufBuilder& GgufBuilder::SetFloat32(std::string_view key, float value) {
  std::string bytes;
  AppendBytes(bytes, value);
  return SetRaw(key, kGgufFloat32, std::move(bytes));
}

GgufBuilder& GgufBuilder::SetBool(std::string_view key, bool value) {
  return SetRaw(key, kGgufBool, std::string(1, value ? '\1' : '\0'));
}

GgufBuilder& GgufBuilder::SetStringArray(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes;
  AppendBytes(bytes, kGgufString);
  AppendBytes<uint64_t>(bytes, values.size());
  for (const std::string& value : values) AppendGgufString(bytes, value);
  return SetRaw(key, kGgufArray, std::move(bytes));
}

GgufBuilder& GgufBuilder::SetInt32Array(std::string_view key, const std::vector<int32_t>& values) {
  std::string bytes;
  AppendBytes(bytes, kGgufInt32);
  AppendBytes<uint64_t>(bytes, values.size());
  for (const int32_t value : values) AppendBytes(bytes, value);
  return SetRaw(key, kGgufArray, std::move(bytes));
}

GgufBuilder& GgufBuilder::SetFloatArray(std::string_view key, const std::vector<float>& values) {
  std::string bytes;
  AppendBytes(bytes, kGgufFloat32);
  AppendBytes<uint64_t>(bytes, values.size());
  for (const float value : values) AppendBytes(bytes, value);
  return SetRaw(key, kGgufArray, std::move(bytes));
}

GgufBuilder& GgufBuilder::RemoveKey(std::string_view key) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.key == key; });
  return *this;
}

GgufBuilder& GgufBuilder::SetTensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                                    std::string data) {
  const auto found =
      std::find_if(tensors_.begin(), tensors_.end(), [&](const Tensor& t) { return t.name == name; });
  Tensor tensor{std::string(name), dims, type, std::move(data)};
  if (found == tensors_.end()) {
    tensors_.push_back(std::move(tensor));
  } else {
    *found = std::move(tensor);
  }
  return *this;
}

GgufBuilder& GgufBuilder::SetTensorF32(std::string_view name, const std::vector<uint64_t>& dims,
                                       const std::vector<float>& data) {
  std::string bytes;
  for (const float value : data) AppendBytes(bytes, value);
  return SetTensor(name, dims, kGgufF32, std::move(bytes));
}

GgufBuilder& GgufBuilder::RemoveTensor(std::string_view name) {
  std::erase_if(tensors_, [&](const Tensor& tensor) { return tensor.name == name; });
  return *this;
}

GgufBuilder& GgufBuilder::SetVersion(uint32_t version) {
  version_ = version;
  return *this;
}

GgufBuilder& GgufBuilder::SetAlignment(uint32_t alignment) {
  alignment_ = alignment;
  return SetUint32("general.alignment", alignment);
}

std::string GgufBuilder::Build() const {
  std::string file = "GGUF";
  AppendBytes(file, version_);
  AppendBytes<uint64_t>(file, tensors_.size());
  AppendBytes<uint64_t>(file, entries_.size());
  for (const Entry& entry : entries_) {
    AppendGgufString(file, entry.key);
    AppendBytes(file, entry.type);
    file.append(entry.value);
  }
  const auto pad = [this](std::string& bytes) {
    while (bytes.size() % alignment_ != 0) bytes.push_back('\0');
  };
  std::string data;
  for (const Tensor& tensor : tensors_) {
    pad(data);
    AppendGgufString(file, tensor.name);
    AppendBytes<uint32_t>(file, static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) AppendBytes(file, dim);
    AppendBytes(file, tensor.type);
    AppendBytes<uint64_t>(file, data.size());
    data.append(tensor.data);
  }
  pad(file);
  return file + data;
}

}  // namespace kvblend::test_support
