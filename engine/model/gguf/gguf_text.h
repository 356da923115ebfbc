// Text for messages about model files. Internal to engine/model.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvblend::model {

/// absl::StrCat that also takes std::string_view, which Abseil has its own type for when it is built as
/// C++14.
template <typename... Args>
std::string Concat(const Args&... args) {
  const auto adapt = [](const auto& arg) -> decltype(auto) {
    if constexpr (std::is_same_v<std::decay_t<decltype(arg)>, std::string_view>) {
      return absl::string_view(arg.data(), arg.size());
    } else {
      return (arg);
    }
  };
  return absl::StrCat(adapt(args)...);
}

/// The name in quotes, escaped and cut: a hostile file chooses it.
std::string Quote(std::string_view name);

}  // namespace kvblend::model
