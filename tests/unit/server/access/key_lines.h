// Lines of key files, for keys that a test names itself.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "server/access/key_file.h"

namespace kvblend::server {

/// `rest`: the other fields, such as "tenant": "t".
inline std::string LineOf(const std::string& key, const std::string& rest) {
  std::string hash;
  for (const unsigned char byte : HashKey(key)) {
    hash += "0123456789abcdef"[byte >> 4];
    hash += "0123456789abcdef"[byte & 15];
  }
  return absl::StrCat(R"({"key_sha256": ")", hash, R"(", )", rest, "}\n");
}

}  // namespace kvblend::server
