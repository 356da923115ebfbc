#include "server/openai/chunk_request.h"

#include "base/status_macros.h"
#include "server/convert/message_json.h"
#include "server/json/json.h"
#include "server/openai/prompt_mapping.h"

namespace kvblend::server::openai {

absl::StatusOr<PutRequest> ParsePutRequest(std::string_view body) {
  KVBLEND_ASSIGN_OR_RETURN(Json json, ParseObject(body));
  PutRequest to;
  v1::Prompt documents;
  {
    FieldReader fields(json, "");
    to.stream = fields.Bool("stream").value_or(false);
    if (const Json* given = fields.Value("documents"); given != nullptr)
      fields.Note(AddDocuments(*given, &documents));
    for (const auto& [name, unused] : json.items()) fields.Ignore({name.c_str()});  // the message knows
    KVBLEND_RETURN_IF_ERROR(fields.Finish());
  }
  json.erase("stream");
  json.erase("documents");
  KVBLEND_RETURN_IF_ERROR(ParseJson(ToText(json), to.request));
  for (const std::string& text : documents.chunks()) to.request.add_chunks(text);
  return to;
}

absl::Status ParseMessageBody(std::string_view body, google::protobuf::Message* message) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  return ParseJson(ToText(json), *message);
}

}  // namespace kvblend::server::openai
