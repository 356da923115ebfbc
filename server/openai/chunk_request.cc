#include "server/openai/chunk_request.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/convert/message_json.h"
#include "server/json/json.h"
#include "server/openai/prompt_mapping.h"

namespace kvblend::server::openai {

namespace {

/// Errors of protobuf quote the part that is wrong.
absl::Status ParseBody(const Json& json, google::protobuf::Message* message) {
  const absl::Status status = ParseJson(ToText(json), *message);
  if (status.ok()) return status;
  return LogAs(status, absl::StrCat("the body's JSON is no kvblend.v1.", message->GetDescriptor()->name()));
}

}  // namespace

absl::StatusOr<PutRequest> ParsePutRequest(std::string_view body) {
  KVBLEND_ASSIGN_OR_RETURN(Json json, ParseObject(body));
  PutRequest to;
  v1::Prompt documents;
  {
    FieldReader fields(json, "");
    to.stream = fields.Bool("stream").value_or(false);
    if (const Json* given = fields.Value("documents"); given != nullptr)
      fields.Note(AddDocuments(*given, &documents));
    for (const auto& [name, unused] : json.items()) fields.Ignore({name.c_str()});  // ParseBody checks them
    KVBLEND_RETURN_IF_ERROR(fields.Finish());
  }
  json.erase("stream");
  json.erase("documents");
  KVBLEND_RETURN_IF_ERROR(ParseBody(json, &to.request));
  for (const std::string& text : documents.chunks()) to.request.add_chunks(text);
  return to;
}

absl::Status ParseMessageBody(std::string_view body, google::protobuf::Message* message) {
  KVBLEND_ASSIGN_OR_RETURN(const Json json, ParseObject(body));
  return ParseBody(json, message);
}

}  // namespace kvblend::server::openai
