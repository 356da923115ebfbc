// Filters by what they work on. One call each, which ApplyFilter (operations.h) looks up by name.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/jinja/operations.h"

namespace kvblend::text::jinja {

/// What a filter is called with.
struct FilterCall {
  std::string_view name;
  const Value& input;
  const CallValues& arguments;
  Budget* budget;

  absl::Status Check(size_t required, std::initializer_list<std::string_view> names) const {
    return arguments.Check(name, required, names);
  }
  absl::StatusOr<std::string> Text() const { return ToText(input, budget); }
};
using Filter = absl::StatusOr<Value> (*)(const FilterCall& call);

// The filters of lists (list_filters.cc). Some go by several names, and look at which one was written.
absl::StatusOr<Value> Join(const FilterCall& call);
absl::StatusOr<Value> Choose(const FilterCall& call);
absl::StatusOr<Value> Map(const FilterCall& call);
absl::StatusOr<Value> AsList(const FilterCall& call);
absl::StatusOr<Value> FirstOrLast(const FilterCall& call);
absl::StatusOr<Value> ItemsOf(const FilterCall& call);
absl::StatusOr<Value> Unique(const FilterCall& call);
absl::StatusOr<Value> Ordered(const FilterCall& call);
absl::StatusOr<Value> Reversed(const FilterCall& call);
absl::StatusOr<Value> Sum(const FilterCall& call);
absl::StatusOr<Value> DictSort(const FilterCall& call);

}  // namespace kvblend::text::jinja
