// Messages and documents -> the parts of a prompt. For the rooms that read bodies.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "kvblend/v1/inference.pb.h"
#include "server/json/json.h"

namespace kvblend::server::openai {

/// A document as the text of a chunk: the title on a line of its own, the text, and an empty line behind it
/// unless the text ends a line itself.
std::string DocumentText(const std::string& title, const std::string& text);

/// Appends the chunks of a "documents" array: strings, or objects with "text" and maybe "title".
absl::Status AddDocuments(const Json& documents, v1::Prompt* prompt);

/// System and developer messages, earlier turns, and the last message, which must be the user's: its last
/// text is the question, texts before its first document the lead-in, and the rest chunks.
absl::Status AddMessages(const Json& messages, v1::Prompt* prompt);

}  // namespace kvblend::server::openai
