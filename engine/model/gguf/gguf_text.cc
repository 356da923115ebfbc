#include "engine/model/gguf/gguf_text.h"

#include <cstddef>

#include "absl/strings/escaping.h"

namespace kvblend::model {

std::string Quote(std::string_view name) {
  constexpr size_t kMaxShown = 80;
  const bool cut = name.size() > kMaxShown;
  return Concat("'", absl::CHexEscape(absl::string_view(name.data(), cut ? kMaxShown : name.size())),
                cut ? "..." : "", "'");
}

}  // namespace kvblend::model
