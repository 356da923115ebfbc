// No field of a request is forgotten: whatever the services' descriptors list makes a difference to what the
// engine is asked, or answers.
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "server/calls/engine_calls.h"
#include "server/convert/requests.h"
#include "tests/support/fake_engine.h"
#include "tests/unit/server/describe_request.h"

namespace kvblend::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

/// What becomes of a request, in words: an error, or what the engine is asked.
using Outcome = std::function<std::string(const Message&)>;

template <typename Request>
std::string Converted(const Message& message) {
  const auto request = FromProto(Request(static_cast<const Request&>(message)));
  return request.ok() ? Describe::Text(*request) : request.status().ToString();
}

/// For requests that the chunk store answers: its answer, and what it holds afterwards.
template <typename Request, typename Response>
Outcome Answered(absl::StatusOr<Response> (Calls::*call)(Request)) {
  return [call](const Message& message) {
    testing::FakeEngine engine;
    engine.StoreChunk("", 1, 10);
    engine.StoreChunk("", 2, 10);
    engine.StoreChunk("x", 3, 10);
    EngineSlot slot;
    slot.Serve(&engine);
    EngineCalls calls(&slot, {});
    const auto response = (calls.*call)(static_cast<const Request&>(message));
    const auto held = engine.chunks().List(kAllNamespaces, "", 100);
    std::string text = response.ok() ? response->DebugString() : response.status().ToString();
    for (const ChunkInfo& chunk : held->chunks) absl::StrAppend(&text, chunk.key.ToHex(), chunk.pinned, ";");
    return text;
  };
}

/// Values of the field's type, of which one at least is not its default.
std::vector<std::function<void(Message&)>> Setters(const FieldDescriptor* field) {
  std::vector<std::function<void(Message&)>> setters;
  const auto add = [&](auto set, auto add_to, auto value) {
    setters.push_back([=](Message& message) {
      const auto* reflection = message.GetReflection();
      (reflection->*(field->is_repeated() ? add_to : set))(&message, field, value);
    });
  };
  using R = google::protobuf::Reflection;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      add(&R::SetInt32, &R::AddInt32, 1);
      add(&R::SetInt32, &R::AddInt32, 3);
      break;
    case FieldDescriptor::CPPTYPE_UINT64:
      add(&R::SetUInt64, &R::AddUInt64, 3);
      break;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      add(&R::SetDouble, &R::AddDouble, 0.625);
      break;
    case FieldDescriptor::CPPTYPE_BOOL:
      add(&R::SetBool, &R::AddBool, true);
      add(&R::SetBool, &R::AddBool, false);
      break;
    case FieldDescriptor::CPPTYPE_STRING:
      add(&R::SetString, &R::AddString, "x");
      break;
    case FieldDescriptor::CPPTYPE_ENUM:
      for (int i = 0; i < field->enum_type()->value_count(); ++i) {
        add(&R::SetEnumValue, &R::AddEnumValue, field->enum_type()->value(i)->number());
      }
      break;
    default:
      ADD_FAILURE() << field->full_name() << " is of a type that this test does not know";
  }
  return setters;
}

/// Sets each field below `part` of a copy of `base` in turn; `find` leads from the copy to the part.
void ExpectEveryFieldMatters(const Message& base, const google::protobuf::Descriptor& part,
                             const std::function<Message*(Message*)>& find, const Outcome& outcome) {
  for (int i = 0; i < part.field_count(); ++i) {
    const FieldDescriptor* field = part.field(i);
    if (field->message_type() != nullptr) {
      const auto deeper = [&](Message* message) {
        Message* parent = find(message);
        const auto* reflection = parent->GetReflection();
        return field->is_repeated() ? reflection->AddMessage(parent, field)
                                    : reflection->MutableMessage(parent, field);
      };
      ExpectEveryFieldMatters(base, *field->message_type(), deeper, outcome);
      continue;
    }
    bool matters = false;
    for (const auto& set : Setters(field)) {
      // The parts on the way exist in both, so that only the field itself can make the difference.
      const std::unique_ptr<Message> without(base.New());
      without->CopyFrom(base);
      Message* cleared = find(without.get());
      cleared->GetReflection()->ClearField(cleared, field);
      const std::unique_ptr<Message> with(base.New());
      with->CopyFrom(base);
      set(*find(with.get()));
      matters = matters || outcome(*with) != outcome(*without);
    }
    EXPECT_TRUE(matters) << field->full_name() << " is read by nobody";
  }
}

