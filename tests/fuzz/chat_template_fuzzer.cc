// Any bytes as a chat template: reading its format ends, in bounded memory, with a status or with a format
// whose prompts hold the texts in the order of the conversation.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/chat/template_reader.h"
#include "engine/text/jinja/template.h"
#include "tests/fuzz/check.h"

namespace kvblend::text {
namespace {

using test_support::Check;

// Fewer steps than a server allows, so that an input takes milliseconds.
void RenderOnce(std::string_view source) {
  const absl::StatusOr<jinja::Template> parsed = jinja::Template::Parse(source);
  if (!parsed.ok()) {
    Check(!parsed.status().message().empty(), "an error has words");
    return;
  }
  jinja::Environment environment;
  environment.limits = {.steps = 5000, .bytes = 1 << 20, .output_bytes = 1 << 16};
  const absl::StatusOr<jinja::Value> message = jinja::Value::Dict(
      {{"role", jinja::Value::String("user")}, {"content", jinja::Value::String(" h\xC3\xA9llo\n")}});
  const absl::StatusOr<jinja::Value> messages = jinja::Value::List({*message, *message});
  environment.variables = {{"messages", *messages}, {"bos_token", jinja::Value::String("<s>")}};
  const absl::StatusOr<std::string> output = parsed->Render(environment);
  if (output.ok()) Check(output->size() <= environment.limits.output_bytes, "the output is bounded");
}

void ReadFormat(std::string_view source) {
  const absl::StatusOr<ChatFormat> format = ReadChatFormat(source, {.bos = "<s>", .eos = "</s>"});
  if (!format.ok()) return;
  const std::vector<ChatTurn> history = {{Role::kUser, "one"}, {Role::kAssistant, "two"}};
  const auto parts = ComposeChat(*format, "", history, "three");
  Check(parts.ok() && parts->size() == 3, "turns that alternate are allowed");
  Check((*parts)[0].text == "one" && (*parts)[2].text == "three", "texts are in order");
  Check(format->piece(ChatPoint::kUser, ChatPoint::kEnd).has_value(), "prompts end");
}

}  // namespace
}  // namespace kvblend::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  kvblend::text::RenderOnce(source);
  // Some thirty renderings: for inputs that are templates of chats.
  if (source.find("messages") != std::string_view::npos) kvblend::text::ReadFormat(source);
  return 0;
}
