#include "server/openai/prompt_mapping.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace kvblend::server::openai {
namespace {

/// A part of a message's content.
struct Part {
  std::string text;
  bool is_document = false;
};

/// `what` is in our words. A value of the client's is for ValueError.
absl::Status NotAllowed(const std::string& path, const std::string& what, const std::string& allowed) {
  return FieldError(path, absl::StrCat(path, " is ", what, "; allowed: ", allowed));
}

absl::StatusOr<std::string> TextPart(const Json& json, const std::string& path) {
  FieldReader fields(json, path);
  const std::string type = fields.String("type").value_or("");
  // Fields of a part of another type are not what is wrong.
  if (fields.ok() && type != "text") return ValueError(absl::StrCat(path, ".type"), Quoted(type), "'text'");
  const auto text = fields.String("text");
  fields.Ignore({"cache_control"});
  fields.Refuse({"citations"}, "none");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  if (!text.has_value()) return NotAllowed(absl::StrCat(path, ".text"), "not set", "a string");
  return *text;
}

/// A string, or an array of text parts, which are joined as they are.
absl::StatusOr<std::string> Texts(const Json* json, const std::string& path) {
  if (json == nullptr) return NotAllowed(path, "not set", "a string, or an array of parts");
  if (json->is_string()) return json->get<std::string>();
  if (!json->is_array()) return NotAllowed(path, "neither", "a string, or an array of parts");
  std::string joined;
  for (size_t i = 0; i < json->size(); ++i) {
    KVBLEND_ASSIGN_OR_RETURN(const std::string text, TextPart((*json)[i], absl::StrCat(path, "[", i, "]")));
    joined += text;
  }
  return joined;
}

absl::Status CheckNoCitations(FieldReader& fields) {
  const Json* citations = fields.Value("citations");
  if (citations == nullptr) return absl::OkStatus();
  FieldReader inner(*citations, fields.PathOf("citations"));
  inner.Refuse({"enabled"}, "false; answers here cite nothing");
  return inner.Finish();
}

/// {"type": "document", "title": .., "source": {"type": "text", "data": ..}}
absl::StatusOr<std::string> DocumentPart(const Json& json, const std::string& path) {
  FieldReader fields(json, path);
  fields.Ignore({"type", "cache_control"});
  const std::string title = fields.String("title").value_or("");
  fields.Refuse({"context"}, "none; put it into the text");
  fields.Note(CheckNoCitations(fields));
  const Json* source_json = fields.Value("source");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  if (source_json == nullptr) return NotAllowed(absl::StrCat(path, ".source"), "not set", "an object");
  FieldReader source(*source_json, absl::StrCat(path, ".source"));
  const std::string type = source.String("type").value_or("");
  if (source.ok() && type != "text" && type != "content") {
    return ValueError(source.PathOf("type"), Quoted(type), "'text', 'content'");
  }
  const Json* text = source.Value(type == "text" ? "data" : "content");
  if (type == "text") {
    source.RefuseUnless("media_type", "text/plain");
    if (text != nullptr && !text->is_string())
      source.Note(NotAllowed(source.PathOf("data"), "no string", "a string"));
  }
  KVBLEND_RETURN_IF_ERROR(source.Finish());
  KVBLEND_ASSIGN_OR_RETURN(const std::string body,
                           Texts(text, source.PathOf(type == "text" ? "data" : "content")));
  return DocumentText(title, body);
}

/// {"type": "search_result", "title": .., "source": .., "content": [{"type": "text", "text": ..}]}
absl::StatusOr<std::string> SearchResultPart(const Json& json, const std::string& path) {
  FieldReader fields(json, path);
  fields.Ignore({"type", "cache_control", "source"});
  const std::string title = fields.String("title").value_or("");
  fields.Note(CheckNoCitations(fields));
  const Json* content = fields.Value("content");
  KVBLEND_RETURN_IF_ERROR(fields.Finish());
  KVBLEND_ASSIGN_OR_RETURN(const std::string text, Texts(content, absl::StrCat(path, ".content")));
  return DocumentText(title, text);
}

absl::StatusOr<std::vector<Part>> Parts(const Json* content, const std::string& path) {
  std::vector<Part> parts;
  if (content == nullptr || !content->is_array()) {
    KVBLEND_ASSIGN_OR_RETURN(std::string text, Texts(content, path));
    parts.push_back({.text = std::move(text)});
    return parts;
  }
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& json = (*content)[i];
    const std::string part_path = absl::StrCat(path, "[", i, "]");
    const auto type_member = json.is_object() ? json.find("type") : json.end();
    const std::string type = json.is_object() && type_member != json.end() && type_member->is_string()
                                 ? type_member->get<std::string>()
                                 : "";
    if (type == "document") {
      KVBLEND_ASSIGN_OR_RETURN(std::string text, DocumentPart(json, part_path));
      parts.push_back({.text = std::move(text), .is_document = true});
    } else if (type == "search_result") {
      KVBLEND_ASSIGN_OR_RETURN(std::string text, SearchResultPart(json, part_path));
      parts.push_back({.text = std::move(text), .is_document = true});
    } else if (json.is_object() && type != "text") {
      return ValueError(absl::StrCat(part_path, ".type"), Quoted(type),
                        "'text', 'document', 'search_result'");
    } else {
      KVBLEND_ASSIGN_OR_RETURN(std::string text, TextPart(json, part_path));
      parts.push_back({.text = std::move(text)});
    }
  }
  return parts;
}

