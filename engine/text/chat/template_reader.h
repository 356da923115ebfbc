// The chat format that a template writes: found by rendering conversations whose texts are marks, and looking
// at what stands between the marks.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/text/chat/chat_format.h"

namespace kvblend::text {

struct TemplateContext {
  std::string_view bos;  // the texts of these tokens; may be empty
  std::string_view eos;
  absl::Time now = {};  // for templates that put in the date
  absl::TimeZone time_zone = absl::UTCTimeZone();
};

/// The format is called "template". Conversations of no, one, two and three exchanges, with and without a
/// system text, with and without whitespace around the texts must all come out of it as the template renders
/// them; what a template refuses (a system text, two turns of the same role) the format does not allow.
/// kInvalidArgument, kUnimplemented, kFailedPrecondition, kResourceExhausted: the template cannot be run,
/// with its line. kUnimplemented too where its prompts are not made of parts, saying what differs.
absl::StatusOr<ChatFormat> ReadChatFormat(std::string_view source, const TemplateContext& context);

}  // namespace kvblend::text
