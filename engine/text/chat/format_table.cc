// The named formats: for files without a template that runs here, and to know templates by.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/text/chat/chat_format.h"
#include "engine/text/jinja/message.h"

namespace kvblend::text {
namespace {

enum class SystemAs { kOwnTurn, kInFirstUser, kInLastUser };

// {bos} and {eos} stand for the model's own tokens.
struct FormatRow {
  const char* name;
  const char* start;  // of the prompt
  SystemAs system_as;
  const char* system[2];  // around the text; within the user's turn if it is in that
  const char* user[2];
  const char* assistant[2];
  const char* answer;  // opens the answer
  const char*
      trimmed;  // 's', 'u' and 'a': system, user, assistant; 'f': also the user's text behind the system text
  bool alternates = false;  // the model knows no two turns of the same role in a row
  std::vector<const char*> control_tokens = {};
  bool strips_behind_control = false;
};

const std::vector<FormatRow>& Rows() {
  static const auto& rows = *new std::vector<FormatRow>{
      {.name = "chatml",
       .start = "",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|im_start|>system\n", "<|im_end|>\n"},
       .user = {"<|im_start|>user\n", "<|im_end|>\n"},
       .assistant = {"<|im_start|>assistant\n", "<|im_end|>\n"},
       .answer = "<|im_start|>assistant\n",
       .trimmed = "",
       .control_tokens = {"<|im_start|>", "<|im_end|>"}},
      {.name = "llama2",
       .start = "",
       .system_as = SystemAs::kInFirstUser,
       .system = {"<<SYS>>\n", "\n<</SYS>>\n\n"},
       .user = {"{bos}[INST] ", " [/INST]"},
       .assistant = {" ", " {eos}"},
       .answer = "",
       .trimmed = "ua",
       .alternates = true},
      {.name = "llama3",
       .start = "{bos}",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
       .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
       .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"},
       .answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
       .trimmed = "sufa",
       .control_tokens = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}},
      {.name = "mistral",
       .start = "{bos}",
       .system_as = SystemAs::kInFirstUser,
       .system = {"", "\n\n"},
       .user = {" [INST] ", " [/INST]"},
       .assistant = {" ", "{eos}"},
       .answer = "",
       .trimmed = "",
       .alternates = true},
      {.name = "mistral-v3",
       .start = "{bos}",
       .system_as = SystemAs::kInLastUser,
       .system = {"", "\n\n"},
       .user = {"[INST] ", "[/INST]"},
       .assistant = {" ", "{eos}"},
       .answer = "",
       .trimmed = "a",
       .alternates = true,
       .control_tokens = {"[INST]", "[/INST]"}},
      {.name = "mistral-tekken",
       .start = "{bos}",
       .system_as = SystemAs::kInLastUser,
       .system = {"", "\n\n"},
       .user = {"[INST]", "[/INST]"},
       .assistant = {"", "{eos}"},
       .answer = "",
       .trimmed = "",
       .alternates = true,
       .control_tokens = {"[INST]", "[/INST]"}},
      {.name = "mistral-v7",
       .start = "{bos}",
       .system_as = SystemAs::kOwnTurn,
       .system = {"[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
       .user = {"[INST]", "[/INST]"},
       .assistant = {"", "{eos}"},
       .answer = "",
       .trimmed = "",
       .control_tokens = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"}},
      {.name = "gemma",
       .start = "{bos}",
       .system_as = SystemAs::kInFirstUser,
       .system = {"", "\n\n"},
       .user = {"<start_of_turn>user\n", "<end_of_turn>\n"},
       .assistant = {"<start_of_turn>model\n", "<end_of_turn>\n"},
       .answer = "<start_of_turn>model\n",
       .trimmed = "ufa",
       .alternates = true,
       .control_tokens = {"<start_of_turn>", "<end_of_turn>"}},
      {.name = "phi3",
       .start = "",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|system|>\n", "<|end|>\n"},
       .user = {"<|user|>\n", "<|end|>\n"},
       .assistant = {"<|assistant|>\n", "<|end|>\n"},
       .answer = "<|assistant|>\n",
       .trimmed = "",
       .control_tokens = {"<|user|>", "<|assistant|>", "<|end|>"},
       .strips_behind_control = true},
      {.name = "granite",
       .start = "",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"},
       .user = {"<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"},
       .assistant = {"<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"},
       .answer = "<|start_of_role|>assistant<|end_of_role|>",
       .trimmed = "",
       .control_tokens = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"}},
      // The system text is what the format calls a developer's; what it calls the system's is fixed.
      {.name = "harmony",
       .start =
           "<|start|>system<|message|>Reasoning: medium\n\n# Valid channels: analysis, commentary, final. Channel "
           "must be included for every message.<|end|>",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|start|>developer<|message|># Instructions\n\n", "\n\n<|end|>"},
       .user = {"<|start|>user<|message|>", "<|end|>"},
       .assistant = {"<|start|>assistant<|channel|>final<|message|>", "<|end|>"},
       .answer = "<|start|>assistant",
       .trimmed = "",
       .control_tokens = {"<|start|>", "<|message|>", "<|channel|>", "<|end|>"}},
      {.name = "zephyr",
       .start = "",
       .system_as = SystemAs::kOwnTurn,
       .system = {"<|system|>\n", "{eos}\n"},
       .user = {"<|user|>\n", "{eos}\n"},
       .assistant = {"<|assistant|>\n", "{eos}\n"},
       .answer = "<|assistant|>\n",
       .trimmed = ""},
      // For models that have learned no conversations: they write on where the question's text ends.
      {.name = "plain",
       .start = "",
       .system_as = SystemAs::kOwnTurn,
       .system = {"", "\n\n"},
       .user = {"", ""},
       .assistant = {"", "\n\n"},
       .answer = "",
       .trimmed = ""},
  };
  return rows;
}

ChatFormat Expanded(const FormatRow& row, std::string_view bos, std::string_view eos) {
  const absl::string_view bos_text(bos.data(), bos.size());
  const absl::string_view eos_text(eos.data(), eos.size());
  const auto join = [&](std::initializer_list<const char*> texts) {
    std::string joined;
    for (const char* text : texts) joined += text;
    return absl::StrReplaceAll(joined, {{"{bos}", bos_text}, {"{eos}", eos_text}});
  };
  using enum ChatPoint;
  ChatFormat format;
  format.name = row.name;
  format.piece(kStart, kUser) = join({row.start, row.user[0]});
  format.piece(kUser, kAssistant) = join({row.user[1], row.assistant[0]});
  format.piece(kAssistant, kUser) = join({row.assistant[1], row.user[0]});
  format.piece(kUser, kEnd) = join({row.user[1], row.answer});
  if (!row.alternates) {
    format.piece(kStart, kAssistant) = join({row.start, row.assistant[0]});
    format.piece(kUser, kUser) = join({row.user[1], row.user[0]});
    format.piece(kAssistant, kAssistant) = join({row.assistant[1], row.assistant[0]});
  }
  format.system_place = row.system_as == SystemAs::kInLastUser ? SystemPlace::kLastUser : SystemPlace::kFirst;
  if (row.system_as == SystemAs::kOwnTurn) {
    format.piece(kStart, kSystem) = join({row.start, row.system[0]});
    format.piece(kSystem, kUser) = join({row.system[1], row.user[0]});
    if (!row.alternates) format.piece(kSystem, kAssistant) = join({row.system[1], row.assistant[0]});
  } else {
    format.piece(kStart, kSystem) = join({row.start, row.user[0], row.system[0]});
    format.piece(kSystem, kUser) = join({row.system[1]});
  }
  if (row.system_as == SystemAs::kInLastUser) {
    format.piece(kAssistant, kSystem) = join({row.assistant[1], row.user[0], row.system[0]});
  }
  const auto trimming = [&](char role) {
    const bool trimmed = std::string_view(row.trimmed).find(role) != std::string_view::npos;
    return Trimming{.left = trimmed, .right = trimmed};
  };
  format.system = trimming('s');
  format.user = format.first_user = trimming('u');
  format.assistant = trimming('a');
  // The right end is that of the turn, whatever stands before it.
  format.user_after_system = {.left = trimming('f').left, .right = format.user.right};
  format.control_tokens.assign(row.control_tokens.begin(), row.control_tokens.end());
  format.strips_behind_control = row.strips_behind_control;
  return format;
}

}  // namespace

std::vector<ChatFormat> NamedChatFormats(std::string_view bos, std::string_view eos) {
  std::vector<ChatFormat> formats;
  for (const FormatRow& row : Rows()) formats.push_back(Expanded(row, bos, eos));
  return formats;
}

std::string ChatFormatNames() {
  std::string names = "auto";
  for (const FormatRow& row : Rows()) names += std::string(", ") + row.name;
  return names;
}

absl::Status CheckChatFormatName(std::string_view name) {
  if (name == "auto") return absl::OkStatus();
  for (const FormatRow& row : Rows()) {
    if (name == row.name) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      jinja::Message("chat-format is '", name, "'; allowed: ", ChatFormatNames()));
}

}  // namespace kvblend::text