std::map<std::string, std::pair<std::shared_ptr<Message>, Outcome>> Requests() {
  const auto prompt = [](auto request) {
    request->mutable_prompt()->set_question("why?");
    return request;
  };
  testing::FakeEngine engine;
  const std::string key = engine.StoreChunk("", 1, 10).ToHex();
  const auto keys = [&](auto request) {
    request->add_keys(key);
    return request;
  };
  auto score = prompt(std::make_shared<v1::ScoreRequest>());
  score->set_continuation_text("because");
  return {
      {"GenerateRequest", {prompt(std::make_shared<v1::GenerateRequest>()), Converted<v1::GenerateRequest>}},
      {"ScoreRequest", {score, Converted<v1::ScoreRequest>}},
      {"PutChunksRequest", {std::make_shared<v1::PutChunksRequest>(), Converted<v1::PutChunksRequest>}},
      {"SplitDocumentRequest",
       {std::make_shared<v1::SplitDocumentRequest>(), Converted<v1::SplitDocumentRequest>}},
      {"PrefetchChunksRequest",
       {std::make_shared<v1::PrefetchChunksRequest>(), Converted<v1::PrefetchChunksRequest>}},
      {"StatChunksRequest", {keys(std::make_shared<v1::StatChunksRequest>()), Answered(&Calls::Stat)}},
      {"ListChunksRequest", {std::make_shared<v1::ListChunksRequest>(), Answered(&Calls::List)}},
      {"DeleteChunksRequest", {keys(std::make_shared<v1::DeleteChunksRequest>()), Answered(&Calls::Delete)}},
      {"PinChunksRequest", {keys(std::make_shared<v1::PinChunksRequest>()), Answered(&Calls::Pin)}},
      {"UpdateCorrectionRequest",
       {std::make_shared<v1::UpdateCorrectionRequest>(), Answered(&Calls::UpdateCorrection)}},
      {"GetInfoRequest", {std::make_shared<v1::GetInfoRequest>(), [](const Message& request) {
                            testing::FakeEngine limited;
                            limited.chunks().LimitNamespaces({{"x", 7}});
                            EngineSlot slot;
                            slot.Serve(&limited);
                            return std::to_string(
                                EngineCalls(&slot, {})
                                    .GetInfo(static_cast<const v1::GetInfoRequest&>(request))
                                    ->store()
                                    .namespace_byte_limit());
                          }}}};
}

TEST(RequestFieldsTest, UnsetFieldsHaveTheEnginesDefaults) {
  GenerateRequest defaults;
  defaults.prompt.question = "why?";
  v1::GenerateRequest request;
  request.mutable_prompt()->set_question("why?");
  EXPECT_EQ(Converted<v1::GenerateRequest>(request), Describe::Text(defaults));
}

TEST(RequestFieldsTest, EveryFieldOfEveryRequestMakesADifference) {
  const auto requests = Requests();
  for (const auto* file :
       {v1::GenerateRequest::descriptor()->file(), v1::PutChunksRequest::descriptor()->file(),
        v1::GetInfoRequest::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) {
      for (int j = 0; j < file->service(i)->method_count(); ++j) {
        const google::protobuf::Descriptor* input = file->service(i)->method(j)->input_type();
        const auto found = requests.find(input->name());
        ASSERT_NE(found, requests.end()) << input->full_name() << " is not tested here";
        const auto& [base, outcome] = found->second;
        ExpectEveryFieldMatters(
            *base, *input, [](Message* message) { return message; }, outcome);
      }
    }
  }
}

}  // namespace
}  // namespace kvblend::server
