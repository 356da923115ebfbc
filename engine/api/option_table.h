// One row for every setting of an engine except its model: its name, the field of EngineOptions that holds
// it, and the values that are allowed. The flags of kvblend-server and kvblend, the server's environment
// variables and configuration file, and the engine's own checks all come from this table.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "engine/api/options.h"

namespace kvblend {

template <typename T>
using OptionField = T& (*)(EngineOptions& options);

template <typename T>
struct NumberOption {
  OptionField<T> field;
  T min;
  T max;
  const char* word_for_zero = nullptr;  // what users may write for 0; null: only the number
  bool above_min = false;               // `min` itself is not allowed
};
struct BytesOption {
  OptionField<int64_t> field;
  int64_t min;
  int64_t max;
};
struct SwitchOption {
  OptionField<bool> field;
};
struct TextOption {
  OptionField<std::string> field;
  /// kInvalidArgument saying what is allowed; null: any text is.
  absl::Status (*check)(std::string_view text) = nullptr;
};
struct FileOption {
  OptionField<std::string> field;  // path of a file that must exist, or empty
};
struct SharesOption {
  OptionField<std::map<std::string, double>> field;  // by name
};

struct EngineOption {
  const char* name;  // "chunk-store-bytes"
  const char* group;
  const char* type;  // how --help calls its value: "SIZE", "N"; "" for a switch
  std::string help;
  std::variant<NumberOption<int32_t>, NumberOption<double>, NumberOption<int64_t>, BytesOption, SwitchOption,
               TextOption, FileOption, SharesOption>
      value;
};

const std::vector<EngineOption>& EngineOptionTable();

/// Checks all that can be checked without the model, the device and the files that the options name.
/// kInvalidArgument naming the setting, its value and what is allowed: "page-size is 0; allowed: 1 to 1024".
absl::Status CheckEngineOptions(EngineOptions options);

}  // namespace kvblend
