// The default model's own tokenizer and chat template, read from its GGUF file: KVBLEND_MODEL, else
// models/SmolLM2-135M-Instruct.Q4_1.gguf in the source folder. Fails the test when the file is not there.
#pragma once

#include <memory>
#include <string>

#include "engine/text/tokenizer.h"

namespace kvblend::text {

/// With `pre_tokenizer` in place of the file's own.
std::unique_ptr<Tokenizer> LoadModelTokenizer(const std::string& pre_tokenizer);

/// tokenizer.chat_template.
std::string LoadModelChatTemplate();

}  // namespace kvblend::text
