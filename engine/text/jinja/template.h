// Jinja templates, as far as chat templates use the language, run as Hugging Face transformers runs them:
// nothing but the template's own values can be reached, blocks are trimmed, and steps, memory and depth are
// bounded.
//
// Not there, and refused by name: inheritance, includes, {% call %}, {% filter %}, {% with %}, recursive
// loops, formats of strings with '%'. A macro sees the template's own variables and its arguments, not those
// of a loop around it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/jinja/syntax.h"
#include "engine/text/jinja/value.h"

namespace kvblend::text::jinja {

/// What a template may use besides its own variables.
struct Environment {
  Pairs variables = {};
  absl::Time now = {};  // what strftime_now() tells, in `time_zone`
  absl::TimeZone time_zone = absl::UTCTimeZone();
  RenderLimits limits = {};
};

/// Immutable; safe from any thread, with an Environment of its own.
class Template {
 public:
  /// kInvalidArgument, kUnimplemented or kResourceExhausted, naming line and construct.
  static absl::StatusOr<Template> Parse(std::string_view source);

  /// The same, and kFailedPrecondition, with its words, where the template calls raise_exception.
  absl::StatusOr<std::string> Render(const Environment& environment) const;

 private:
  explicit Template(Block block) : block_(std::move(block)) {}

  Block block_;
};

}  // namespace kvblend::text::jinja
