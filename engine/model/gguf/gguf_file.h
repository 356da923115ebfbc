// A GGUF model file, mapped read-only: metadata (typed key-value pairs) and tensors. Other forms of a model
// are presented as one, too (model_file.h), so that loading a model knows this form alone.
//
// Versions 2 and 3, little endian; in one file, or in parts (NAME-00001-of-00003.gguf, ...). The file is not
// trusted: counts, lengths, offsets, alignment, dimension products, overlaps and the UTF-8 of names are
// checked before anything is used, and nothing is allocated that the file's size does not justify. Once Open
// or FromMemory has returned a GgufFile, every span in it lies inside the file.
//
// Errors name the file, the field, the value found and what is allowed:
//   kNotFound, kPermissionDenied, ...  the file cannot be opened
//   kInvalidArgument                   not a GGUF file, or a value has the wrong type or range
//   kDataLoss                          truncated or contradictory: something points outside the file,
//                                      overlaps, or appears twice
//   kUnimplemented                     a version, tensor type or feature that kvblend does not read
//
// Thread safety: immutable after creation. All spans and string views live as long as the GgufFile they come
// from (moving it keeps them valid). A file that another process truncates while it is mapped makes reads
// fault, as with any mapping: replace model files by renaming, never in place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/gguf/gguf_types.h"
#include "kernels/weight_source.h"

namespace kvblend::model {

/// An array value. Scalars stay as bytes in the file; strings are split into views.
struct GgufArray {
  GgufValueType element_type = GgufValueType::kUint8;
  int64_t count = 0;
  absl::Span<const std::byte> scalars;    // else: one after the other, unaligned
  std::vector<std::string_view> strings;  // when element_type is kString
};

/// One metadata entry.
struct GgufEntry {
  std::string_view key;
  GgufValueType type = GgufValueType::kUint8;
  /// uint64_t for unsigned, int64_t for signed integers.
  std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray> value;
};

/// Makes rows of a tensor whose bytes are not rows of a GGUF type in GGUF's order. Immutable, so any number
/// of threads may read.
class TensorRows {
 public:
  virtual ~TensorRows() = default;
  /// REQUIRES: a row of the tensor, and room for its elements.
  virtual absl::Status ReadRow(int64_t row, absl::Span<float> out) const = 0;
  /// How rows are quantized; nullopt: they are not.
  virtual std::optional<kernels::QuantizedFormat> format() const { return std::nullopt; }
  /// As GgufTensor::ReadCodes. REQUIRES: format(), a row of the tensor, and room for what it holds.
  virtual absl::Status ReadCodes(int64_t /*row*/, const kernels::QuantizedRow& /*out*/) const {
    return absl::UnimplementedError("these rows have no codes");
  }
  /// What the elements are stored as: "BF16", "F8_E4M3", ...
  virtual std::string_view type_name() const = 0;
  /// How rows are made. Part of Fingerprint, as are the tensor's data and `more`.
  virtual std::string recipe() const = 0;
  /// What is read besides the tensor's data.
  virtual std::vector<absl::Span<const std::byte>> more() const { return {}; }
};

struct GgufTensor {
  std::string_view name;
  TensorType type = TensorType::kF32;    // of `data` or, where `made` is set, of the rows that it makes
  absl::InlinedVector<int64_t, 4> dims;  // as in the file: dims[0] is the length of a row (in_features)
  absl::Span<const std::byte> data;
  std::shared_ptr<const TensorRows> made;  // null: rows lie in `data`, one after the other

  int64_t cols() const { return dims[0]; }
  /// Product of all dims but the first.
  int64_t rows() const;
  int64_t row_bytes() const;
  /// Dequantizes one row into `out` [cols].
  absl::Status ReadRow(int64_t row, absl::Span<float> out) const;
  /// How rows are quantized; nullopt: they are not.
  std::optional<kernels::QuantizedFormat> quantized_format() const;
  /// A row's codes, scales and minima. REQUIRES: quantized_format().
  absl::Status ReadCodes(int64_t row, const kernels::QuantizedRow& out) const;
  /// "[576, 49152]", row length first as in the file.
  std::string ShapeString() const;
  std::string_view type_name() const;
  /// Bytes in the file.
  int64_t stored_bytes() const;
  /// Gives back the memory of what has been read of the data (ReleaseMappedPages); reading it again brings it
  /// back.
  void ReleasePages() const;

 private:
  absl::Status CheckRow(int64_t row) const;
  absl::StatusOr<absl::Span<const std::byte>> RowBytes(int64_t row) const;
};

/// What a file consists of; the views point into its bytes.
struct GgufContents {
  std::vector<GgufEntry> metadata;
  std::vector<GgufTensor> tensors;
};

class GgufFile {
 public:
  /// For a model in parts `path` is that of the first: the others lie beside it.
  static absl::StatusOr<GgufFile> Open(const std::string& path);
  /// Reads from memory that outlives the result; `name` stands for the path in messages.
  static absl::StatusOr<GgufFile> FromMemory(absl::Span<const std::byte> bytes, std::string name);
  /// Presents contents with distinct keys and distinct tensor names; `owner` keeps alive what their views
  /// point to.
  static GgufFile FromContents(GgufContents contents, std::string name, std::shared_ptr<const void> owner);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  const std::string& name() const { return name_; }
  /// In the order of the file.
  absl::Span<const GgufEntry> metadata() const { return metadata_; }
  absl::Span<const GgufTensor> tensors() const { return tensors_; }

  bool HasKey(std::string_view key) const { return metadata_index_.contains(key); }
  /// nullptr when absent.
  const GgufEntry* FindEntry(std::string_view key) const;
  const GgufTensor* FindTensor(std::string_view name) const;

  // Typed access: kInvalidArgument naming the key when it is missing, of another type or out of range.
  /// Any integer type; min <= value <= max.
  absl::StatusOr<int64_t> GetInteger(std::string_view key, int64_t min, int64_t max) const;
  /// float32 or float64.
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  absl::StatusOr<absl::Span<const std::string_view>> GetStringArray(std::string_view key) const;
  /// An array of any integer type whose values all fit.
  absl::StatusOr<std::vector<int32_t>> GetInt32Array(std::string_view key) const;
  /// An array of float32.
  absl::StatusOr<std::vector<float>> GetFloatArray(std::string_view key) const;

 private:
  GgufFile();

  std::shared_ptr<const void> owner_;  // null when the bytes belong to someone else
  std::string name_;
  std::vector<GgufEntry> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string_view, size_t> metadata_index_;
  absl::flat_hash_map<std::string_view, size_t> tensor_index_;
};

}  // namespace kvblend::model