/// Puts texts before the first document into the lead-in and the rest among the chunks, except for a text at
/// the end, which is returned. `To`: a prompt, or an earlier turn.
template <typename To>
std::string TakeParts(std::vector<Part> parts, To& to) {
  size_t first_document = 0;
  while (first_document < parts.size() && !parts[first_document].is_document) ++first_document;
  const size_t lead_in_parts = first_document == parts.size() ? 0 : first_document;
  std::string last;
  if (!parts.empty() && !parts.back().is_document) {
    last = std::move(parts.back().text);
    parts.pop_back();
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i < lead_in_parts) {
      to.mutable_lead_in()->append(parts[i].text);
    } else {
      to.add_chunks(std::move(parts[i].text));
    }
  }
  return last;
}

absl::Status AddLastMessage(std::vector<Part> parts, const std::string& path, v1::Prompt* prompt) {
  if (parts.empty() || parts.back().is_document || parts.back().text.empty()) {
    return FieldError(
        path,
        absl::StrCat(path, " ends without a question; allowed: a text that is not empty as the last part"));
  }
  prompt->set_question(TakeParts(std::move(parts), *prompt));
  return absl::OkStatus();
}

}  // namespace

std::string DocumentText(const std::string& title, const std::string& text) {
  std::string chunk = title.empty() ? text : absl::StrCat(title, "\n", text);
  if (!absl::EndsWith(chunk, "\n")) chunk += "\n\n";
  return chunk;
}

absl::Status AddDocuments(const Json& documents, v1::Prompt* prompt) {
  if (!documents.is_array()) return NotAllowed("documents", "no array", "an array of objects or strings");
  for (size_t i = 0; i < documents.size(); ++i) {
    const Json& document = documents[i];
    if (document.is_string()) {
      prompt->add_chunks(DocumentText("", document.get<std::string>()));
      continue;
    }
    const std::string path = absl::StrCat("documents[", i, "]");
    if (!document.is_object()) return NotAllowed(path, "no document", "an object or a string");
    FieldReader fields(document, path);
    const std::string title = fields.String("title").value_or("");
    const auto text = fields.String("text");
    fields.Ignore({"id"});
    KVBLEND_RETURN_IF_ERROR(fields.Finish());
    if (!text.has_value()) return NotAllowed(fields.PathOf("text"), "not set", "a string");
    prompt->add_chunks(DocumentText(title, *text));
  }
  return absl::OkStatus();
}

absl::Status AddMessages(const Json& messages, v1::Prompt* prompt) {
  if (!messages.is_array()) return NotAllowed("messages", "no array", "an array of one message or more");
  if (messages.empty()) return NotAllowed("messages", "empty", "one message or more");
  bool in_system_text = true;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string path = absl::StrCat("messages[", i, "]");
    FieldReader fields(messages[i], path);
    const std::optional<std::string> given_role = fields.String("role");
    const std::string role = given_role.value_or("");
    const Json* content = fields.Value("content");
    fields.Refuse({"name"}, "none; the model's chat format has no names");
    fields.Refuse({"tool_calls", "tool_call_id", "function_call", "audio"}, "none; there are no tools here");
    fields.Ignore({"refusal", "annotations", "reasoning", "reasoning_content"});
    if (role == "assistant") {
      // Cohere's answers have these, and come back as they were.
      fields.Ignore({"citations"});
      fields.Refuse({"tool_plan"}, "none; there are no tools here");
    }
    KVBLEND_RETURN_IF_ERROR(fields.Finish());
    const bool is_system = role == "system" || role == "developer";
    if (!is_system && role != "user" && role != "assistant") {
      const std::string field = absl::StrCat(path, ".role"),
                        allowed = "'system', 'developer', 'user', 'assistant'";
      return given_role.has_value() ? ValueError(field, Quoted(role), allowed)
                                    : NotAllowed(field, "not set", allowed);
    }
    if (is_system && !in_system_text) {
      return ValueError(absl::StrCat(path, ".role"), Quoted(role),
                        "'user', 'assistant' behind the first of these");
    }
    in_system_text = is_system;
    const std::string content_path = absl::StrCat(path, ".content");
    const bool last = i + 1 == messages.size();
    if (last && role != "user")
      return ValueError(absl::StrCat(path, ".role"), Quoted(role), "'user' for the last");
    if (last) {
      KVBLEND_ASSIGN_OR_RETURN(std::vector<Part> parts, Parts(content, content_path));
      KVBLEND_RETURN_IF_ERROR(AddLastMessage(std::move(parts), content_path, prompt));
    } else if (is_system) {
      KVBLEND_ASSIGN_OR_RETURN(const std::string text, Texts(content, content_path));
      if (!prompt->system_text().empty() && !text.empty()) prompt->mutable_system_text()->append("\n\n");
      prompt->mutable_system_text()->append(text);
    } else if (role == "assistant") {
      KVBLEND_ASSIGN_OR_RETURN(std::string text, Texts(content, content_path));
      v1::Turn& turn = *prompt->add_history();
      turn.set_role(v1::ROLE_ASSISTANT);
      turn.set_text(std::move(text));
    } else {
      // Split as it was when the message was the last one, so that its chunks are found again.
      KVBLEND_ASSIGN_OR_RETURN(std::vector<Part> parts, Parts(content, content_path));
      v1::Turn& turn = *prompt->add_history();
      turn.set_role(v1::ROLE_USER);
      turn.set_text(TakeParts(std::move(parts), turn));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvblend::server::openai
