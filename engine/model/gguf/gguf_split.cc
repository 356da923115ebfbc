#include "engine/model/gguf/gguf_split.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status_macros.h"
#include "engine/model/gguf/gguf_text.h"

namespace kvblend::model {
namespace {

constexpr std::string_view kNumberKey = "split.no";
constexpr std::string_view kCountKey = "split.count";
constexpr std::string_view kTensorsKey = "split.tensors.count";
constexpr int64_t kMaxParts = 99999;  // the file names have five digits
constexpr int64_t kMaxSplitTensors = int64_t{1} << 31;

// The integer of a key; none when the key is not there.
absl::StatusOr<std::optional<int64_t>> FindSplitKey(const GgufContents& contents, std::string_view name,
                                                    std::string_view key, int64_t max) {
  for (const GgufEntry& entry : contents.metadata) {
    if (entry.key != key) continue;
    std::optional<int64_t> value;
    if (const auto* number = std::get_if<uint64_t>(&entry.value); number != nullptr) {
      value = static_cast<int64_t>(std::min<uint64_t>(*number, uint64_t{1} << 62));
    } else if (const auto* with_sign = std::get_if<int64_t>(&entry.value); with_sign != nullptr) {
      value = *with_sign;
    }
    if (!value.has_value()) {
      return absl::InvalidArgumentError(
          Concat(name, ": key '", key, "' is of type ", Name(entry.type), "; allowed: integers"));
    }
    if (*value < 0 || *value > max) {
      return absl::InvalidArgumentError(
          Concat(name, ": key '", key, "' is ", *value, "; allowed: 0 to ", max));
    }
    return value;
  }
  return std::nullopt;
}

std::string SplitEnding(int64_t number, int64_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "-%05lld-of-%05lld.gguf", static_cast<long long>(number) + 1,
                static_cast<long long>(count));
  return text;
}

bool IsSplitKey(std::string_view key) { return key.starts_with("split."); }

}  // namespace

absl::StatusOr<SplitKeys> ReadSplitKeys(const GgufContents& contents, std::string_view name) {
  KVBLEND_ASSIGN_OR_RETURN(const auto count, FindSplitKey(contents, name, kCountKey, kMaxParts));
  KVBLEND_ASSIGN_OR_RETURN(const auto number, FindSplitKey(contents, name, kNumberKey, kMaxParts));
  SplitKeys keys{.number = number.value_or(0), .count = std::max<int64_t>(count.value_or(1), 1)};
  if (keys.number < keys.count) return keys;
  return absl::InvalidArgumentError(Concat(name, ": key '", kNumberKey, "' is ", keys.number,
                                           "; allowed: 0 to ", keys.count - 1, ", as there are ", keys.count,
                                           " parts"));
}

absl::StatusOr<std::vector<std::string>> PathsOfParts(const std::string& first_path, const SplitKeys& keys) {
  if (keys.count == 1) return std::vector<std::string>{first_path};
  const std::string own = SplitEnding(keys.number, keys.count), first = SplitEnding(0, keys.count);
  if (!first_path.ends_with(own)) {
    return absl::InvalidArgumentError(Concat(first_path, ": this is part ", keys.number + 1, " of ",
                                             keys.count, " of a model file; allowed: a name that ends in ",
                                             own, ", and the other parts beside it"));
  }
  const std::string stem = first_path.substr(0, first_path.size() - own.size());
  if (keys.number != 0) {
    return absl::InvalidArgumentError(Concat(first_path, ": this is part ", keys.number + 1, " of ",
                                             keys.count, " of a model file; allowed: the first, ", stem,
                                             first));
  }
  std::vector<std::string> paths;
  for (int64_t number = 0; number < keys.count; ++number) {
    paths.push_back(Concat(stem, SplitEnding(number, keys.count)));
  }
  return paths;
}

absl::StatusOr<GgufContents> JoinParts(std::vector<GgufPart> parts) {
  const auto count = static_cast<int64_t>(parts.size());
  GgufContents whole;
  absl::flat_hash_map<std::string_view, size_t> part_of;  // tensor name -> its part
  std::optional<int64_t> promised;                        // number of tensors in all parts
  for (size_t i = 0; i < parts.size(); ++i) {
    GgufPart& part = parts[i];
    KVBLEND_ASSIGN_OR_RETURN(const SplitKeys keys, ReadSplitKeys(part.contents, part.name));
    if (keys.count != count || keys.number != static_cast<int64_t>(i)) {
      return absl::InvalidArgumentError(Concat(part.name, ": this is part ", keys.number + 1, " of ",
                                               keys.count, " of a model file; allowed here: part ", i + 1,
                                               " of ", count));
    }
    KVBLEND_ASSIGN_OR_RETURN(const auto tensors,
                             FindSplitKey(part.contents, part.name, kTensorsKey, kMaxSplitTensors));
    if (tensors.has_value() && promised.has_value() && *tensors != *promised) {
      return absl::InvalidArgumentError(Concat(part.name, ": key '", kTensorsKey, "' is ", *tensors,
                                               "; allowed: ", *promised, ", as in the parts before"));
    }
    if (tensors.has_value()) promised = tensors;
    for (GgufEntry& entry : part.contents.metadata) {
      if (IsSplitKey(entry.key)) continue;
      if (i == 0) {
        whole.metadata.push_back(std::move(entry));
      } else if (entry.key != "general.alignment") {
        return absl::InvalidArgumentError(
            Concat(part.name, ": key ", Quote(entry.key), " is in part ", i + 1,
                   "; allowed behind the first part: split.*, general.alignment"));
      }
    }
    for (GgufTensor& tensor : part.contents.tensors) {
      const auto [other, is_new] = part_of.emplace(tensor.name, i);
      if (!is_new) {
        return absl::DataLossError(Concat(part.name, ": tensor ", Quote(tensor.name), " is in ",
                                          parts[other->second].name, " as well"));
      }
      whole.tensors.push_back(std::move(tensor));
    }
  }
  const auto found = static_cast<int64_t>(whole.tensors.size());
  if (promised.has_value() && found != *promised) {
    return absl::DataLossError(Concat(parts[0].name, ": key '", kTensorsKey, "' is ", *promised,
                                      ", but there are ", found, " tensors in the ", count, " parts"));
  }
  return whole;
}

}  // namespace kvblend::model
