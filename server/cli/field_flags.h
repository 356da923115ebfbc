// Flags that set fields of a request message: a row of a table each.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "google/protobuf/message.h"

namespace CLI {
class App;
}

namespace kvblend::server::cli {

struct FieldFlag {
  const char* name;            // "--top-k"
  const char* field;           // where the message has it: "sampling.top_k"
  const char* help;            // of an enumeration the names follow by themselves
  const char* type;            // what --help calls the flag's value; empty: the flag has none
  const char* value = "true";  // what a flag without a value sets
};

/// The flags of one command. A flag that was not given leaves its field as it is.
class FieldFlags {
 public:
  /// Flags without values that set the same field exclude each other. `message` is any that has the fields;
  /// `command` and `rows` must outlive this object, which must stay where it is.
  void Add(CLI::App& command, const google::protobuf::Descriptor& message, const char* group,
           absl::Span<const FieldFlag> rows);

  /// Repeated fields are replaced. kInvalidArgument names flag, value and what is allowed.
  absl::Status Apply(google::protobuf::Message& message) const;

 private:
  struct Given {
    const FieldFlag& flag;
    std::vector<std::string> values = {};
  };
  std::deque<Given> given_;  // the parser fills in the values
};

}  // namespace kvblend::server::cli
