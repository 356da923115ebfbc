// A model in another form, as it becomes one that GgufFile presents: keys, tensors, and what they point to.
// Internal to engine/model.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model/gguf/gguf_file.h"

namespace kvblend::model {

class TranslatedModel {
 public:
  /// Values are what a GGUF file would have: integers of 32 bits, floats rounded to float32.
  void SetInteger(std::string key, uint64_t value) {
    Set(std::move(key), GgufValueType::kUint32).value = value;
  }
  void SetFloat(std::string key, double value) {
    Set(std::move(key), GgufValueType::kFloat32).value = double{static_cast<float>(value)};
  }
  void SetBool(std::string key, bool value) { Set(std::move(key), GgufValueType::kBool).value = value; }
  void SetString(std::string key, std::string value) { SetView(std::move(key), Keep(std::move(value))); }
  void SetIntegers(std::string key, const std::vector<int32_t>& values) {
    const std::string_view bytes =
        Keep(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t)));
    GgufArray array;
    array.element_type = GgufValueType::kInt32;
    array.count = static_cast<int64_t>(values.size());
    array.scalars = {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
    Set(std::move(key), GgufValueType::kArray).value = std::move(array);
  }
  /// `value` lives as long as what AddOwner was given.
  void SetView(std::string key, std::string_view value) {
    Set(std::move(key), GgufValueType::kString).value = value;
  }

  void AddTensor(std::string name, GgufTensor tensor) {
    tensor.name = Keep(std::move(name));
    contents_.tensors.push_back(std::move(tensor));
  }
  /// A vector of float32.
  void AddVector(std::string name, std::vector<float> values) {
    const auto size = static_cast<int64_t>(values.size());
    AddValues(std::move(name), std::move(values), {size});
  }
  /// Float32, `dims` as of GgufTensor. REQUIRES: their product is the number of values.
  void AddValues(std::string name, std::vector<float> values, absl::InlinedVector<int64_t, 4> dims) {
    const std::vector<float>& kept = vectors_.emplace_back(std::move(values));
    GgufTensor tensor;
    tensor.type = TensorType::kF32;
    tensor.dims = std::move(dims);
    tensor.data = {reinterpret_cast<const std::byte*>(kept.data()), kept.size() * sizeof(float)};
    AddTensor(std::move(name), std::move(tensor));
  }
  void AddOwner(std::shared_ptr<const void> owner) { owners_.push_back(std::move(owner)); }

  /// The result owns this. REQUIRES: distinct keys and tensor names.
  static GgufFile Present(std::shared_ptr<TranslatedModel> model, std::string name) {
    GgufContents contents = std::move(model->contents_);
    return GgufFile::FromContents(std::move(contents), std::move(name), std::move(model));
  }

 private:
  std::string_view Keep(std::string text) { return strings_.emplace_back(std::move(text)); }
  GgufEntry& Set(std::string key, GgufValueType type) {
    GgufEntry& entry = contents_.metadata.emplace_back();
    entry.key = Keep(std::move(key));
    entry.type = type;
    return entry;
  }

  GgufContents contents_;
  std::deque<std::string> strings_;  // never moved
  std::deque<std::vector<float>> vectors_;
  std::vector<std::shared_ptr<const void>> owners_;
};

}  // namespace kvblend::model
